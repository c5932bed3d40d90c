"""The engine's own OpenAI application, called as an ASGI app in this process.

No port is opened. What uvicorn's lifespan would do is done here: the death flag at
`app.state.server`; the statistics' clock is the worker's.
"""

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from worker.engine import Engine

# With 2.4 starlette does not listen for a disconnect while it streams: after one, the
# engine went on for 18.7 s, to the request's last token.
ASGI = {"version": "3.0", "spec_version": "2.3"}

LONGEST_END_S = 5.0  # told that the caller has gone, the application ends in milliseconds


def import_application() -> None:
    """Import what the application needs, so that building it later is quick."""
    import vllm.entrypoints.generate.api_router
    import vllm.entrypoints.launchers.api_server.app_state
    import vllm.entrypoints.launchers.app  # noqa: F401


class Response:
    """An answer in progress: its status and type at once, its body as it comes.

    `disconnect` tells the application that the caller has gone, without waiting: the
    engine has dropped the request some 2 ms later.
    """

    def __init__(
        self,
        status: int,
        content_type: str,
        body: AsyncGenerator[bytes, None],
        disconnect: Callable[[], None],
    ) -> None:
        self.status = status
        self.content_type = content_type
        self.body = body
        self.disconnect = disconnect

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self.content_type.startswith("text/event-stream")

    @property
    def is_text(self) -> bool:
        """Whether the body is plain text."""
        return self.content_type.startswith("text/plain")

    async def text(self) -> str:
        """The whole body as text."""
        return b"".join([part async for part in self.body]).decode("utf-8", "replace")

    async def json(self) -> Any:
        """The whole body, decoded; its text where it is not JSON, None where it is empty."""
        text = await self.text()
        try:
            return json.loads(text) if text.strip() else None
        except ValueError:
            return text


class OpenAIApp:
    """The application of one engine; built in the event loop that will call it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._app: Any = None
        self._lock = asyncio.Lock()

    async def ready(self) -> None:
        """Build the application, once; callers at the same time wait for the first."""
        async with self._lock:
            if self._app is None:
                self._app = await self._build()

    async def _build(self) -> Any:
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app

        client = self._engine.client
        # clients see the name of the model, not the folder that it came from
        spoken = Namespace(**{**vars(self._engine.spoken), "model": self._engine.model_name})
        tasks = await client.get_supported_tasks()
        app = build_app(spoken, tasks, client.model_config)
        await init_app_state(client, app.state, spoken, tasks)
        app.state.server = SimpleNamespace(should_exit=False)
        return app

    async def call(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Call a route. Returns once its status is known; closing the body ends the call."""
        await self.ready()
        return await _Call(self._app, method, path, body, headers or {}).answer()


class _Call:
    """One request: what the application receives and what it sends."""

    def __init__(
        self, app: Any, method: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> None:
        self._app = app
        self._payload = b"" if body is None else json.dumps(body).encode()
        self._scope = _scope(method, path, headers, len(self._payload))
        self._given = False
        self._gone = asyncio.Event()
        self._sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    async def answer(self) -> Response:
        """The answer, as soon as it begins; raises what the application raises instead of one."""
        try:
            first = await self._next()
        except asyncio.CancelledError:
            await self._end()
            raise
        headers = {name.lower(): value for name, value in first.get("headers", ())}
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        return Response(first["status"], content_type, self._body(), self._gone.set)

    async def _body(self) -> AsyncGenerator[bytes, None]:
        try:
            message: dict[str, Any] = {"more_body": True}
            while message.get("more_body", False):
                message = await self._next()
                if part := message.get("body"):
                    yield part
        finally:
            await self._end()

    async def _next(self) -> dict[str, Any]:
        """What the application sends next; raises what it raised where it broke off."""
        message = await self._sent.get()
        if message is not None:
            return message
        if self._gone.is_set():  # it was told to
            return {}
        await self._task
        raise RuntimeError("the application ended before its answer did")

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        finally:
            self._sent.put_nowait(None)

    async def _receive(self) -> dict[str, Any]:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self._payload, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._gone.is_set():
            raise OSError("the caller has gone")
        self._sent.put_nowait(message)

    async def _end(self) -> None:
        """Tell the application that the caller has gone, and let it finish."""
        self._gone.set()
        # after an error's answer the server error middleware raises again: it was sent
        with suppress(Exception):
            async with asyncio.timeout(LONGEST_END_S):
                await self._task


def _scope(method: str, path: str, headers: Mapping[str, str], length: int) -> dict[str, Any]:
    route, _, query = path.partition("?")
    sent = {"content-type": "application/json", "content-length": str(length), "host": "worker"}
    return {
        "type": "http",
        "asgi": ASGI,
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode()) for k, v in {**sent, **headers}.items()],
        "client": ("127.0.0.1", 0),
        "server": ("worker", 80),
        "state": {},
    }
