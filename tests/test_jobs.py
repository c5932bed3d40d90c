"""Every ending of a job: its answer, one error, or a cancellation. Never two, never none."""

import asyncio
import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route
from vllm import SamplingParams
from vllm.exceptions import (
    QueueOverflowError,
    VLLMNotFoundError,
    VLLMUnprocessableEntityError,
    VLLMValidationError,
)
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers.chat_utils import ChatTemplateResolutionError
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

import env_schema
from worker.engine import Engine
from worker.errors import EngineGone, RequestError
from worker.job_output import Emission
from worker.jobs import Jobs
from worker.openai_app import OpenAIApp

ROOT = Path(__file__).parents[1]
SOON_S = 20.0
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


class RustPanic(BaseException):
    """As those of tokenizers and grammars written in Rust, which are no `Exception`."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class FakeEngine(Engine):
    """An engine that answers with the given steps: words, pauses, exceptions.

    `refuses` is raised where the prompt is rendered. `asked` is what it was asked for.
    """

    sampling_defaults: Mapping[str, Any] = {}

    def __init__(
        self, *steps: str | BaseException | asyncio.Event, refuses: BaseException | None = None
    ) -> None:
        self.steps = steps
        self.refuses = refuses
        self.asked: list[Any] = []
        self.parameters: SamplingParams | None = None
        self.aborted: list[str] = []
        self.generating = asyncio.Event()
        self.closed = asyncio.Event()
        self.finish_reason = "stop"
        self.measured: RequestSpecDecodeMetrics | None = None

    async def render_text(self, prompt: str) -> Any:
        self.asked.append(prompt)
        if self.refuses is not None:
            raise self.refuses
        return prompt

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], template_arguments: Mapping[str, Any]
    ) -> Any:
        self.asked.append((list(messages), dict(template_arguments)))
        return await self.render_text("")

    async def generate(
        self, rendered: Any, sampling: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        self.parameters = sampling
        self.asked.append(request_id)
        try:
            for number, step in enumerate(self.steps, start=1):
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, asyncio.Event):
                    self.generating.set()
                    await step.wait()
                    continue
                await asyncio.sleep(0)
                yield self._output(step, last=number == len(self.steps))
        finally:
            self.closed.set()

    def _output(self, text: str, *, last: bool) -> RequestOutput:
        choice = CompletionOutput(
            index=0,
            text=text,
            token_ids=[1] * len(text.split()),
            cumulative_logprob=None,
            logprobs=None,
            finish_reason=self.finish_reason if last else None,
            spec_decode_metrics=self.measured if last else None,
        )
        return RequestOutput("1", None, [1, 2, 3], None, [choice], finished=last)

    def abort_soon(self, request_id: str) -> None:
        self.aborted.append(request_id)


class Small(OpenAIApp):
    """A small application in the place of the engine's own."""

    def __init__(self, engine: Engine, application: Any) -> None:
        super().__init__(engine)
        self._application = application

    async def _build(self) -> Any:
        return self._application


def jobs_of(
    engine: Engine, application: Any = None, *, report: bool = True, **environ: str
) -> Jobs:
    settings = env_schema.load({"MODEL_NAME": "x/y", "STREAM_FLUSH_MS": "0", **environ})
    jobs = Jobs(engine, settings.serving, report=report)
    jobs.app = Small(engine, application)
    return jobs


def serving(
    handler: Callable[[Request], Awaitable[StarletteResponse]],
    *,
    report: bool = True,
    **environ: str,
) -> Jobs:
    paths = (CHAT, "/v1/models", "/metrics")
    routes = [Route(path, handler, methods=["GET", "POST"]) for path in paths]
    return jobs_of(FakeEngine(), Starlette(routes=routes), report=report, **environ)


def streaming(*events: str | BaseException, report: bool = True, **environ: str) -> Jobs:
    """An application whose stream is these events."""

    async def stream() -> AsyncIterator[str]:
        for event in events:
            if isinstance(event, BaseException):
                raise event
            await asyncio.sleep(0.01)
            yield event

    async def handler(request: Request) -> StarletteResponse:
        return StreamingResponse(stream(), media_type="text/event-stream")

    return serving(handler, report=report, **environ)


