"""The platform's memory: jobs, the queue, the stop channel, heartbeats and defects.

Everything here is touched only by the platform's own loop.
"""

import contextlib
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Literal

from .changes import Changes
from .inspection import BodyError, chunk_output, final_body
from .job import Chunk, Job, Ping

MISSED_PINGS = 3


class Ledger:
    """Jobs and workers as the platform sees them."""

    def __init__(self, ping_seconds: float) -> None:
        self.jobs: dict[str, Job] = {}
        self.pings: list[Ping] = []
        self.requests: Counter[str] = Counter()
        self.defects: list[str] = []
        self.open_takes: dict[str, int] = {}
        self.queue_changes = Changes()
        self.stop_changes = Changes()
        self.job_changes = Changes()
        self._ping_seconds = ping_seconds
        self._queue: deque[Job] = deque()
        self._stops: defaultdict[str, list[Job]] = defaultdict(list)

    def submit(self, inputs: Iterable[object], job_id: str | None = None) -> list[Job]:
        """Queue jobs in one step, so that one batch can take them all."""
        jobs = [self._new_job(one, job_id or f"{uuid.uuid4()}-u1") for one in inputs]
        self._queue.extend(jobs)
        self.queue_changes.announce()
        return jobs

    def _new_job(self, job_input: object, job_id: str) -> Job:
        if job_id in self.jobs:
            raise ValueError(f"job id {job_id} was used before")
        self.jobs[job_id] = Job(job_id, job_input, time.monotonic())
        return self.jobs[job_id]

    def has_queued(self) -> bool:
        """Whether a take would be given something."""
        return bool(self._queue)

    @contextlib.contextmanager
    def open_take(self, worker_id: str, limit: int) -> Iterator[None]:
        """Inside the block, a worker's take is held."""
        self.open_takes[worker_id] = limit
        self.job_changes.announce()
        try:
            yield
        finally:
            del self.open_takes[worker_id]

    def take(self, worker_id: str, limit: int) -> list[Job]:
        """Hand up to `limit` jobs to a worker."""
        jobs = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        for job in jobs:
            job.status, job.worker_id, job.taken_at = "IN_PROGRESS", worker_id, time.monotonic()
        self.job_changes.announce()
        return jobs

    def stop(self, job: Job, status: Literal["CANCELLED", "TIMED_OUT"]) -> None:
        """End a job from the platform's side and tell the worker that holds it."""
        if job.is_final:
            return
        if job.worker_id is None:
            self._queue.remove(job)
        else:
            self._stops[job.worker_id].append(job)
            self.stop_changes.announce()
        job.status, job.finished_at = status, time.monotonic()
        self.job_changes.announce()

    def has_stops(self, worker_id: str) -> bool:
        """Whether the stop channel has something for a worker."""
        return bool(self._stops[worker_id])

    def take_stops(self, worker_id: str) -> list[str]:
        """The ids of the jobs that a worker is to stop."""
        jobs = self._stops.pop(worker_id, [])
        for job in jobs:
            job.stop_sent_at = time.monotonic()
        return [job.id for job in jobs]

    def purge(self) -> int:
        """Cancel what is queued; how many jobs that were."""
        queued = list(self._queue)
        for job in queued:
            self.stop(job, "CANCELLED")
        return len(queued)

    def add_chunk(self, job: Job, raw: bytes) -> None:
        """Keep a stream post; raises BodyError."""
        chunk = Chunk(chunk_output(raw), time.monotonic(), len(raw))
        if job.final_acknowledged:
            raise BodyError("chunk after the final result")
        if job.is_openai_stream and not isinstance(chunk.output, str):
            job.defects.append(f"chunk of an OpenAI stream is not a string: {raw[:80]!r}")
        (job.late_chunks if job.is_final else job.chunks).append(chunk)

    def add_final(self, job: Job, raw: bytes) -> None:
        """Keep a final result or a progress update; raises BodyError."""
        body = final_body(raw)
        if body.get("status") == "IN_PROGRESS":
            job.progress.append(body.get("output"))
            return
        job.final_posts += 1
        if job.final_acknowledged:
            raise BodyError("second final result")
        if job.is_final:
            return
        job.output, job.error = body.get("output"), body.get("error")
        job.stop_pod = bool(body.get("stopPod"))
        job.status = "FAILED" if isinstance(job.error, str) else "COMPLETED"
        job.finished_at = time.monotonic()
        self._inspect_result(job)

    def _inspect_result(self, job: Job) -> None:
        if job.error is not None and job.status != "FAILED":
            job.defects.append(f"error is not a string: {job.error!r}")
        if job.status == "FAILED" or not job.is_openai or job.is_openai_stream:
            return
        if not isinstance(job.output, list) or len(job.output) != 1:
            job.defects.append(f"OpenAI result is not one element: {job.output!r:.80}")

    def note(self, defect: str) -> None:
        """Keep a defect that belongs to no job, once."""
        if defect not in self.defects:
            self.defects.append(defect)

    def health(self) -> dict[str, dict[str, int]]:
        """The body of /health; a worker is known by its pings."""
        states = Counter(job.status for job in self.jobs.values())
        busy = {job.worker_id for job in self.jobs.values() if job.status == "IN_PROGRESS"}
        last_pings = {ping.worker_id: ping.at for ping in self.pings}
        oldest = time.monotonic() - MISSED_PINGS * self._ping_seconds
        alive = {worker_id for worker_id, at in last_pings.items() if at >= oldest}
        return {
            "jobs": {
                "completed": states["COMPLETED"],
                "failed": states["FAILED"] + states["TIMED_OUT"],
                "inProgress": states["IN_PROGRESS"],
                "inQueue": states["IN_QUEUE"],
                "retried": 0,
            },
            "workers": {
                "idle": len(alive - busy),
                "running": len(alive & busy),
                "unhealthy": len(last_pings) - len(alive),
            },
        }
