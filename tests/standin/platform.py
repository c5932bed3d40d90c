"""The platform as a test holds it: a server in a thread, and the client's side as methods."""

import contextlib
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from types import TracebackType
from typing import Any

from .client_routes import ClientRoutes
from .faults import Faults, Hold
from .job import Job, Ping, PostRoute
from .ledger import Ledger
from .server import Server
from .worker_process import WorkerProcess
from .worker_routes import WorkerRoutes

LIVENESS_SECONDS = 0.2


class Platform:
    """A Runpod Serverless endpoint on 127.0.0.1, running inside its `with` block.

    Its methods may be called from any thread. Those that wait have a twin with
    the suffix `_async` for a test that runs its own event loop. A wait that
    takes too long raises TimeoutError, and one that cannot succeed because every
    attached worker has ended raises AssertionError; both show the job and the
    worker's log.

    Two habits of the SDK matter to a test. After an empty stop poll it waits
    for a second before the next, so a cancel can be that late: measure from the
    job's `stop_sent_at`. And a take asks for the slots that were free when it was
    sent: wait for `open_takes` before counting on a batch.
    """

    def __init__(
        self,
        *,
        endpoint_id: str = "standin",
        api_key: str = "standin-key",
        poll_seconds: float = 2.0,
        ping_ms: int = 1000,
    ) -> None:
        self.endpoint_id = endpoint_id
        self.api_key = api_key
        self.faults = Faults()
        self._ping_ms = ping_ms
        self._poll_seconds = poll_seconds
        self._ledger = Ledger(ping_ms / 1000)
        self._workers: list[WorkerProcess] = []
        self._server = Server()

    def __enter__(self) -> "Platform":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Serve on a free port."""
        base = f"/v2/{self.endpoint_id}"
        worker_side = WorkerRoutes(self._ledger, self.faults, self.api_key, self._poll_seconds)
        client_side = ClientRoutes(self._ledger, self.api_key)
        self._server.start([*worker_side.routes(base), *client_side.routes(base)])

    def stop(self) -> None:
        """Close the server and its thread; end the workers first, or they spin."""
        self._server.stop()

    # What a worker is given.

    @property
    def url(self) -> str:
        """The endpoint's base, as in https://api.runpod.ai/v2/<endpoint>."""
        return f"http://127.0.0.1:{self._server.port}/v2/{self.endpoint_id}"

    def environment(self, worker_id: str = "worker-1") -> dict[str, str]:
        """The variables that make the SDK work for this platform."""
        return {
            "RUNPOD_WEBHOOK_GET_JOB": f"{self.url}/job-take/$ID?gpu=SIM",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{self.url}/job-done/$RUNPOD_POD_ID/$ID?gpu=SIM",
            "RUNPOD_WEBHOOK_POST_STREAM": f"{self.url}/job-stream/$RUNPOD_POD_ID/$ID?gpu=SIM",
            "RUNPOD_WEBHOOK_PING": f"{self.url}/ping/$RUNPOD_POD_ID?gpu=SIM",
            "RUNPOD_PING_INTERVAL": str(self._ping_ms),
            "RUNPOD_POD_ID": worker_id,
            "RUNPOD_AI_API_KEY": self.api_key,
            "RUNPOD_ENDPOINT_ID": self.endpoint_id,
            "RUNPOD_LOG_LEVEL": "INFO",
            "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
            "RUNPOD_SKIP_GPU_CHECK": "true",
        }

    def start_worker(
        self,
        command: Sequence[str],
        cwd: Path,
        *,
        worker_id: str = "worker-1",
        extra: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        """Start a worker for this platform and attach it."""
        worker = WorkerProcess(command, {**self.environment(worker_id), **(extra or {})}, cwd)
        self.attach(worker)
        return worker

    def attach(self, worker: WorkerProcess) -> None:
        """Show this worker's log when a wait fails, and stop waiting when it ends."""
        self._workers.append(worker)

    # The client's side.

    def submit(self, job_input: object, job_id: str | None = None) -> str:
        """Queue a job; its id."""
        return self._server.call(lambda: self._ledger.submit([job_input], job_id)[0].id)

    def submit_many(self, inputs: Iterable[object]) -> list[str]:
        """Queue jobs at one instant, so that a batch take can be given all of them."""
        return self._server.call(lambda: [job.id for job in self._ledger.submit(inputs)])

    def cancel(self, job_id: str) -> None:
        """Cancel a job, queued or running."""
        self._server.call(lambda: self._ledger.stop(self.job(job_id), "CANCELLED"))

    def time_out(self, job_id: str) -> None:
        """End a job as its execution timeout would."""
        self._server.call(lambda: self._ledger.stop(self.job(job_id), "TIMED_OUT"))

    def health(self) -> dict[str, dict[str, int]]:
        """The body of /health."""
        return self._server.call(self._ledger.health)

    def job(self, job_id: str) -> Job:
        """The job's record; it goes on changing while the job runs."""
        return self._ledger.jobs[job_id]

    def wait(self, job_id: str, timeout: float = 30.0) -> Job:
        """The job, once it is final."""
        return self._server.run(self._final(job_id, timeout), timeout)

    async def wait_async(self, job_id: str, timeout: float = 30.0) -> Job:
        """As `wait`, for a caller with its own event loop."""
        return await self._server.run_async(self._final(job_id, timeout))

    def wait_for_chunks(self, job_id: str, count: int, timeout: float = 30.0) -> Job:
        """The job, once `count` chunks have arrived; AssertionError if it ends with fewer."""
        return self._server.run(self._chunks(job_id, count, timeout), timeout)

    async def wait_for_chunks_async(self, job_id: str, count: int, timeout: float = 30.0) -> Job:
        """As `wait_for_chunks`, for a caller with its own event loop."""
        return await self._server.run_async(self._chunks(job_id, count, timeout))

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
        """Until a condition on jobs, pings or holds is true."""
        self._server.run(self._until(condition, what, timeout), timeout)

    async def wait_until_async(
        self, condition: Callable[[], bool], what: str, timeout: float = 30.0
    ) -> None:
        """As `wait_until`, for a caller with its own event loop."""
        await self._server.run_async(self._until(condition, what, timeout))

    def stream(self, job_id: str, timeout: float = 30.0) -> Iterator[Any]:
        """The job's outputs as they arrive, until it is final; `timeout` is for all of it."""
        deadline, sent = time.monotonic() + timeout, 0
        while outputs := self._server.run(self._more(job_id, sent, deadline), timeout):
            yield from outputs
            sent += len(outputs)

    async def stream_async(self, job_id: str, timeout: float = 30.0) -> AsyncIterator[Any]:
        """As `stream`, for a caller with its own event loop."""
        deadline, sent = time.monotonic() + timeout, 0
        while outputs := await self._server.run_async(self._more(job_id, sent, deadline)):
            for output in outputs:
                yield output
            sent += len(outputs)

    # What a test may ask.

    @property
    def jobs(self) -> list[Job]:
        """All jobs in order of submission."""
        return list(self._ledger.jobs.values())

    @property
    def unfinished(self) -> list[Job]:
        """Jobs that a worker took and that are not final."""
        return [job for job in self.jobs if job.taken_at is not None and not job.is_final]

    @property
    def pings(self) -> list[Ping]:
        """All heartbeats."""
        return list(self._ledger.pings)

    @property
    def open_takes(self) -> dict[str, int]:
        """The held take of each worker, and how many jobs it asked for when it was sent."""
        return dict(self._ledger.open_takes)

    @property
    def requests(self) -> dict[str, int]:
        """How often workers called take, take-batch, stop, stream, done and ping."""
        return dict(self._ledger.requests)

    @property
    def defects(self) -> list[str]:
        """Everything that a worker must not have done."""
        of_jobs = [f"job {job.id}: {defect}" for job in self.jobs for defect in job.defects]
        return [*self._ledger.defects, *of_jobs]

    def hold_stream_posts(
        self, job_id: str | None = None
    ) -> contextlib.AbstractContextManager[Hold]:
        """Inside the block, chunks arrive but their posts get no answer until `release`."""
        return self._hold("stream", job_id)

    def hold_final_posts(
        self, job_id: str | None = None
    ) -> contextlib.AbstractContextManager[Hold]:
        """The same for final results and progress updates."""
        return self._hold("done", job_id)

    # Inside.

    @contextlib.contextmanager
    def _hold(self, route: PostRoute, job_id: str | None) -> Iterator[Hold]:
        hold = Hold(self._server.loop)
        self.faults.hold(route, job_id, hold)
        try:
            yield hold
        finally:
            self.faults.release(route, job_id)

    async def _final(self, job_id: str, timeout: float) -> Job:
        job = self.job(job_id)
        await self._until(lambda: job.is_final, f"the end of {job_id}", timeout, job)
        return job

    async def _chunks(self, job_id: str, count: int, timeout: float) -> Job:
        job = self.job(job_id)
        what = f"{count} chunks of {job_id}"
        await self._until(lambda: len(job.chunks) >= count or job.is_final, what, timeout, job)
        if len(job.chunks) < count:
            raise AssertionError(self._failure(f"{what}: the job has ended", job))
        return job

    async def _more(self, job_id: str, sent: int, deadline: float) -> list[Any]:
        job = self.job(job_id)
        await self._until(
            lambda: len(job.chunks) > sent or job.is_final,
            f"a chunk after {sent} of {job_id}",
            deadline - time.monotonic(),
            job,
        )
        return job.outputs_after(sent)

    async def _until(
        self, condition: Callable[[], bool], what: str, timeout: float, job: Job | None = None
    ) -> None:
        deadline = time.monotonic() + timeout
        while True:
            ended = self._workers and all(one.exit_code is not None for one in self._workers)
            left = 0 if ended else min(LIVENESS_SECONDS, deadline - time.monotonic())
            if await self._ledger.job_changes.until(condition, left):
                return
            if ended:
                raise AssertionError(self._failure(f"{what}: the worker has ended", job))
            if time.monotonic() >= deadline:
                raise TimeoutError(self._failure(f"{what}: not within {timeout:.1f} s", job))

    def _failure(self, headline: str, job: Job | None) -> str:
        states = [str(job)] if job is not None else [str(one) for one in self.unfinished]
        tails = [worker.tail() for worker in self._workers]
        return "\n".join([headline, *states, *self._ledger.defects, *tails])
