"""Settings -> the engine's arguments: which source wins, and nothing that was not set."""

import json
import shlex
from argparse import ArgumentParser
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import env_schema
from worker import catalog, engine_args
from worker.engine_args import EnginePlan
from worker.errors import ConfigurationError

SECRET = "s3cr3t-Value-4711"  # noqa: S105  # a planted one
PLATFORM = {"RUNPOD_WEBHOOK_GET_JOB": "https://api.runpod.ai/v2/x/job-take/y"}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}


@pytest.fixture(autouse=True)
def _on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "is_cpu_build", lambda: False)


@pytest.fixture
def _on_a_cpu(_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "is_cpu_build", lambda: True)


def plan(environ: dict[str, str] | None = None, /, **more: str) -> EnginePlan:
    return engine_args.plan(env_schema.load({"MODEL_NAME": "org/model", **(environ or {}), **more}))


def refusal(**environ: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        engine_args.plan(env_schema.load(environ))
    return str(refused.value)


def layers(
    folder: Path, file: str | None, variables: dict[str, str], extra: str | None
) -> dict[str, str]:
    """An environment with these three sources, None where there is no such source."""
    environ = dict(variables)
    if file is not None:
        (folder / "engine.yaml").write_text(file)
        environ["VLLM_CONFIG_FILE"] = str(folder / "engine.yaml")
    if extra is not None:
        environ["VLLM_EXTRA_ARGS"] = extra
    return environ


# ---- only what was set


def test_an_environment_that_sets_nothing_passes_the_model_alone() -> None:
    made = plan()
    assert made.arguments == {"model": "org/model"}
    assert made.sources == {"model": "MODEL_NAME"}
    assert made.warnings == ()


def test_what_the_worker_keeps_for_itself_is_not_passed() -> None:
    made = plan(
        HF_TOKEN=SECRET,
        BASE_PATH="/volume",
        MAX_CONCURRENCY="3",
        RAW_OPENAI_OUTPUT="0",
        DEFAULT_BATCH_SIZE="5",
        STREAM_FLUSH_MS="10",
    )
    assert made.arguments == {"model": "org/model"}


@pytest.mark.parametrize(
    ("variable", "argument", "text", "value"),
    [
        ("MODEL_REVISION", "revision", "v1", "v1"),
        ("TOKENIZER_NAME", "tokenizer", "org/tok", "org/tok"),
        ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "served_model_name", "a,b", ["a", "b"]),
        ("CUSTOM_CHAT_TEMPLATE", "chat_template", "{{ x }}", "{{ x }}"),
        ("OPENAI_RESPONSE_ROLE", "response_role", "bot", "bot"),
        ("LOG_LEVEL", "log_level", "debug", "DEBUG"),
        ("MAX_MODEL_LEN", "max_model_len", "auto", -1),
        ("ENABLE_PREFIX_CACHING", "enable_prefix_caching", "false", False),
        ("SEED", "seed", "0", 0),
    ],
)
def test_a_variable_reaches_its_argument(
    variable: str, argument: str, text: str, value: Any
) -> None:
    made = plan({variable: text})
    assert made.arguments == {"model": "org/model", argument: value}
    assert made.sources[argument] == variable


def test_the_source_of_an_argument_is_the_name_that_set_it() -> None:
    assert plan(TOKENIZER="org/tok").sources["tokenizer"] == "TOKENIZER"


# ---- which source wins


