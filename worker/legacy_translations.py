"""Old values whose meaning has moved to another variable: text -> today's variables."""

import json
import re
from collections.abc import Mapping

STRUCTURED = "STRUCTURED_OUTPUTS_CONFIG"


def count(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise ValueError("is not a whole number")
    return int(text)


GUIDED_BACKENDS = ("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")
# A backend that is named never falls back to another, so that option has nothing to say.
GUIDED_OPTIONS: Mapping[str, str | None] = {
    "no-fallback": None,
    "disable-any-whitespace": "disable_any_whitespace",
    "no-additional-properties": "disable_additional_properties",
}


def guided_backend(text: str) -> Mapping[str, str]:
    """`backend`, or vLLM 0.8's `backend:option,option`."""
    backend, _, rest = text.casefold().partition(":")
    options = [word.strip() for word in rest.split(",") if word.strip()]
    if backend not in GUIDED_BACKENDS:
        raise ValueError(f"is not a backend; there are {', '.join(GUIDED_BACKENDS)}")
    if unknown := [word for word in options if word not in GUIDED_OPTIONS]:
        raise ValueError(f"has an unknown option, {unknown[0]}")
    keys = [key for word in options if (key := GUIDED_OPTIONS[word])]
    return {STRUCTURED: json.dumps({"backend": backend, **dict.fromkeys(keys, True)})}


TASKS: Mapping[str, Mapping[str, str]] = {
    "auto": {},
    "generate": {"RUNNER": "generate"},
    "transcription": {"RUNNER": "generate"},
    "draft": {"RUNNER": "draft"},
    "embed": {"RUNNER": "pooling", "CONVERT": "embed"},
    "embedding": {"RUNNER": "pooling", "CONVERT": "embed"},
    "classify": {"RUNNER": "pooling", "CONVERT": "classify"},
    "score": {"RUNNER": "pooling"},  # how, the engine tells from the architecture
    "reward": {"RUNNER": "pooling"},
}


def task(text: str) -> Mapping[str, str]:
    if text.casefold() not in TASKS:
        raise ValueError(f"is not a task; there were {', '.join(TASKS)}")
    return TASKS[text.casefold()]


def graph_sizes(text: str) -> Mapping[str, str]:
    """One number was the largest size to capture, several were the sizes themselves."""
    sizes = [count(part) for part in re.split(r"[,\s]+", text.strip("[] ")) if part]
    if len(sizes) == 1:
        return {"MAX_CUDAGRAPH_CAPTURE_SIZE": str(sizes[0])}
    return {"CUDAGRAPH_CAPTURE_SIZES": json.dumps(sizes)} if sizes else {}
