"""Speculative settings -> the engine's speculative config."""

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import env_schema
from worker import catalog, speculation, speculation_fields, speculation_schedule
from worker.errors import Problem
from worker.speculation import Speculation

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
DRAFT = {"model": "org/draft", "num_speculative_tokens": 3}


def resolve(environ: dict[str, str], max_num_seqs: int | None = None) -> Speculation:
    read = env_schema.load(environ)
    return speculation.resolve(dict(read.speculation), read.sources, max_num_seqs)


def accepted(environ: dict[str, str], max_num_seqs: int | None = None) -> dict[str, Any]:
    made = resolve(environ, max_num_seqs)
    assert made.problems == []
    assert made.config is not None
    return made.config


def refused(environ: dict[str, str]) -> list[str]:
    return [str(problem) for problem in resolve(environ).problems]


def config(**values: Any) -> dict[str, str]:
    return {"SPECULATIVE_CONFIG": json.dumps(values)}


# ---- what turns it on, and each variable's field


ROWS: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"SPECULATIVE_METHOD": "ngram"}, NGRAM),
    (
        {"SPECULATIVE_METHOD": "N-Gram", "NUM_SPECULATIVE_TOKENS": "5"},
        {**NGRAM, "num_speculative_tokens": 5},
    ),
    ({"SPECULATIVE_METHOD": "[ngram]"}, NGRAM),
    ({"SPECULATIVE_MODEL": "[ngram]"}, NGRAM),
    ({"SPECULATIVE_MODEL": "ngram"}, NGRAM),
    ({"SPECULATIVE_MODEL": "NGRAM"}, NGRAM),
    ({"SPECULATIVE_MODEL": "[NGram]", "SPECULATIVE_METHOD": "ngram"}, NGRAM),
    (
        {"SPECULATIVE_MODEL": "[ngram]", "SPECULATIVE_METHOD": "ngram_gpu"},
        {**NGRAM, "method": "ngram_gpu"},
    ),
    (
        {"SPECULATIVE_MODEL": "[ngram]", **config(method="ngram_gpu")},
        {**NGRAM, "method": "ngram_gpu"},
    ),
    ({"NGRAM_PROMPT_LOOKUP_MAX": "4"}, NGRAM),
    ({"NGRAM_PROMPT_LOOKUP_MIN": "2"}, NGRAM),
    (
        {
            "NGRAM_PROMPT_LOOKUP_MIN": "1",
            "NGRAM_PROMPT_LOOKUP_MAX": "7",
            "NUM_SPECULATIVE_TOKENS": "4",
        },
        {
            "method": "ngram",
            "num_speculative_tokens": 4,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 7,
        },
    ),
    ({"SPECULATIVE_MODEL": "org/draft"}, DRAFT),
    (
        {"SPECULATIVE_MODEL": "org/draft", "SPECULATIVE_METHOD": "draft"},
        {**DRAFT, "method": "draft_model"},
    ),
    (
        {"SPECULATIVE_MODEL": "org/draft", "SPECULATIVE_METHOD": "Eagle-3"},
        {**DRAFT, "method": "eagle3"},
    ),
    (
        {
            "SPECULATIVE_MODEL": "org/draft",
            "NUM_SPECULATIVE_TOKENS": "2",
            "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "1",
            "SPECULATIVE_MAX_MODEL_LEN": "2048",
            "SPECULATIVE_QUANTIZATION": "awq",
            "SPECULATIVE_MODEL_REVISION": "v1",
            "SPECULATIVE_ENFORCE_EAGER": "yes",
        },
        {
            "model": "org/draft",
            "num_speculative_tokens": 2,
            "draft_tensor_parallel_size": 1,
            "max_model_len": 2048,
            "quantization": "awq",
            "revision": "v1",
            "enforce_eager": True,
        },
    ),
    ({"SPECULATIVE_METHOD": "suffix"}, {"method": "suffix"}),
    ({"SPECULATIVE_METHOD": "mtp"}, {"method": "mtp", "num_speculative_tokens": 1}),
    (
        {"SPECULATIVE_METHOD": "qwen3_next_mtp"},
        {"method": "qwen3_next_mtp", "num_speculative_tokens": 1},
    ),
    (
        {"SPECULATIVE_METHOD": "mtp", "SPECULATIVE_MODEL": "org/head"},
        {"method": "mtp", "model": "org/head"},
    ),
    ({"SPECULATIVE_METHOD": "dspark"}, {"method": "dspark", "num_speculative_tokens": 3}),
    (
        {"SPECULATIVE_METHOD": "dspark", "SPECULATIVE_MODEL": "org/head"},
        {"method": "dspark", "model": "org/head"},
    ),
    (
        {"SPECULATIVE_METHOD": "medusa", "SPECULATIVE_MODEL": "org/m"},
        {"method": "medusa", "model": "org/m", "num_speculative_tokens": 3},
    ),
    (config(**NGRAM), NGRAM),
    (config(method="NGRAM"), NGRAM),
    (config(method="[ngram]"), NGRAM),
    (config(model="[ngram]"), NGRAM),
    (config(model="ngram", method=None), NGRAM),
    (config(**{"method": "ngram", "num-speculative-tokens": "3", "prompt-lookup-max": 4}), NGRAM),
    (config(method="ngram", prompt_lookup_max=None), NGRAM),
    (
        {**config(method="ngram"), "NUM_SPECULATIVE_TOKENS": "3", "NGRAM_PROMPT_LOOKUP_MAX": "4"},
        NGRAM,
    ),
    ({**config(**NGRAM), "SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "3"}, NGRAM),
    (
        config(model="org/draft", num_speculative_tokens=3, use_heterogeneous_vocab=True),
        {**DRAFT, "use_heterogeneous_vocab": True},
    ),
    (
        config(**NGRAM, num_speculative_tokens_per_batch_size=[[1, 4, 3], [5, 8, 0]]),
        {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 8, 0]]},
    ),
]