# Each source with its rank where it says something, None where it does not.
SOURCES = [each for each in product((None, 1), (None, 2), (None, 3)) if any(each)]
SPECULATION = {
    "flat": (
        "spec-method: ngram\nspec-tokens: 1\n",
        {"SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "2"},
        "--spec-method ngram --spec-tokens 3",
    ),
    "whole": (
        "speculative-config: {method: ngram, num_speculative_tokens: 1}\n",
        {"SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 2}'},
        "-sc.method ngram -sc.num_speculative_tokens 3",
    ),
}


@pytest.mark.parametrize(("file", "variables", "extra"), SOURCES)
def test_for_an_argument_flags_win_over_variables_and_these_over_the_file(
    tmp_path: Path, file: int | None, variables: int | None, extra: int | None
) -> None:
    environ = layers(
        tmp_path,
        f"max-num-seqs: {file}0\n" if file else None,
        {"MAX_NUM_SEQS": f"{variables}0"} if variables else {},
        f"--max-num-seqs {extra}0" if extra else None,
    )
    made = plan(environ, MAX_CONCURRENCY="1")
    winner = max(filter(None, (file, variables, extra)))
    assert made.arguments["max_num_seqs"] == winner * 10
    names = {1: "VLLM_CONFIG_FILE", 2: "MAX_NUM_SEQS", 3: "VLLM_EXTRA_ARGS"}
    assert made.sources["max_num_seqs"] == names[winner]


@pytest.mark.parametrize(("file", "variables", "extra"), SOURCES)
def test_for_the_model_flags_win_over_variables_and_these_over_the_file(
    tmp_path: Path, file: int | None, variables: int | None, extra: int | None
) -> None:
    environ = layers(
        tmp_path,
        "model: org/1\n" if file else None,
        {"MODEL_NAME": "org/2"} if variables else {},
        "--model org/3" if extra else None,
    )
    made = engine_args.plan(env_schema.load({**environ, **PLATFORM}))
    assert made.arguments["model"] == f"org/{max(filter(None, (file, variables, extra)))}"
    assert not made.is_embedded


@pytest.mark.parametrize(("file", "variables", "extra"), SOURCES)
@pytest.mark.parametrize("form", SPECULATION)
def test_for_speculation_flags_win_over_variables_and_these_over_the_file(
    tmp_path: Path, form: str, file: int | None, variables: int | None, extra: int | None
) -> None:
    said_by_file, said_by_variables, said_by_flags = SPECULATION[form]
    environ = layers(
        tmp_path,
        said_by_file if file else None,
        said_by_variables if variables else {},
        said_by_flags if extra else None,
    )
    made = plan(environ)
    winner = max(filter(None, (file, variables, extra)))
    assert made.speculative_config == {**NGRAM, "num_speculative_tokens": winner}


@pytest.mark.parametrize(
    ("file", "variables", "config"),
    [
        (
            "speculative-config: {method: ngram, num_speculative_tokens: 7, prompt_lookup_max: 6}",
            {"NUM_SPECULATIVE_TOKENS": "2"},
            {**NGRAM, "num_speculative_tokens": 2, "prompt_lookup_max": 6},
        ),
        (
            "speculative-config: {method: ngram, prompt-lookup-max: 6}",
            {"NGRAM_PROMPT_LOOKUP_MAX": "3"},
            {**NGRAM, "prompt_lookup_max": 3},
        ),
        (
            "speculative-config: {method: eagle3, model: org/head, num_speculative_tokens: 2}",
            {"SPECULATIVE_METHOD": "ngram"},
            {**NGRAM, "num_speculative_tokens": 2},
        ),
        (
            "spec-method: ngram\nspec-tokens: 2\n",
            {"SPECULATIVE_MODEL": "org/draft"},
            {"model": "org/draft", "num_speculative_tokens": 2},
        ),
        (
            "spec-model: org/draft\nspec-tokens: 2\n",
            {"SPECULATIVE_CONFIG": json.dumps(NGRAM)},
            NGRAM,
        ),
        (
            "speculative-config: {method: ngram, enforce_eager: true}",
            {"SPECULATIVE_ENFORCE_EAGER": "false"},
            {**NGRAM, "enforce_eager": False},
        ),
    ],
)
def test_the_file_yields_to_the_variables_setting_by_setting(
    tmp_path: Path, file: str, variables: dict[str, str], config: dict[str, Any]
) -> None:
    made = plan(layers(tmp_path, file, variables, None))
    assert made.speculative_config == config
    assert made.sources["speculative_config"] == next(iter(variables))


def test_flags_for_speculation_replace_all_variables_and_say_so() -> None:
    made = plan(
        SPECULATIVE_MODEL="org/draft",
        SPECULATIVE_DISABLE_BY_BATCH_SIZE="8",
        VLLM_EXTRA_ARGS="--spec-method ngram --spec-tokens 5",
    )
    assert made.speculative_config == {**NGRAM, "num_speculative_tokens": 5}
    assert made.sources["speculative_config"] == "VLLM_EXTRA_ARGS"
    assert any(
        warning.startswith("SPECULATIVE_MODEL, SPECULATIVE_DISABLE_BY_BATCH_SIZE: no effect")
        for warning in made.warnings
    )


@pytest.mark.parametrize("extra", ["--speculative-config None", "--spec-method ''"])
def test_a_flag_can_switch_speculation_off(extra: str) -> None:
    made = plan(SPECULATIVE_METHOD="ngram", NUM_SPECULATIVE_TOKENS="3", VLLM_EXTRA_ARGS=extra)
    assert made.speculative_config is None
    assert made.arguments == {"model": "org/model"}
    assert any("VLLM_EXTRA_ARGS sets speculation" in warning for warning in made.warnings)


def test_a_flag_that_says_none_takes_a_lower_source_back() -> None:
    made = plan(QUANTIZATION="awq", VLLM_EXTRA_ARGS="--quantization None")
    assert made.arguments == {"model": "org/model"}
    assert "quantization" not in made.sources


def test_a_file_and_flags_that_say_nothing_change_nothing(tmp_path: Path) -> None:
    assert plan(layers(tmp_path, "", {}, "  ")) == plan()


# ---- the model


def test_without_a_model_the_embedded_one_is_served_locally_and_said() -> None:
    made = engine_args.plan(env_schema.load({}))
    assert made.is_embedded
    assert made.arguments == {
        "model": engine_args.EMBEDDED_MODEL,
        "served_model_name": [engine_args.EMBEDDED_MODEL],
    }
    assert made.sources["model"] == "embedded model (MODEL_NAME is not set)"


def test_the_embedded_model_can_be_served_under_another_name() -> None:
    made = engine_args.plan(env_schema.load({"SERVED_MODEL_NAME": "mine"}))
    assert made.is_embedded
    assert made.arguments["served_model_name"] == ["mine"]


def test_a_model_that_has_the_embedded_ones_name_is_not_the_embedded_one() -> None:
    assert not plan(MODEL_NAME=engine_args.EMBEDDED_MODEL).is_embedded


@pytest.mark.parametrize("nothing", [{}, {"MODEL_NAME": ""}, {"MODEL_NAME": "None"}])
def test_without_a_model_the_platform_is_refused(nothing: dict[str, str]) -> None:
    told = refusal(**PLATFORM, **nothing)
    assert told.startswith("MODEL_NAME: not set, so there is no model to serve. Set it to ")


def test_a_variable_without_effect_is_no_source_of_the_speculative_config() -> None:
    made = plan(
        SPECULATIVE_MODEL="org/draft",
        NGRAM_PROMPT_LOOKUP_MAX="4",
        SPEC_DECODING_ACCEPTANCE_METHOD="typical_acceptance_sampler",
        TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA="0.3",
    )
    assert made.sources["speculative_config"] == "SPECULATIVE_MODEL"
    ngram = plan(SPECULATIVE_METHOD="ngram", SPECULATIVE_QUANTIZATION="awq")
    assert ngram.sources["speculative_config"] == "SPECULATIVE_METHOD"


# ---- what serverless needs


@pytest.mark.usefixtures("_on_a_cpu")
def test_on_a_cpu_the_defaults_are_eager_and_a_small_cache() -> None:
    made = plan()
    assert made.arguments == {
        "model": "org/model", "enforce_eager": True, "kv_cache_memory_bytes": 2**30
    }  # fmt: skip
    assert made.sources["enforce_eager"] == "default: compiling for a CPU takes minutes"


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize(
    ("environ", "arguments"),
    [
        (
            {"ENFORCE_EAGER": "false", "KV_CACHE_MEMORY_BYTES": "2G"},
            {"enforce_eager": False, "kv_cache_memory_bytes": 2**31},
        ),
        (
            {"GPU_MEMORY_UTILIZATION": "0.5"},
            {"enforce_eager": True, "gpu_memory_utilization": 0.5},
        ),
        (
            {"VLLM_EXTRA_ARGS": "--no-enforce-eager --gpu-memory-utilization 0.5"},
            {"enforce_eager": False, "gpu_memory_utilization": 0.5},
        ),
    ],
)
def test_a_default_yields_to_every_source(
    environ: dict[str, str], arguments: dict[str, Any]
) -> None:
    assert plan(environ).arguments == {"model": "org/model", **arguments}


def test_acceptance_is_measured_where_there_is_speculation() -> None:
    made = plan(SPECULATIVE_CONFIG=json.dumps(NGRAM))
    assert made.arguments["per_request_spec_decode_metrics"] == "summary"
    detailed = plan(
        SPECULATIVE_CONFIG=json.dumps(NGRAM), PER_REQUEST_SPEC_DECODE_METRICS="detailed"
    )
    assert detailed.arguments["per_request_spec_decode_metrics"] == "detailed"
    off = plan(
        SPECULATIVE_CONFIG=json.dumps(NGRAM),
        VLLM_EXTRA_ARGS="--per-request-spec-decode-metrics none",
    )
    assert off.arguments["per_request_spec_decode_metrics"] == "none"


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, True),
        ({"SPECULATIVE_REPORT": "true"}, True),
        ({"SPECULATIVE_REPORT": "off"}, False),
        ({"SPECULATIVE_REPORT": "off", "PER_REQUEST_SPEC_DECODE_METRICS": "summary"}, True),
        (
            {
                "SPECULATIVE_REPORT": "off",
                "VLLM_EXTRA_ARGS": "--per-request-spec-decode-metrics detailed",
            },
            True,
        ),
    ],
)
def test_acceptance_is_shown_unless_the_report_is_off(environ: dict[str, str], shown: bool) -> None:
    settings = env_schema.load({"MODEL_NAME": "org/model", **SPECULATING, **environ})
    made = engine_args.plan(settings)
    assert engine_args.reports_acceptance(settings, made) == shown
    assert made.arguments["per_request_spec_decode_metrics"] in ("summary", "detailed")


