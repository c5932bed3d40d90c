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
from worker.engine_errors import one_sentence
from worker.job_output import Emission
from worker.jobs import Jobs
from worker.speculation_log import InForce, SpeculationLog

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
    speculation: SpeculationLog | None = None

    async def run(self) -> None:
        self.jobs_fetcher = self._take
        async with AsyncClientSession() as session:
            watch = asyncio.create_task(self._watch())
            stops = asyncio.create_task(self.monitor_stop_signals(session))
            self.speculation = _speculation_log(self.engine)
            statistics = asyncio.create_task(_log_statistics(self.engine, self.speculation))
            warm = asyncio.create_task(self._warm())
            try:
                await asyncio.gather(self.get_jobs(session), self.run_jobs(session))
                await self.run_jobs(session)  # what the last poll brought
            finally:
                for task in (watch, stops, statistics, warm):
                    task.cancel()
                await asyncio.wait([watch, stops, statistics, warm])
                if self.speculation is not None:
                    self.speculation.tell_all()

    async def _warm(self) -> None:
        """Build the OpenAI application before a job needs it; without one the worker ends."""
        try:
            await self.jobs.app.ready()
        except Exception as error:
            log.critical("the OpenAI application cannot be built: %s", one_sentence(error))
            self.end.code = EXIT_ENGINE_DEAD
            self.kill_worker()

    async def _take(self, session: Any, wanted: int) -> list[dict[str, Any]]:
        """The SDK's long poll, ended by a stop: it would hold the exit up for 90 s."""
        if self.engine.is_dead:
            await asyncio.sleep(0.1)
            return []
        poll = asyncio.ensure_future(get_job(session, wanted))
        stop = asyncio.ensure_future(self._shutdown_event.wait())
        try:
            await asyncio.wait([poll, stop], return_when=asyncio.FIRST_COMPLETED)
            found = (poll.result() or []) if poll.done() else []
            return self._without_running(found)
        finally:
            stop.cancel()
            poll.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await poll

    def _without_running(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The jobs that are not running here already: the platform may deliver one twice."""
        taken = set(self.jobs_tasks)
        fresh = []
        for job in found:
            name = job.get("id") if isinstance(job, dict) else None
            if name in taken:
                log.warning("job %s was delivered again while it runs; it runs once", name)
                continue
            taken.add(name)
            fresh.append(job)
        return fresh

    async def _watch(self) -> None:
        """When the engine dies: let every job in flight post its error, then end hard."""
        death = await self.engine.wait_for_death()
        log.critical("%s", death)
        self.end.code = EXIT_ENGINE_DEAD
        self.kill_worker()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_POSTS_S):
                await self._until_all_have_posted()
        if self.speculation is not None:
            self.speculation.tell_all()
        sys.stdout.flush()
        sys.stderr.flush()
        self.engine.shutdown()
        os._exit(EXIT_ENGINE_DEAD)

    async def _until_all_have_posted(self) -> None:
        """Wait for the jobs in flight, and for those that were taken and not started yet."""
        quiet = 0
        while quiet < 3:  # the SDK starts what it has taken within a tenth of a second
            await asyncio.sleep(0.1)
            busy = self.jobs.in_flight or self.jobs_tasks or not self.jobs_queue.empty()
            quiet = 0 if busy else quiet + 1

    def handle_shutdown(self, signum: int, frame: Any) -> None:
        log.info("%s: finishing %d jobs", signal.Signals(signum).name, len(self.jobs.in_flight))
        super().handle_shutdown(signum, frame)


def _speculation_log(engine: Engine) -> SpeculationLog | None:
    in_force = InForce.of(engine.client.vllm_config)
    return None if in_force is None else SpeculationLog(in_force)


async def _log_statistics(
    engine: Engine, speculation: SpeculationLog | None, interval_s: float = 60.0
) -> None:
    """The engine's own statistics line, which its server's lifespan would ask for, and ours."""
    while True:
        await asyncio.sleep(interval_s)
        await engine.client.do_log_stats()
        if speculation is not None:
            speculation.tell()


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
