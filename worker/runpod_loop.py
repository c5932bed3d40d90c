"""Everything that knows the Runpod SDK: the loop, cancellation, posting, exit.

Importing this module imports the SDK, which reads its variables, and the working
directory, at import: set the environment and enter a private directory before.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import runpod
from aiohttp_retry import ExponentialRetry
from runpod.http_client import AsyncClientSession
from runpod.serverless.modules import rp_http, rp_scale
from runpod.serverless.modules.rp_job import get_job

from worker.engine import Engine
from worker.job_output import Emission
from worker.jobs import Jobs

log = logging.getLogger("worker.runpod")

EXIT_ENGINE_DEAD = 1
LAST_POSTS_S = 10.0  # how long in-flight jobs of a dead engine may take to post their errors
POST_ATTEMPTS = 6


def serve(engine: Engine, jobs: Jobs, max_concurrency: int) -> int:
    """Take jobs until the platform stops the worker or the engine dies.

    Returns the exit code: 0 after a stop, `EXIT_ENGINE_DEAD` after the engine's death.
    The engine is shut down in both cases.
    """
    end = _End()

    async def handler(job: Mapping[str, Any]) -> AsyncGenerator[Emission, None]:
        async for emission in jobs.serve(job):
            yield emission

    class Scaler(_Scaler):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__(config)
            self.engine, self.jobs, self.end = engine, jobs, end

    rp_scale.JobScaler = Scaler
    rp_http.FibonacciRetry = _retry_options
    config = {
        "handler": handler,
        "return_aggregate_stream": True,
        # a constant: after a change the SDK takes no job until all running ones have ended
        "concurrency_modifier": lambda _: max_concurrency,
    }
    try:
        runpod.serverless.start(config)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    finally:
        engine.shutdown()
    return end.code


class _End:
    """How the loop ended."""

    code = 0


class _Scaler(rp_scale.JobScaler):  # type: ignore[misc]  # the SDK has no types
    """The SDK's loop, with the engine's life tied to it and a prompt, complete stop."""

    engine: Engine
    jobs: Jobs
    end: _End

    async def run(self) -> None:
        self.jobs_fetcher = self._take
        async with AsyncClientSession() as session:
            watch = asyncio.create_task(self._watch())
            stops = asyncio.create_task(self.monitor_stop_signals(session))
            statistics = asyncio.create_task(_log_statistics(self.engine))
            warm = asyncio.create_task(self.jobs.app.ready())
            try:
                await asyncio.gather(self.get_jobs(session), self.run_jobs(session))
                await self.run_jobs(session)  # what the last poll brought
            finally:
                for task in (watch, stops, statistics, warm):
                    task.cancel()
                await asyncio.wait([watch, stops, statistics, warm])

    async def _take(self, session: Any, wanted: int) -> list[dict[str, Any]]:
        """The SDK's long poll, ended by a stop: it would hold the exit up for 90 s."""
        poll = asyncio.ensure_future(get_job(session, wanted))
        stop = asyncio.ensure_future(self._shutdown_event.wait())
        try:
            await asyncio.wait([poll, stop], return_when=asyncio.FIRST_COMPLETED)
            return (poll.result() or []) if poll.done() else []
        finally:
            stop.cancel()
            poll.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await poll

    async def _watch(self) -> None:
        """When the engine dies: let every job in flight post its error, then end hard."""
        death = await self.engine.wait_for_death()
        log.critical("%s", death)
        self.kill_worker()
        if self.jobs.in_flight:
            await asyncio.wait(self.jobs.in_flight, timeout=LAST_POSTS_S)
        sys.stdout.flush()
        sys.stderr.flush()
        self.engine.shutdown()
        os._exit(EXIT_ENGINE_DEAD)

    def handle_shutdown(self, signum: int, frame: Any) -> None:
        log.info("%s: finishing %d jobs", signal.Signals(signum).name, len(self.jobs.in_flight))
        super().handle_shutdown(signum, frame)


async def _log_statistics(engine: Engine, interval_s: float = 60.0) -> None:
    """The engine's own statistics line, which its server's lifespan would ask for."""
    while True:
        await asyncio.sleep(interval_s)
        await engine.client.do_log_stats()


def _retry_options(**_: Any) -> ExponentialRetry:
    """Posts are repeated on lost connections and on 429 as well; the SDK repeats 5xx alone.

    Delivery is at least once: a chunk arrives twice where the connection broke after the
    platform had read it.
    """
    return ExponentialRetry(
        attempts=POST_ATTEMPTS,
        start_timeout=0.25,
        max_timeout=8.0,
        statuses={429},
        exceptions={aiohttp.ClientConnectionError, asyncio.TimeoutError},
    )