@pytest.mark.parametrize(("environ", "made"), ROWS)
def test_variables_become_the_engines_fields(environ: dict[str, str], made: dict[str, Any]) -> None:
    assert accepted(environ) == made


@pytest.mark.parametrize(("variable", "key"), speculation_fields.KEY_OF_FIELD.items())
def test_each_variable_has_a_field_of_the_engine(variable: str, key: str) -> None:
    assert key in speculation_fields.KEYS
    assert any(variable in group.model_fields for group in env_schema.GROUPS)


def test_the_engines_dict_is_a_new_one_each_time() -> None:
    environ = config(**NGRAM)
    assert accepted(environ) is not accepted(environ)


# ---- what leaves it off


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SPECULATIVE_METHOD": "", "SPECULATIVE_MODEL": "None", "NUM_SPECULATIVE_TOKENS": "0"},
        {"NGRAM_PROMPT_LOOKUP_MAX": "0", "NGRAM_PROMPT_LOOKUP_MIN": "0"},
        {"SPEC_DECODING_ACCEPTANCE_METHOD": "rejection_sampler"},
    ],
)
def test_without_a_method_a_model_or_a_window_it_is_off_and_nothing_is_said(
    environ: dict[str, str],
) -> None:
    assert resolve(environ) == Speculation()


@pytest.mark.parametrize(
    "environ",
    [
        {"NUM_SPECULATIVE_TOKENS": "3"},
        {"SPECULATIVE_DISABLE_BY_BATCH_SIZE": "8"},
        {"SPECULATIVE_MODEL_REVISION": "v1", "SPECULATIVE_ENFORCE_EAGER": "false"},
        {"SPEC_DECODING_ACCEPTANCE_METHOD": "typical_acceptance_sampler"},
        config(num_speculative_tokens=3),
        {"SPECULATIVE_CONFIG": "{}"},
    ],
)
def test_details_alone_leave_it_off_with_a_warning_that_names_them(environ: dict[str, str]) -> None:
    made = resolve(environ)
    assert made.config is None
    assert made.problems == []
    (warning,) = made.warnings
    assert warning.startswith(", ".join(environ))
    assert "speculation stays off" in warning


# ---- the n-gram window


