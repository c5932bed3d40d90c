"""The accepted job shapes -> one request, or a client error that names the field.

{"prompt" | "messages", "sampling_params", "stream", "speculative", …}
{"openai_route", "openai_input"}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker import sampling
from worker.errors import RequestError
from worker.pace import Pace

# What may be called, and how. Everything else never leaves the process.
ROUTES: Mapping[str, str] = {
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/models": "GET",
    "/metrics": "GET",
}

NATIVE_FIELDS = frozenset(
    {
        "prompt",
        "messages",
        "sampling_params",
        "stream",
        "speculative",
        "apply_chat_template",
        "chat_template_kwargs",
        "max_batch_size",
        "min_batch_size",
        "batch_size_growth_factor",
    }
)
OPENAI_FIELDS = frozenset({"openai_route", "openai_input"})


@dataclass(frozen=True)
class NativeRequest:
    """A job in the worker's own shape; exactly one of `prompt` and `messages` is set.

    `speculative` says whether the answer carries acceptance figures, None what the
    endpoint does.
    """

    pace: Pace
    prompt: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    speculative: bool | None = None


@dataclass(frozen=True)
class OpenAIRequest:
    """A job for one of the engine's own routes."""

    pace: Pace
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    stream: bool = False


Request = NativeRequest | OpenAIRequest


def parse(job: Mapping[str, Any], pace: Pace) -> Request:
    """The request of a platform job.

    `pace` holds the endpoint's defaults. Raises `RequestError`.
    """
    given = job.get("input")
    if not isinstance(given, Mapping):
        raise RequestError(
            f"input must be an object, not {_kind(given)}",
            param="input",
            hint='send {"input": {"prompt": "…"}} or {"input": {"messages": […]}}',
        )
    values = {str(name): value for name, value in given.items() if value is not None}
    for name, value in {**_fields_of(values.get("openai_input")), **values}.items():
        if _is_half_a_character(value):
            raise RequestError(
                f"{sampling.shown(ascii(name))} holds half of a character (a lone surrogate)",
                param=ascii(name).strip("'"),
                hint="send well-formed Unicode",
            )
    return _openai(values, pace) if OPENAI_FIELDS & values.keys() else _native(values, pace)


def _openai(values: Mapping[str, Any], pace: Pace) -> OpenAIRequest:
    sampling.refuse_unknown(values, OPENAI_FIELDS, "input")
    if "openai_route" not in values:
        raise RequestError(
            "openai_input needs openai_route beside it",
            param="openai_route",
            hint=f"served: {', '.join(ROUTES)}",
        )
    route, body = values["openai_route"], values.get("openai_input")
    if not isinstance(route, str):
        raise RequestError(f"openai_route must be text, not {_kind(route)}", param="openai_route")
    path = "/" + route.strip().strip("/")
    method = ROUTES.get(path)
    if method is None:
        raise RequestError(
            f"openai_route {sampling.shown(route)!r} is not served here",
            param="openai_route",
            code=404,
            kind="NotFoundError",
            hint=f"served: {', '.join(ROUTES)}",
        )
    if body is not None and not isinstance(body, Mapping):
        raise RequestError(
            f"openai_input must be an object, not {_kind(body)}", param="openai_input"
        )
    if method == "GET":
        return OpenAIRequest(pace, method, path)
    body = dict(body or {})
    sampling.refuse_what_breaks_the_engine(body)
    if "stream" in body:
        body["stream"] = _flag(body, "stream")
    return OpenAIRequest(pace, method, path, body, stream=bool(body.get("stream")))


def _native(values: Mapping[str, Any], pace: Pace) -> NativeRequest:
    known = NATIVE_FIELDS | sampling.names()
    sampling.refuse_unknown(values, known, "input")
    prompt, messages = _prompt(values), _messages(values)
    if (prompt is None) == (messages is None):
        raise RequestError(
            "input needs either prompt or messages" + (", not both" if prompt else ""),
            param="prompt",
            hint='send {"input": {"prompt": "…"}} or {"input": {"messages": […]}}',
        )
    if prompt is not None and _flag(values, "apply_chat_template"):
        prompt, messages = None, [{"role": "user", "content": prompt}]
    return NativeRequest(
        pace=_pace(values, pace),
        prompt=prompt,
        messages=messages,
        sampling_params=_sampling(values),
        template_arguments=_template_arguments(values),
        stream=_flag(values, "stream"),
        speculative=_boolean(values, "speculative"),
    )


