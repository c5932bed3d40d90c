"""A worker without an engine: the SDK's own loop around a handler that does as its input says."""

import asyncio
import os
import sys
import time
import types
from collections.abc import AsyncIterator
from typing import Any

# The SDK asks it for a label only, and its import takes more than a second.
cpuinfo = types.ModuleType("cpuinfo")
cpuinfo.get_cpu_info = dict  # type: ignore[attr-defined]
sys.modules["cpuinfo"] = cpuinfo

import runpod  # noqa: E402  -- the stub above must come first

CONCURRENCY = int(os.environ.get("TOY_CONCURRENCY", "8"))


def say(event: str, job: dict[str, Any]) -> None:
    """Log an event with the clock that the stand-in uses."""
    print(f"toy {event} {job['id']} at {time.monotonic():.4f}", flush=True)


async def handler(job: dict[str, Any]) -> AsyncIterator[Any]:
    """Yield what the job asks for; `pause` seconds pass before each chunk."""
    task = asyncio.current_task()
    if task is not None:
        task.add_done_callback(lambda _: say("task-done", job))
    say("started", job)
    try:
        async for chunk in chunks_of(job, job["input"]):
            yield chunk
    except BaseException as error:
        say(f"saw-{type(error).__name__}", job)
        raise


async def chunks_of(job: dict[str, Any], order: dict[str, Any]) -> AsyncIterator[Any]:
    """The chunks of one order."""
    if "openai_route" in order:
        for chunk in openai_chunks(order["openai_input"] or {}):
            yield chunk
        return
    if "progress" in order:
        runpod.serverless.progress_update(job, order["progress"])
        await asyncio.sleep(0.3)
    for chunk in order.get("chunks", []):
        await asyncio.sleep(order.get("pause", 0))
        yield chunk
    await asyncio.sleep(order.get("then_wait", 0))
    if "constant" in order:
        yield {"number": float(order["constant"])}
    if "size" in order:
        yield "x" * order["size"]
    if "raise" in order:
        raise RuntimeError(order["raise"])


def openai_chunks(body: dict[str, Any]) -> list[Any]:
    """Frames of a stream, or one object."""
    if "fail" in body:
        return [{"error": body["fail"]}]
    if body.get("stream"):
        return [*body.get("frames", []), "data: [DONE]\n\n"]
    return [{"object": "chat.completion", "echo": body}]


if __name__ == "__main__":
    runpod.serverless.start(
        {
            "handler": handler,
            "return_aggregate_stream": True,
            "concurrency_modifier": lambda _: CONCURRENCY,
        }
    )