@pytest.mark.parametrize(
    ("environ", "window", "told"),
    [
        (
            {},
            (2, 4),
            "n-gram window not set: NGRAM_PROMPT_LOOKUP_MIN=2 and NGRAM_PROMPT_LOOKUP_MAX=4",
        ),
        ({"NGRAM_PROMPT_LOOKUP_MAX": "4"}, (2, 4), "NGRAM_PROMPT_LOOKUP_MIN is not set: 2 is used"),
        ({"NGRAM_PROMPT_LOOKUP_MAX": "1"}, (1, 1), "NGRAM_PROMPT_LOOKUP_MIN is not set: 1 is used"),
        ({"NGRAM_PROMPT_LOOKUP_MAX": "9"}, (2, 9), "NGRAM_PROMPT_LOOKUP_MIN is not set: 2 is used"),
        ({"NGRAM_PROMPT_LOOKUP_MIN": "3"}, (3, 4), "NGRAM_PROMPT_LOOKUP_MAX is not set: 4 is used"),
        ({"NGRAM_PROMPT_LOOKUP_MIN": "6"}, (6, 6), "NGRAM_PROMPT_LOOKUP_MAX is not set: 6 is used"),
    ],
)
def test_a_missing_bound_of_the_window_is_supplied_and_told(
    environ: dict[str, str], window: tuple[int, int], told: str
) -> None:
    made = resolve({**environ, "SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "3"})
    assert made.config is not None
    assert (made.config["prompt_lookup_min"], made.config["prompt_lookup_max"]) == window
    (warning,) = made.warnings
    assert warning.startswith(told)


def test_a_whole_window_is_taken_without_a_word() -> None:
    environ = {
        "SPECULATIVE_METHOD": "ngram",
        "NUM_SPECULATIVE_TOKENS": "3",
        "NGRAM_PROMPT_LOOKUP_MIN": "4",
        "NGRAM_PROMPT_LOOKUP_MAX": "4",
    }
    assert resolve(environ).warnings == []


@pytest.mark.parametrize(
    "environ",
    [
        config(method="ngram", prompt_lookup_min=5, prompt_lookup_max=2),
        {**config(method="ngram", prompt_lookup_max=2), "NGRAM_PROMPT_LOOKUP_MIN": "5"},
        {**config(method="ngram", prompt_lookup_min=5), "NGRAM_PROMPT_LOOKUP_MAX": "2"},
    ],
)
def test_a_window_that_ends_before_it_begins_is_refused_wherever_it_comes_from(
    environ: dict[str, str],
) -> None:
    assert refused(environ) == [
        "NGRAM_PROMPT_LOOKUP_MIN=5: is above NGRAM_PROMPT_LOOKUP_MAX=2. "
        "Lower the one or raise the other."
    ]


def test_a_window_beside_a_draft_model_is_told_to_have_no_effect() -> None:
    made = resolve({"SPECULATIVE_MODEL": "org/draft", "NGRAM_PROMPT_LOOKUP_MAX": "4"})
    assert made.config is not None
    assert "method" not in made.config
    assert any("have no effect: drafts come from org/draft" in line for line in made.warnings)


@pytest.mark.parametrize("method", sorted(speculation.WITHOUT_DRAFT))
def test_settings_of_a_draft_without_one_are_dropped_and_told(method: str) -> None:
    plain = accepted({"SPECULATIVE_METHOD": method})
    made = resolve(
        {
            "SPECULATIVE_METHOD": method,
            "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE": "2",
            "SPECULATIVE_QUANTIZATION": "awq",
            **config(max_model_len=2048),
        }
    )
    assert made.config == plain
    assert made.warnings[0] == (
        "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE, max_model_len of SPECULATIVE_CONFIG, "
        f"SPECULATIVE_QUANTIZATION: no effect, since the {method} method has no draft"
    )


@pytest.mark.parametrize("method", ["", "  ", "None"])
def test_the_defaults_of_an_old_form_turn_it_on_and_are_told_how_to_turn_it_off(
    method: str,
) -> None:
    made = resolve(
        {
            "SPECULATIVE_METHOD": method,
            "NUM_SPECULATIVE_TOKENS": "1",
            "NGRAM_PROMPT_LOOKUP_MAX": "1",
        }
    )
    assert made.config is not None
    assert made.config["method"] == "ngram"
    told = [line for line in made.warnings if "defaults of an old form" in line]
    assert len(told) == 1
    assert "unset NGRAM_PROMPT_LOOKUP_MAX and NUM_SPECULATIVE_TOKENS" in told[0]


def test_the_same_numbers_on_purpose_are_no_old_form() -> None:
    environ = {"NUM_SPECULATIVE_TOKENS": "1", "NGRAM_PROMPT_LOOKUP_MAX": "1"}
    made = resolve({**environ, "SPECULATIVE_METHOD": "ngram"})
    assert not any("old form" in line for line in made.warnings)


# ---- the count


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"SPECULATIVE_MODEL": "org/draft"}, 3),
        (
            {
                "SPECULATIVE_MODEL": "[ngram]",
                "NGRAM_PROMPT_LOOKUP_MIN": "2",
                "NGRAM_PROMPT_LOOKUP_MAX": "4",
            },
            3,
        ),
        ({"SPECULATIVE_METHOD": "eagle3", "SPECULATIVE_MODEL": "org/head"}, 3),
        ({"SPECULATIVE_METHOD": "mtp"}, 1),
    ],
)
def test_a_missing_count_is_supplied_and_told(environ: dict[str, str], count: int) -> None:
    made = resolve(environ)
    assert made.config is not None
    assert made.config["num_speculative_tokens"] == count
    assert made.warnings == [f"NUM_SPECULATIVE_TOKENS is not set: {count} is used"]


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "2000"},
            "NUM_SPECULATIVE_TOKENS=2000: is above 128, the most that the engine verifies",
        ),
        (
            config(method="ngram", num_speculative_tokens=129),
            "NUM_SPECULATIVE_TOKENS=129: is above 128, the most that the engine verifies in a step",
        ),
        (
            config(method="ngram", num_speculative_tokens=0),
            "SPECULATIVE_CONFIG: its num_speculative_tokens is 0, which is not a whole number",
        ),
        (
            config(method="ngram", num_speculative_tokens=True),
            "SPECULATIVE_CONFIG: its num_speculative_tokens is True, which is not a whole number",
        ),
        (
            config(method="ngram", prompt_lookup_max="many"),
            "SPECULATIVE_CONFIG: its prompt_lookup_max is many, which is not a whole number",
        ),
        (
            config(model="org/d", max_model_len=[1]),
            "SPECULATIVE_CONFIG: its max_model_len is [1], which is not a whole number from 1",
        ),
    ],
)
def test_a_number_that_the_engine_would_die_of_is_refused(
    environ: dict[str, str], told: str
) -> None:
    (line,) = refused(environ)
    assert line.startswith(told)


