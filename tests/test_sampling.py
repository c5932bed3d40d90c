"""A job's sampling values: what is let through survives the way to the engine's core."""

import math
from typing import Any

import msgspec
import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from worker import sampling
from worker.errors import RequestError

HALF_A_CHARACTER = "\ud800"

# every JSON type, and the values of each that are most likely to slip through
JSON_VALUES: list[Any] = [
    True,
    False,
    0,
    1,
    -1,
    5,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    0.5,
    10.0,
    10.5,
    -0.0,
    1e308,
    math.nan,
    math.inf,
    "",
    "x",
    "42",
    "10.0",
    "1.5",
    "true",
    "false",
    "null",
    "nan",
    "-inf",
    "99999999999999999999",
    HALF_A_CHARACTER,
    [],
    [1],
    [1.0],
    [1.5],
    ["1"],
    ["x"],
    [""],
    [None],
    [True],
    [[1]],
    [2**70],
    [-1],
    [HALF_A_CHARACTER],
    {},
    {"5": 1},
    {"5": "1"},
    {"5": "x"},
    {"5": None},
    {"5": math.nan},
    {"5": "nan"},
    {"x": 1},
    {str(2**70): 1},
    {"json": {}},
    {"json": {"type": "object"}},
    {"json": 5},
    {"json": HALF_A_CHARACTER},
    {"json": "{}", "regex": "a"},
    {"regex": ["a"]},
    {"choice": "a"},
    {"choice": ["a", "b"]},
    {"max_pattern_size": 3, "min_count": 2},
    {"max_pattern_size": 3},
    {"max_pattern_size": -1},
    {"max_pattern_size": True},
    {"deep": {"er": [1, {"x": None}]}},
]


def build(given: dict[str, Any], defaults: dict[str, Any] | None = None) -> SamplingParams:
    return sampling.build(given, defaults or {}, streamed=True)


def refusal(given: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        build(given)
    return caught.value


def outcome_of(given: dict[str, Any]) -> SamplingParams | RequestError:
    try:
        return build(given)
    except RequestError as error:
        return error


def sent(parameters: SamplingParams) -> SamplingParams:
    """The parameters as the engine's core gets them."""
    request = EngineCoreRequest(
        request_id="1",
        prompt_token_ids=[1],
        mm_features=None,
        sampling_params=parameters.clone(),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    decoded = MsgpackDecoder(EngineCoreRequest).decode(MsgpackEncoder().encode(request))
    assert decoded.sampling_params is not None
    received: SamplingParams = decoded.sampling_params
    return received


@pytest.mark.parametrize("name", sorted(sampling.names()))
def test_each_value_of_a_parameter_arrives_or_is_refused_by_name(name: str) -> None:
    arrived = 0
    for value in [*JSON_VALUES, None]:
        outcome = outcome_of({name: value})
        if isinstance(outcome, RequestError):
            assert name in f"{outcome.param} {outcome.message}", (value, outcome.message)
            assert "\n" not in outcome.message
            assert outcome.code == 400
            assert len(outcome.message) < 500
        else:
            arrived += 1
            # what an extra argument means is for those who read it; that it arrives is enough
            assert sent(outcome) == outcome or name == "extra_args", value
    assert arrived > 1  # more than null


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("max_tokens", 10.0, 10),
        ("max_tokens", "10", 10),
        ("max_tokens", None, None),
        ("min_tokens", 5.0, 5),
        ("logprobs", 5.0, 5),
        ("seed", "42", 42),
        ("seed", 1.0, 1),
        ("seed", 0, 0),
        ("top_k", "40", 40),
        ("temperature", 1, 1.0),
        ("temperature", "0.5", 0.5),
        ("temperature", None, 1.0),
        ("ignore_eos", 1, True),
        ("ignore_eos", None, False),
        ("ignore_eos", "true", True),
        ("skip_special_tokens", None, True),
        ("skip_special_tokens", "false", False),
        ("include_stop_str_in_output", "true", True),
        ("spaces_between_special_tokens", 0, False),
        ("allowed_token_ids", [1.0], [1]),
        ("stop", "x", ["x"]),
        ("stop", ["x", "y"], ["x", "y"]),
        ("logit_bias", {"5": 1}, {5: 1.0}),
        ("logit_bias", {"5": "1"}, {5: 1.0}),
        ("bad_words", ["x"], ["x"]),
        ("extra_args", {"a": 1}, {"a": 1}),
    ],
)
def test_a_value_becomes_the_type_that_the_engine_wants(
    name: str, given: Any, expected: Any
) -> None:
    got = getattr(build({name: given}), name)
    assert got == expected
    assert type(got) is type(expected)
    assert sent(build({name: given})) == build({name: given})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 10.5),
        ("max_tokens", True),
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("min_tokens", True),
        ("seed", True),
        ("seed", "x"),
        ("n", True),
        ("n", 0),
        ("top_k", True),
        ("top_k", -2),
        ("temperature", True),
        ("temperature", -1),
        ("temperature", math.nan),
        ("top_p", True),
        ("top_p", 0),
        ("min_p", True),
        ("presence_penalty", True),
        ("frequency_penalty", True),
        ("repetition_penalty", True),
        ("ignore_eos", "maybe"),
        ("ignore_eos", 2),
        ("detokenize", "x"),
        ("flat_logprobs", "x"),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": "x"}),
        ("logit_bias", {"5": math.nan}),
        ("logit_bias", {"5": "inf"}),
        ("logit_bias", [5]),
        ("bad_words", [1]),
        ("stop", 5),
        ("stop", [""]),
        ("extra_args", "text"),
        ("repetition_detection", "x"),
        ("structured_outputs", "x"),
        ("structured_outputs", {}),
        ("structured_outputs", {"json": {}, "regex": "a"}),
        ("structured_outputs", {"json": 5}),
        ("structured_outputs", {"_backend": "xgrammar", "json": {}}),
        ("repetition_detection", {"max_pattern_size": -1}),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    assert name in str(refusal({name: value}).param) or name in refusal({name: value}).message


