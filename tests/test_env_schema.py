"""The environment contract: every group, every variable, every way to say nothing."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import env_schema
from env_schema import Settings
from worker import catalog, legacy, speculation_fields
from worker.catalog import Argument
from worker.errors import ConfigurationError

SECRET = "s3cr3t-Value-4711"  # noqa: S105  # a planted one
KNOWN = sorted(env_schema.known_variables())
OF_ENGINE = {
    argument.variable: argument
    for argument in catalog.load().arguments.values()
    if argument.name not in env_schema.FIELD_OF_ARGUMENT
}
GROUP_NAMES = ("model", "speculation", "serving", "process")


def load(**environ: str) -> Settings:
    return env_schema.load(environ)


def refusal(environ: Mapping[str, str]) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as refused:
        env_schema.load(environ)
    return refused.value


# ---- each group


OWN_VALUES: list[tuple[str, str, str, Any]] = [
    ("MODEL_NAME", "model.model_name", "org/model", "org/model"),
    ("MODEL_REVISION", "model.model_revision", "main", "main"),
    ("TOKENIZER_NAME", "model.tokenizer_name", "org/tok", "org/tok"),
    ("BASE_PATH", "model.base_path", "/volume", "/volume"),
    ("SPECULATIVE_CONFIG", "speculation.speculative_config", '{"k": 1}', {"k": 1}),
    ("SPECULATIVE_METHOD", "speculation.speculative_method", "N-Gram", "ngram"),
    ("SPECULATIVE_MODEL", "speculation.speculative_model", "[ngram]", "[ngram]"),
    ("NUM_SPECULATIVE_TOKENS", "speculation.num_speculative_tokens", "3", 3),
    ("NGRAM_PROMPT_LOOKUP_MIN", "speculation.ngram_prompt_lookup_min", "2", 2),
    ("NGRAM_PROMPT_LOOKUP_MAX", "speculation.ngram_prompt_lookup_max", "4.0", 4),
    ("SPECULATIVE_DISABLE_BY_BATCH_SIZE", "speculation.speculative_disable_by_batch_size", "8", 8),
    (
        "SPEC_DECODING_ACCEPTANCE_METHOD",
        "speculation.spec_decoding_acceptance_method",
        "Typical_Acceptance_Sampler",
        "typical_acceptance_sampler",
    ),
    (
        "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD",
        "speculation.typical_acceptance_sampler_posterior_threshold",
        "0.09",
        0.09,
    ),
    (
        "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA",
        "speculation.typical_acceptance_sampler_posterior_alpha",
        "0.3",
        0.3,
    ),
    (
        "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE",
        "speculation.speculative_draft_tensor_parallel_size",
        "1",
        1,
    ),
    ("SPECULATIVE_MAX_MODEL_LEN", "speculation.speculative_max_model_len", "2048", 2048),
    ("SPECULATIVE_QUANTIZATION", "speculation.speculative_quantization", "awq", "awq"),
    ("SPECULATIVE_MODEL_REVISION", "speculation.speculative_model_revision", "v1", "v1"),
    ("SPECULATIVE_ENFORCE_EAGER", "speculation.speculative_enforce_eager", "yes", True),
    ("SPECULATIVE_REPORT", "speculation.speculative_report", "off", False),
    (
        "SPECULATIVE_TOKENS_PER_BATCH_SIZE",
        "speculation.speculative_tokens_per_batch_size",
        "1-8:4, 9-:0",
        [[1, 8, 4], [9, 9, 0]],
    ),
    ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "serving.served_model_name", "a, b", ["a", "b"]),
    (
        "CUSTOM_CHAT_TEMPLATE",
        "serving.custom_chat_template",
        "{{ x }}\n{{ y }}",
        "{{ x }}\n{{ y }}",
    ),
    ("OPENAI_RESPONSE_ROLE", "serving.openai_response_role", "helper", "helper"),
    ("RAW_OPENAI_OUTPUT", "serving.raw_openai_output", "0", False),
    ("DEFAULT_BATCH_SIZE", "serving.default_batch_size", "100", 100),
    ("DEFAULT_MIN_BATCH_SIZE", "serving.default_min_batch_size", "5", 5),
    ("DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "serving.default_batch_size_growth_factor", "1.5", 1.5),
    ("STREAM_FLUSH_MS", "serving.stream_flush_ms", "0", 0),
    ("MAX_CONCURRENCY", "process.max_concurrency", "300", 300),
    ("LOG_LEVEL", "process.log_level", "warn", "WARNING"),
    ("VLLM_EXTRA_ARGS", "process.vllm_extra_args", "--seed 1", "--seed 1"),
    ("VLLM_CONFIG_FILE", "process.vllm_config_file", "/x.yaml", "/x.yaml"),
]


@pytest.mark.parametrize(("variable", "where", "text", "value"), OWN_VALUES)
def test_a_variable_of_a_group_is_read_trimmed(
    variable: str, where: str, text: str, value: Any
) -> None:
    group, name = where.split(".")
    read = load(**{variable: f"  {text}\n"})
    assert getattr(getattr(read, group), name) == value
    assert read.sources == {name: variable}
    assert read.engine == {}
    assert read.warnings == ()


def test_the_table_above_has_every_variable_of_the_groups() -> None:
    named = {
        variable for group in env_schema.GROUPS for _, (variable, *_) in env_schema.variables(group)
    }
    others = {f"SPECULATIVE_{key.name.upper()}" for key in speculation_fields.OTHERS}
    assert {variable for variable, *_ in OWN_VALUES} == named - {"HF_TOKEN", *others}


@pytest.mark.parametrize("key", speculation_fields.OTHERS, ids=lambda key: key.name)
def test_every_other_key_of_the_speculative_config_has_a_variable(key: Argument) -> None:
    text = a_text_for(key)
    variable = f"SPECULATIVE_{key.name.upper()}"
    read = load(**{variable: text})
    assert dict(read.speculation)[variable.lower()] == key.parse(text)
    assert read.sources == {variable.lower(): variable}


def test_the_defaults_are_the_documented_ones() -> None:
    read = load()
    assert read.model.base_path == "/runpod-volume"
    assert read.serving.raw_openai_output is True
    assert read.serving.default_batch_size == 50
    assert read.serving.default_min_batch_size == 1
    assert read.serving.default_batch_size_growth_factor == 3.0
    assert read.serving.stream_flush_ms == 50
    assert read.process.max_concurrency == 30
    assert read.speculation.spec_decoding_acceptance_method == "rejection_sampler"
    assert (read.sources, read.engine, read.warnings, read.secrets) == ({}, {}, (), ())


TEXTS_OF_KIND = {
    "flag": "true",
    "flag_or_text": "text",
    "integer": "7",
    "human_integer": "16k",
    "human_integer_or_auto": "auto",
    "number": "0.5",
    "text": "text",
    "json": '{"a": 1}',
    "json_list": '["*"]',
    "json_or_text": '{"a": 1}',
    "list": "1,2",
    "lora_modules": "a=/b",
}


def a_text_for(argument: Argument) -> str:
    if argument.minimum:
        return f"{argument.minimum:g}"
    return str(argument.choices[0]) if argument.choices else TEXTS_OF_KIND[argument.kind]


@pytest.mark.parametrize("argument", OF_ENGINE.values(), ids=OF_ENGINE)
def test_every_other_argument_of_the_engine_is_read_by_its_own_name(argument: Argument) -> None:
    text = a_text_for(argument)
    read = load(**{argument.variable: text})
    assert read.engine == {argument.name: argument.parse(text)}
    assert read.sources == {argument.name: argument.variable}


def test_every_argument_of_the_engine_has_a_variable() -> None:
    fields = {
        name for group in GROUP_NAMES for name in getattr(load(), group).__class__.model_fields
    }
    for argument in catalog.load().arguments.values():
        own = env_schema.FIELD_OF_ARGUMENT.get(argument.name)
        assert argument.variable in env_schema.known_variables()
        assert own in fields if own else argument.variable in OF_ENGINE


# ---- ways to say nothing


@pytest.mark.parametrize(
    "text", ["", "  ", "\t\n", "None", "none", "NONE", " null ", "Null", "NULL"]
)
def test_all_variables_saying_nothing_are_as_good_as_an_empty_environment(text: str) -> None:
    assert env_schema.load(dict.fromkeys(KNOWN, text)) == load()


COUNTS = [
    "BLOCK_SIZE", "CPU_DISTRIBUTED_TIMEOUT_SECONDS", "CP_KV_CACHE_INTERLEAVE_SIZE",
    "DATA_PARALLEL_RPC_PORT", "DATA_PARALLEL_SIZE", "DECODE_CONTEXT_PARALLEL_SIZE",
    "DEFAULT_BATCH_SIZE", "DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "DEFAULT_MIN_BATCH_SIZE",
    "DISTRIBUTED_TIMEOUT_SECONDS", "DP_SYNC_INTERVAL", "ELASTIC_EP_MAX_DP_SIZE",
    "KV_CACHE_MEMORY_BYTES", "MAMBA_BLOCK_SIZE", "MAX_CONCURRENCY", "MAX_CPU_LORAS",
    "MAX_LORAS", "MAX_LORA_CLS_LABELS", "MAX_LORA_RANK", "MAX_MODEL_LEN", "MAX_NUM_ACTIVE_SEQS",
    "MAX_NUM_BATCHED_TOKENS", "MAX_NUM_SCHEDULED_TOKENS", "MAX_NUM_SEQS",
    "MAX_PARALLEL_LOADING_WORKERS", "NGRAM_PROMPT_LOOKUP_MAX", "NGRAM_PROMPT_LOOKUP_MIN",
    "NNODES", "NUM_GPU_BLOCKS_OVERRIDE", "NUM_SPECULATIVE_TOKENS", "OFFLOAD_NUM_IN_GROUP",
    "PIPELINE_PARALLEL_SIZE", "PREFILL_CONTEXT_PARALLEL_SIZE", "PREFILL_SCHEDULE_INTERVAL",
    "PREFIX_MATCH_UNIT", "RENDERER_NUM_WORKERS", "REPLAYSSM_BUFFER_LEN",
    "SAFETENSORS_PREFETCH_BLOCK_SIZE", "SAFETENSORS_PREFETCH_NUM_THREADS",
    "SPECULATIVE_DISABLE_BY_BATCH_SIZE", "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE",
    "SPECULATIVE_DSPARK_DRAFT_TOPK", "SPECULATIVE_MAX_MODEL_LEN",
    "SPECULATIVE_SUFFIX_DECODING_MAX_TREE_DEPTH", "SPEC_TOKENS", "STREAM_INTERVAL",
    "TENSOR_PARALLEL_SIZE",
]  # fmt: skip

WHERE_ZERO_MEANS_ZERO = [
    "CPU_OFFLOAD_GB", "DATA_PARALLEL_RANK", "DATA_PARALLEL_SIZE_LOCAL",
    "LONG_PREFILL_TOKEN_THRESHOLD", "MAX_CUDAGRAPH_CAPTURE_SIZE", "MAX_LOG_LEN", "MAX_LOGPROBS",
    "MAX_NUM_QUEUED_REQS", "MAX_NUM_QUEUED_TOKENS", "MM_PROCESSOR_CACHE_GB", "NODE_RANK",
    "OFFLOAD_GROUP_SIZE", "PREFIX_CACHE_RETENTION_INTERVAL", "SEED", "SHUTDOWN_TIMEOUT",
    "SSE_KEEP_ALIVE_INTERVAL", "UBATCH_SIZE", "VIDEO_PRUNING_RATE", "WATERMARK",
]  # fmt: skip


def test_the_counts_of_which_one_is_the_least_are_these() -> None:
    assert sorted(env_schema.count_variables()) == sorted(COUNTS)


@pytest.mark.parametrize("variable", COUNTS)
def test_a_forms_zero_is_not_given_where_one_is_the_least(variable: str) -> None:
    for zero in ("0", " 0 ", "0.0", "00", "+0"):
        assert env_schema.load({variable: zero}) == load()


@pytest.mark.parametrize("variable", COUNTS)
def test_below_zero_is_refused_where_one_is_the_least(variable: str) -> None:
    (problem,) = refusal({variable: "-5"}).problems
    assert (problem.variable, problem.value) == (variable, "-5")


@pytest.mark.parametrize("variable", WHERE_ZERO_MEANS_ZERO)
def test_zero_stays_zero_where_it_means_something(variable: str) -> None:
    name = OF_ENGINE[variable].name
    assert load(**{variable: "0"}).engine == {name: 0}


def test_zero_milliseconds_of_waiting_are_zero() -> None:
    assert load(STREAM_FLUSH_MS="0").serving.stream_flush_ms == 0


def test_every_zero_of_the_hub_form_at_once_is_an_empty_environment() -> None:
    assert env_schema.load(dict.fromkeys(COUNTS, "0")) == load()


# ---- booleans


FLAGS = {
    argument.variable: argument.name for argument in OF_ENGINE.values() if argument.kind == "flag"
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("true", "True", "TRUE", "1", "yes", "on", "Y", " true ")),
        *((text, False) for text in ("false", "False", "FALSE", "0", "no", "off", "N", " false ")),
    ],
)
def test_every_flag_has_the_one_grammar(text: str, value: bool) -> None:
    own = {"RAW_OPENAI_OUTPUT": text, "SPECULATIVE_ENFORCE_EAGER": text}
    read = env_schema.load({**dict.fromkeys(FLAGS, text), **own})
    assert read.engine == dict.fromkeys(FLAGS.values(), value)
    assert read.serving.raw_openai_output is value
    assert read.speculation.speculative_enforce_eager is value


@pytest.mark.parametrize(
    "variable", ["ENFORCE_EAGER", "TRUST_REMOTE_CODE", "ENABLE_LORA", "RAW_OPENAI_OUTPUT",
                 "SPECULATIVE_ENFORCE_EAGER"]
)  # fmt: skip
@pytest.mark.parametrize("text", ["2", "1.0", "maybe", "truee", "yes no"])
def test_what_is_no_boolean_is_refused_by_name_with_the_words(variable: str, text: str) -> None:
    (problem,) = refusal({variable: text}).problems
    assert str(problem) == f"{variable}={text}: is neither true nor false. Write true or false."


# ---- aliases


ALIASES = [
    ("MODEL_NAME", "MODEL", "model.model_name", "org/model", "org/model"),
    ("MODEL_REVISION", "REVISION", "model.model_revision", "v1", "v1"),
    ("TOKENIZER_NAME", "TOKENIZER", "model.tokenizer_name", "org/tok", "org/tok"),
    ("SPECULATIVE_METHOD", "SPEC_METHOD", "speculation.speculative_method", "ngram", "ngram"),
    ("SPECULATIVE_MODEL", "SPEC_MODEL", "speculation.speculative_model", "org/d", "org/d"),
    ("NUM_SPECULATIVE_TOKENS", "SPEC_TOKENS", "speculation.num_speculative_tokens", "4", 4),
    (
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE",
        "SERVED_MODEL_NAME",
        "serving.served_model_name",
        "m",
        ["m"],
    ),
    ("CUSTOM_CHAT_TEMPLATE", "CHAT_TEMPLATE", "serving.custom_chat_template", "{{ x }}", "{{ x }}"),
    ("OPENAI_RESPONSE_ROLE", "RESPONSE_ROLE", "serving.openai_response_role", "bot", "bot"),
]


@pytest.mark.parametrize(("variable", "alias", "where", "text", "value"), ALIASES)
def test_another_name_works_alone_and_beside_the_first_with_the_same_value(
    variable: str, alias: str, where: str, text: str, value: Any
) -> None:
    group, name = where.split(".")
    alone, both = load(**{alias: text}), load(**{variable: text, alias: f" {text} "})
    assert getattr(getattr(alone, group), name) == value
    assert getattr(getattr(both, group), name) == value
    assert (alone.sources, both.sources) == ({name: alias}, {name: variable})


@pytest.mark.parametrize(("variable", "alias", "where", "text", "value"), ALIASES)
def test_two_names_with_different_values_are_refused(
    variable: str, alias: str, where: str, text: str, value: Any
) -> None:
    other = "eagle" if "METHOD" in variable else "5"
    problems = refusal({variable: text, alias: other}).problems
    assert [problem.variable for problem in problems] == [alias]
    assert variable in problems[0].why


@pytest.mark.parametrize("nothing", ["", "None", "0"])
def test_a_name_that_says_nothing_leaves_the_word_to_the_other(nothing: str) -> None:
    read = load(NUM_SPECULATIVE_TOKENS=nothing, SPEC_TOKENS="5")
    assert read.speculation.num_speculative_tokens == 5
    assert read.sources == {"num_speculative_tokens": "SPEC_TOKENS"}


def test_a_problem_names_the_variable_that_was_set_and_not_its_other_name() -> None:
    (problem,) = refusal({"SPEC_TOKENS": "many"}).problems
    assert str(problem) == "SPEC_TOKENS=many: is not a whole number."


def test_the_table_above_has_every_alias() -> None:
    pairs = {
        (names[0], other)
        for group in env_schema.GROUPS
        for _, names in env_schema.variables(group)
        for other in names[1:]
    }
    assert {(variable, alias) for variable, alias, *_ in ALIASES} == pairs


# ---- problems


BAD = {
    "NUM_SPECULATIVE_TOKENS": "-1",
    "MAX_MODEL_LEN": "4096.5",
    "DTYPE": "float61",
    "ENABLE_LORA": "perhaps",
    "GPU_MEMORY_UTILIZATION": "90%",
    "SPECULATIVE_CONFIG": '{"method": ngram}',
    "SPECULATIVE_METHOD": "telepathy",
    "SPEC_DECODING_ACCEPTANCE_METHOD": "vibes",
    "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD": "2",
    "LOG_LEVEL": "LOUD",
    "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "0.5",
    "STREAM_FLUSH_MS": "-1",
    "LORA_MODULES": "sql",
    "COMPILATION_CONFIG": "[1, 2]",
    "SERVED_MODEL_NAME": ",",
}


def test_all_problems_come_together_each_once_and_in_one_line() -> None:
    error = refusal(BAD)
    assert sorted(problem.variable for problem in error.problems) == sorted(BAD)
    lines = str(error).splitlines()
    assert len(lines) == len(BAD)
    assert all(line.partition("=")[0] in BAD for line in lines)


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"MAX_CONCURRENCY": "-3"}, "is below the least legal value, 1. Set it to 1 or more, "),
        ({"MAX_NUM_SEQS": "-3"}, "is below the least legal value, 1. Set it to 1 or more, "),
        ({"STREAM_FLUSH_MS": "-1"}, "is below the least legal value, 0. Set it to 0 or more, "),
        ({"BLOCK_SIZE": "-1"}, "must be above 0. Set it above 0, "),
        (
            {"TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA": "-1"},
            "must be above 0. Set it above 0, ",
        ),
        (
            {"TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD": "2"},
            "is above the greatest legal value, 1. Set it to 1 or less, ",
        ),
        (
            {"GPU_MEMORY_UTILIZATION": "1.5"},
            "is above the greatest legal value, 1. Set it to 1 or less, ",
        ),
    ],
)
def test_bounds_are_told_in_one_voice(environ: dict[str, str], line: str) -> None:
    ((variable, text),) = environ.items()
    assert str(refusal(environ)) == f"{variable}={text}: {line}or unset it."


def test_a_number_among_numbers_has_no_likeness() -> None:
    told = str(refusal({"MAX_LORA_RANK": "17"}))
    assert "did you mean" not in told.casefold()
    assert "ccepted: 1, 8, 16, 32" in told


@pytest.mark.parametrize(
    "environ",
    [
        {"SPEC_METHOD": "ngram", "SPECULATIVE_METHOD": "NGram"},
        {"SPEC_TOKENS": "4.0", "NUM_SPECULATIVE_TOKENS": "4"},
        {"SERVED_MODEL_NAME": "a b", "OPENAI_SERVED_MODEL_NAME_OVERRIDE": '["a", "b"]'},
    ],
)
def test_two_names_of_one_setting_agree_by_their_values(environ: dict[str, str]) -> None:
    assert env_schema.attempt(environ)[1] == []


def test_a_rule_over_two_variables_is_told_beside_other_problems_of_the_group() -> None:
    environ = {
        "STREAM_FLUSH_MS": "x",
        "DEFAULT_MIN_BATCH_SIZE": "60",
        "MAX_CONCURRENCY": "-1",
    }
    assert str(refusal(environ)).splitlines() == [
        "STREAM_FLUSH_MS=x: is not a whole number.",
        "DEFAULT_MIN_BATCH_SIZE=60: is above DEFAULT_BATCH_SIZE=50; "
        "lower the one or raise the other.",
        "MAX_CONCURRENCY=-1: is below the least legal value, 1. Set it to 1 or more, or unset it.",
    ]


def test_problems_leave_the_rest_of_the_settings_to_be_judged_as_well() -> None:
    read, problems = env_schema.attempt({**BAD, "MODEL_NAME": "org/model", "SEED": "3"})
    assert len(problems) == len(BAD)
    assert read.model.model_name == "org/model"
    assert read.engine == {"seed": 3}


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"QUANTIZATION": "AWQ", "DTYPE": "halff"},
            "DTYPE=halff: is not one of the accepted values. Did you mean half? "
            "accepted: auto, bfloat16, float, float16, float32, half.",
        ),
        (
            {"HF_OVERRIDES": '{"a": 1,, "b": 2}'},
            'HF_OVERRIDES={"a": 1,, "b": 2}: is not valid JSON: '
            "Expecting property name enclosed in double quotes at character 9, line 1, "
            """near '{"a": 1,, "b": 2}'.""",
        ),
        (
            {"MAX_MODEL_LEN": "16 k"},
            "MAX_MODEL_LEN=16 k: is not a whole number.",
        ),
    ],
)
def test_a_problem_is_one_sentence_on_the_value_and_the_way_out(
    environ: dict[str, str], line: str
) -> None:
    assert str(refusal(environ)) == line


def test_a_long_value_is_shortened_and_its_lines_are_joined() -> None:
    (problem,) = refusal({"DTYPE": "a\nb\u2028c" + "x" * 5000}).problems
    assert str(problem).splitlines() == [str(problem)]
    assert len(str(problem)) < 400


# ---- secrets


def test_a_token_is_kept_but_never_written() -> None:
    read = load(HF_TOKEN=f" {SECRET} ", API_KEY=SECRET)
    assert read.model.hf_token is not None
    assert read.model.hf_token.get_secret_value() == SECRET
    assert read.secrets == (SECRET,)
    assert SECRET not in repr(read) + str(read)


def test_a_known_secret_in_any_other_variable_shows_in_no_problem() -> None:
    for embedded in (SECRET, f'{{"a": "{SECRET}" oops', "x" * 70 + SECRET, f"--hf-token {SECRET}"):
        environ = {**dict.fromkeys(KNOWN, embedded), "HF_TOKEN": SECRET}
        shown = str(refusal(environ)) + repr(refusal(environ))
        assert SECRET[:8] not in shown


def test_a_key_inside_broken_json_shows_in_no_problem() -> None:
    error = refusal({"KV_TRANSFER_CONFIG": f'{{"api_key": "{SECRET}" "x": 1}}'})
    assert SECRET[:8] not in str(error)


# ---- surroundings


@pytest.mark.parametrize(
    ("environ", "on_platform"),
    [
        ({}, False),
        ({"RUNPOD_WEBHOOK_GET_JOB": ""}, False),
        ({"RUNPOD_WEBHOOK_GET_JOB": "  "}, False),
        ({"RUNPOD_WEBHOOK_GET_JOB": "https://api.runpod.ai/v2/x/job-take/y"}, True),
    ],
)
def test_the_job_take_url_says_whether_this_is_the_platform(
    environ: dict[str, str], on_platform: bool
) -> None:
    assert env_schema.load(environ).on_platform is on_platform


def test_names_in_lower_case_are_not_read_but_told() -> None:
    read = env_schema.load({"max_model_len": "4096", "Model_Name": "x"})
    assert read.engine == {}
    assert read.model.model_name is None
    assert [warning.partition(" ")[0] for warning in read.warnings] == [
        "max_model_len",
        "Model_Name",
    ]


def test_foreign_variables_are_left_alone() -> None:
    read = env_schema.load({"PATH": "/bin", "VLLM_LOGGING_LEVEL": "DEBUG", "é": "\udcff"})
    assert read == load()


# ---- any environment at all


ODD_VALUES = [
    *("", " ", "None", "0", "-1", "1", "2000", "1e3", "true", "False", "maybe", "ngram", "[ngram]"),
    *("{}", "[]", '{"a": 1}', "{'a': (1,)}", '{"a":', "[" * 300, '{"a":' * 400 + "1" + "}" * 400),
    *(
        "auto",
        "bf16",
        "a,b",
        "a=b",
        "x\ny",
        "\udcff",
        "é漢\u2028",
        "9" * 400,
        "9" * 40 + "k",
        "NaN",
    ),
    *(
        '{"method": "ngram", "num_speculative_tokens": "3"}',
        '{"rope_type": "yarn"}',
        '"{\\"a\\": 1}"',
    ),
    *("--max-num-seqs 8", "--", "'", "/no/such/file", "~nobody/x", "inf", "1e999", "\x1b[0m"),
]


def _misspelt(name: str, how: int) -> str:
    half = len(name) // 2
    return [
        name[1:],
        name[:-1],
        name + "S",
        name.lower(),
        f"VLLM_{name}",
        name[:half] + name[half + 1 :],
    ][how]


NAMES = st.sampled_from([*KNOWN, *sorted(legacy.LEGACY)])
NEAR_NAMES = st.builds(_misspelt, NAMES, st.integers(0, 5))
VALUES = st.sampled_from(ODD_VALUES) | st.text(max_size=30)
ENVIRONMENTS = st.dictionaries(NAMES | NEAR_NAMES, VALUES, max_size=8)


@settings(max_examples=200, deadline=None, database=None)
@given(ENVIRONMENTS, st.sampled_from(["HF_TOKEN", "API_KEY", "HUGGING_FACE_HUB_TOKEN"]))
def test_any_environment_gives_settings_or_problems_and_never_a_secret(
    environ: dict[str, str], secret_name: str
) -> None:
    environ = {**environ, secret_name: SECRET}
    read, problems = env_schema.attempt(environ)
    lines = [*map(str, problems), *read.warnings]
    assert not any(SECRET in text for text in (*lines, repr(read), repr(problems)))
    assert all(line.splitlines() == [line] for line in map(str, problems))
    of_old_names, _, _ = legacy.translate(environ)
    assert {problem.variable for problem in problems} <= environ.keys() | of_old_names.keys()