def test_the_greatest_count_is_taken() -> None:
    assert accepted({"SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "128"})


# ---- contradictions


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {
                **config(method="ngram"),
                "SPECULATIVE_METHOD": "eagle3",
                "SPECULATIVE_MODEL": "org/h",
            },
            "SPECULATIVE_METHOD=eagle3: SPECULATIVE_CONFIG has method=ngram for the same setting. "
            "Set only one of the two.",
        ),
        (
            {**config(**NGRAM), "NUM_SPECULATIVE_TOKENS": "5"},
            "NUM_SPECULATIVE_TOKENS=5: SPECULATIVE_CONFIG has num_speculative_tokens=3 for the "
            "same setting. Set only one of the two.",
        ),
        (
            {**config(model="org/a"), "SPEC_MODEL": "org/b"},
            "SPEC_MODEL=org/b: SPECULATIVE_CONFIG has model=org/a for the same setting. "
            "Set only one of the two.",
        ),
        (
            {**config(model="org/a", quantization="awq"), "SPECULATIVE_QUANTIZATION": "fp8"},
            "SPECULATIVE_QUANTIZATION=fp8: SPECULATIVE_CONFIG has quantization=awq for the same "
            "setting. Set only one of the two.",
        ),
        (
            {"SPECULATIVE_METHOD": "ngram", "SPECULATIVE_MODEL": "org/draft"},
            "SPECULATIVE_MODEL=org/draft: the ngram method drafts without a model. Unset "
            "SPECULATIVE_MODEL, or set SPECULATIVE_METHOD=draft_model.",
        ),
        (
            {"SPECULATIVE_METHOD": "suffix", "SPECULATIVE_MODEL": "[ngram]"},
            "SPECULATIVE_MODEL=[ngram]: the suffix method drafts without a model. Unset "
            "SPECULATIVE_MODEL, or set SPECULATIVE_METHOD=draft_model.",
        ),
        (
            {"SPECULATIVE_METHOD": "eagle3", "SPECULATIVE_MODEL": "[ngram]"},
            "SPECULATIVE_MODEL=[ngram]: stands for n-gram lookup, and the method is eagle3. Set "
            "SPECULATIVE_METHOD=ngram, or SPECULATIVE_MODEL to a draft model.",
        ),
        (
            {**config(method="eagle3", model="org/h"), "SPECULATIVE_MODEL": "[ngram]"},
            "SPECULATIVE_MODEL=[ngram]: stands for n-gram lookup, and the method is eagle3. Set "
            "SPECULATIVE_METHOD=ngram, or SPECULATIVE_MODEL to a draft model.",
        ),
        (
            config(method="telepathy", num_speculative_tokens=3),
            "SPECULATIVE_CONFIG: its method telepathy is not one of the accepted values",
        ),
        (
            config(method=["ngram"], model="org/d"),
            "SPECULATIVE_CONFIG: its method ['ngram'] is not one of the accepted values",
        ),
        (
            config(model=["org/d"], num_speculative_tokens=3),
            "SPECULATIVE_CONFIG: its model ['org/d'] is not a text.",
        ),
        (
            config(method="ngram", num_spec_tokens=3),
            "SPECULATIVE_CONFIG: its key num_spec_tokens is not one of the engine's; the nearest "
            "is num_speculative_tokens.",
        ),
        (
            config(method="ngram", target_model_config={}),
            "SPECULATIVE_CONFIG: its key target_model_config is not one of the engine's",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    environ: dict[str, str], told: str
) -> None:
    assert refused(environ)[0].startswith(told)


@pytest.mark.parametrize("method", sorted(speculation.WITH_DRAFT))
def test_a_method_that_drafts_with_a_model_needs_one(method: str) -> None:
    assert refused({"SPECULATIVE_METHOD": method}) == [
        f"SPECULATIVE_MODEL: not set, and the {method} method needs something to draft with. "
        "Set SPECULATIVE_MODEL."
    ]


@pytest.mark.parametrize(("key", "variable"), speculation_fields.REMOVED.items())
def test_a_key_that_the_engine_has_dropped_is_told_its_successor(key: str, variable: str) -> None:
    instead = f" and set {variable}" if variable else ""
    assert refused(config(method="ngram", **{key: 1})) == [
        f"SPECULATIVE_CONFIG: its key {key} is not one of the engine's any more. "
        f"Remove it{instead}."
    ]
    assert not variable or variable in env_schema.known_variables()


def test_all_contradictions_come_together() -> None:
    environ = {
        **config(
            method="ngram", posterior_alpha=1, acceptance_method="x", num_speculative_tokens=3
        ),
        "NUM_SPECULATIVE_TOKENS": "5",
        "SPECULATIVE_MODEL": "org/draft",
    }
    assert len(refused(environ)) == 4


# ---- the cut-off by batch size


@pytest.mark.parametrize(
    ("cutoff", "max_num_seqs", "schedule"),
    [
        (8, 64, [[1, 8, 3], [9, 64, 0]]),
        (8, None, [[1, 8, 3], [9, 9, 0]]),
        (8, 9, [[1, 8, 3], [9, 9, 0]]),
        (8, 8, [[1, 8, 3]]),
        (8, 4, [[1, 8, 3]]),
        (1, 2, [[1, 1, 3], [2, 2, 0]]),
    ],
)
def test_the_cut_off_is_a_schedule_of_batch_sizes(
    cutoff: int, max_num_seqs: int | None, schedule: list[list[int]]
) -> None:
    environ = {"SPECULATIVE_METHOD": "ngram", "SPECULATIVE_DISABLE_BY_BATCH_SIZE": str(cutoff)}
    made = accepted(environ, max_num_seqs)
    assert made == {**NGRAM, "num_speculative_tokens_per_batch_size": schedule}


def test_a_cut_off_does_not_lower_a_count_that_the_checkpoint_says() -> None:
    environ = {
        "SPECULATIVE_METHOD": "mtp",
        "SPECULATIVE_MODEL": "org/head",
        "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "8",
    }
    schedule = accepted(environ, 16)["num_speculative_tokens_per_batch_size"]
    assert schedule == [[1, 8, speculation.MOST_TOKENS], [9, 16, 0]]


@pytest.mark.parametrize("method", sorted(speculation_schedule.FIXED_COUNT))
def test_a_method_with_a_fixed_count_has_no_cut_off(method: str) -> None:
    environ = {"SPECULATIVE_METHOD": method}
    if method in speculation.WITH_DRAFT:
        environ["SPECULATIVE_MODEL"] = "org/head"
    (line,) = refused({**environ, "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "4"})
    assert line.startswith(
        f"SPECULATIVE_DISABLE_BY_BATCH_SIZE=4: the {method} method drafts a fixed count"
    )
    schedule = config(num_speculative_tokens_per_batch_size=[[1, 4, 2]])
    (line,) = refused({**environ, **schedule})
    assert line.startswith(f"SPECULATIVE_CONFIG: the {method} method drafts a fixed count")


def test_a_cut_off_beside_another_schedule_is_refused() -> None:
    environ = config(**NGRAM, num_speculative_tokens_per_batch_size=[[1, 4, 3]])
    (line,) = refused({**environ, "SPECULATIVE_DISABLE_BY_BATCH_SIZE": "8"})
    assert line.startswith("SPECULATIVE_DISABLE_BY_BATCH_SIZE=")


SCHEDULES: list[tuple[Any, str | None]] = [
    ([[1, 4, 3]], None),
    ([[1, 4, 3], [5, 8, 0]], None),
    ([[5, 8, 0], [1, 4, 3]], None),
    ([[1, 4, 3], [9, 16, 1]], None),
    ([[1, 1, 0]], None),
    ([], "is not a list of whole numbers"),
    ("1-4:3", "is not a list of whole numbers"),
    ({"1": 3}, "is not a list of whole numbers"),
    ([[1, 4]], "is not a list of whole numbers"),
    ([[1, 4, 3, 2]], "is not a list of whole numbers"),
    ([[1, 4, 3], 5], "is not a list of whole numbers"),
    ([[2, 8, 0]], "does not begin at a batch size of 1"),
    ([[0, 8, 0]], "does not begin at a batch size of 1"),
    ([[1, 4, 3], [4, 8, 0]], "has ranges that overlap"),
    ([[1, 9, 3], [2, 3, 0]], "has ranges that overlap"),
    ([[4, 1, 3]], "has a range that ends before it begins"),
    ([[1, 4, -1]], "has a range that ends before it begins, or a count below 0"),
]


@pytest.mark.parametrize(("schedule", "fault"), SCHEDULES)
def test_a_schedule_is_judged_before_the_weights_are_loaded(
    schedule: Any, fault: str | None
) -> None:
    told = refused(config(**NGRAM, num_speculative_tokens_per_batch_size=schedule))
    expected = f"SPECULATIVE_CONFIG: its num_speculative_tokens_per_batch_size {fault}"
    assert [line[: len(expected)] for line in told] == ([expected] if fault else [])


@pytest.mark.engine
@pytest.mark.parametrize(("schedule", "fault"), SCHEDULES)
def test_the_engines_child_judges_a_schedule_alike(schedule: Any, fault: str | None) -> None:
    from vllm.v1.spec_decode.dynamic import utils

    if fault is None:
        utils.validate_and_normalize_dynamic_sd_schedule(schedule)
    else:
        with pytest.raises((ValueError, TypeError)):
            utils.validate_and_normalize_dynamic_sd_schedule(schedule)


@pytest.mark.engine
@pytest.mark.parametrize(("cutoff", "max_num_seqs"), [(8, 64), (8, None), (8, 8), (1, 2), (3, 1)])
def test_the_engine_drafts_up_to_the_cut_off_and_not_above(
    cutoff: int, max_num_seqs: int | None
) -> None:
    from vllm.v1.spec_decode.dynamic import utils

    environ = {"SPECULATIVE_METHOD": "ngram", "SPECULATIVE_DISABLE_BY_BATCH_SIZE": str(cutoff)}
    schedule = accepted(environ, max_num_seqs)["num_speculative_tokens_per_batch_size"]
    largest = max_num_seqs or 256
    counts = utils.build_dynamic_sd_schedule_lookup(schedule, largest, 3)
    assert counts[1:] == [3 if size <= cutoff else 0 for size in range(1, largest + 1)]


# ---- how drafts are judged


def test_the_exact_rule_is_the_default_and_may_be_named() -> None:
    environ = {
        "SPECULATIVE_METHOD": "ngram",
        "SPEC_DECODING_ACCEPTANCE_METHOD": "Rejection_Sampler",
    }
    assert accepted(environ) == NGRAM


def test_details_of_typical_acceptance_without_it_are_told() -> None:
    made = resolve(
        {
            "SPECULATIVE_METHOD": "ngram",
            "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD": "0.1",
            "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA": "0.3",
        }
    )
    assert made.warnings[-1] == (
        "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD and "
        "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA: no effect without "
        "SPEC_DECODING_ACCEPTANCE_METHOD=typical_acceptance_sampler"
    )


# ---- the engine's own word


@pytest.fixture(scope="module")
def engine_config(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Any]:
    """The engine's own config for a speculative one; a `model` in it is a draft's folder."""
    from worker import launch

    folder = tmp_path_factory.mktemp("model")
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 512}
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    text = json.dumps({**kind, **shape, **heads, "max_position_embeddings": 4096})
    (folder / "config.json").write_text(text)
    base: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "kv_cache_memory_bytes": 2**28,
    }

    def make(speculative: dict[str, Any]) -> Any:
        drafted = {"model": str(folder)} if speculative.get("model") == "org/draft" else {}
        spoken = launch.namespace({**base, "speculative_config": {**speculative, **drafted}})
        return launch.engine_config(spoken).speculative_config

    return make


def _needs_no_files(made: dict[str, Any]) -> bool:
    """Whether a config.json is all that the engine asks of the draft, and of the machine."""
    return made.get("method", "draft_model") in ("ngram", "ngram_gpu", "draft_model") and not (
        made.keys() & {"quantization", "use_heterogeneous_vocab"}
    )


@pytest.mark.engine
@pytest.mark.parametrize("made", [made for _, made in ROWS if _needs_no_files(made)])
def test_the_engine_accepts_what_is_accepted_here(
    made: dict[str, Any], engine_config: Callable[[dict[str, Any]], Any]
) -> None:
    spoken = engine_config(made)
    assert spoken.method == made.get("method", "draft_model")
    for key in made.keys() - {"model", "num_speculative_tokens_per_batch_size"}:
        assert getattr(spoken, key) == made[key]


@pytest.mark.engine
@pytest.mark.parametrize("method", sorted(speculation.WITH_DRAFT))
def test_the_engine_refuses_the_methods_without_a_draft_that_are_refused_here(
    method: str, engine_config: Callable[[dict[str, Any]], Any]
) -> None:
    with pytest.raises(ValueError, match=r"without speculative model|requires 'model'"):
        engine_config({"method": method, "num_speculative_tokens": 3})


@pytest.mark.engine
@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3", "medusa", "mtp", "dspark"])
def test_the_engine_has_no_count_of_its_own_where_one_is_supplied_here(
    method: str, engine_config: Callable[[dict[str, Any]], Any]
) -> None:
    with pytest.raises(ValueError, match="num_speculative_tokens must be provided"):
        engine_config({"method": method})


@pytest.mark.engine
def test_the_known_keys_are_those_of_the_engines_own_class() -> None:
    from vllm.config import SpeculativeConfig

    internal = {
        *("target_model_config", "target_parallel_config"),
        *("draft_model_config", "draft_parallel_config"),
        "tensor_parallel_size",  # always an error, with a hint at another key
    }
    of_engine = {field.name for field in fields(SpeculativeConfig)} - internal
    assert of_engine == speculation_fields.KEYS
    assert not speculation_fields.REMOVED.keys() & speculation_fields.KEYS


def test_the_sets_of_methods_name_methods_of_the_engine() -> None:
    methods = set(catalog.load().arguments["spec_method"].choices)
    for named in (
        *(speculation.NGRAM_METHODS, speculation.COUNT_FROM_CHECKPOINT),
        *(speculation.WITH_DRAFT, speculation.WITHOUT_DRAFT, speculation_schedule.FIXED_COUNT),
    ):
        assert named <= methods


def test_a_problem_is_one_line_free_of_what_was_hidden_in_it() -> None:
    made = resolve(config(method="x\ny", **{"bad\nkey hf_abcdefghijklm": 1}))
    assert all(isinstance(problem, Problem) for problem in made.problems)
    lines = [str(problem) for problem in made.problems]
    assert len(lines) == 2
    assert all(line.splitlines() == [line] and "hf_abc" not in line for line in lines)