async def run(jobs: Jobs, job_input: Any) -> list[Any]:
    """All emissions of a job, run in a task of its own as the SDK runs it."""

    async def collect() -> list[Any]:
        async with aclosing(jobs.serve({"id": "1", "input": job_input})) as emissions:
            return [emission async for emission in emissions]

    return await asyncio.wait_for(asyncio.create_task(collect()), SOON_S)


def chat(**body: Any) -> dict[str, Any]:
    return {"openai_route": CHAT, "openai_input": {"messages": HELLO, **body}}


def failure_of(emissions: Sequence[Emission]) -> dict[str, Any]:
    """The error that ends a job; the only one, and the last emission."""
    failures = [e for e in emissions if isinstance(e, dict) and e.get("error")]
    assert failures == [emissions[-1]]
    body = json.loads(str(failures[0]["error"]))
    assert body.keys() == {"message", "type", "code", "param", "hint"}
    assert body["message"]
    assert isinstance(body["code"], int)
    return dict(body)


def text_of(emissions: Sequence[Any]) -> str:
    return "".join(t for e in emissions if "choices" in e for t in e["choices"][0]["tokens"])


@pytest_asyncio.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left


@pytest.mark.asyncio
async def test_a_native_answer_is_one_emission() -> None:
    engine = FakeEngine("Hello there")
    emissions = await run(jobs_of(engine), {"prompt": "Hi", "max_tokens": 5})
    assert emissions == [
        {
            "choices": [{"tokens": ["Hello there"], "finish_reason": "stop"}],
            "usage": {"input": 3, "output": 2},
        }
    ]
    assert engine.asked[0] == "Hi"
    assert engine.parameters is not None
    assert engine.parameters.max_tokens == 5
    assert engine.parameters.output_kind is RequestOutputKind.FINAL_ONLY


@pytest.mark.asyncio
async def test_a_native_stream_is_several_emissions_that_add_up() -> None:
    engine = FakeEngine("a ", "b c ", "d ", "e")
    emissions = await run(jobs_of(engine), {"prompt": "Hi", "stream": True})
    assert len(emissions) > 1
    assert text_of(emissions) == "a b c d e"
    assert [e["usage"]["output"] for e in emissions][-1] == 5
    assert engine.parameters is not None
    assert engine.parameters.output_kind is RequestOutputKind.DELTA


@pytest.mark.asyncio
async def test_messages_go_through_the_chat_template() -> None:
    engine = FakeEngine("a")
    await run(jobs_of(engine), {"messages": HELLO, "chat_template_kwargs": {"think": False}})
    assert engine.asked[0] == (HELLO, {"think": False})


@pytest.mark.asyncio
async def test_the_models_own_defaults_are_used() -> None:
    engine = FakeEngine("a")
    engine.sampling_defaults = {"temperature": 0.3}
    await run(jobs_of(engine), {"prompt": "Hi"})
    assert engine.parameters is not None
    assert engine.parameters.temperature == 0.3


@pytest.mark.asyncio
@pytest.mark.parametrize("job_input", ["hello", [1], None, {"prompt": "x", "sampling_params": [1]}])
async def test_a_bad_job_ends_with_a_failure_that_names_the_field(job_input: Any) -> None:
    engine = FakeEngine("a")
    failure = failure_of(await run(jobs_of(engine), job_input))
    assert failure["param"] in ("input", "sampling_params")
    assert engine.asked == []


