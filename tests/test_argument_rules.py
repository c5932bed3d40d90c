"""Rules that the engine applies seconds after its import are applied before it."""

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

import env_schema
from worker import argument_rules, catalog, engine_args
from worker.engine_args import EnginePlan
from worker.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "is_cpu_build", lambda: False)


def plan(**environ: str) -> EnginePlan:
    return engine_args.plan(env_schema.load({"MODEL_NAME": "org/model", **environ}))


def refusal(**environ: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        plan(**environ)
    return str(refused.value)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"QUANTIZATION": "awq_marlim"},
            "QUANTIZATION=awq_marlim: is not one that the engine has; the nearest is awq_",
        ),
        (
            {"LOAD_FORMAT": "safetensor"},
            "LOAD_FORMAT=safetensor: is not one that the engine has; the nearest is safetensors.",
        ),
        (
            {"TOOL_CALL_PARSER": "herms"},
            "TOOL_CALL_PARSER=herms: is not one that the engine has; the nearest is hermes.",
        ),
        (
            {"REASONING_PARSER": "qwen33"},
            "REASONING_PARSER=qwen33: is not one that the engine has; the nearest is qwen3.",
        ),
        (
            {"VLLM_EXTRA_ARGS": "--quantization zzz"},
            "QUANTIZATION=zzz: is not one that the engine has. Known are ",
        ),
        (
            {"SPECULATIVE_MODEL": "org/d", "SPECULATIVE_QUANTIZATION": "fp88"},
            "SPECULATIVE_QUANTIZATION=fp88: is not one",
        ),
        (
            {"MAX_NUM_BATCHED_TOKENS": "8", "MAX_NUM_SEQS": "16"},
            "MAX_NUM_BATCHED_TOKENS=8: is below MAX_NUM_SEQS=16.",
        ),
        ({"MAX_CPU_LORAS": "2", "MAX_LORAS": "4"}, "MAX_CPU_LORAS=2: is below MAX_LORAS=4."),
        (
            {"COMPILATION_CONFIG": '{"levell": 3}'},
            "COMPILATION_CONFIG: its key levell is not one of the engine's",
        ),
        (
            {"COMPILATION_CONFIG": '{"cudagraph_modes": 3}'},
            "COMPILATION_CONFIG: its key cudagraph_modes is not one of the",
        ),
        (
            {"KV_TRANSFER_CONFIG": '{"kv_conector": "X"}'},
            "KV_TRANSFER_CONFIG: its key kv_conector is not one of the engine's; the",
        ),
        (
            {"CUSTOM_CHAT_TEMPLATE": "/no/such.jinja"},
            "CUSTOM_CHAT_TEMPLATE=/no/such.jinja: looks like a path, and there is no such file.",
        ),
        (
            {"ENABLE_LOG_OUTPUTS": "1"},
            "ENABLE_LOG_OUTPUTS=true: needs the requests logged as well.",
        ),
        (
            {"SSE_KEEP_ALIVE_INTERVAL": "-1"},
            "SSE_KEEP_ALIVE_INTERVAL=-1: is below the least legal value, 0.",
        ),
        (
            {"LORA_MODULES": "a=/b", "ENABLE_LORA": "false"},
            "LORA_MODULES: names adapters, and ENABLE_LORA is false.",
        ),
        (
            {"ENABLE_PER_REQUEST_METRICS": "1", "DISABLE_LOG_STATS": "1"},
            "ENABLE_PER_REQUEST_METRICS=true: needs the engine's statistics",
        ),
    ],
)
def test_what_the_engine_would_refuse_late_is_refused_first(
    environ: dict[str, str], told: str
) -> None:
    lines = refusal(**environ).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(told)


