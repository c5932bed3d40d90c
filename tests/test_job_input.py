"""The accepted job shapes, and the field that a refusal names."""

import json
from typing import Any

import pytest

from worker import job_input
from worker.errors import RequestError
from worker.job_input import NativeRequest, OpenAIRequest
from worker.pace import Pace

PACE = Pace(least_tokens=2, most_tokens=20, growth=2.0, flush_s=0.1)
HELLO = [{"role": "user", "content": "Hello"}]
BODY = {"messages": HELLO}
CHAT, COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"


def native(job_input_: Any) -> NativeRequest:
    request = job_input.parse({"id": "1", "input": job_input_}, PACE)
    assert isinstance(request, NativeRequest)
    return request


def openai(route: Any, body: Any = None) -> OpenAIRequest:
    given = {"openai_route": route, "openai_input": body}
    request = job_input.parse({"id": "1", "input": given}, PACE)
    assert isinstance(request, OpenAIRequest)
    return request


def refusal(job_input_: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        job_input.parse({"id": "1", "input": job_input_}, PACE)
    return caught.value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"prompt": "Hi"}, NativeRequest(PACE, prompt="Hi")),
        ({"messages": HELLO}, NativeRequest(PACE, messages=HELLO)),
        ({"prompt": "Hi", "messages": None}, NativeRequest(PACE, prompt="Hi")),
        ({"prompt": "Hi", "stream": True}, NativeRequest(PACE, prompt="Hi", stream=True)),
        ({"prompt": "Hi", "stream": " True "}, NativeRequest(PACE, prompt="Hi", stream=True)),
        ({"prompt": "Hi", "stream": "false"}, NativeRequest(PACE, prompt="Hi")),
        ({"prompt": "Hi", "stream": None}, NativeRequest(PACE, prompt="Hi")),
        (
            {"prompt": "Hi", "sampling_params": {"max_tokens": 5}},
            NativeRequest(PACE, prompt="Hi", sampling_params={"max_tokens": 5}),
        ),
        (
            {"prompt": "Hi", "max_tokens": 5},
            NativeRequest(PACE, prompt="Hi", sampling_params={"max_tokens": 5}),
        ),
        (
            {"prompt": "Hi", "seed": 1, "max_tokens": 5, "sampling_params": {"max_tokens": 5}},
            NativeRequest(PACE, prompt="Hi", sampling_params={"max_tokens": 5, "seed": 1}),
        ),
        (
            {"prompt": "Hi", "max_tokens": 5, "sampling_params": {"max_tokens": None}},
            NativeRequest(PACE, prompt="Hi", sampling_params={"max_tokens": 5}),
        ),
        (
            {"prompt": "Hello", "apply_chat_template": True},
            NativeRequest(PACE, messages=HELLO),
        ),
        (
            {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}},
            NativeRequest(PACE, messages=HELLO, template_arguments={"enable_thinking": False}),
        ),
        ({"prompt": "Hi", "speculative": True}, NativeRequest(PACE, prompt="Hi", speculative=True)),
        ({"prompt": "Hi", "speculative": False}, NativeRequest(PACE, "Hi", speculative=False)),
        ({"prompt": "Hi", "speculative": None}, NativeRequest(PACE, prompt="Hi")),
        ({"prompt": " "}, NativeRequest(PACE, prompt=" ")),
        ({"prompt": "日本\x00語"}, NativeRequest(PACE, prompt="日本\x00語")),
    ],
    ids=repr,
)
def test_a_native_shape_is_read(given: dict[str, Any], expected: NativeRequest) -> None:
    assert native(given) == expected


@pytest.mark.parametrize(
    "content",
    ["text", "", None, [], [{"type": "text", "text": "x"}]],
)
def test_the_contents_that_a_message_may_have(content: Any) -> None:
    messages = [{"role": "user", "content": content}]
    assert native({"messages": messages}).messages == messages


def test_a_message_may_call_tools_instead_of_having_a_content() -> None:
    messages = [{"role": "assistant", "tool_calls": [{"id": "1"}]}]
    assert native({"messages": messages}).messages == messages


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, PACE),
        ({"max_batch_size": 5}, Pace(2, 5, 2.0, 0.1)),
        ({"max_batch_size": "5"}, Pace(2, 5, 2.0, 0.1)),
        ({"max_batch_size": 1}, Pace(1, 1, 2.0, 0.1)),
        ({"min_batch_size": 4}, Pace(4, 20, 2.0, 0.1)),
        ({"batch_size_growth_factor": 1.5}, Pace(2, 20, 1.5, 0.1)),
        (
            {"min_batch_size": 3, "max_batch_size": 3, "batch_size_growth_factor": 1},
            Pace(3, 3, 1.0, 0.1),
        ),
    ],
)
def test_a_job_may_set_its_own_pace(given: dict[str, Any], expected: Pace) -> None:
    assert native({"prompt": "Hi", **given}).pace == expected


