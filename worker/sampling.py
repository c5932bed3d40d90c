"""A job's sampling values -> the engine's `SamplingParams`, typed strictly.

`SamplingParams` itself takes many wrong types, and one of them ends the engine's input
thread while its health check still passes. `msgspec.convert` checks each value against
the engine's own class, so a new parameter is covered by itself. Numbers and booleans
given as clean text are taken; null means "not given".
"""

import math
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any

from worker.errors import RequestError

if TYPE_CHECKING:
    from vllm import SamplingParams

# Fields that are the worker's or the engine's own business, not a job's.
NOT_A_JOBS = frozenset(
    {
        "output_kind",  # the worker asks for deltas or for the whole
        "skip_clone",
        "output_text_buffer_length",
        "stream_interval",
        "prompt_logprob_token_ids",
        "prompt_logprob_start",  # of use only with the one before
        "logprob_token_ids",  # beside logprobs it ends the engine under speculation
        "prompt_logprobs",  # native output has no place for them; /v1/completions has
        "flat_logprobs",
        "detokenize",  # without it there is no text to send
        "routed_experts_prompt_start",
        "trace_decode_token_ids",
        "watermarking",
    }
)

# Beyond these the engine's newer runner fails in its arrays, and the whole engine ends.
# Upstream: `vllm/v1/worker/gpu/sample/`, `states.py` and `logit_bias.py`.
LARGEST: Mapping[str, int] = {
    "seed": 2**62,  # 64 bits, and each further choice adds one
    "min_tokens": 2**30,  # 32 bits, and the prompt's length is added
}
LONGEST: Mapping[str, int] = {
    "logit_bias": 1024,
    "allowed_token_ids": 1024,
    "stop_token_ids": 120,  # 128 with the model's own
}

# Parameters of old engines: what to send now.
FORMER: Mapping[str, str] = {
    "prompt_logprobs": "use the route /v1/completions, whose output has a place for them",
    "logprob_token_ids": "send logprobs",
    "detokenize": "leave it out: the output is text",
    "best_of": "send n, and choose among the answers yourself",
    "use_beam_search": "beam search is gone from the engine; leave it out",
    "length_penalty": "it belonged to beam search; leave it out",
    "early_stopping": "it belonged to beam search; leave it out",
    "guided_json": 'send "structured_outputs": {"json": …}',
    "guided_regex": 'send "structured_outputs": {"regex": …}',
    "guided_choice": 'send "structured_outputs": {"choice": […]}',
    "guided_grammar": 'send "structured_outputs": {"grammar": …}',
    "guided_decoding_backend": "set STRUCTURED_OUTPUTS_CONFIG on the endpoint",
    "guided_whitespace_pattern": 'send "structured_outputs": {"whitespace_pattern": …}',
    "truncate_prompt_tokens": "shorten the prompt before sending it",
    "max_new_tokens": "send max_tokens",
}


@cache
def names() -> frozenset[str]:
    """The sampling parameters that a job may send."""
    from vllm import SamplingParams

    fields = SamplingParams.__struct_fields__
    return frozenset(name for name in fields if not name.startswith("_")) - NOT_A_JOBS


def build(
    given: Mapping[str, Any], defaults: Mapping[str, Any], *, streamed: bool
) -> "SamplingParams":
    """The engine's parameters for a job's values over the model's own defaults.

    Raises `RequestError` naming the field that is unknown, of a wrong type or out of range.
    """
    import msgspec
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import RequestOutputKind

    values = {name: value for name, value in given.items() if value is not None}
    _refuse_unknown(values)
    for name, value in values.items():
        _refuse_what_cannot_travel(name, value)
    kind = RequestOutputKind.DELTA if streamed else RequestOutputKind.FINAL_ONLY
    # without a limit the engine would stop at 16 tokens; null is "to the end of the context"
    merged = {"max_tokens": None, **defaults, **values, "output_kind": kind.value}
    try:
        parameters = msgspec.convert(merged, SamplingParams, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), values) from None
    except (VLLMValidationError, ValueError, TypeError) as error:
        named = getattr(error, "parameter", None) or _named_in(str(error), values)
        raise RequestError(error_text(error), param=named) from None
    checked = {name: getattr(parameters, name) for name in values}
    for name, value in checked.items():
        _refuse_what_cannot_travel(name, value)  # once more: numbers were given as text
    refuse_what_breaks_the_engine(checked)
    return parameters


