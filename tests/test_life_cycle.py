"""How a worker ends: by a signal, by its engine's death, by its own, by a failed boot."""

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from standin import Platform
from worker_under_test import WorkerUnderTest

pytestmark = pytest.mark.engine

HANDLER = str(Path(__file__).parents[1] / "handler.py")
LONG = {"prompt": "Once", "stream": True, "max_tokens": 1500, "ignore_eos": True}

Start = Callable[..., WorkerUnderTest]


@pytest.fixture
def start(tiny_model: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a worker of the test's own, on the tiny model."""
    with ExitStack() as stack:

        def run(**more: str) -> WorkerUnderTest:
            platform = stack.enter_context(Platform())
            process = stack.enter_context(
                platform.start_worker(
                    [sys.executable, HANDLER],
                    tmp_path,
                    extra=WorkerUnderTest.environment(tiny_model, **more),
                )
            )
            return WorkerUnderTest(platform, process, [])

        yield run


def engine_core(worker: WorkerUnderTest) -> psutil.Process:
    """The process of the engine's core."""
    found = [
        process
        for process in map(psutil.Process, worker.process.descendants())
        if "EngineCore" in " ".join(process.cmdline())
    ]
    assert found, "no engine core\n" + worker.process.tail()
    return found[0]


def wait_for_no_descendants(worker: WorkerUnderTest, within: float = 5.0) -> None:
    """Wait until no process of the worker is left."""
    deadline = time.monotonic() + within
    while worker.process.descendants() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert worker.process.descendants() == []


def test_a_stop_finishes_running_jobs_and_leaves_nothing(start: Start) -> None:
    worker = start()
    worker.wait_until_ready()
    jobs = worker.platform.submit_many([{**LONG, "max_tokens": 300} for _ in range(3)])
    for job in jobs:
        worker.platform.wait_for_chunks(job, 2)
    worker.process.signal(signal.SIGTERM)
    assert worker.process.wait(60) == 0
    ended = [worker.platform.job(job) for job in jobs]
    assert [job.status for job in ended] == ["COMPLETED"] * 3
    assert [job.final_posts for job in ended] == [1] * 3
    assert [job.outputs[-1]["usage"]["output"] for job in ended] == [300] * 3
    wait_for_no_descendants(worker)
    assert worker.platform.defects == []
    at_boot, at_end = re.findall(r"^.* INFO (speculation.*)$", worker.process.log(), re.MULTILINE)
    assert at_boot.startswith("speculation: ngram, up to 3 tokens a step, n-grams of 2 to 4 tokens")
    assert re.match(r"speculation since the start: \d+ of \d+ drafted tokens accepted", at_end)
    assert "at any batch size" in at_end


def test_a_dead_engine_fails_its_jobs_and_ends_the_worker(start: Start) -> None:
    worker = start()
    worker.wait_until_ready()
    native = worker.platform.submit(LONG)
    openai = worker.platform.submit(
        {"openai_route": "/v1/completions",
         "openai_input": {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True,
                          "stream": True}}
    )  # fmt: skip
    for job in (native, openai):
        worker.platform.wait_for_chunks(job, 2)
    engine_core(worker).kill()
    assert worker.process.wait(20) == 1
    for job in (native, openai):
        ended = worker.platform.job(job)
        assert ended.status == "FAILED"
        assert ended.final_posts == 1
        assert json.loads(ended.error or "")["code"] in (500, 503)
    assert worker.process.log().count("speculation since the start: ") == 1
    wait_for_no_descendants(worker)


def test_a_killed_worker_takes_its_engine_along(start: Start) -> None:
    worker = start()
    worker.wait_until_ready()
    job = worker.platform.submit(LONG)
    worker.platform.wait_for_chunks(job, 2)
    assert worker.process.descendants()
    worker.process.signal(signal.SIGKILL)
    worker.process.wait(10)
    wait_for_no_descendants(worker)


def test_a_failed_boot_ends_in_the_childs_own_cause(start: Start) -> None:
    worker = start(KV_CACHE_MEMORY_BYTES="100k", LOG_LEVEL="ERROR")
    assert worker.process.wait(120) == 1
    last = worker.process.log().strip().splitlines()[-1]
    assert last.startswith("The engine did not start: ")
    assert "KV cache" in last
    wait_for_no_descendants(worker)


def test_a_model_that_does_not_fit_its_context_is_refused_before_the_weights(
    start: Start,
) -> None:
    worker = start(MAX_MODEL_LEN="999999")
    assert worker.process.wait(60) == 2
    assert "MAX_MODEL_LEN=999999" in worker.process.log()
    assert "starting the engine" not in worker.process.log()
