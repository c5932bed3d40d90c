"""Calls of a small application as the engine's own is called: whole, in time, and ended."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route

from worker import openai_app
from worker.engine import Engine
from worker.openai_app import OpenAIApp, Response

SOON_S = 20.0  # a limit for what takes milliseconds, on a busy machine
EVENT_STREAM = "text/event-stream; charset=utf-8"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Small(OpenAIApp):
    """The caller under test, with a small application in the place of the engine's."""

    def __init__(self, application: Any) -> None:
        super().__init__(cast(Engine, None))
        self.application = application
        self.builds = 0

    async def _build(self) -> Any:
        self.builds += 1
        await asyncio.sleep(0)
        return self.application


def serving(handler: Callable[[Request], Awaitable[StarletteResponse]]) -> Small:
    return Small(Starlette(routes=[Route("/v1/x", handler, methods=["GET", "POST"])]))


@pytest_asyncio.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, SOON_S)


async def parts(response: Response) -> list[bytes]:
    return [part async for part in response.body]


async def echo(request: Request) -> StarletteResponse:
    return JSONResponse(
        {
            "method": request.method,
            "query": dict(request.query_params),
            "header": request.headers.get("x-more"),
            "body": await request.json() if request.method == "POST" else None,
        },
        status_code=201,
    )


@pytest.mark.asyncio
async def test_a_call_arrives_as_it_was_made() -> None:
    body = {"text": "日本語 🙂 \u2028", "list": [1, None, 1.5]}
    call = serving(echo).call("POST", "/v1/x?a=1&b=%C3%A9", body, headers={"X-More": "yes"})
    response = await call
    assert (response.status, response.content_type) == (201, "application/json")
    assert not response.is_stream
    assert await response.json() == {
        "method": "POST",
        "query": {"a": "1", "b": "é"},
        "header": "yes",
        "body": body,
    }


@pytest.mark.asyncio
async def test_a_get_sends_no_body() -> None:
    response = await serving(echo).call("GET", "/v1/x")
    assert (await response.json())["body"] is None


@pytest.mark.asyncio
async def test_an_unknown_route_is_answered_by_the_application() -> None:
    response = await serving(echo).call("GET", "/nowhere")
    assert (response.status, await response.json()) == (404, "Not Found")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("content", "decoded"),
    [(b"", None), (b" \n", None), (b"[1]", [1]), (b"plain", "plain"), (b"\xff", "\ufffd")],
)
async def test_a_body_is_decoded_as_far_as_it_is_json(content: bytes, decoded: Any) -> None:
    async def handler(request: Request) -> StarletteResponse:
        return StarletteResponse(content)

    response = await serving(handler).call("GET", "/v1/x")
    assert await response.json() == decoded


@pytest.mark.asyncio
async def test_big_bodies_arrive_whole_both_ways() -> None:
    text = "0123456789é" * 500_000
    response = await serving(echo).call("POST", "/v1/x", {"text": text})
    assert (await response.json())["body"] == {"text": text}


@pytest.mark.asyncio
async def test_a_stream_comes_as_it_is_made() -> None:
    taken = asyncio.Queue[int]()

    async def numbers() -> AsyncIterator[str]:
        for number in range(3):
            yield f"data: {number}\n\n"
            assert await taken.get() == number  # the caller has it before the next is made

    async def handler(request: Request) -> StarletteResponse:
        return StreamingResponse(numbers(), media_type="text/event-stream")

    response = await soon(serving(handler).call("GET", "/v1/x"))
    assert response.is_stream
    assert response.content_type == EVENT_STREAM
    for number in range(3):
        assert await soon(anext(response.body)) == f"data: {number}\n\n".encode()
        taken.put_nowait(number)
    assert await soon(parts(response)) == []


@pytest.mark.asyncio
async def test_calls_at_the_same_time_do_not_mix() -> None:
    small = serving(echo)

    async def call(number: int) -> Any:
        response = await small.call("POST", "/v1/x", {"number": number})
        return (await response.json())["body"]["number"]

    assert await asyncio.gather(*map(call, range(50))) == [*range(50)]
    assert small.builds == 1


class Endless:
    """A handler that streams one event and then waits; knows how it ended."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.closed = asyncio.Event()
        self.completed = False

    async def stream(self) -> AsyncIterator[str]:
        try:
            yield "data: 1\n\n"
            self.began.set()
            await asyncio.sleep(SOON_S * 10)
            self.completed = True
        finally:
            self.closed.set()

    async def __call__(self, request: Request) -> StarletteResponse:
        return StreamingResponse(self.stream(), media_type="text/event-stream")


@pytest.mark.asyncio
async def test_a_disconnect_reaches_the_application_while_it_streams() -> None:
    endless = Endless()
    response = await serving(endless.__call__).call("GET", "/v1/x")
    assert await soon(anext(response.body)) == b"data: 1\n\n"
    response.disconnect()
    await soon(endless.closed.wait())
    assert await soon(parts(response)) == []
    assert not endless.completed


@pytest.mark.asyncio
async def test_a_disconnect_reaches_the_application_with_nobody_reading() -> None:
    """As where the SDK leaves a job's generator open for good."""
    endless = Endless()
    response = await serving(endless.__call__).call("GET", "/v1/x")
    response.disconnect()
    await soon(endless.closed.wait())