def refuse_unknown(given: Collection[str], known: Collection[str], where: str) -> None:
    """Raise `RequestError` for the first name that is not known, with the nearest that is."""
    for name in given:
        if name in known:
            continue
        if name in FORMER:
            raise RequestError(
                f"{where}: {name} is not supported any more", param=name, hint=FORMER[name]
            )
        name = shown(name)
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
        raise RequestError(f"{where}: unknown field {name!r}", param=name, hint=hint)


def refuse_what_breaks_the_engine(values: Mapping[str, Any]) -> None:
    """Raise `RequestError` for what the engine's own checks let through, and which ends it."""
    for name, largest in LARGEST.items():
        if (given := values.get(name)) is not None and _size(given) > largest:
            raise RequestError(f"{name} must be at most {largest} ({shown(given)})", param=name)
    for name, longest in LONGEST.items():
        if isinstance(given := values.get(name), Mapping | list) and len(given) > longest:
            raise RequestError(
                f"{name} takes at most {longest} entries, not {len(given)}", param=name
            )
    if values.get("logprob_token_ids") is not None:
        raise RequestError(
            "logprob_token_ids is not supported",
            param="logprob_token_ids",
            hint=FORMER["logprob_token_ids"],
        )
    bias = values.get("logit_bias")
    if isinstance(bias, Mapping) and not all(_size(value) < math.inf for value in bias.values()):
        raise RequestError("logit_bias must have finite values", param="logit_bias")


def _size(given: Any) -> float:
    """How large a number is, also one given as text; 0 for what is none."""
    try:
        return abs(float(given))
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return 0.0


def error_text(error: BaseException) -> str:
    """The engine's sentence, without the parameter's name and value repeated behind it.

    Where it has none, its cause's, or the name of its class.
    """
    text = re.split(r" \(parameter=|: \{", " ".join(str(error).split()))[0]
    if text or error.__cause__ is None:
        return text or type(error).__name__
    return error_text(error.__cause__)


def shown(value: object) -> str:
    """A value as an error repeats it: shortened."""
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"


@cache
def _fields_of_objects() -> Mapping[str, list[str]]:
    """The fields of the parameters that are objects."""
    from vllm import sampling_params as upstream

    kinds: Mapping[str, Any] = {
        "structured_outputs": upstream.StructuredOutputsParams,
        "repetition_detection": upstream.RepetitionDetectionParams,
    }
    return {
        name: [field for field in kind.__dataclass_fields__ if not field.startswith("_")]
        for name, kind in kinds.items()
    }


def _refuse_unknown(values: Mapping[str, Any]) -> None:
    refuse_unknown(values, names(), "sampling_params")
    for name, fields in _fields_of_objects().items():
        if isinstance(given := values.get(name), Mapping):
            refuse_unknown(given, fields, name)


def _refuse_what_cannot_travel(name: str, value: Any) -> None:
    """Numbers of more than 64 bits and halves of characters have no form on the way there."""
    import msgspec

    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise RequestError(f"{name} cannot be sent to the engine: {error}", param=name) from None


def _wrong_type(message: str, values: Mapping[str, Any]) -> RequestError:
    """`Expected `int | null`, got `str` - at `$.seed`` as an error that names the field."""
    expected, _, place = message.partition(" - at ")
    path = place.rpartition("$.")[2].rstrip("`")
    name = path.partition("[")[0].partition(".")[0]
    expected = expected.replace("`", "").replace(" | null", "")
    where = path or "sampling_params"
    return RequestError(f"{where}: {expected} ({shown(values.get(name))})", param=name or None)


def _named_in(message: str, values: Mapping[str, Any]) -> str | None:
    """The given parameter that an error of the engine speaks of first."""
    paths = {name: name for name in values}
    for name, fields in _fields_of_objects().items():
        paths |= {field: name for field in fields if name in values}
    found = [
        (match.start(), path)
        for word, path in paths.items()
        if (match := re.search(rf"\b{word.replace('_', '[_ ]')}\b", message))
    ]
    return min(found)[1] if found else None
