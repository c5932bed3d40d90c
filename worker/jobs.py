"""One job from input to emissions: the flow, in one place.

Every job ends in exactly one way: its answer, one `{"error": …}`, or a cancellation.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from env_schema import ServingSettings
from worker import acceptance, job_input, job_output, sampling
from worker.engine import Engine
from worker.errors import EngineError, RequestError
from worker.job_input import NativeRequest, OpenAIRequest, Request
from worker.job_output import Emission
from worker.openai_app import OpenAIApp, Response
from worker.pace import Pace
from worker.sse import Event, event_of, events
from worker.stream import emissions

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

log = logging.getLogger("worker.jobs")

# As a key: inside of a text its first quotation mark would have a backslash before it.
_FIGURES = f'"{acceptance.OPENAI_KEY}":'

# Python reports a cancellation that nobody asked for in the same way as one that was.
_NOT_ASKED_FOR = "the engine gave the request up"
_AGAIN = "send the job again"


@dataclass(frozen=True)
class Delta:
    """One output of the engine as a piece of a stream."""

    output: "RequestOutput"

    @property
    def tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.output.outputs)


class Jobs:
    """Serves jobs with one engine.

    `report` says whether answers carry acceptance figures where a job does not say.
    """

    def __init__(self, engine: Engine, serving: ServingSettings, *, report: bool = True) -> None:
        self._engine = engine
        self._report = report
        self._raw_openai_output = serving.raw_openai_output
        self._pace = pace_of(serving)
        self.app = OpenAIApp(engine)
        self.in_flight: set[asyncio.Task[Any]] = set()

    async def serve(self, job: Mapping[str, Any]) -> AsyncGenerator[Emission, None]:
        """The emissions of one job; never raises for a job's sake, only when cancelled."""
        self._track()
        request: Request | None = None
        try:
            request = job_input.parse(job, self._pace)
            answer = self._native if isinstance(request, NativeRequest) else self._openai
            async with aclosing(answer(request)) as parts:  # type: ignore[arg-type]
                async for emission in parts:
                    yield emission
            return
        except (GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # the SDK would send the traceback, or nothing at all
            if _is_cancellation(error):
                raise
            told = client_error(error)
        if isinstance(request, OpenAIRequest) and request.stream:
            yield self._openai_chunk([event_of(job_output.error_payload(told))])
        yield job_output.failure(told)

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
        rendered = await self._rendered(request)
        request_id = f"job-{uuid.uuid4().hex}"
        _when_done(lambda: engine.abort_soon(request_id))
        asked = request.speculative
        report = False if asked is None and not self._report else asked
        answer = job_output.NativeAnswer(parameters.n, report)

        async def deltas() -> AsyncGenerator[Delta, None]:
            async with aclosing(engine.generate(rendered, parameters, request_id)) as outputs:
                async for output in outputs:
                    yield Delta(output)

        async with aclosing(emissions(deltas(), request.pace)) as gathered:
            async for pieces in gathered:
                yield answer.chunk([piece.output for piece in pieces])
        if "error" in answer.finish_reasons.values():
            if request.sampling_params.get("structured_outputs") is not None:
                raise _refused_constraint()
            raise RequestError(
                "the engine failed on this request",
                code=500,
                kind="ServerError",
                hint=_AGAIN,
            )

    async def _rendered(self, request: NativeRequest) -> Any:
        """The engine's input; what the model's template or tokenizer refuses is the job's fault."""
        from vllm.renderers.chat_utils import ChatTemplateResolutionError

        engine, messages = self._engine, request.messages
        try:
            if messages is None:
                return await engine.render_text(request.prompt or "")
            return await engine.render_chat(messages, request.template_arguments)
        except TimeoutError:
            raise RequestError(
                "the prompt could not be put together in time",
                code=503,
                kind="ServerError",
                hint=_AGAIN,
            ) from None
        except (ValueError, TypeError) as error:
            no_template = isinstance(error, ChatTemplateResolutionError)
            raise RequestError(
                sampling.error_text(error),
                param="prompt" if messages is None else "messages",
                hint="set CUSTOM_CHAT_TEMPLATE on the endpoint" if no_template else None,
            ) from error

    async def _openai(self, request: OpenAIRequest) -> AsyncGenerator[Emission, None]:
        response = await self.app.call(request.method, request.path, request.body)
        _when_done(response.disconnect)
        async with aclosing(response.body):
            if response.is_stream:
                async for emission in self._openai_stream(response, request.pace):
                    yield emission
                return
            body = await (response.text() if response.is_text else response.json())
        if response.status >= 400:
            if response.status == 500 and CONSTRAINTS & (request.body or {}).keys():
                raise _refused_constraint()
            raise openai_error(body, response.status)
        if isinstance(body, dict) and not self._report:
            acceptance.hide(body)
        yield job_output.plain(body)

    async def _openai_stream(
        self, response: Response, pace: Pace
    ) -> AsyncGenerator[Emission, None]:
        failed: RequestError | None = None
        async with aclosing(emissions(events(response.body), pace)) as gathered:
            async for pieces in gathered:
                if not self._report:
                    pieces = [_without_figures(piece) for piece in pieces]
                if chunk := self._openai_chunk(pieces):
                    yield chunk
                for piece in pieces:
                    failed = failed or _error_in(piece)
        if failed is not None:
            yield job_output.failure(failed)

    def _openai_chunk(self, pieces: list[Event]) -> Emission:
        if self._raw_openai_output:
            return "".join(piece.text for piece in pieces)
        return [job_output.plain(data) for piece in pieces if (data := piece.data()) is not None]


CONSTRAINTS = frozenset({"response_format", "structured_outputs"})


def _refused_constraint() -> RequestError:
    """The engine compiles a grammar late, and reports one it cannot use as its own failure."""
    return RequestError(
        "the engine cannot generate under this constraint",
        param="structured_outputs",
        hint="a schema or grammar must be finite: one that only refers to itself has no text",
    )


def pace_of(serving: ServingSettings) -> Pace:
    """The endpoint's pace: its batch sizes in tokens, its flush time in seconds."""
    return Pace(
        least_tokens=serving.default_min_batch_size,
        most_tokens=serving.default_batch_size,
        growth=serving.default_batch_size_growth_factor,
        flush_s=serving.stream_flush_ms / 1000,
    )


def client_error(error: BaseException) -> RequestError:
    """What a client is told of an exception: its own mistake in full, ours in a sentence."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return RequestError(_NOT_ASKED_FOR, code=500, kind="ServerError", hint=_AGAIN)
    return _engine_error(error) or _unexpected(error)


def _engine_error(error: BaseException) -> RequestError | None:
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    if isinstance(error, VLLMClientError | GracefulHTTPError | GenerationError):
        upstream = create_error_response(error).error
        return RequestError(
            sampling.error_text(error),
            param=upstream.param,
            code=upstream.code,
            kind=upstream.type,
        )
    if isinstance(error, EngineGenerateError):  # an error in taking this request, mostly empty
        log.error("the engine refused a job", exc_info=error)
        of_the_job = isinstance(error.__cause__, ValueError | TypeError | OverflowError)
        return RequestError(
            f"the engine cannot run this request: {sampling.error_text(error)}",
            code=400 if of_the_job else 500,
            kind="BadRequestError" if of_the_job else "ServerError",
        )
    if isinstance(error, EngineDeadError | EngineError):
        return RequestError(
            "the engine of this worker has ended; the worker is being replaced",
            code=503,
            kind="EngineDeadError",
            hint=_AGAIN,
        )
    return None


def _unexpected(error: BaseException) -> RequestError:
    log.error("a job failed unexpectedly", exc_info=error)
    return RequestError(
        "the worker failed on this job", code=500, kind="ServerError", hint="see the worker's log"
    )


def openai_error(body: Any, status: int) -> RequestError:
    """The error object in an answer of the OpenAI application."""
    found = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(found, Mapping):
        found = {"message": str(found or "")}
    message = str(found.get("message") or found.get("detail") or f"HTTP status {status}")
    code = found.get("code")
    return RequestError(
        message.partition(" (parameter=")[0],
        code=code if isinstance(code, int) else status,
        kind=str(found.get("type") or "ServerError"),
        param=found.get("param"),
    )


def _without_figures(event: Event) -> Event:
    if _FIGURES not in event.text or not isinstance(data := event.data(), dict):
        return event
    acceptance.hide(data)
    return replace(event, text=event_of(data).text)


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


def _is_cancellation(error: BaseException) -> bool:
    """Whether it is one that was asked for."""
    task = asyncio.current_task()
    asked_for = task is None or task.cancelling() > 0
    return isinstance(error, asyncio.CancelledError) and asked_for


def _when_done(call: Callable[[], None]) -> None:
    """Call when the job's task ends, also where the SDK leaves the generator suspended.

    A job that is stopped while its chunk is being posted leaves its generator open: the
    task's own end is the one signal that always comes, some milliseconds later.
    """
    task = asyncio.current_task()
    if task is not None:
        task.add_done_callback(lambda _: call())