SPECULATING = {"SPECULATIVE_CONFIG": json.dumps(NGRAM)}


@pytest.mark.parametrize("report", ["true", "false"])
def test_the_report_is_no_part_of_the_engines_config(report: str) -> None:
    plain, made = plan(SPECULATING), plan(SPECULATING, SPECULATIVE_REPORT=report)
    assert made.arguments == plain.arguments
    assert made.sources == plain.sources
    assert made.warnings == plain.warnings


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({}, "speculation is off"),
        (
            {**SPECULATING, "VLLM_EXTRA_ARGS": "--per-request-spec-decode-metrics none"},
            "PER_REQUEST_SPEC_DECODE_METRICS is none",
        ),
    ],
)
def test_a_report_of_nothing_is_told(environ: dict[str, str], why: str) -> None:
    (warning,) = plan(environ, SPECULATIVE_REPORT="true").warnings
    assert warning == f"SPECULATIVE_REPORT has no effect: {why}"
    assert plan(environ, SPECULATIVE_REPORT="false").warnings == ()


def test_every_default_names_an_argument_and_has_a_reason() -> None:
    for default in engine_args.DEFAULTS:
        assert default.argument in catalog.load().arguments
        assert default.reason


# ---- what a queue endpoint has no use for


def test_arguments_of_a_port_are_dropped_and_told() -> None:
    made = plan(PORT="8000", HOST="0.0.0.0", VLLM_EXTRA_ARGS=f"--api-key {SECRET}")  # noqa: S104
    assert made.arguments == {"model": "org/model"}
    assert made.warnings == (
        "API_KEY has no effect: the platform authenticates callers before a job reaches the worker",
        "HOST has no effect: a queue endpoint opens no port",
        "PORT has no effect: a queue endpoint opens no port",
    )