# exception of the engine -> status, type, and a part of what the client reads
ENDINGS: list[tuple[BaseException, int, str, str]] = [
    (RequestError("no", param="p"), 400, "BadRequestError", "no"),
    (VLLMValidationError("too long", parameter="prompt", value=1), 400, "BadRequestError", "long"),
    (VLLMUnprocessableEntityError("no image"), 422, "UnprocessableEntityError", "no image"),
    (VLLMNotFoundError("no adapter"), 404, "NotFoundError", "no adapter"),
    (QueueOverflowError(), 503, "Service Unavailable", "busy"),
    (EngineDeadError(), 503, "EngineDeadError", "being replaced"),
    (EngineGone("gone"), 503, "EngineDeadError", "being replaced"),
    (caused(EngineGenerateError(), ValueError("bad x")), 400, "BadRequestError", "bad x"),
    (caused(EngineGenerateError(), RuntimeError("broken")), 500, "ServerError", "broken"),
    (caused(EngineGenerateError(), KeyError()), 500, "ServerError", "KeyError"),
    (LookupError("/root/secret.py: oops"), 500, "ServerError", "the worker failed"),
    (RustPanic("index out of bounds"), 500, "ServerError", "the worker failed"),
    (asyncio.CancelledError(), 500, "ServerError", "gave the request up"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("error", "code", "kind", "words"), ENDINGS, ids=lambda v: repr(v)[:40])
@pytest.mark.parametrize("before", [(), ("one ", "two ")], ids=["at once", "half-way"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_exception_of_the_engine_is_one_failure_after_what_was_sent(
    error: BaseException, code: int, kind: str, words: str, before: tuple[str, ...], stream: bool
) -> None:
    emissions = await run(jobs_of(FakeEngine(*before, error)), {"prompt": "Hi", "stream": stream})
    failure = failure_of(emissions)
    assert (failure["code"], failure["type"]) == (code, kind)
    assert words in failure["message"]
    assert text_of(emissions[:-1]) == "".join(before)
    assert "(parameter=" not in failure["message"]


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [SystemExit(3), RustPanic("x"), LookupError("x")])
async def test_what_ends_a_process_ends_only_the_job(error: BaseException) -> None:
    failure = failure_of(await run(jobs_of(FakeEngine(refuses=error)), {"prompt": "Hi"}))
    assert failure["code"] == 500


@pytest.mark.asyncio
async def test_an_unexpected_exception_is_logged_and_not_shown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("worker"), "propagate", True)
    engine = FakeEngine("a ", LookupError("/root/secret.py"))
    (*_, last) = await run(jobs_of(engine), {"prompt": "Hi"})
    for word in ("Traceback", "secret", "LookupError", ".py", "line"):
        assert word not in str(last)
    assert "secret.py" in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ValueError("roles must alternate\nuser/assistant"), None),
        (TypeError("must be text"), None),
        (ChatTemplateResolutionError("no template"), "CUSTOM_CHAT_TEMPLATE"),
    ],
)
@pytest.mark.parametrize("shape", [{"prompt": "Hi"}, {"messages": HELLO}])
async def test_what_the_template_or_the_tokenizer_refuses_is_the_jobs_fault(
    error: Exception, hint: str | None, shape: dict[str, Any]
) -> None:
    failure = failure_of(await run(jobs_of(FakeEngine(refuses=error)), shape))
    assert (failure["code"], failure["param"]) == (400, next(iter(shape)))
    assert failure["message"] == " ".join(str(error).split())
    assert (hint or "") in (failure["hint"] or "")


@pytest.mark.asyncio
async def test_an_answer_that_the_engine_ended_in_error_is_a_failure() -> None:
    engine = FakeEngine("one ", "two")
    engine.finish_reason = "error"
    emissions = await run(jobs_of(engine), {"prompt": "Hi", "stream": True})
    assert failure_of(emissions)["code"] == 500
    assert text_of(emissions[:-1]) == "one two"


async def cancelled(jobs: Jobs, job_input: Any, when: Awaitable[Any]) -> list[Any]:
    """The emissions of a job that is cancelled; the cancellation has to come out of it."""
    seen: list[Any] = []

    async def collect() -> None:
        async for emission in jobs.serve({"id": "1", "input": job_input}):
            seen.append(emission)

    task = asyncio.create_task(collect())
    await asyncio.wait_for(when, SOON_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, SOON_S)
    assert task.cancelled()
    return seen


@pytest.mark.asyncio
@pytest.mark.parametrize("before", [(), ("one ",)])
async def test_a_cancellation_that_was_asked_for_goes_through(before: tuple[str, ...]) -> None:
    engine = FakeEngine(*before, asyncio.Event())
    jobs = jobs_of(engine)
    seen = await cancelled(jobs, {"prompt": "Hi", "stream": True}, engine.generating.wait())
    assert not [emission for emission in seen if "error" in emission]
    assert engine.closed.is_set()
    assert engine.aborted == [engine.asked[-1]]
    assert jobs.in_flight == set()


