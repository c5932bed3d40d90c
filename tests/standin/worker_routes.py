"""The routes that a worker calls: take, stop, stream, done, ping."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl

from aiohttp import web

from .faults import Fault, Faults
from .inspection import BodyError
from .job import Job, Ping, Post, PostRoute
from .ledger import Ledger

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

UNAUTHORISED_PAUSE = 1.0  # the SDK asks again at once, a thousand times a second


class WorkerRoutes:
    """Section 10's worker-facing half; `poll_seconds` is how long a poll is held."""

    def __init__(self, ledger: Ledger, faults: Faults, api_key: str, poll_seconds: float) -> None:
        self._ledger = ledger
        self._faults = faults
        self._api_key = api_key
        self._poll_seconds = poll_seconds

    def routes(self, base: str) -> list[web.RouteDef]:
        """The route table under `base`."""
        worker, job = "{worker:[^/]+}", "{job:[^/]+}"
        return [
            web.get(f"{base}/job-take/{worker}", self._guard("take", self._take_one)),
            web.get(f"{base}/job-take-batch/{worker}", self._guard("take-batch", self._take_batch)),
            web.get(f"{base}/job-stop/{worker}", self._guard("stop", self._stop)),
            web.post(f"{base}/job-stream/{worker}/{job}", self._guard("stream", self._stream)),
            web.post(f"{base}/job-done/{worker}/{job}", self._guard("done", self._done)),
            web.get(f"{base}/ping/{worker}", self._guard("ping", self._ping)),
        ]

    def _guard(self, name: str, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            self._ledger.requests[name] += 1
            if request.headers.get("Authorization") == self._api_key:
                return await handler(request)
            self._ledger.note(f"wrong Authorization on {name}")
            await asyncio.sleep(UNAUTHORISED_PAUSE)
            return web.Response(status=401)

        return guarded

    async def _take_one(self, request: web.Request) -> web.StreamResponse:
        worker_id, _ = split_tail(request, "worker")
        jobs = await self._poll_queue(request, worker_id, 1)
        if not isinstance(jobs, list):
            return jobs
        return web.json_response(jobs[0] if len(jobs) == 1 else jobs)

    async def _take_batch(self, request: web.Request) -> web.StreamResponse:
        worker_id, parameters = split_tail(request, "worker")
        jobs = await self._poll_queue(request, worker_id, int(parameters.get("batch_size", "1")))
        return web.json_response(jobs) if isinstance(jobs, list) else jobs

    async def _poll_queue(
        self, request: web.Request, worker_id: str, limit: int
    ) -> list[dict[str, object]] | web.Response:
        if (fault := self._faults.next("take")) is not None:
            return _wrong_answer(request, fault)
        with self._ledger.open_take(worker_id, limit):
            queue = self._ledger.queue_changes
            if not await queue.until(self._ledger.has_queued, self._poll_seconds):
                return web.Response(status=204)
        jobs = self._ledger.take(worker_id, limit + self._faults.over_deliver)
        return [{"id": job.id, "input": job.input} for job in jobs]

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        worker_id, _ = split_tail(request, "worker")
        if (fault := self._faults.next("stop")) is not None:
            return _wrong_answer(request, fault)
        await self._ledger.stop_changes.until(
            lambda: self._ledger.has_stops(worker_id), self._poll_seconds
        )
        job_ids = self._ledger.take_stops(worker_id)
        return web.json_response({"jobsToStop": job_ids}) if job_ids else web.Response(status=204)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        return await self._post(request, "stream", self._ledger.add_chunk)

    async def _done(self, request: web.Request) -> web.StreamResponse:
        return await self._post(request, "done", self._ledger.add_final)

    async def _post(
        self, request: web.Request, route: PostRoute, add: Callable[[Job, bytes], None]
    ) -> web.StreamResponse:
        raw = await request.read()
        job_id, _ = split_tail(request, "job")
        job = self._ledger.jobs.get(job_id)
        if job is None:
            self._ledger.note(f"{route} post for the unknown job {job_id}")
            return web.Response(status=404)
        fault = self._faults.next(route, job.id)
        status = 200
        if fault is None or fault.delivered:
            status = _add(job, raw, add)
        job.posts.append(Post(route, time.monotonic(), fault.answer if fault else status))
        self._ledger.job_changes.announce()
        await self._faults.pause(route, job.id)
        if fault is not None:
            return _wrong_answer(request, fault)
        if route == "done" and job.final_posts and status == 200:
            job.final_acknowledged = True
        return web.Response(status=status)

    async def _ping(self, request: web.Request) -> web.StreamResponse:
        if (fault := self._faults.next("ping")) is not None:
            return _wrong_answer(request, fault)
        worker_id, parameters = split_tail(request, "worker")
        job_ids = tuple(filter(None, parameters.get("job_id", "").split(",")))
        self._ledger.pings.append(Ping(worker_id, time.monotonic(), job_ids))
        self._ledger.job_changes.announce()
        return web.Response()


def split_tail(request: web.Request, name: str) -> tuple[str, Mapping[str, str]]:
    """A path's last part, and the parameters of the query or glued to the path with `&`.

    The SDK appends `&batch_size=…` to whatever template it is given; the Hub's
    test harness gives it one without a query string.
    """
    value, _, glued = request.match_info[name].partition("&")
    return value, {**request.query, **dict(parse_qsl(glued))}


def _add(job: Job, raw: bytes, add: Callable[[Job, bytes], None]) -> int:
    try:
        add(job, raw)
    except BodyError as defect:
        job.defects.append(str(defect))
        return 400
    return 200


def _wrong_answer(request: web.Request, fault: Fault) -> web.Response:
    if fault.status is not None:
        return web.Response(status=fault.status)
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
