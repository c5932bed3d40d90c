"""An aiohttp application in a thread of its own, and calls into that thread's loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from aiohttp import web

from .inspection import MEGABYTE

T = TypeVar("T")

CALL_SECONDS = 10.0
SHUTDOWN_SECONDS = 0.2
BODY_LIMIT = 64 * MEGABYTE  # above every limit of the platform, so that ours are the ones that act


class Server:
    """Serves routes on a free port of 127.0.0.1 between `start` and `stop`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.port = 0
        self._thread = threading.Thread(target=self.loop.run_forever, name="platform", daemon=True)
        self._runner: web.AppRunner | None = None

    def start(self, routes: Iterable[web.RouteDef]) -> None:
        """Listen."""
        self._thread.start()
        self.run(self._open(routes))

    def stop(self) -> None:
        """Close every connection and end the thread."""
        self.run(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CALL_SECONDS)
        self.loop.close()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function inside the loop, from any thread."""
        if threading.current_thread() is self._thread:
            return function()

        async def call() -> T:
            return function()

        return self.run(call())

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = 0.0) -> T:
        """Run a coroutine inside the loop; it bounds itself by `timeout`."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(timeout + CALL_SECONDS)

    async def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a caller with its own event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    async def _open(self, routes: Iterable[web.RouteDef]) -> None:
        app = web.Application(client_max_size=BODY_LIMIT)
        app.add_routes(routes)
        # A poll whose worker has gone must not take a job, hence the cancellation.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