@pytest.mark.parametrize("given", ["hello", [1], [], None, 5, 0, 1.5, True, False, ""])
def test_an_input_that_is_no_object_is_refused_in_one_line(given: Any) -> None:
    error = refusal(given)
    assert (error.param, error.code) == ("input", 400)
    assert "\n" not in error.message


def test_a_job_without_input_is_refused() -> None:
    with pytest.raises(RequestError, match="null"):
        job_input.parse({"id": "1"}, PACE)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": False}, "prompt"),
        ({"prompt": "a", "messages": HELLO}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {"role": "user", "content": "a"}}, "messages"),
        ({"messages": [None]}, "messages"),
        *(({"prompt": "a", "speculative": value}, "speculative") for value in ("true", 1, 0, {})),
        ({"messages": ["hi"]}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages"),
        ({"messages": [{"role": 5, "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": True}]}, "messages"),
        ({"messages": [{"role": "user", "content": {"text": "a"}}]}, "messages"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages"),
        ({"prompt": "a", "sampling_params": [1]}, "sampling_params"),
        ({"prompt": "a", "sampling_params": "max_tokens=5"}, "sampling_params"),
        ({"prompt": "a", "sampling_params": 5}, "sampling_params"),
        ({"prompt": "a", "max_tokens": 1, "sampling_params": {"max_tokens": 2}}, "max_tokens"),
        ({"prompt": "a", "stream": "yes"}, "stream"),
        ({"prompt": "a", "stream": 1}, "stream"),
        ({"prompt": "a", "stream": 0}, "stream"),
        ({"prompt": "a", "stream": []}, "stream"),
        ({"prompt": "a", "stream": {}}, "stream"),
        ({"prompt": "a", "apply_chat_template": "maybe"}, "apply_chat_template"),
        ({"messages": HELLO, "chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"prompt": "a", "max_batch_size": 0}, "max_batch_size"),
        ({"prompt": "a", "max_batch_size": -1}, "max_batch_size"),
        ({"prompt": "a", "max_batch_size": True}, "max_batch_size"),
        ({"prompt": "a", "max_batch_size": "many"}, "max_batch_size"),
        ({"prompt": "a", "max_batch_size": []}, "max_batch_size"),
        ({"prompt": "a", "max_batch_size": float("inf")}, "max_batch_size"),
        ({"prompt": "a", "max_batch_size": float("nan")}, "max_batch_size"),
        ({"prompt": "a", "max_batch_size": 10**400}, "max_batch_size"),
        ({"prompt": "a", "min_batch_size": 30}, "min_batch_size"),
        ({"prompt": "a", "batch_size_growth_factor": 0.5}, "batch_size_growth_factor"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "max_token": 2}, "max_token"),
        ({"prompt": "a", "model": "x"}, "model"),
        ({"prompt": "a", "output_kind": 1}, "output_kind"),
        ({"openai_input": BODY}, "openai_route"),
        ({"openai_route": None, "openai_input": BODY}, "openai_route"),
        ({"openai_route": CHAT, "openai_input": BODY, "prompt": "a"}, "prompt"),
        ({"openai_route": 5}, "openai_route"),
        ({"openai_route": [CHAT]}, "openai_route"),
        ({"openai_route": ""}, "openai_route"),
        ({"openai_route": CHAT, "openai_input": "text"}, "openai_input"),
        ({"openai_route": CHAT, "openai_input": [BODY]}, "openai_input"),
        ({"openai_route": MODELS, "openai_input": "text"}, "openai_input"),
        ({"openai_route": CHAT, "openai_input": {"stream": "yes"}}, "stream"),
        ({"openai_route": CHAT, "openai_input": {"stream": 1}}, "stream"),
        ({"openai_route": CHAT, "openai_input": {"seed": 2**63 - 1, "n": 2}}, "seed"),
        ({"openai_route": CHAT, "openai_input": {"seed": str(2**63 - 1)}}, "seed"),
        ({"openai_route": CHAT, "openai_input": {"seed": 10**400}}, "seed"),
        ({"openai_route": CHAT, "openai_input": {"min_tokens": 2**31}}, "min_tokens"),
        (
            {"openai_route": COMPLETIONS, "openai_input": {"allowed_token_ids": [1] * 1025}},
            "allowed_token_ids",
        ),
        (
            {
                "openai_route": CHAT,
                "openai_input": {"logit_bias": {str(n): 1 for n in range(1025)}},
            },
            "logit_bias",
        ),
        ({"openai_route": CHAT, "openai_input": {"logit_bias": {"1": float("nan")}}}, "logit_bias"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_bad_job_is_refused_by_the_name_of_its_field(given: dict[str, Any], param: str) -> None:
    error = refusal(given)
    assert error.param == param
    assert param in error.message + str(error.hint)
    assert "\n" not in error.message


def test_a_refusal_of_something_huge_is_short() -> None:
    huge = "x" * 100_000
    for given in (
        {"prompt": "a", "stream": huge},
        {"prompt": "a", huge: 1},
        {"prompt": "a", "max_batch_size": huge},
        {"openai_route": huge},
    ):
        assert len(json.dumps(dict(refusal(given).body()))) < 2_000


@pytest.mark.parametrize(
    ("route", "path", "method"),
    [
        (CHAT, CHAT, "POST"),
        (COMPLETIONS, COMPLETIONS, "POST"),
        (MODELS, MODELS, "GET"),
        ("v1/models", MODELS, "GET"),
        ("/v1/models/", MODELS, "GET"),
        (" /v1/models\n", MODELS, "GET"),
        ("//v1/models", MODELS, "GET"),
        ("/metrics", "/metrics", "GET"),
        ("metrics/", "/metrics", "GET"),
    ],
)
def test_a_served_route_is_called_under_its_own_name(route: str, path: str, method: str) -> None:
    request = openai(route, {})
    assert (request.path, request.method) == (path, method)


@pytest.mark.parametrize(
    "route",
    [
        "/v1/models/../../metrics",
        "/v1/chat/completions/../../../metrics",
        "/v1/models/..",
        "/v1/./models",
        "/v1//models",
        "http://x/v1/models",
        "//x/v1/models",
        "/v1/chat/completions?x=1",
        "/v1/models#x",
        "/v1/models;x",
        "/v1/models%2f",
        "/v1/mod%65ls",
        "/v1/models\\",
        "/v1/models\x00",
        "/v1/models /metrics",
        "/V1/MODELS",
        "/v1/Models",
        "/v1/chat/Completions",
        "/v1\u2044models",
        "/metricsx",
        "/metrics/x",
        "/shutdown",
        "/v1/load_lora_adapter",
        "/tokenize",
        "/health",
        "/",
        ".",
    ],
)
def test_every_other_route_is_not_found(route: str) -> None:
    error = refusal({"openai_route": route, "openai_input": {}})
    assert (error.param, error.code, error.kind) == ("openai_route", 404, "NotFoundError")
    assert CHAT in str(error.hint)


@pytest.mark.parametrize("given", [{}, {"openai_input": None}, {"openai_input": {}}])
def test_a_get_needs_no_body_and_sends_none(given: dict[str, Any]) -> None:
    request = job_input.parse({"input": {"openai_route": MODELS, **given}}, PACE)
    assert request == OpenAIRequest(PACE, "GET", MODELS)


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        ({}, False),
        ({"stream": None}, False),
        ({"stream": False}, False),
        ({"stream": True}, True),
        ({"stream": "true"}, True),
        ({"stream": "False"}, False),
    ],
)
def test_a_post_streams_where_its_body_says_so(body: dict[str, Any], stream: bool) -> None:
    request = openai(CHAT, {**BODY, **body})
    assert request.stream is stream
    assert request.body == {**BODY, **({"stream": stream} if body else {})}


@pytest.mark.parametrize("name", ["chat_template", "messages", "conversation", "tokenize", "tools"])
def test_a_template_gets_no_template_and_no_names_of_the_call(name: str) -> None:
    with pytest.raises(RequestError, match=f"may not hold {name}") as refused:
        job_input.parse(
            {"id": "1", "input": {"messages": HELLO, "chat_template_kwargs": {name: "x"}}}, PACE
        )
    assert refused.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"prompt": "a\ud800"}, "prompt"),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, "messages"),
        ({"prompt": "a", "sampling_params": {"stop": ["\ud800"]}}, "sampling_params"),
        ({"openai_route": COMPLETIONS, "openai_input": {"prompt": "a", "stop": ["\ud800"]}},
         "stop"),
    ],
)  # fmt: skip
def test_half_of_a_character_is_refused_by_the_field(given: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match="half of a character") as refused:
        job_input.parse({"id": "1", "input": given}, PACE)
    assert refused.value.param == param


def test_token_ids_for_log_probabilities_are_refused_on_every_route() -> None:
    with pytest.raises(RequestError, match="logprob_token_ids"):
        openai(CHAT, {**BODY, "logprobs": True, "logprob_token_ids": [5]})


@pytest.mark.parametrize(
    "body",
    [
        {"seed": "x", "min_tokens": None, "logit_bias": "x", "allowed_token_ids": 5},
        {"seed": [1], "min_tokens": {}, "logit_bias": {"1": "x"}, "stop_token_ids": "x"},
        {"seed": 2**62, "min_tokens": 5, "allowed_token_ids": [1] * 1024},
    ],
)
def test_a_body_is_otherwise_left_to_the_application(body: dict[str, Any]) -> None:
    assert openai(CHAT, body).body == body


def test_a_post_without_a_body_leaves_its_refusal_to_the_application() -> None:
    assert openai(CHAT).body == {}
