"""One job on this machine, printed as it streams: `--test_input` and `test_input.json`.

The SDK's own flag does not iterate a generator handler, and exits 0 having run nothing.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from env_schema import Settings
from worker import start
from worker.engine_args import EnginePlan
from worker.errors import ConfigurationError, Problem
from worker.job_output import Emission
from worker.jobs import Jobs
from worker.sse import Event

FLAG = "--test_input"
DEFAULT_FILE = Path("test_input.json")


def requested(arguments: Sequence[str], on_platform: bool) -> dict[str, Any] | None:
    """The job to run here, or None where the endpoint is to be served.

    Raises `ConfigurationError` where there is neither a job nor a platform.
    """
    given = _flag_value(arguments)
    if given is not None:
        return _job(given)
    if on_platform:
        return None
    if DEFAULT_FILE.exists():
        return _job(str(DEFAULT_FILE))
    raise ConfigurationError(
        [
            Problem(
                "RUNPOD_WEBHOOK_GET_JOB",
                None,
                "not set, so this is not a Runpod worker, and there is no job to run here",
                f'Give one with {FLAG} \'{{"input": {{"prompt": "Hello"}}}}\'',
            )
        ]
    )


def _flag_value(arguments: Sequence[str]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{FLAG}="):
            return argument.removeprefix(f"{FLAG}=")
        if argument == FLAG:
            return arguments[index + 1] if index + 1 < len(arguments) else ""
    return None


def _job(given: str) -> dict[str, Any]:
    text = given
    if not given.lstrip().startswith("{"):
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise _wrong(
                given, f"is neither a JSON object nor a file that can be read ({reason})"
            ) from None
    try:
        job = json.loads(text)
    except json.JSONDecodeError as error:
        raise _wrong(
            given, f"is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    if not isinstance(job, dict) or "input" not in job:
        raise _wrong(given, 'has no "input" key')
    return {"id": "local", **job}


def _wrong(given: str, why: str) -> ConfigurationError:
    return ConfigurationError([Problem(FLAG, " ".join(given.split())[:80], why)])


def run(settings: Settings, plan: EnginePlan, job: dict[str, Any]) -> int:
    """Run one job and print it. Returns 0, or 1 where the job failed."""
    began = time.monotonic()
    engine = start.boot(settings, plan, _progress)
    try:
        return asyncio.run(_print_job(Jobs(engine, settings.serving), job, began))
    finally:
        engine.shutdown()


def _progress(line: str) -> None:
    print(f"· {line}", file=sys.stderr, flush=True)


@dataclass
class _Report:
    """What one run showed."""

    began: float
    sent: float
    first_at: float | None = None
    emissions: int = 0
    ended: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] | None = None
    error: str | None = None

    def arrived(self) -> None:
        self.first_at = self.first_at or time.monotonic()
        self.emissions += 1

    def take(self, data: Any) -> None:
        if not isinstance(data, dict):
            return
        usage = data.get("usage") or {}
        if usage:
            self.usage = {
                "input": usage.get("input", usage.get("prompt_tokens")),
                "output": usage.get("output", usage.get("completion_tokens")),
            }
        metrics = (data.get("metrics") or {}).get("speculative_decoding")
        self.speculative = data.get("speculative") or _from_openai(metrics) or self.speculative

    def lines(self) -> list[str]:
        if self.first_at is None:
            return []
        streamed = self.emissions > 1
        lines = [
            f"{'first token' if streamed else 'answer'} {self.first_at - self.began:.1f} s "
            f"after start, {self.first_at - self.sent:.2f} s after the job"
        ]
        output = self.usage.get("output")
        # one emission says nothing of when its tokens came; the first of a stream starts the clock
        elapsed = self.ended - (self.first_at if streamed else self.sent)
        if output and elapsed > 0:
            rate = (output - 1 if streamed else output) / elapsed
            lines.append(
                f"{output} tokens for {self.usage.get('input')} of prompt, {rate:.1f} tokens/s"
            )
        return lines + (_acceptance_lines(self.speculative) if self.speculative else [])


def _from_openai(metrics: dict[str, Any] | None) -> dict[str, Any] | None:
    from worker.job_output import acceptance

    return acceptance(metrics) if metrics else None


def _acceptance_lines(figures: dict[str, Any]) -> list[str]:
    rate, length = figures["acceptance_rate"] or 0, figures["mean_acceptance_length"] or 0
    return [
        f"speculation: {figures['accepted']} of {figures['drafted']} drafted tokens accepted "
        f"({rate:.0%}), {length:.2f} tokens per step over {figures['steps']} steps with a draft"
    ]


async def _print_job(jobs: Jobs, job: dict[str, Any], began: float) -> int:
    report = _Report(began, time.monotonic())
    async with aclosing(jobs.serve(job)) as emissions:
        async for emission in emissions:
            if isinstance(emission, dict) and emission.get("error"):
                report.error = str(emission["error"])
                break
            report.arrived()
            for data in _parts(emission):
                report.take(data)
                print(_text(data), end="", flush=True)
    report.ended = time.monotonic()
    print(flush=True)
    for line in report.lines():
        _progress(line)
    if report.error:
        print(f"The job failed: {report.error}", file=sys.stderr)
        return 1
    return 0


def _parts(emission: Emission) -> list[Any]:
    """The objects in an emission."""
    if isinstance(emission, str):
        data = [Event(event).data() for event in emission.split("\n\n")]
        return [part for part in data if part is not None]
    return emission if isinstance(emission, list) else [emission]


def _text(data: Any) -> str:
    """What a person reads of an object: its text, or the whole where it carries none."""
    choices = data.get("choices") if isinstance(data, dict) else None
    if choices is None:
        return json.dumps(data, indent=2, ensure_ascii=False)
    return "".join(_choice_text(choice) for choice in choices)


def _choice_text(choice: dict[str, Any]) -> str:
    if "tokens" in choice:
        return "".join(choice["tokens"])
    message = choice.get("delta") or choice.get("message") or choice
    return message.get("content") or message.get("text") or ""
