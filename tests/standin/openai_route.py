"""The OpenAI passthrough: any HTTP request becomes a job whose text or object is relayed.

What the real platform forwards and answers is only partly documented. Here the
input of a request without a body has a null `openai_input`, and a job that
failed before its first chunk is answered with 500 and the platform's error
shape; both are guesses.
"""

import json
import uuid

from aiohttp import web

from .job import Job
from .ledger import Ledger

OPENAI_SECONDS = 300.0  # about where the platform is said to cut connections


class OpenAIRoute:
    """/openai/{path}; a client that hangs up cancels its job."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Run the request as a job and relay what comes back."""
        raw = await request.read()
        body = json.loads(raw) if raw else None
        job_input = {"openai_route": f"/{request.match_info['path']}", "openai_input": body}
        (job,) = self._ledger.submit([job_input], f"{uuid.uuid4()}-e1")
        try:
            if job.is_openai_stream:
                return await self._relay(request, job)
            await self._ledger.job_changes.until(lambda: job.is_final, OPENAI_SECONDS)
            return _single(job)
        finally:
            self._ledger.stop(job, "CANCELLED")

    async def _relay(self, request: web.Request, job: Job) -> web.StreamResponse:
        await self._more(job, 0)
        if not job.chunks:
            return _failure(job)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent = 0
        while sent < len(job.chunks):
            for output in job.outputs_after(sent):
                await response.write(_text(output).encode())
                sent += 1
            await self._more(job, sent)
        await response.write_eof()
        return response

    async def _more(self, job: Job, sent: int) -> None:
        await self._ledger.job_changes.until(
            lambda: len(job.chunks) > sent or job.is_final, OPENAI_SECONDS
        )


def _single(job: Job) -> web.Response:
    if job.status != "COMPLETED" or not isinstance(job.output, list) or not job.output:
        return _failure(job)
    return web.Response(text=_text(job.output[0]), content_type="application/json")


def _failure(job: Job) -> web.Response:
    body = {"id": job.id, "status": job.status, "error": job.error}
    return web.json_response(body, status=500)


def _text(output: object) -> str:
    return output if isinstance(output, str) else json.dumps(output)