@pytest.mark.asyncio
async def test_a_job_that_is_stopped_while_its_chunk_is_posted_is_aborted() -> None:
    """The SDK leaves the generator open then; the end of the task is the one signal."""
    engine = FakeEngine("one ", asyncio.Event())
    jobs = jobs_of(engine)
    posting = asyncio.Event()
    generator = jobs.serve({"id": "1", "input": {"prompt": "Hi", "stream": True}})

    async def post() -> None:
        async for _ in generator:
            posting.set()
            await asyncio.sleep(SOON_S * 10)

    task = asyncio.create_task(post())
    await asyncio.wait_for(posting.wait(), SOON_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert engine.aborted == [engine.asked[-1]]
    assert jobs.in_flight == set()
    await generator.aclose()
    assert engine.closed.is_set()


@pytest.mark.asyncio
async def test_a_job_is_in_flight_until_its_task_ends() -> None:
    release = asyncio.Event()
    engine = FakeEngine("one ", release, "two")
    jobs = jobs_of(engine)
    task = asyncio.create_task(run(jobs, {"prompt": "Hi"}))
    await asyncio.wait_for(engine.generating.wait(), SOON_S)
    assert len(jobs.in_flight) == 1
    release.set()
    await task
    assert jobs.in_flight == set()


@pytest.mark.asyncio
async def test_jobs_at_the_same_time_do_not_mix() -> None:
    class Echo(FakeEngine):
        async def generate(
            self, rendered: Any, sampling: SamplingParams, request_id: str
        ) -> AsyncGenerator[RequestOutput, None]:
            for _ in range(3):
                await asyncio.sleep(0.001)
                yield self._output(f"{rendered} ", last=False)

    jobs = jobs_of(Echo())
    answers = await asyncio.gather(
        *(run(jobs, {"prompt": str(n), "stream": bool(n % 2)}) for n in range(20))
    )
    assert [text_of(emissions) for emissions in answers] == [f"{n} " * 3 for n in range(20)]


@pytest.mark.asyncio
async def test_an_openai_answer_is_one_object() -> None:
    async def handler(request: Request) -> StarletteResponse:
        return JSONResponse({"echo": (await request.json())["messages"]})

    assert await run(serving(handler), chat()) == [{"echo": HELLO}]


@pytest.mark.asyncio
async def test_an_openai_answer_is_made_plain() -> None:
    """The SDK would lose what its JSON cannot carry, and the job's end with it."""

    async def handler(request: Request) -> StarletteResponse:
        return StarletteResponse(b'{"half": "\\ud800", "logprob": -Infinity}')

    assert await run(serving(handler), chat()) == [{"half": "?", "logprob": None}]


EVENTS = ['data: {"n": "é\u2028日本"}\n\n', 'data: {"n": 2}\n\n', "data: [DONE]\n\n"]


@pytest.mark.asyncio
async def test_an_openai_stream_is_whole_events_that_add_up_to_the_body() -> None:
    emissions = await run(streaming(*EVENTS), chat(stream=True))
    assert "".join(emissions) == "".join(EVENTS)
    assert all(e.startswith("data: ") and e.endswith("\n\n") for e in emissions)
    assert len(emissions) > 1


@pytest.mark.asyncio
async def test_without_raw_output_a_stream_is_lists_of_objects() -> None:
    emissions = await run(streaming(*EVENTS, RAW_OPENAI_OUTPUT="false"), chat(stream=True))
    assert all(isinstance(e, list) and e for e in emissions)
    assert [part for e in emissions for part in e] == [{"n": "é\u2028日本"}, {"n": 2}]


@pytest.mark.asyncio
async def test_plain_text_of_the_application_is_one_text() -> None:
    for text in ("# HELP x\nx 1.0\n", "17\n"):  # the second would be JSON, too

        async def handler(request: Request, text: str = text) -> StarletteResponse:
            return PlainTextResponse(text)

        assert await run(serving(handler), {"openai_route": "/metrics"}) == [text]


MEASURED = RequestSpecDecodeMetrics(num_spec_tokens=3, histogram=[1, 0, 0, 2], num_draft_tokens=9)


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("endpoint", "job", "measured", "shown"),
    [
        (True, None, MEASURED, True),
        (True, False, MEASURED, False),
        (True, True, MEASURED, True),
        (False, None, MEASURED, False),
        (False, True, MEASURED, True),
        (False, False, MEASURED, False),
        (True, None, None, False),
        (False, False, None, False),
    ],
)
async def test_a_native_answer_has_figures_where_the_job_or_else_the_endpoint_says_so(
    endpoint: bool,
    job: bool | None,
    measured: RequestSpecDecodeMetrics | None,
    shown: bool,
    stream: bool,
) -> None:
    engine = FakeEngine("a ", "b") if stream else FakeEngine("a")
    engine.measured = measured
    asked = {} if job is None else {"speculative": job}
    jobs = jobs_of(engine, report=endpoint)
    *before, last = await run(jobs, {"prompt": "Hi", "stream": stream, **asked})
    assert not [emission for emission in before if "speculative" in emission]
    assert ("speculative" in last) == shown
    assert not shown or last["speculative"]["accepted"] == 6


