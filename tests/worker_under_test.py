"""A real worker process against the stand-in, and what tests ask of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standin import Job, Platform, WorkerProcess

BOOT_S = 240.0
MODEL = "SmolLM2-135M-Instruct"

NGRAM = {
    "SPECULATIVE_MODEL": "[ngram]",
    "NUM_SPECULATIVE_TOKENS": "3",
    "NGRAM_PROMPT_LOOKUP_MIN": "2",
    "NGRAM_PROMPT_LOOKUP_MAX": "4",
}


@dataclass(frozen=True)
class WorkerUnderTest:
    """The platform, the worker's process, and the jobs that waited for its start."""

    platform: Platform
    process: WorkerProcess
    first_jobs: list[str]

    @staticmethod
    def environment(model: Path, **more: str) -> dict[str, str]:
        """A worker's variables for a folder on this machine: eight jobs at once, n-gram."""
        return {
            "MODEL_NAME": str(model),
            "SERVED_MODEL_NAME": MODEL,
            "MAX_CONCURRENCY": "9",
            "DTYPE": "float32",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            **NGRAM,
            **more,
        }

    def wait_until_ready(self) -> None:
        """Wait for the worker's first poll for a job."""
        self.platform.wait_until(lambda: bool(self.platform.open_takes), "the worker", BOOT_S)

    def run(self, job_input: Any, timeout: float = 90.0) -> Job:
        """Submit one job and wait for its end."""
        return self.platform.wait(self.platform.submit(job_input), timeout)

    def chat(self, content: str, **more: Any) -> Job:
        """One chat job through the OpenAI route, greedy unless told otherwise."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            **more,
        }
        return self.run({"openai_route": "/v1/chat/completions", "openai_input": body})


def objects(job: Job) -> list[dict[str, Any]]:
    """The objects of an OpenAI stream, its closing event left out."""
    text = "".join(job.outputs)
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def streamed_text(job: Job) -> str:
    """The answer that an OpenAI chat stream adds up to."""
    choices = [choice for part in objects(job) for choice in part["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def native_text(job: Job) -> str:
    """The answer that native chunks add up to."""
    return "".join(t for chunk in job.outputs for t in chunk["choices"][0]["tokens"])