@pytest.mark.asyncio
async def test_closing_the_body_ends_the_application() -> None:
    endless = Endless()
    response = await serving(endless.__call__).call("GET", "/v1/x")
    await anext(response.body)
    await soon(response.body.aclose())
    assert endless.closed.is_set()


class Unanswered:
    """A handler that does not answer before it hears that the caller has gone."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.heard: list[str] = []

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.heard.append((await receive())["type"])
        self.began.set()
        self.heard.append((await receive())["type"])


@pytest.mark.asyncio
async def test_a_disconnect_reaches_the_application_before_its_first_byte() -> None:
    unanswered = Unanswered()
    call = asyncio.create_task(Small(unanswered).call("POST", "/v1/x", {}))
    await soon(unanswered.began.wait())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(call)
    assert unanswered.heard == ["http.request", "http.disconnect"]


@pytest.mark.asyncio
async def test_cancelling_a_reader_ends_the_application() -> None:
    endless = Endless()

    async def read() -> None:
        response = await serving(endless.__call__).call("GET", "/v1/x")
        await parts(response)

    reader = asyncio.create_task(read())
    await soon(endless.began.wait())
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(reader)
    assert endless.closed.is_set()


@pytest.mark.asyncio
@pytest.mark.parametrize("answers_first", [True, False])
async def test_an_application_that_does_not_listen_is_ended_after_a_while(
    answers_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_app, "LONGEST_END_S", 0.05)
    began, ended = asyncio.Event(), []

    async def deaf(scope: Any, receive: Receive, send: Send) -> None:
        try:
            if answers_first:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            began.set()
            await asyncio.sleep(SOON_S * 10)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    async def read() -> None:
        await parts(await Small(deaf).call("GET", "/v1/x"))

    reader = asyncio.create_task(read())
    await soon(began.wait())
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(reader)
    assert ended == [True]


@pytest.mark.asyncio
async def test_an_application_that_raises_before_its_answer_raises_here() -> None:
    async def broken(scope: Any, receive: Receive, send: Send) -> None:
        raise LookupError("before the answer")

    with pytest.raises(LookupError, match="before the answer"):
        await soon(Small(broken).call("GET", "/v1/x"))


@pytest.mark.asyncio
async def test_an_application_that_ends_without_an_answer_is_an_error() -> None:
    async def silent(scope: Any, receive: Receive, send: Send) -> None:
        return

    with pytest.raises(RuntimeError, match="before its answer did"):
        await soon(Small(silent).call("GET", "/v1/x"))


@pytest.mark.asyncio
async def test_the_answer_to_a_handler_that_raises_is_kept() -> None:
    """The server error middleware answers 500, and raises all the same."""

    async def handler(request: Request) -> StarletteResponse:
        raise LookupError("in the handler")

    response = await soon(serving(handler).call("GET", "/v1/x"))
    assert response.status == 500
    assert await soon(response.json()) == "Internal Server Error"


@pytest.mark.asyncio
async def test_an_application_that_raises_after_its_answer_has_answered() -> None:
    def fail() -> None:
        raise LookupError("in the background")

    async def handler(request: Request) -> StarletteResponse:
        return PlainTextResponse("[1]", background=BackgroundTask(fail))

    assert await soon((await serving(handler).call("GET", "/v1/x")).json()) == [1]


@pytest.mark.asyncio
async def test_an_answer_that_breaks_off_is_an_error_and_no_end() -> None:
    async def numbers() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        raise LookupError("half-way")

    async def handler(request: Request) -> StarletteResponse:
        return StreamingResponse(numbers(), media_type="text/event-stream")

    response = await soon(serving(handler).call("GET", "/v1/x"))
    seen = []
    with pytest.raises(Exception, match="half-way") as caught:  # noqa: PT012  # what came before
        async for part in response.body:
            seen.append(part)
    assert isinstance(caught.value, LookupError)
    assert seen == [b"data: 1\n\n"]


@pytest.mark.asyncio
async def test_an_answer_that_ends_too_early_is_an_error() -> None:
    async def short(scope: Any, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"[1", "more_body": True})

    response = await soon(Small(short).call("GET", "/v1/x"))
    with pytest.raises(RuntimeError, match="before its answer did"):
        await soon(response.json())


@pytest.mark.asyncio
async def test_a_build_that_fails_is_tried_again_by_the_next_call() -> None:
    class Flaky(Small):
        async def _build(self) -> Any:
            application = await super()._build()
            if self.builds == 1:
                raise RuntimeError("not yet")
            return application

    small = Flaky(serving(echo).application)
    with pytest.raises(RuntimeError, match="not yet"):
        await small.call("GET", "/v1/x")
    response = await small.call("GET", "/v1/x")
    assert response.status == 201
    await response.body.aclose()
    assert small.builds == 2


@pytest.mark.asyncio
async def test_a_call_that_is_cancelled_during_the_build_leaves_it_to_the_next() -> None:
    small = serving(echo)
    first = asyncio.create_task(small.call("GET", "/v1/x"))
    second = asyncio.create_task(small.call("GET", "/v1/x"))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await soon((await soon(second)).json()))["method"] == "GET"