@pytest.mark.asyncio
async def test_figures_that_a_job_asks_for_and_nobody_measured_are_null() -> None:
    (answer,) = await run(jobs_of(FakeEngine("a")), {"prompt": "Hi", "speculative": True})
    assert answer["speculative"] is None


FIGURES = {"speculative_decoding": MEASURED.to_dict()}


@pytest.mark.asyncio
@pytest.mark.parametrize("report", [True, False])
async def test_an_openai_answer_has_figures_only_with_the_report(report: bool) -> None:
    async def handler(request: Request) -> StarletteResponse:
        return JSONResponse({"id": 1, "metrics": {"queue_time_ms": None, **FIGURES}})

    (answer,) = await run(serving(handler, report=report), chat())
    assert answer["id"] == 1
    assert (answer["metrics"] is not None) == report


USAGE = {"usage": {"total_tokens": 3, "text": "\u2028日本"}}
QUOTING = 'data: {"text":"\\"speculative_decoding\\":"}\n\n'


@pytest.mark.asyncio
@pytest.mark.parametrize("raw", ["true", "false"])
@pytest.mark.parametrize("report", [True, False])
async def test_an_openai_stream_has_figures_only_with_the_report(report: bool, raw: str) -> None:
    usage = json.dumps({**USAGE, "metrics": FIGURES}, separators=(",", ":"))
    given = [*EVENTS[:2], QUOTING, f"data: {usage}\n\n", EVENTS[2]]
    emissions = await run(
        streaming(*given, report=report, RAW_OPENAI_OUTPUT=raw), chat(stream=True)
    )
    if raw == "true":
        text = "".join(emissions)
        assert text.startswith("".join(given[:3]))  # untouched, byte for byte
        parts = [json.loads(e.removeprefix("data: ")) for e in text.split("\n\n")[:-2]]
        assert text.endswith(EVENTS[2])
    else:
        parts = [part for emission in emissions for part in emission]
    assert len(parts) == 4
    assert parts[-1] == ({**USAGE, "metrics": FIGURES} if report else USAGE)


ERROR_EVENT = 'data: {"error": {"message": "lost", "type": "InternalServerError", "code": 500}}\n\n'


@pytest.mark.asyncio
async def test_an_error_event_half_way_is_shown_and_fails_the_job() -> None:
    emissions = await run(streaming(EVENTS[0], ERROR_EVENT, EVENTS[2]), chat(stream=True))
    failure = failure_of(emissions)
    assert "".join(emissions[:-1]) == EVENTS[0] + ERROR_EVENT + EVENTS[2]
    assert (failure["message"], failure["code"]) == ("lost", 500)


