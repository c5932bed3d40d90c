"""What a job yields: plain JSON in the shapes that clients know."""

import json
import math
from collections import OrderedDict, UserDict
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from vllm.logprobs import FlatLogprobs, Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

from worker import job_output
from worker.errors import RequestError
from worker.job_output import NativeAnswer, plain


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (5, 5),
        (2**70, 2**70),
        (1.5, 1.5),
        ("日本語 🙂", "日本語 🙂"),
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        ("a\ud800b", "a?b"),
        ({"\udfff": "\ud800"}, {"?": "?"}),
        ([math.nan, [math.inf]], [None, [None]]),
        ((1, "a"), [1, "a"]),
        ({1}, [1]),
        (frozenset({"a"}), ["a"]),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        (OrderedDict(a=1), {"a": 1}),
        (UserDict({"a": {1}}), {"a": [1]}),
        (b"ab", "b'ab'"),
        (b"\xff", "b'\\xff'"),
        (Path("/a/b"), "/a/b"),
        (Fraction(1, 2), "1/2"),
        (ValueError("a\ud800"), "a?"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        ([], []),
        ({}, {}),
    ],
    ids=repr,
)
def test_a_value_becomes_plain_json(value: Any, expected: Any) -> None:
    cleaned = plain(value)
    assert cleaned == expected
    assert json.loads(json.dumps(cleaned, allow_nan=False).encode()) == expected
    json.dumps(cleaned, ensure_ascii=False).encode()  # what a half of a character would break


@pytest.mark.parametrize(
    "error",
    [
        RequestError("plain"),
        RequestError("quotes \" and ' and \\", param="stop", hint="send\nless"),
        RequestError("日本語 \ud800", code=503, kind="EngineDeadError"),
        RequestError("odd", param={1, 2}),  # type: ignore[arg-type]  # from an answer of others
    ],
)
def test_a_failure_is_text_that_json_reads(error: RequestError) -> None:
    text = str(job_output.failure(error)["error"])  # the SDK calls `str`
    body = json.loads(text)
    assert body.keys() == {"message", "type", "code", "param", "hint"}
    assert (body["type"], body["code"]) == (error.kind, error.code)
    assert body == job_output.error_payload(error)["error"]


def test_a_failure_keeps_its_characters_readable() -> None:
    assert "日本語" in job_output.failure(RequestError("日本語"))["error"]


def choice(
    index: int = 0,
    text: str = "",
    tokens: Sequence[int] = (),
    *,
    finish_reason: str | None = None,
    logprobs: Any = None,
    metrics: RequestSpecDecodeMetrics | None = None,
) -> CompletionOutput:
    return CompletionOutput(
        index=index,
        text=text,
        token_ids=list(tokens),
        cumulative_logprob=None,
        logprobs=logprobs,
        finish_reason=finish_reason,
        spec_decode_metrics=metrics,
    )


def output(*choices: CompletionOutput, prompt: Sequence[int] | None = (1, 2, 3)) -> RequestOutput:
    return RequestOutput(
        request_id="1",
        prompt=None,
        prompt_token_ids=None if prompt is None else list(prompt),
        prompt_logprobs=None,
        outputs=list(choices),
        finished=all(choice.finish_reason for choice in choices),
    )


def test_a_chunk_has_the_shape_that_native_clients_know() -> None:
    chunk = NativeAnswer(1).chunk([output(choice(text="Hi", tokens=[7]))])
    assert chunk == {"choices": [{"tokens": ["Hi"]}], "usage": {"input": 3, "output": 1}}


def test_usage_counts_token_ids_and_not_outputs() -> None:
    answer = NativeAnswer(1)
    answer.chunk([output(choice(text="a", tokens=[7]))])
    chunk = answer.chunk(
        [output(choice(text="b c d", tokens=[8, 9, 10])), output(choice(text="", tokens=[11]))]
    )
    assert chunk["usage"] == {"input": 3, "output": 5}
    assert chunk["choices"] == [{"tokens": ["b c d"]}]


def test_the_last_chunk_tells_why_the_answer_ended() -> None:
    answer = NativeAnswer(1)
    first = answer.chunk([output(choice(text="a", tokens=[7]))])
    last = answer.chunk([output(choice(text="b", tokens=[8], finish_reason="length"))])
    assert "finish_reason" not in first["choices"][0]
    assert last["choices"] == [{"tokens": ["b"], "finish_reason": "length"}]