@pytest.mark.parametrize(
    "environ",
    [
        {"MAX_NUM_BATCHED_TOKENS": "64", "MAX_NUM_SEQS": "64"},
        {"MAX_CPU_LORAS": "1"},
        {"COMPILATION_CONFIG": '{"mode": 3, "pass_config": {"any": 1}}'},
        {"ADDITIONAL_CONFIG": '{"anything": 1}'},
        {"CUSTOM_CHAT_TEMPLATE": "template_chatml.jinja"},
        {"CUSTOM_CHAT_TEMPLATE": "{{ messages }}"},
        {"CUSTOM_CHAT_TEMPLATE": __file__},
        {"ENABLE_LOG_OUTPUTS": "1", "ENABLE_LOG_REQUESTS": "1"},
        {"SSE_KEEP_ALIVE_INTERVAL": "0"},
        {"TOOL_CALL_PARSER": "mine", "TOOL_PARSER_PLUGIN": "/plugins/mine.py"},
        {"REASONING_PARSER": "mine", "REASONING_PARSER_PLUGIN": "/plugins/mine.py"},
    ],
)
def test_what_the_engine_would_take_is_taken(environ: dict[str, str]) -> None:
    assert plan(**environ).warnings == ()


@pytest.mark.parametrize(
    ("argument", "text", "name"),
    [
        ("quantization", "FP8", "fp8"),
        ("load_format", "SafeTensors", "safetensors"),
        ("tool_call_parser", "Hermes", "hermes"),
        ("reasoning_parser", "QWEN3", "qwen3"),
    ],
)
def test_a_name_in_other_letters_is_spelt_as_the_engine_does(
    argument: str, text: str, name: str
) -> None:
    assert plan(**{argument.upper(): text}).arguments[argument] == name


def test_the_plug_ins_of_others_may_add_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        class dist:  # noqa: N801  # as importlib.metadata has it
            name = "somebodys-plugin"

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [Point])
    for argument in ("quantization", "load_format"):
        assert plan(**{argument.upper(): "theirs"}).arguments[argument] == "theirs"


def test_adapters_switch_the_adapters_on_and_say_so() -> None:
    made = plan(LORA_MODULES="a=/b")
    assert made.arguments["enable_lora"] is True
    assert made.arguments["lora_modules"] == [{"name": "a", "path": "/b"}]
    assert made.sources["enable_lora"] == "LORA_MODULES"
    assert made.warnings == (
        "ENABLE_LORA is not set: it is taken as true, since LORA_MODULES names adapters",
    )
    assert plan(LORA_MODULES="a=/b", ENABLE_LORA="1").warnings == ()


@pytest.mark.parametrize("installed", [True, False])
def test_suffix_drafting_needs_its_package(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(argument_rules, "_has_suffix_trees", lambda: installed)
    if installed:
        assert plan(SPECULATIVE_METHOD="suffix").speculative_config == {"method": "suffix"}
    else:
        assert "pip install arctic-inference==" in refusal(SPECULATIVE_METHOD="suffix")


def test_a_pooling_model_is_told_to_have_no_route() -> None:
    (warning,) = plan(RUNNER="pooling").warnings
    assert warning.startswith("RUNNER=pooling: no route")


def test_a_secret_in_a_wrong_name_is_not_shown() -> None:
    secret = "hf_abcdefghijklmnop"  # noqa: S105  # a planted one
    assert secret not in refusal(QUANTIZATION=secret, COMPILATION_CONFIG=f'{{"{secret}": 1}}')


@pytest.mark.parametrize("name", catalog.load().registered)
def test_each_list_of_names_is_that_of_an_argument(name: str) -> None:
    assert name in catalog.load().arguments
    assert len(catalog.load().registered[name]) > 5


def test_each_config_with_known_keys_is_an_argument_of_json() -> None:
    for name, keys in catalog.load().config_keys.items():
        assert catalog.load().arguments[name].kind == "json"
        assert keys


def test_an_odd_template_is_no_trouble() -> None:
    for text in ("x" * 5000, "\0", "\udcff"):
        arguments: dict[str, Any] = {"chat_template": text}
        assert len([*argument_rules.problems(arguments)]) == 1


def test_every_rule_names_arguments_of_the_engine() -> None:
    known = catalog.load().arguments
    assert {name for row in argument_rules.NEEDS for name in row[:2]} <= known.keys()
    assert {*argument_rules.PLUGIN_OF, *argument_rules.PLUGIN_OF.values()} <= known.keys()


def test_this_worker_is_known_under_its_own_name() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert 'name = "speculative-vllm-worker"' in text
    assert "speculative-vllm-worker" in argument_rules.OWN_DISTRIBUTIONS
