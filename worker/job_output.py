"""What a job yields: native chunks, SSE text, objects, errors. Plain JSON types only.

The SDK drops a chunk that JSON cannot carry, and with it the final result, so that the
job never ends; everything here has gone through `plain`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from worker.acceptance import Acceptance
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

    `usage.output` counts token ids: a speculative step brings several at once. With
    `report` the last chunk carries the acceptance figures; with None, where there are any.
    """

    choices: int
    report: bool | None = None
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
        if len(self.finish_reasons) == self.choices:
            result |= self._report()
        cleaned: dict[str, Any] = plain(result)
        return cleaned

    def _report(self) -> dict[str, Any]:
        """The figures; null where a job asks for them and none were measured."""
        if self.report is False or not (self.metrics or self.report):
            return {}
        figures = Acceptance.of_request(self.metrics).shown() if self.metrics else None
        return {"speculative": figures}

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


def _token_logprobs(position: Mapping[int, Any]) -> dict[str, Any]:
    """Token text to log probability, the sampled token first, as the engine ranks them.

    Parts of one character look alike; of tokens with one text the later go by their ids.
    """
    texts: dict[str, Any] = {}
    for token, entry in position.items():
        text = entry.decoded_token
        texts[f"token_id:{token}" if not text or text in texts else text] = entry.logprob
    return texts