def test_every_argument_of_a_port_is_one_of_the_front_ends() -> None:
    for name in engine_args.NOT_ON_A_QUEUE:
        assert catalog.load().arguments[name].side == "frontend"


# ---- rules over several arguments


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"ENABLE_AUTO_TOOL_CHOICE": "1"}, "ENABLE_AUTO_TOOL_CHOICE=true: needs a parser"),
        (
            {"SPECULATIVE_MODEL": "org/d", "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "2"},
            "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE=2: is neither 1 nor the target's own "
            "TENSOR_PARALLEL_SIZE=1.",
        ),
        (
            {
                "SPECULATIVE_MODEL": "org/d",
                "SPECULATIVE_MAX_MODEL_LEN": "5000",
                "MAX_MODEL_LEN": "4096",
            },
            "SPECULATIVE_MAX_MODEL_LEN=5000: is above the target's own MAX_MODEL_LEN=4096.",
        ),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(environ: dict[str, str], told: str) -> None:
    assert refusal(**environ).startswith(told)


@pytest.mark.parametrize(
    "environ",
    [
        {"ENABLE_AUTO_TOOL_CHOICE": "1", "TOOL_CALL_PARSER": "hermes"},
        {"ENABLE_AUTO_TOOL_CHOICE": "0"},
        {
            "SPECULATIVE_MODEL": "org/d",
            "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "4",
            "TENSOR_PARALLEL_SIZE": "4",
        },
        {"SPECULATIVE_MODEL": "org/d", "SPECULATIVE_MAX_MODEL_LEN": "9", "MAX_MODEL_LEN": "auto"},
        {"SPECULATIVE_METHOD": "ngram", "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "2"},
    ],
)
def test_arguments_that_go_together_are_taken(environ: dict[str, str]) -> None:
    assert plan(environ).arguments["model"] == "org/model"


def test_more_jobs_than_sequences_is_told() -> None:
    (warning,) = plan(MAX_NUM_SEQS="8", MAX_CONCURRENCY="9").warnings
    assert warning.startswith("MAX_CONCURRENCY=9 is above MAX_NUM_SEQS=8")
    assert plan(MAX_NUM_SEQS="8", MAX_CONCURRENCY="8").warnings == ()


def test_the_problems_of_all_sources_come_together(tmp_path: Path) -> None:
    environ = layers(
        tmp_path,
        "seed: x\nbogus: 1\n",
        {"SPECULATIVE_METHOD": "draft_model", "ENABLE_AUTO_TOOL_CHOICE": "1"},
        "--dtype float61 --bogus",
    )
    told = refusal(**environ, **PLATFORM).splitlines()
    assert sorted(line.partition(":")[0].partition("=")[0] for line in told) == [
        "ENABLE_AUTO_TOOL_CHOICE",
        "MODEL_NAME",
        "SPECULATIVE_MODEL",
        "VLLM_CONFIG_FILE",
        "VLLM_CONFIG_FILE",
        "VLLM_EXTRA_ARGS",
        "VLLM_EXTRA_ARGS",
    ]


def test_a_plan_does_not_write_its_arguments_into_a_traceback() -> None:
    assert SECRET not in repr(plan(VLLM_EXTRA_ARGS=f"--hf-token {SECRET}"))


# ---- the command line that they stand for


def test_the_command_line_is_what_one_would_type() -> None:
    made = plan(MAX_NUM_SEQS="64", ENFORCE_EAGER="1", ENABLE_PREFIX_CACHING="0", DTYPE="bf16")
    assert shlex.join(engine_args.command_line(made.arguments)) == (
        "vllm serve org/model --dtype bfloat16 --enforce-eager --no-enable-prefix-caching "
        "--max-num-seqs 64"
    )


def test_the_command_line_holds_no_secret() -> None:
    words = engine_args.command_line(
        {
            "model": "org/model",
            "hf_token": SECRET,
            "api_key": [SECRET],
            "kv_transfer_config": {"kv_connector_extra_config": {"access_token": SECRET}},
        }
    )
    assert not any(SECRET in word for word in words)


RICH = {
    "MODEL_NAME": "org/model",
    "MODEL_REVISION": "v1",
    "TOKENIZER": "org/tok",
    "TRUST_REMOTE_CODE": "yes",
    "DTYPE": "bf16",
    "MAX_MODEL_LEN": "16k",
    "GPU_MEMORY_UTILIZATION": "0.5",
    "ENABLE_PREFIX_CACHING": "off",
    "SERVED_MODEL_NAME": "a,b",
    "CUSTOM_CHAT_TEMPLATE": "{% for m in messages %}\n- {{ m['content'] }}\n{% endfor %}",
    "LORA_MODULES": "sql=/a law=org/b",
    "SPECULATIVE_MODEL": "[ngram]",
    "NUM_SPECULATIVE_TOKENS": "3",
    "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "8",
    "COMPILATION_CONFIG": '{"mode": 0}',
    "HF_OVERRIDES": "{'a': {'b': None}}",
    "LIMIT_MM_PER_PROMPT": '{"image": 2}',
    "DEVICE_IDS": "0,1",
    "ALLOWED_ORIGINS": '["*"]',
    "VLLM_EXTRA_ARGS": "--middleware a.b --middleware c.d --seed -3 --no-enforce-eager -O2",
    "LOG_LEVEL": "warn",
}


@pytest.mark.engine
def test_the_engine_reads_a_plans_command_line_back_as_the_same_namespace() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from worker import launch

    made = plan(RICH)
    parser: ArgumentParser = make_arg_parser(FlexibleArgumentParser())
    read = vars(parser.parse_args(engine_args.command_line(made.arguments)[2:]))
    started = vars(launch.namespace(made.arguments))
    assert read["model_tag"] == started["model"]
    different = {
        name: (read[name], started.get(name))
        for name in read
        if name not in ("model", "model_tag") and repr(read[name]) != repr(started.get(name))
    }
    assert different == {}
    assert {name for name in made.arguments if name not in read} <= {"model"}
