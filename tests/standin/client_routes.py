"""The routes that a client calls, as in section 8: run, status, stream, cancel and the rest."""

import uuid
from typing import Any

from aiohttp import web

from .inspection import MEGABYTE
from .job import Job
from .ledger import Ledger
from .openai_route import OpenAIRoute
from .worker_routes import Handler

RUN_LIMIT = 10 * MEGABYTE
RUNSYNC_LIMIT = 20 * MEGABYTE
WAIT_MS = (1_000, 90_000, 300_000)  # least, default, most


class ClientRoutes:
    """Section 8's table, without /retry, webhooks, policies and rate limits."""

    def __init__(self, ledger: Ledger, api_key: str) -> None:
        self._ledger = ledger
        self._keys = {api_key, f"Bearer {api_key}"}
        self._cursors: dict[str, int] = {}

    def routes(self, base: str) -> list[web.RouteDef]:
        """The route table under `base`."""
        openai = OpenAIRoute(self._ledger)
        table: list[tuple[str, str, Handler]] = [
            ("POST", "/run", self._run),
            ("POST", "/runsync", self._runsync),
            ("GET", "/status/{job}", self._status),
            ("GET", "/stream/{job}", self._stream),
            ("POST", "/cancel/{job}", self._cancel),
            ("POST", "/purge-queue", self._purge),
            ("GET", "/health", self._health),
            ("*", "/openai/{path:.+}", openai.answer),
        ]
        return [web.route(method, base + path, self._guard(to)) for method, path, to in table]

    def _guard(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization") in self._keys:
                return await handler(request)
            return web.json_response({"error": "unauthorized"}, status=401)

        return guarded

    async def _run(self, request: web.Request) -> web.StreamResponse:
        job = await self._submit(request, RUN_LIMIT, f"{uuid.uuid4()}-u1")
        return web.json_response({"id": job.id, "status": job.status})

    async def _runsync(self, request: web.Request) -> web.StreamResponse:
        job = await self._submit(request, RUNSYNC_LIMIT, f"sync-{uuid.uuid4()}-u1")
        least, default, most = WAIT_MS
        milliseconds = min(max(int(request.query.get("wait", default)), least), most)
        await self._ledger.job_changes.until(lambda: job.is_final, milliseconds / 1000)
        return web.json_response(report(job))

    async def _submit(self, request: web.Request, limit: int, job_id: str) -> Job:
        if len(await request.read()) > limit:
            raise web.HTTPBadRequest(text=f"the payload is larger than {limit} bytes")
        try:
            body = await request.json()
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from error
        if not isinstance(body, dict) or "input" not in body:
            raise web.HTTPBadRequest(text="the body has no input")
        return self._ledger.submit([body["input"]], job_id)[0]

    async def _status(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(report(self._job(request)))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        job = self._job(request)
        outputs = job.outputs_after(self._cursors.get(job.id, 0))
        self._cursors[job.id] = len(job.chunks)
        chunks = [{"output": output} for output in outputs]
        return web.json_response({"status": job.status, "stream": chunks})

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        job = self._job(request)
        self._ledger.stop(job, "CANCELLED")
        return web.json_response({"id": job.id, "status": job.status})

    async def _purge(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"removed": self._ledger.purge(), "status": "completed"})

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._ledger.health())

    def _job(self, request: web.Request) -> Job:
        job = self._ledger.jobs.get(request.match_info["job"])
        if job is None:
            raise web.HTTPNotFound(text="job not found")
        return job


def report(job: Job) -> dict[str, Any]:
    """The body of /status; a progress update is the output of a running job."""
    body: dict[str, Any] = {"id": job.id, "status": job.status}
    if job.taken_at is not None:
        body["delayTime"] = round((job.taken_at - job.submitted_at) * 1000)
        body["workerId"] = job.worker_id
        if job.finished_at is not None:
            body["executionTime"] = round((job.finished_at - job.taken_at) * 1000)
    if job.status == "COMPLETED":
        body["output"] = job.output
    elif job.error is not None:
        body["error"] = job.error
    elif job.progress:
        body["output"] = job.progress[-1]
    return body
