"""An engine in a process of its own: an environment and requests in, tokens and figures out."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Answer:
    """One request's end: its token ids, its text, and the engine's acceptance figures."""

    token_ids: list[int]
    text: str
    finish_reason: str
    metrics: dict[str, Any] | None


def run_engine(
    model: Path, variables: dict[str, str], rounds: list[list[dict[str, Any]]]
) -> list[list[Answer]]:
    """Boot the engine of an environment and answer rounds of requests, each round at once.

    A request is `{"prompt": …, "sampling_params": {…}}`.
    """
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RUNPOD_")},
        "MODEL_NAME": str(model),
        "DTYPE": "float32",
        "MAX_MODEL_LEN": "512",
        "KV_CACHE_MEMORY_BYTES": str(2**28),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "LOG_LEVEL": "ERROR",
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__))],
        input=json.dumps(rounds),
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(lines[-1].removeprefix("ANSWERS "))
    return [[Answer(**answer) for answer in answers] for answers in found]


async def _answer(engine: Any, request: dict[str, Any], name: str) -> dict[str, Any]:
    from worker import sampling

    parameters = sampling.build(request["sampling_params"], {}, streamed=False)
    rendered = await engine.render_text(request["prompt"])
    async for output in engine.generate(rendered, parameters, name):
        last = output.outputs[0]
    metrics = last.spec_decode_metrics
    return {
        "token_ids": list(last.token_ids),
        "text": last.text,
        "finish_reason": last.finish_reason,
        "metrics": metrics.to_dict() if metrics else None,
    }


def main() -> None:
    import asyncio

    from worker import preflight, process_setup, start

    rounds = json.loads(sys.stdin.read()) if not sys.stdin.isatty() else []
    os.environ.update(process_setup.openmp_environment(os.environ))
    settings, plan, _ = preflight.examine(os.environ)
    engine = start.boot(settings, plan, lambda line: None)

    async def answer_all() -> list[list[dict[str, Any]]]:
        return [
            await asyncio.gather(
                *(_answer(engine, request, f"{i}-{j}") for j, request in enumerate(requests))
            )
            for i, requests in enumerate(rounds)
        ]

    answers = asyncio.run(answer_all())
    print("ANSWERS " + json.dumps(answers), flush=True)
    engine.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