# A template of the client's own could run for ever, and the rest are the call's own names.
NOT_FOR_TEMPLATES = frozenset({"chat_template", "messages", "conversation", "tokenize", "tools"})


def _template_arguments(values: Mapping[str, Any]) -> Mapping[str, Any]:
    given = _object(values, "chat_template_kwargs")
    for name in sorted(NOT_FOR_TEMPLATES & given.keys()):
        raise RequestError(
            f"chat_template_kwargs may not hold {name}",
            param="chat_template_kwargs",
            hint="leave it out; the endpoint's template is set by CUSTOM_CHAT_TEMPLATE",
        )
    return given


def _prompt(values: Mapping[str, Any]) -> str | None:
    prompt = values.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise RequestError(f"prompt must be text, not {_kind(prompt)}", param="prompt")
    if prompt == "":
        raise RequestError("prompt is empty", param="prompt", hint="send some text")
    return prompt


def _messages(values: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    messages = values.get("messages")
    if messages is None:
        return None
    if not isinstance(messages, list) or not messages:
        what = "an empty list" if messages == [] else _kind(messages)
        raise RequestError(f"messages must be a list of messages, not {what}", param="messages")
    for index, message in enumerate(messages):
        if not _is_message(message):
            raise RequestError(
                f"messages[{index}] must be an object with a role and content", param="messages"
            )
    return messages


def _is_message(message: object) -> bool:
    """Whether it has a role; the content is text or parts, and none where tools were called."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return isinstance(content, str | list | None) and all(isinstance(p, Mapping) for p in parts)


def _sampling(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """`sampling_params`, and the sampling names given beside the prompt."""
    given = _object(values, "sampling_params")
    nested = {name: value for name, value in given.items() if value is not None}
    beside = {name: value for name, value in values.items() if name in sampling.names()}
    for name in beside.keys() & nested.keys():
        if beside[name] != nested[name]:
            raise RequestError(
                f"{name} is given twice, in input and in sampling_params, with different values",
                param=name,
            )
    return {**beside, **nested}


def _pace(values: Mapping[str, Any], pace: Pace) -> Pace:
    most = _number(values, "max_batch_size", pace.most_tokens, least=1)
    least = _number(values, "min_batch_size", min(pace.least_tokens, int(most)), least=1)
    growth = _number(values, "batch_size_growth_factor", pace.growth, least=1)
    if least > most:
        raise RequestError("min_batch_size is above max_batch_size", param="min_batch_size")
    return Pace(int(least), int(most), growth, pace.flush_s)


def _number(values: Mapping[str, Any], name: str, default: float, *, least: float) -> float:
    given = values.get(name, default)
    try:
        number = float(given) if not isinstance(given, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not least <= number < float("inf"):
        raise RequestError(
            f"{name} must be a number of at least {least:g} ({sampling.shown(given)})", param=name
        )
    return number


def _object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    given = values.get(name, {})
    if not isinstance(given, Mapping):
        raise RequestError(f"{name} must be an object, not {_kind(given)}", param=name)
    return given


def _flag(values: Mapping[str, Any], name: str) -> bool:
    """A boolean; the texts true and false are taken, nothing else is."""
    given = values.get(name)
    if given is None:
        return False
    word = given.strip().lower() if isinstance(given, str) else given
    if word is True or word == "true":
        return True
    if word is False or word == "false":
        return False
    raise RequestError(f"{name} must be true or false ({sampling.shown(given)})", param=name)


def _boolean(values: Mapping[str, Any], name: str) -> bool | None:
    """A boolean of JSON, or None where there is none."""
    given = values.get(name)
    if given is not None and not isinstance(given, bool):
        raise RequestError(f"{name} must be true or false, not {_kind(given)}", param=name)
    return given


def _fields_of(body: object) -> Mapping[str, Any]:
    return {str(name): value for name, value in body.items()} if isinstance(body, Mapping) else {}


def _is_half_a_character(value: object) -> bool:
    """Whether a text anywhere in the value cannot be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (TypeError, ValueError, RecursionError):
        return False  # others say what is wrong with it
    return False


def _kind(value: object) -> str:
    names = {str: "text", bool: "a boolean", list: "a list", dict: "an object", type(None): "null"}
    return names.get(type(value), "a number")