@pytest.mark.asyncio
async def test_without_raw_output_an_error_event_is_shown_as_an_object() -> None:
    jobs = streaming(EVENTS[1], ERROR_EVENT, EVENTS[2], RAW_OPENAI_OUTPUT="false")
    emissions = await run(jobs, chat(stream=True))
    assert failure_of(emissions)["message"] == "lost"
    parts = [part for e in emissions[:-1] for part in e]
    assert [*parts[0]] == ["n"]
    assert parts[1]["error"]["message"] == "lost"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "event",
    [
        'data: {"text": "\\"error\\": 1"}\n\n',
        'data: {"error": null, "n": 1}\n\n',
        'data: {"n": {"error": "in a tool\'s output"}}\n\n',
        ': "error"\n\n',
    ],
)
async def test_the_word_error_alone_does_not_fail_a_job(event: str) -> None:
    assert "".join(await run(streaming(event, EVENTS[2]), chat(stream=True))) == event + EVENTS[2]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error", [LookupError("x.py"), asyncio.CancelledError(), EngineDeadError()]
)
@pytest.mark.parametrize("raw", ["true", "false"])
async def test_a_stream_that_breaks_off_keeps_what_came_shows_the_error_and_fails(
    error: BaseException, raw: str
) -> None:
    jobs = streaming(EVENTS[1], error, RAW_OPENAI_OUTPUT=raw)
    first, shown, last = await run(jobs, chat(stream=True))
    failure = failure_of([last])
    if raw == "true":
        assert first == EVENTS[1]
        assert json.loads(shown.removeprefix("data: ")) == {"error": failure}
        assert shown.endswith("\n\n")
    else:
        assert first == [{"n": 2}]
        assert shown == [{"error": failure}]


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            JSONResponse(
                {
                    "error": {
                        "message": "no m",
                        "type": "NotFoundError",
                        "code": 404,
                        "param": "model",
                    }
                },
                404,
            ),
            ("no m", "NotFoundError", 404, "model"),
        ),
        (JSONResponse({"message": "old shape", "code": 400}, 400), ("old shape", None, 400, None)),
        (JSONResponse({"detail": "Not Found"}, 404), ("Not Found", None, 404, None)),
        (JSONResponse({"error": "text"}, 400), ("text", None, 400, None)),
        (JSONResponse(["odd"], 418), ("['odd']", None, 418, None)),
        (
            PlainTextResponse("Internal Server Error", 500),
            ("Internal Server Error", None, 500, None),
        ),
        (PlainTextResponse("", 503), ("HTTP status 503", None, 503, None)),
    ],
)
async def test_an_error_of_the_application_is_a_failure(
    answer: StarletteResponse, expected: tuple[str, str | None, int, str | None], stream: bool
) -> None:
    async def handler(request: Request) -> StarletteResponse:
        return answer

    *shown, last = await run(serving(handler), chat(stream=stream))
    failure = failure_of([last])
    message, kind, code, param = expected
    assert (failure["message"], failure["code"], failure["param"]) == (message, code, param)
    assert failure["type"] == (kind or "ServerError")
    # the SDK keeps a failure from the stream, so that a stream has it as an event as well
    events = [json.loads(event.removeprefix("data: ")) for event in shown]
    assert events == ([{"error": failure}] if stream else [])


@pytest.mark.asyncio
async def test_a_handler_of_the_application_that_raises_is_a_failure() -> None:
    async def handler(request: Request) -> StarletteResponse:
        raise LookupError("/root/secret.py")

    failure = failure_of(await run(serving(handler), chat()))
    assert failure["code"] == 500
    assert "secret" not in str(failure)


@pytest.mark.asyncio
async def test_a_refused_openai_job_never_reaches_the_application() -> None:
    async def handler(request: Request) -> StarletteResponse:
        raise AssertionError("called")

    emissions = await run(serving(handler), {"openai_route": "/version"})
    assert failure_of(emissions)["code"] == 404


@pytest.mark.asyncio
@pytest.mark.parametrize("begun", [True, False])
async def test_cancelling_an_openai_job_ends_the_applications_work(begun: bool) -> None:
    working, ended = asyncio.Event(), asyncio.Event()

    async def work() -> AsyncIterator[str]:
        try:
            if begun:
                yield EVENTS[0]
            working.set()
            await asyncio.sleep(SOON_S * 10)
            yield EVENTS[1]
        finally:
            ended.set()

    async def handler(request: Request) -> StarletteResponse:
        return StreamingResponse(work(), media_type="text/event-stream")

    jobs = serving(handler)
    seen = await cancelled(jobs, chat(stream=True), working.wait())
    assert seen == ([EVENTS[0]] if begun else [])
    await asyncio.wait_for(ended.wait(), SOON_S)


def test_the_sdk_gets_a_plain_async_generator_function(tmp_path: Path) -> None:
    """It looks at the function's type: of anything else it would send a `repr`."""
    code = """
        import inspect, sys
        sys.path.insert(0, sys.argv[1])
        import runpod
        from runpod.serverless.modules.rp_handler import is_generator
        from worker import runpod_loop

        class Quiet:
            def shutdown(self): print("engine shut down")

        def start(config):
            print(inspect.isasyncgenfunction(config["handler"]), is_generator(config["handler"]))
            print(config["return_aggregate_stream"], config["concurrency_modifier"](1))

        runpod.serverless.start = start
        print(runpod_loop.serve(Quiet(), None, 7))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(ROOT)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split("\n") == ["True True", "True 7", "engine shut down", "0", ""]
