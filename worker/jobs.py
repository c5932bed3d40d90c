"""One job from input to emissions: the flow, in one place.

Every job ends in exactly one way: its answer, one `{"error": …}`, or a cancellation.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from env_schema import ServingSettings
from worker import job_input, job_output, sampling
from worker.engine import Engine
from worker.errors import EngineError, RequestError
from worker.job_input import NativeRequest, OpenAIRequest
from worker.job_output import Emission
from worker.openai_app import OpenAIApp, Response
from worker.sse import Event, events
from worker.stream import Pace, emissions

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

log = logging.getLogger("worker.jobs")

# Python reports a cancellation that nobody asked for in the same way as one that was.
_NOT_ASKED_FOR = "the engine gave the request up"


@dataclass(frozen=True)
class Delta:
    """One output of the engine as a piece of a stream."""

    output: "RequestOutput"

    @property
    def tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.output.outputs)


class Jobs:
    """Serves jobs with one engine."""

    def __init__(self, engine: Engine, serving: ServingSettings) -> None:
        self._engine = engine
        self._raw_openai_output = serving.raw_openai_output
        self._pace = pace_of(serving)
        self.app = OpenAIApp(engine)
        self.in_flight: set[asyncio.Task[Any]] = set()

    async def serve(self, job: Mapping[str, Any]) -> AsyncGenerator[Emission, None]:
        """The emissions of one job; never raises for a job's sake, only when cancelled."""
        self._track()
        try:
            request = job_input.parse(job, self._pace)
            answer = self._native if isinstance(request, NativeRequest) else self._openai
            async with aclosing(answer(request)) as parts:  # type: ignore[arg-type]
                async for emission in parts:
                    yield emission
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            yield job_output.failure(RequestError(_NOT_ASKED_FOR, code=500, kind="ServerError"))
        except Exception as error:  # the SDK would send the traceback to the client
            yield job_output.failure(client_error(error))

    def _track(self) -> None:
        task = asyncio.current_task()
        if task is not None and task not in self.in_flight:
            self.in_flight.add(task)
            task.add_done_callback(self.in_flight.discard)

    async def _native(self, request: NativeRequest) -> AsyncGenerator[Emission, None]:
        engine = self._engine
        parameters = sampling.build(
            request.sampling_params, engine.sampling_defaults, streamed=request.stream
        )
        if request.prompt is not None:
            rendered = await engine.render_text(request.prompt)
        else:
            rendered = await engine.render_chat(request.messages or (), request.template_arguments)
        request_id = f"job-{uuid.uuid4().hex}"
        _when_done(lambda: engine.abort_soon(request_id))
        answer = job_output.NativeAnswer(parameters.n)

        async def deltas() -> AsyncGenerator[Delta, None]:
            async with aclosing(engine.generate(rendered, parameters, request_id)) as outputs:
                async for output in outputs:
                    yield Delta(output)

        async with aclosing(emissions(deltas(), request.pace)) as gathered:
            async for pieces in gathered:
                yield answer.chunk([piece.output for piece in pieces])

    async def _openai(self, request: OpenAIRequest) -> AsyncGenerator[Emission, None]:
        response = await self.app.call(request.method, request.path, request.body)
        _when_done(response.disconnect)
        async with aclosing(response.body):
            if response.is_stream:
                async for emission in self._openai_stream(response, request.pace):
                    yield emission
                return
            body = await response.json()
        if response.status < 400:
            yield job_output.plain(body)
            return
        error = openai_error(body, response.status)
        if request.stream:
            yield job_output.error_event(error)
        yield job_output.failure(error)

    async def _openai_stream(
        self, response: Response, pace: Pace
    ) -> AsyncGenerator[Emission, None]:
        failed: RequestError | None = None
        async with aclosing(emissions(events(response.body), pace)) as gathered:
            async for pieces in gathered:
                yield self._openai_chunk(pieces)
                for piece in pieces:
                    failed = failed or _error_in(piece)
        if failed is not None:
            yield job_output.failure(failed)

    def _openai_chunk(self, pieces: list[Event]) -> Emission:
        if self._raw_openai_output:
            return "".join(piece.text for piece in pieces)
        return [job_output.plain(data) for piece in pieces if (data := piece.data()) is not None]


def pace_of(serving: ServingSettings) -> Pace:
    """The endpoint's pace: its batch sizes in tokens, its flush time in seconds."""
    return Pace(
        least_tokens=serving.default_min_batch_size,
        most_tokens=serving.default_batch_size,
        growth=serving.default_batch_size_growth_factor,
        flush_s=serving.stream_flush_ms / 1000,
    )


def client_error(error: Exception) -> RequestError:
    """What a client is told of an exception: its own mistake in full, ours in a sentence."""
    if isinstance(error, RequestError):
        return error
    from vllm.exceptions import VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, VLLMClientError):
        return RequestError(sampling.error_text(error), param=getattr(error, "parameter", None))
    if isinstance(error, EngineDeadError | EngineError):
        return RequestError(
            "the engine of this worker has ended; the worker is being replaced",
            code=503,
            kind="EngineDeadError",
            hint="send the job again",
        )
    log.error("a job failed unexpectedly", exc_info=error)
    return RequestError(
        "the worker failed on this job", code=500, kind="ServerError", hint="see the worker's log"
    )


def openai_error(body: Any, status: int) -> RequestError:
    """The error object in an answer of the OpenAI application."""
    found = body.get("error", body) if isinstance(body, Mapping) else {"message": str(body)}
    if not isinstance(found, Mapping):
        found = {"message": str(found)}
    message = str(found.get("message") or found.get("detail") or f"HTTP status {status}")
    code = found.get("code")
    return RequestError(
        message,
        code=code if isinstance(code, int) else status,
        kind=str(found.get("type") or "ServerError"),
        param=found.get("param"),
    )


def _error_in(event: Event) -> RequestError | None:
    if '"error"' not in event.text[:40]:
        return None
    try:
        data = event.data()
    except json.JSONDecodeError:
        return None
    if isinstance(data, Mapping) and data.get("error"):
        return openai_error(data, 500)
    return None


def _when_done(call: Callable[[], None]) -> None:
    """Call when the job's task ends, also where the SDK leaves the generator suspended.

    A job that is stopped while its chunk is being posted leaves its generator open: the
    task's own end is the one signal that always comes, some milliseconds later.
    """
    task = asyncio.current_task()
    if task is not None:
        task.add_done_callback(lambda _: call())
