"""A job's sampling values -> the engine's `SamplingParams`, typed strictly.

`SamplingParams` itself takes many wrong types, and one of them ends the engine's input
thread while its health check still passes. `msgspec.convert` checks each value against
the engine's own class, so a new parameter is covered by itself. Numbers and booleans
given as clean text are taken; null means "not given".
"""

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
        "routed_experts_prompt_start",
        "trace_decode_token_ids",
        "watermarking",
    }
)

# Parameters of old engines: what to send now.
FORMER: Mapping[str, str] = {
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
    refuse_unknown(values, names(), "sampling_params")
    _refuse_unknown_constraints(values.get("structured_outputs"))
    kind = RequestOutputKind.DELTA if streamed else RequestOutputKind.FINAL_ONLY
    # without a limit the engine would stop at 16 tokens; null is "to the end of the context"
    merged = {"max_tokens": None, **defaults, **values, "output_kind": kind.value}
    try:
        return msgspec.convert(merged, SamplingParams, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), values) from None
    except VLLMValidationError as error:
        raise RequestError(error_text(error), param=getattr(error, "parameter", None)) from None
    except (ValueError, TypeError) as error:
        raise RequestError(" ".join(str(error).split())) from None


def refuse_unknown(given: Collection[str], known: Collection[str], where: str) -> None:
    """Raise `RequestError` for the first name that is not known, with the nearest that is."""
    for name in given:
        if name in known:
            continue
        if name in FORMER:
            raise RequestError(
                f"{where}: {name} is not supported any more", param=name, hint=FORMER[name]
            )
        near = get_close_matches(str(name), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
        raise RequestError(f"{where}: unknown field {name!r}", param=str(name), hint=hint)


def error_text(error: Exception) -> str:
    """The engine's sentence, without the parameter's name and value repeated behind it."""
    return " ".join(str(error).split()).partition(" (parameter=")[0]


def _refuse_unknown_constraints(constraints: Any) -> None:
    if isinstance(constraints, Mapping):
        from vllm.sampling_params import StructuredOutputsParams

        fields = StructuredOutputsParams.__dataclass_fields__
        known = [name for name in fields if not name.startswith("_")]
        refuse_unknown(constraints, known, "structured_outputs")


def _wrong_type(message: str, values: Mapping[str, Any]) -> RequestError:
    """`Expected `int | null`, got `str` - at `$.seed`` as an error that names the field."""
    expected, _, path = message.partition(" - at `$.")
    path = path.rstrip("`")
    name = path.partition("[")[0].partition(".")[0]
    expected = expected.replace("`", "").replace(" | null", "")
    given = str(values.get(name))
    shown = given if len(given) <= 40 else given[:39] + "…"
    return RequestError(f"{path or 'sampling_params'}: {expected} ({shown})", param=name or None)
