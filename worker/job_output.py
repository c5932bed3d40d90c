"""What a job yields: native chunks, SSE text, objects, errors. Plain JSON types only.

The SDK drops a chunk that JSON cannot carry, and with it the final result, so that the
job never ends; everything here has gone through `plain`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from worker.errors import RequestError

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

Emission = dict[str, Any] | list[Any] | str


def plain(value: Any) -> Any:
    """The value in plain JSON types: no NaN, no lone surrogate, no foreign object."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    return plain(str(value))


def failure(error: RequestError) -> dict[str, Any]:
    """The yield that ends a job as FAILED.

    The SDK turns the value into text with `str`, so it is JSON text already.
    """
    return {"error": json.dumps(plain(dict(error.body())), ensure_ascii=False)}


def error_payload(error: RequestError) -> dict[str, Any]:
    """The error as the payload of an event, in OpenAI's shape."""
    return {"error": plain(dict(error.body()))}


@dataclass
class NativeAnswer:
    """Puts native output together: `choices[].tokens` and `usage.input/output`.

    `usage.output` counts token ids: a speculative step brings several at once.
    """

    choices: int
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: dict[int, str] = field(default_factory=dict)
    metrics: list["RequestSpecDecodeMetrics"] = field(default_factory=list)

    def chunk(self, outputs: Sequence["RequestOutput"]) -> dict[str, Any]:
        """One emission for the engine's outputs; usage is that of the job so far."""
        texts: list[list[str]] = [[] for _ in range(self.choices)]
        logprobs: list[list[Any]] = [[] for _ in range(self.choices)]
        for output in outputs:
            self.prompt_tokens = len(output.prompt_token_ids or ())
            for choice in output.outputs:
                self._take(choice, texts[choice.index], logprobs[choice.index])
        result: dict[str, Any] = {
            "choices": [
                self._choice(index, texts[index], logprobs[index]) for index in range(self.choices)
            ],
            "usage": {"input": self.prompt_tokens, "output": self.output_tokens},
        }
        if self.metrics and len(self.finish_reasons) == self.choices:
            result["speculative"] = acceptance(_together(self.metrics).to_dict())
        cleaned: dict[str, Any] = plain(result)
        return cleaned

    def _take(self, choice: Any, texts: list[str], logprobs: list[Any]) -> None:
        self.output_tokens += len(choice.token_ids)
        if choice.text:
            texts.append(choice.text)
        if choice.logprobs:
            logprobs += [_token_logprobs(position) for position in choice.logprobs]
        if choice.finish_reason:
            self.finish_reasons[choice.index] = choice.finish_reason
        if choice.spec_decode_metrics is not None:
            self.metrics.append(choice.spec_decode_metrics)

    def _choice(self, index: int, texts: list[str], logprobs: list[Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"tokens": texts}
        if logprobs:
            choice["logprobs"] = logprobs
        if index in self.finish_reasons:
            choice["finish_reason"] = self.finish_reasons[index]
        return choice


def _together(choices: Sequence["RequestSpecDecodeMetrics"]) -> "RequestSpecDecodeMetrics":
    """The figures of a job's choices as those of one."""
    total = choices[0].new(choices[0].num_spec_tokens)
    total.histogram = [sum(c) for c in zip(*(c.histogram for c in choices), strict=True)]
    total.num_draft_tokens = sum(choice.num_draft_tokens for choice in choices)
    return total


def acceptance(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A request's acceptance figures, from the engine's `RequestSpecDecodeMetrics.to_dict`.

    `accepted_per_position[i]` counts the steps that accepted more than `i` drafted tokens.
    """
    histogram = metrics["acceptance_histogram"]
    return {
        "steps": metrics["num_spec_steps"],
        "drafted": metrics["num_draft_tokens"],
        "accepted": metrics["num_accepted_draft_tokens"],
        "acceptance_rate": metrics["draft_acceptance_rate"],
        "mean_acceptance_length": metrics["mean_acceptance_length"],
        "accepted_per_position": [sum(histogram[i:]) for i in range(1, len(histogram))],
    }


def _token_logprobs(position: Mapping[int, Any]) -> dict[str, Any]:
    """Token text to log probability, the sampled token first, as the engine ranks them.

    Parts of one character look alike; of tokens with one text the later go by their ids.
    """
    texts: dict[str, Any] = {}
    for token, entry in position.items():
        text = entry.decoded_token
        texts[f"token_id:{token}" if not text or text in texts else text] = entry.logprob
    return texts