def test_several_choices_keep_their_places() -> None:
    answer = NativeAnswer(2)
    chunk = answer.chunk(
        [
            output(choice(1, "one", [7, 8], finish_reason="stop")),
            output(choice(0, "zero", [9])),
            output(choice(0, "!", [10])),
        ]
    )
    assert chunk["choices"] == [
        {"tokens": ["zero", "!"]},
        {"tokens": ["one"], "finish_reason": "stop"},
    ]
    assert chunk["usage"] == {"input": 3, "output": 4}


def test_a_prompt_without_token_ids_counts_as_none() -> None:
    assert NativeAnswer(1).chunk([output(choice(), prompt=None)])["usage"]["input"] == 0


def test_logprobs_go_by_their_texts_the_sampled_token_first() -> None:
    given = [
        {7: Logprob(-0.5, 2, "b"), 8: Logprob(-0.1, 1, "a")},
        {9: Logprob(-math.inf, 1, None)},
    ]
    (shown,) = NativeAnswer(1).chunk([output(choice(logprobs=given))])["choices"]
    assert shown["logprobs"] == [{"b": -0.5, "a": -0.1}, {"token_id:9": None}]
    assert list(shown["logprobs"][0]) == ["b", "a"]


def test_tokens_that_look_alike_do_not_replace_each_other() -> None:
    given = [{7: Logprob(-0.5, 1, "\ufffd"), 8: Logprob(-3.0, 2, "\ufffd")}]
    (shown,) = NativeAnswer(1).chunk([output(choice(logprobs=given))])["choices"]
    assert shown["logprobs"] == [{"\ufffd": -0.5, "token_id:8": -3.0}]


def test_flat_logprobs_look_like_the_others() -> None:
    flat = FlatLogprobs()
    flat.append({7: Logprob(-0.5, 1, "a")})
    flat.append({8: Logprob(-0.7, 1, "b")})
    (shown,) = NativeAnswer(1).chunk([output(choice(logprobs=flat))])["choices"]
    assert shown["logprobs"] == [{"a": -0.5}, {"b": -0.7}]


def metrics(*accepted: int) -> RequestSpecDecodeMetrics:
    """The figures of steps that drafted three tokens each and accepted so many."""
    figures = RequestSpecDecodeMetrics.new(num_spec_tokens=3)
    for count in accepted:
        figures.observe(num_draft_tokens=3, num_accepted=count)
    return figures


def test_the_last_chunk_tells_what_speculation_did() -> None:
    answer = NativeAnswer(1)
    first = answer.chunk([output(choice(text="a", tokens=[7]))])
    last = answer.chunk([output(choice(finish_reason="stop", metrics=metrics(3, 0, 1)))])
    assert "speculative" not in first
    assert last["speculative"] == {
        "steps": 3,
        "drafted": 9,
        "accepted": 4,
        "acceptance_rate": pytest.approx(4 / 9),
        "mean_acceptance_length": pytest.approx(1 + 4 / 3),
        "accepted_per_position": [2, 1, 1],
    }


def test_the_figures_of_several_choices_are_added() -> None:
    answer = NativeAnswer(2)
    first = answer.chunk([output(choice(0, finish_reason="stop", metrics=metrics(3, 0)))])
    last = answer.chunk([output(choice(1, finish_reason="stop", metrics=metrics(1)))])
    assert "speculative" not in first
    assert last["speculative"]["accepted"] == 4
    assert last["speculative"]["steps"] == 3


def test_without_a_draft_the_rates_are_those_of_no_speculation() -> None:
    chunk = NativeAnswer(1).chunk([output(choice(finish_reason="stop", metrics=metrics()))])
    assert chunk["speculative"]["accepted"] == 0
    assert chunk["speculative"]["mean_acceptance_length"] == 1.0


def test_text_of_a_broken_character_can_be_sent() -> None:
    chunk = NativeAnswer(1).chunk([output(choice(text="a\ud83d", tokens=[7]))])
    assert chunk["choices"][0]["tokens"] == ["a?"]
