"""What every test shares: a clean environment, models, and one real worker a session."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from standin import Platform, WorkerProcess
from tiny_model import make_tiny_model
from worker_under_test import WorkerUnderTest

from worker import embedded_model

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours, of former times, of the engine's or the platform's gets in."""
    import env_schema
    from worker import legacy

    ours = {*env_schema.known_variables(), *legacy.LEGACY}
    for name in [*os.environ]:
        if name in ours or name.startswith(("RUNPOD_", "VLLM_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def embedded() -> Path:
    """The folder of the embedded model, prepared where it is not yet."""
    return embedded_model.prepare(print)


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """A random two-layer model with the embedded model's tokenizer."""
    return make_tiny_model(embedded_model.cache_folder())


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """A platform of the session's own."""
    with Platform() as running:
        yield running


@pytest.fixture(scope="session")
def worker(
    platform: Platform, embedded: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerUnderTest]:
    """One real worker with the embedded model and n-gram speculation, for the session.

    Two jobs wait for it before it starts: its first two come at the same instant.
    """
    first = [platform.submit({"prompt": f"Job {n}:", "max_tokens": 4}) for n in (1, 2)]
    process: WorkerProcess = platform.start_worker(
        [sys.executable, str(ROOT / "handler.py")],
        tmp_path_factory.mktemp("worker"),
        extra=WorkerUnderTest.environment(embedded),
    )
    with process:
        yield WorkerUnderTest(platform, process, first)
