"""One job on this machine, printed as it streams: `--test_input` and `test_input.json`.

The SDK's own flag does not iterate a generator handler, and exits 0 having run nothing.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from env_schema import Settings
from worker import engine_args, start
from worker.acceptance import OPENAI_KEY, Acceptance
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
    engine = start.boot(settings, plan, _to_terminal())
    jobs = Jobs(engine, settings.serving, report=engine_args.reports_acceptance(settings, plan))
    try:
        return asyncio.run(_print_job(jobs, job, began))
    finally:
        engine.shutdown()


def _progress(line: str) -> None:
    print(f"· {line}", file=sys.stderr, flush=True)


def _to_terminal() -> Callable[[str], None]:
    """As `_progress`, also while the engine's own output is held back."""
    terminal = os.dup(2)
    return lambda line: _write(terminal, f"· {line}\n")


def _write(descriptor: int, text: str) -> None:
    with suppress(OSError):  # nobody may be there to read
        os.write(descriptor, text.encode(errors="replace"))


@dataclass
class _Report:
    """What one run showed."""

    began: float
    sent: float
    first_at: float | None = None
    emissions: int = 0
    ended: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)
    speculative: Acceptance | None = None
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
        if native := data.get("speculative"):
            self.speculative = _from_native(native)
        if metrics := (data.get("metrics") or {}).get(OPENAI_KEY):
            self.speculative = Acceptance.of_openai(metrics)

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
        return lines + ([f"speculation: {self.speculative}"] if self.speculative else [])


def _from_native(figures: dict[str, Any]) -> Acceptance:
    return Acceptance(figures["steps"], figures["drafted"], figures["accepted"])


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
    """The objects in an emission; text that is no stream of events is one."""
    if isinstance(emission, str) and not emission.startswith(("data:", ":")):
        return [emission]
    if isinstance(emission, str):
        data = [Event(event).data() for event in emission.split("\n\n")]
        return [part for part in data if part is not None]
    return emission if isinstance(emission, list) else [emission]


def _text(data: Any) -> str:
    """What a person reads of an object: its text, or the whole where it carries none."""
    if isinstance(data, str):
        return data
    choices = data.get("choices") if isinstance(data, dict) else None
    if choices is None:
        return json.dumps(data, indent=2, ensure_ascii=False)
    return "".join(_choice_text(choice) for choice in choices)


def _choice_text(choice: dict[str, Any]) -> str:
    if "tokens" in choice:
        return "".join(choice["tokens"])
    message = choice.get("delta") or choice.get("message") or choice
    return message.get("content") or message.get("text") or ""
