"""Old variables and values: what they mean today, and that the tables tell the truth."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

import env_schema
from worker import legacy, legacy_values, rope

CATALOG = json.loads(Path(legacy.__file__).with_name("catalog.json").read_text(encoding="utf-8"))
CHOICES = {
    argument["name"].upper(): argument["choices"]
    for argument in CATALOG["arguments"]
    if argument.get("choices")
}
# The platform's and the engine's own variables are no business of the schema.
READ_BY_OTHERS = {*CATALOG["engine_environment"], "HF_HOME", "HF_XET_HIGH_PERFORMANCE"}

VALUE_ID = "{0.variable}={0.value}".format

ROWS = list(legacy.LEGACY.values())
ROPE = '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}'


def names(rows: Iterable[legacy.Legacy]) -> list[str]:
    return [row.name for row in rows]


# ---- the tables


def test_no_row_is_named_like_an_engine_argument() -> None:
    arguments = {argument["name"].upper() for argument in CATALOG["arguments"]}
    assert not legacy.LEGACY.keys() & arguments


def test_no_row_is_named_like_a_variable_that_means_something_today() -> None:
    assert not legacy.LEGACY.keys() & env_schema.known_variables()
    assert not legacy.LEGACY.keys() & set(CATALOG["engine_environment"])


def test_no_name_has_two_rows() -> None:
    assert len(legacy.LEGACY) == len(legacy._ROWS)
    assert len(legacy.LEGACY_VALUES) == len(legacy_values.VALUE_ROWS)


@pytest.mark.parametrize("row", ROWS, ids=names(ROWS))
def test_every_reason_is_a_clause(row: legacy.Legacy) -> None:
    assert row.reason
    assert not row.reason.endswith(".")
    assert "\n" not in row.reason


@pytest.mark.parametrize("row", ROWS, ids=names(ROWS))
def test_a_row_renames_or_translates_but_not_both(row: legacy.Legacy) -> None:
    assert row.renamed_to is None or row.translate is None


@pytest.mark.parametrize("row", ROWS, ids=names(ROWS))
def test_every_variable_that_a_row_advises_exists(row: legacy.Legacy) -> None:
    advised = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", row.replacement or ""))
    assert advised <= env_schema.known_variables() | READ_BY_OTHERS


@pytest.mark.parametrize("row", legacy_values.VALUE_ROWS, ids=VALUE_ID)
def test_every_old_value_belongs_to_a_variable_of_today(row: legacy_values.LegacyValue) -> None:
    assert row.variable in env_schema.known_variables()
    assert row.value == row.value.casefold()
    assert bool(row.fix) == (row.use is None)


@pytest.mark.parametrize("row", legacy_values.VALUE_ROWS, ids=VALUE_ID)
def test_no_old_value_is_one_of_todays_choices(row: legacy_values.LegacyValue) -> None:
    choices = CHOICES.get(row.variable)
    if choices is not None:
        assert row.value not in choices
        assert row.use is None or row.use in choices


def test_no_old_value_becomes_another_old_value() -> None:
    for row in legacy_values.VALUE_ROWS:
        assert (row.variable, str(row.use).casefold()) not in legacy.LEGACY_VALUES


# ---- names


@pytest.mark.parametrize(
    ("old", "value", "expected"),
    [
        ("MAX_MODEL_LENGTH", " 2048 ", {"MAX_MODEL_LEN": "2048"}),
        ("MODEL_BASE_PATH", "/models", {"BASE_PATH": "/models"}),
        ("NUM_GPU_SHARD", "2", {"TENSOR_PARALLEL_SIZE": "2"}),
        ("CONCURRENCY_MODIFIER", "100", {"MAX_CONCURRENCY": "100"}),
        ("MIN_BATCH_SIZE", "4", {"DEFAULT_MIN_BATCH_SIZE": "4"}),
        ("HUGGING_FACE_HUB_TOKEN", "hf_old", {"HF_TOKEN": "hf_old"}),
        ("HUGGINGFACE_TOKEN", "hf_old", {"HF_TOKEN": "hf_old"}),
        ("HUGGINGFACEHUB_API_TOKEN", "hf_old", {"HF_TOKEN": "hf_old"}),
        ("VLLM_ATTENTION_BACKEND", "FLASHINFER", {"ATTENTION_BACKEND": "FLASHINFER"}),
        ("VLLM_ATTENTION_BACKEND", "FLASH_ATTN_VLLM_V1", {"ATTENTION_BACKEND": "FLASH_ATTN"}),
        ("DISABLE_LOG_REQUESTS", "True", {"ENABLE_LOG_REQUESTS": "false"}),
        ("DISABLE_LOG_REQUESTS", "1", {"ENABLE_LOG_REQUESTS": "false"}),
        ("DISABLE_LOG_REQUESTS", "false", {}),
        ("DISABLE_LOGGING_REQUEST", "False", {}),
        ("WORKER_USE_RAY", "TRUE", {"DISTRIBUTED_EXECUTOR_BACKEND": "ray"}),
        ("WORKER_USE_RAY", "False", {}),
        ("TASK", "auto", {}),
        ("TASK", "Embedding", {"RUNNER": "pooling", "CONVERT": "embed"}),
        ("TASK", "classify", {"RUNNER": "pooling", "CONVERT": "classify"}),
        ("TASK", "reward", {"RUNNER": "pooling"}),
        ("TASK", "generate", {"RUNNER": "generate"}),
        ("CUDA_GRAPH_SIZES", "512", {"MAX_CUDAGRAPH_CAPTURE_SIZE": "512"}),
        ("CUDA_GRAPH_SIZES", "1 2,4", {"CUDAGRAPH_CAPTURE_SIZES": "[1, 2, 4]"}),
        ("CUDA_GRAPH_SIZES", "[1, 8]", {"CUDAGRAPH_CAPTURE_SIZES": "[1, 8]"}),
        ("DISABLE_MM_PREPROCESSOR_CACHE", "true", {"MM_PROCESSOR_CACHE_GB": "0"}),
        ("ENABLE_MULTIMODAL_ENCODER_DATA_PARALLEL", "yes", {"MM_ENCODER_TP_MODE": "data"}),
        (
            "EXPAND_TOOLS_EVEN_IF_TOOL_CHOICE_NONE",
            "true",
            {"EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE": "false"},
        ),
        ("ROPE_THETA", "0", {}),
        ("ROPE_SCALING", "{}", {}),
    ],
)
def test_an_old_variable_is_read_as_todays(old: str, value: str, expected: dict[str, str]) -> None:
    use, warnings, problems = legacy.translate({old: value})
    assert use == expected
    assert warnings
    assert problems == []


@pytest.mark.parametrize(
    ("environ", "variable", "expected"),
    [
        (
            {"GUIDED_DECODING_BACKEND": "outlines"},
            "STRUCTURED_OUTPUTS_CONFIG",
            {"backend": "outlines"},
        ),
        (
            {"GUIDED_DECODING_BACKEND": "xgrammar:no-fallback, disable-any-whitespace"},
            "STRUCTURED_OUTPUTS_CONFIG",
            {"backend": "xgrammar", "disable_any_whitespace": True},
        ),
        (
            {
                "GUIDED_DECODING_BACKEND": "guidance",
                "GUIDED_DECODING_DISABLE_ADDITIONAL_PROPERTIES": "1",
            },
            "STRUCTURED_OUTPUTS_CONFIG",
            {"backend": "guidance", "disable_additional_properties": True},
        ),
        (
            {"EPLB_WINDOW_SIZE": "100", "NUM_REDUNDANT_EXPERTS": "0", "EPLB_LOG_BALANCEDNESS": "0"},
            "EPLB_CONFIG",
            {"window_size": 100, "num_redundant_experts": 0, "log_balancedness": False},
        ),
    ],
)
def test_old_variables_become_the_entries_of_one_object(
    environ: dict[str, str], variable: str, expected: dict[str, object]
) -> None:
    use, warnings, problems = legacy.translate(environ)
    assert {name: json.loads(value) for name, value in use.items()} == {variable: expected}
    assert len(warnings) == len(environ)
    assert problems == []


@pytest.mark.parametrize("row", ROWS, ids=names(ROWS))
def test_every_translation_ends_in_a_variable_that_the_schema_knows(row: legacy.Legacy) -> None:
    tries = ["true", "1", "auto", "embed", ROPE]
    for value in tries:
        use, _, _ = legacy.translate({row.name: value})
        assert use.keys() <= env_schema.known_variables()


@pytest.mark.parametrize(
    "row", [row for row in ROWS if not (row.renamed_to or row.translate)], ids=lambda row: row.name
)
def test_a_variable_without_effect_gets_one_line_with_the_reason_and_the_way_out(
    row: legacy.Legacy,
) -> None:
    use, warnings, problems = legacy.translate({row.name: "4"})
    (line,) = warnings
    assert use == {}
    assert problems == []
    assert line.startswith(f"{row.name} has no effect: {row.reason}; ")
    assert (row.replacement or "remove it") in line
    assert "\n" not in line


@pytest.mark.parametrize("value", ["", "  ", "None", "none", "NULL", " null "])
def test_a_blank_or_none_is_not_there(value: str) -> None:
    environ = dict.fromkeys([*legacy.LEGACY, *legacy.VARIABLES_WITH_OLD_VALUES], value)
    assert legacy.translate(environ) == ({}, [], [])


def test_variables_of_today_and_of_others_pass_in_silence() -> None:
    environ = {"MODEL_NAME": "org/model", "QUANTIZATION": "awq", "PATH": "/bin", "DTYPE": "half"}
    assert legacy.translate(environ) == ({}, [], [])


def test_every_published_form_default_starts() -> None:
    form = {
        "DEVICE": "auto",
        "DISABLE_LOGGING_REQUEST": "False",
        "DISABLE_LOG_REQUESTS": "True",
        "GUIDED_DECODING_BACKEND": "outlines",
        "LIMIT_MM_PER_PROMPT": "image=1",
        "LORA_EXTRA_VOCAB_SIZE": "256",
        "MAX_SEQ_LEN_TO_CAPTURE": "8192",
        "NUM_LOOKAHEAD_SLOTS": "0",
        "PREEMPTION_CHECK_PERIOD": "1.0",
        "PREEMPTION_CPU_CAPACITY": "2",
        "SCHEDULER_DELAY_FACTOR": "0.0",
        "SWAP_SPACE": "4",
        "TOKENIZER_POOL_SIZE": "0",
        "TOKENIZER_POOL_TYPE": "ray",
        "USE_V2_BLOCK_MANAGER": "False",
        "WORKER_USE_RAY": "False",
    }
    use, warnings, problems = legacy.translate(form)
    assert problems == []
    assert sorted(line.split(maxsplit=1)[0].partition("=")[0] for line in warnings) == sorted(form)
    assert use.keys() == {"ENABLE_LOG_REQUESTS", "LIMIT_MM_PER_PROMPT", "STRUCTURED_OUTPUTS_CONFIG"}


# ---- contradictions


@pytest.mark.parametrize(
    ("old", "value", "new", "same"),
    [
        ("MAX_MODEL_LENGTH", "2048", "MAX_MODEL_LEN", " 2048 "),
        ("DISABLE_LOG_REQUESTS", "true", "ENABLE_LOG_REQUESTS", "False"),
        ("WORKER_USE_RAY", "1", "DISTRIBUTED_EXECUTOR_BACKEND", "ray"),
        ("GUIDED_DECODING_BACKEND", "outlines", "STRUCTURED_OUTPUTS_CONFIG",
         '{"enable_in_reasoning": true, "backend":"outlines"}'),
        ("ROPE_SCALING", ROPE, "HF_OVERRIDES",
         '{"rope_parameters": {"rope_theta": 5e5, ' + ROPE[1:] + "}"),
    ],
)  # fmt: skip
def test_an_old_variable_that_repeats_a_new_one_changes_nothing(
    old: str, value: str, new: str, same: str
) -> None:
    use, warnings, problems = legacy.translate({old: value, new: same})
    assert use == {}
    assert len(warnings) == 1
    assert problems == []


@pytest.mark.parametrize(
    ("old", "value", "new", "other"),
    [
        ("MAX_MODEL_LENGTH", "2048", "MAX_MODEL_LEN", "4096"),
        ("DISABLE_LOG_REQUESTS", "true", "ENABLE_LOG_REQUESTS", "true"),
        ("WORKER_USE_RAY", "true", "DISTRIBUTED_EXECUTOR_BACKEND", "mp"),
        ("TASK", "embed", "CONVERT", "classify"),
        ("GUIDED_DECODING_BACKEND", "outlines", "STRUCTURED_OUTPUTS_CONFIG", '{"backend": "auto"}'),
        ("ROPE_THETA", "500000", "HF_OVERRIDES", '{"architectures": ["X"]}'),
    ],
)
def test_an_old_variable_against_a_new_one_is_a_problem_that_names_both(
    old: str, value: str, new: str, other: str
) -> None:
    use, warnings, problems = legacy.translate({old: value, new: other})
    (problem,) = problems
    assert use == {}
    assert warnings == []
    assert problem.variable == old
    assert problem.value == value
    assert new in problem.why


def test_a_blank_new_variable_does_not_contradict() -> None:
    use, _, problems = legacy.translate({"MAX_MODEL_LENGTH": "2048", "MAX_MODEL_LEN": "None"})
    assert use == {"MAX_MODEL_LEN": "2048"}
    assert problems == []


def test_two_old_variables_that_disagree_are_a_problem_that_names_all_three() -> None:
    _, _, (problem,) = legacy.translate({"MAX_MODEL_LENGTH": "1", "VLLM_MAX_MODEL_LEN": "2"})
    assert problem.variable == "VLLM_MAX_MODEL_LEN"
    assert "MAX_MODEL_LENGTH" in problem.why
    assert " MAX_MODEL_LEN," in problem.why


def test_secrets_are_not_printed() -> None:
    environ = {"HUGGING_FACE_HUB_TOKEN": "hf_first", "WASABI_SECRET_ACCESS_KEY": "s3cr3t"}
    _, warnings, _ = legacy.translate(environ)
    _, _, problems = legacy.translate({**environ, "HF_TOKEN": "hf_second"})
    printed = " ".join([*warnings, *map(str, problems)])
    assert problems
    assert not re.search("hf_first|hf_second|s3cr3t", printed)


@pytest.mark.parametrize(
    ("old", "value", "why"),
    [
        ("DISABLE_LOG_REQUESTS", "maybe", "is neither true nor false"),
        ("GUIDED_DECODING_BACKEND", "regex", "is not a backend"),
        ("GUIDED_DECODING_BACKEND", "xgrammar:fast", "has an unknown option, fast"),
        ("TASK", "chat", "is not a task"),
        ("CUDA_GRAPH_SIZES", "1 two", "is not a whole number"),
        ("EPLB_WINDOW_SIZE", "-1", "is not a whole number"),
        ("ROPE_THETA", "big", "is not a number"),
        ("ROPE_THETA", "-1", "is not a base"),
        ("ROPE_THETA", "nan", "is not a base"),
        ("ROPE_SCALING", "yarn", "is not valid JSON"),
        ("ROPE_SCALING", "[1]", "is not a JSON object"),
        ("ROPE_SCALING", '{"factor": 2}', "has no rope_type"),
    ],
)
def test_a_value_that_cannot_be_translated_is_a_problem(old: str, value: str, why: str) -> None:
    use, warnings, (problem,) = legacy.translate({old: value})
    assert (use, warnings) == ({}, [])
    assert (problem.variable, problem.value) == (old, value)
    assert problem.why.startswith(why)
    assert problem.fix


# ---- rotary parameters


def rope_parameters(environ: dict[str, str]) -> dict[str, object]:
    use, _, problems = legacy.translate(environ)
    assert problems == []
    parameters: dict[str, object] = json.loads(use["HF_OVERRIDES"])["rope_parameters"]
    return parameters


@pytest.mark.parametrize(
    ("old_type", "rope_type"), [("yarn", "yarn"), ("su", "longrope"), ("mrope", "default")]
)
def test_the_old_key_and_the_old_names_of_rotary_types_are_replaced(
    old_type: str, rope_type: str
) -> None:
    scaling = json.dumps({"type": old_type, "factor": 2.0})
    parameters = rope_parameters({"ROPE_SCALING": scaling})
    assert parameters["rope_type"] == rope_type
    assert "type" not in parameters


def test_scaling_and_theta_become_one_set_of_parameters() -> None:
    parameters = rope_parameters({"ROPE_SCALING": ROPE, "ROPE_THETA": "1e6"})
    assert parameters == {**json.loads(ROPE), "rope_theta": 1e6, "partial_rotary_factor": None}


def test_scaling_that_contradicts_theta_is_a_problem() -> None:
    scaling = '{"rope_type": "linear", "factor": 2, "rope_theta": 1e4}'
    _, _, (problem,) = legacy.translate({"ROPE_SCALING": scaling, "ROPE_THETA": "1e6"})
    assert problem.variable == "ROPE_THETA"
    assert "ROPE_SCALING" in problem.why


LLAMA3: dict[str, object] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "rope_theta": 5e5,
    "partial_rotary_factor": 0.5,
}


def test_scaling_alone_keeps_the_models_base() -> None:
    overrides = {"rope_parameters": rope_parameters({"ROPE_SCALING": ROPE})}
    expected = {**json.loads(ROPE), "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    assert rope.with_own_rope(overrides, LLAMA3) == {"rope_parameters": expected}


def test_theta_alone_keeps_the_models_scaling() -> None:
    overrides = {"rope_parameters": rope_parameters({"ROPE_THETA": "1e6"})}
    expected = {**LLAMA3, "rope_theta": 1e6}
    assert rope.with_own_rope(overrides, LLAMA3) == {"rope_parameters": expected}


def test_what_the_model_does_not_say_is_left_out() -> None:
    overrides = {"rope_parameters": rope_parameters({"ROPE_SCALING": ROPE})}
    filled = rope.with_own_rope(overrides, {"rope_type": "default", "rope_theta": 1e5})
    assert filled == {"rope_parameters": {**json.loads(ROPE), "rope_theta": 1e5}}


@pytest.mark.parametrize(
    "overrides", [{}, {"a": 1}, {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}]
)
def test_overrides_without_gaps_stay_as_they_are(overrides: dict[str, object]) -> None:
    assert rope.with_own_rope(overrides, LLAMA3) == overrides


def test_a_model_with_parameters_for_each_kind_of_layer_is_refused() -> None:
    overrides = {"rope_parameters": rope_parameters({"ROPE_THETA": "1e6"})}
    with pytest.raises(ValueError, match="each kind of layer"):
        rope.with_own_rope(overrides, {"full_attention": LLAMA3, "sliding_attention": LLAMA3})


# ---- values


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("QUANTIZATION", "Auto-Round", "inc"),
        ("TOKENIZER_MODE", "slow", "hf"),
        ("ATTENTION_BACKEND", "triton_attn_vllm_v1", "TRITON_ATTN"),
        ("PREFIX_CACHING_HASH_ALGO", "builtin", "sha256"),
        ("MAMBA_CACHE_MODE", "all", "align"),
        ("LIMIT_MM_PER_PROMPT", "image=2, video=1", '{"image": 2, "video": 1}'),
        ("COMPILATION_CONFIG", "3", '{"mode": 3}'),
    ],
)
def test_an_old_value_is_read_as_todays(variable: str, value: str, expected: str) -> None:
    use, (warning,), problems = legacy.translate({variable: value})
    assert use == {variable: expected}
    assert warning.startswith(f"{variable}={value} is read as {variable}={expected}: ")
    assert problems == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("QUANTIZATION", "squeezellm"),
        ("QUANTIZATION", "BitsAndBytes"),
        ("LOAD_FORMAT", "gguf"),
        ("ATTENTION_BACKEND", "XFORMERS"),
        ("LORA_DTYPE", "float32"),
    ],
)
def test_an_old_value_without_a_successor_is_one_problem_and_blank(
    variable: str, value: str
) -> None:
    use, warnings, (problem,) = legacy.translate({variable: value})
    assert use == {variable: ""}
    assert warnings == []
    assert (problem.variable, problem.value) == (variable, value)
    assert problem.fix


def test_a_refused_value_is_told_of_the_variable_that_was_set() -> None:
    _, _, (problem,) = legacy.translate({"VLLM_ATTENTION_BACKEND": "XFORMERS"})
    assert problem.variable == "VLLM_ATTENTION_BACKEND"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LIMIT_MM_PER_PROMPT", '{"image": 2}'),
        ("LIMIT_MM_PER_PROMPT", "image"),
        ("COMPILATION_CONFIG", '{"mode": 3}'),
        ("COMPILATION_CONFIG", "7"),
    ],
)
def test_a_value_in_another_form_is_left_to_the_schema(variable: str, value: str) -> None:
    assert legacy.translate({variable: value}) == ({}, [], [])


def test_the_given_environment_is_not_changed() -> None:
    environ = {"MAX_MODEL_LENGTH": "2048", "TOKENIZER_MODE": "slow"}
    before = dict(environ)
    legacy.translate(environ)
    assert environ == before