@pytest.mark.parametrize(
    ("name", "largest"),
    [("seed", 2**62), ("seed", -(2**62)), ("min_tokens", 2**30)],
)
def test_a_number_that_the_engine_would_overflow_with_is_refused(name: str, largest: int) -> None:
    assert getattr(build({name: largest}), name) == largest
    assert refusal({name: largest * 2 - 1}).param == name
    assert refusal({name: str(largest * 2 - 1)}).param == name


@pytest.mark.parametrize("name", ["allowed_token_ids", "stop_token_ids", "logit_bias"])
def test_a_list_that_the_engine_has_no_room_for_is_refused(name: str) -> None:
    longest = sampling.LONGEST[name]
    tokens = [*range(longest + 1)]

    def given(count: int) -> dict[str, Any]:
        bias = {str(token): 1.0 for token in tokens[:count]}
        return {name: bias if name == "logit_bias" else tokens[:count]}

    assert len(getattr(build(given(longest)), name)) == longest
    assert refusal(given(longest + 1)).param == name


@pytest.mark.parametrize(
    "given",
    [{"seed": "42"}, {"max_tokens": 10.0}, {"temperature": True}, {"ignore_eos": 1}],
)
def test_the_engines_own_class_takes_what_its_core_cannot_read(given: dict[str, Any]) -> None:
    """Why `build` exists: this is the decoding that ends the core's input thread."""
    with pytest.raises(msgspec.ValidationError):
        sent(SamplingParams(**given))


@pytest.mark.parametrize("name", sorted(sampling.FORMER))
def test_an_old_name_is_told_what_to_send_now(name: str) -> None:
    error = refusal({name: {}})
    assert (error.param, error.hint) == (name, sampling.FORMER[name])


def test_no_old_name_is_a_name_of_the_engine() -> None:
    assert not sampling.FORMER.keys() & sampling.names()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("max_token", "max_tokens"),
        ("Temperature", "temperature"),
        ("topp", "top_p"),
        ("repetition_penality", "repetition_penalty"),
        ("stop_tokens_ids", "stop_token_ids"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, nearest: str) -> None:
    error = refusal({name: 1})
    assert error.param == name
    assert error.hint == f"did you mean {nearest}?"


def test_a_name_near_none_is_told_all() -> None:
    assert "temperature" in str(refusal({"zzzzzz": 1}).hint)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ({"structured_outputs": {"jsn": {}}}, "json"),
        ({"repetition_detection": {"min_counts": 2}}, "min_count"),
    ],
)
def test_an_unknown_field_inside_a_parameter_is_told_the_nearest(
    given: dict[str, Any], nearest: str
) -> None:
    assert refusal(given).hint == f"did you mean {nearest}?"


@pytest.mark.parametrize("name", [*sorted(sampling.NOT_A_JOBS), "_all_stop_token_ids"])
def test_what_is_not_a_jobs_business_is_unknown(name: str) -> None:
    assert refusal({name: 1}).param == name


def test_every_name_that_is_kept_from_jobs_is_one_of_the_engine() -> None:
    assert set(SamplingParams.__struct_fields__) >= sampling.NOT_A_JOBS


def test_a_job_wins_over_the_models_defaults_and_null_takes_them() -> None:
    defaults = {"temperature": 0.6, "top_p": 0.9, "max_tokens": 100}
    parameters = build({"temperature": 0.2, "top_p": None}, defaults)
    assert (parameters.temperature, parameters.top_p) == (0.2, 0.9)
    assert parameters.max_tokens == 100


def test_without_a_limit_an_answer_may_fill_the_context() -> None:
    assert build({}).max_tokens is None


@pytest.mark.parametrize(
    ("streamed", "kind"),
    [(True, RequestOutputKind.DELTA), (False, RequestOutputKind.FINAL_ONLY)],
)
def test_a_stream_gets_deltas_and_an_answer_the_whole(
    streamed: bool, kind: RequestOutputKind
) -> None:
    assert sampling.build({}, {}, streamed=streamed).output_kind is kind


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"n": 2, "temperature": 0}, "n"),
    ],
)
def test_values_that_do_not_go_together_are_refused_by_the_first(
    given: dict[str, Any], param: str
) -> None:
    assert refusal(given).param == param


def test_an_error_without_words_is_told_by_its_cause_or_its_class() -> None:
    empty = RuntimeError()
    assert sampling.error_text(empty) == "RuntimeError"
    empty.__cause__ = ValueError("too\nlong")
    assert sampling.error_text(empty) == "too long"
