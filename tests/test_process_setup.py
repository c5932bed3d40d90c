"""What is prepared before anything heavy is imported."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import env_schema
from worker import catalog, process_setup

ROOT = Path(__file__).parents[1]
BIND = "VLLM_CPU_OMP_THREADS_BIND"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The CPU build, with OpenMP's library in its environment."""
    monkeypatch.setattr(catalog, "is_cpu_build", lambda: True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    path = tmp_path / "lib" / "libiomp5.so"
    path.parent.mkdir()
    path.touch()
    return path


def test_the_cpu_engine_gets_its_openmp_and_all_cores(library: Path) -> None:
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    assert process_setup.openmp_environment({}) == {
        "LD_PRELOAD": str(library),
        "KMP_WARNINGS": "0",
        BIND: cores,
    }


def test_what_the_user_preloads_stays_and_comes_first(library: Path) -> None:
    changes = process_setup.openmp_environment({"LD_PRELOAD": "/lib/x.so", "KMP_WARNINGS": "1"})
    assert changes["LD_PRELOAD"] == f"/lib/x.so:{library}"
    assert changes["KMP_WARNINGS"] == "1"


def test_the_second_time_nothing_is_left_to_be_done(library: Path) -> None:
    first = process_setup.openmp_environment({})
    assert process_setup.openmp_environment(first) == {}


def test_a_binding_of_the_users_own_stays(library: Path) -> None:
    assert BIND not in process_setup.openmp_environment({BIND: "nobind"})


def test_without_the_library_nothing_is_preloaded(library: Path) -> None:
    library.unlink()
    assert [*process_setup.openmp_environment({})] == [BIND]


def test_another_build_is_left_alone(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "is_cpu_build", lambda: False)
    assert process_setup.openmp_environment({}) == {}


def test_the_restart_is_this_very_command_with_the_library(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["python", "-u", "-X", "dev", "handler.py", "--test_input", "{}"]
    monkeypatch.setattr(sys, "orig_argv", command)
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    process_setup.restart_for_openmp({"MODEL_NAME": "x"})
    ((program, arguments, environ),) = calls
    assert program == sys.executable
    assert arguments == [sys.executable, *command[1:]]
    assert environ["MODEL_NAME"] == "x"
    assert environ["LD_PRELOAD"] == str(library)
    assert environ[BIND]


def test_without_a_restart_the_rest_is_set_here(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.unlink()
    monkeypatch.setenv(BIND, "before")
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("restarted"))
    process_setup.restart_for_openmp({})
    assert os.environ[BIND] != "before"


def test_a_restarted_process_does_not_restart_again() -> None:
    """With a real process: it would go on for ever."""
    code = """
        import os, sys
        from worker import catalog, process_setup
        catalog.is_cpu_build = lambda: True
        print("begun", flush=True)
        process_setup.restart_for_openmp(os.environ)
        print("went on with", sys.flags.utf8_mode, flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    begun = 2 if Path(sys.prefix, "lib", "libiomp5.so").exists() else 1
    assert done.stdout == "begun\n" * begun + "went on with 1\n"


def environment(**environ: str) -> dict[str, str]:
    """The libraries' variables for an environment, what stays of it included."""
    settings = env_schema.load({"MODEL_NAME": "x/y", **environ})
    return {**environ, **process_setup.library_environment(settings, environ)}


ON_PLATFORM = {"RUNPOD_WEBHOOK_GET_JOB": "https://x/job-take/$ID"}


@pytest.mark.parametrize(
    ("environ", "engine", "sdk"),
    [
        ({}, "WARNING", "WARN"),
        (ON_PLATFORM, "INFO", "INFO"),
        ({"LOG_LEVEL": "debug"}, "DEBUG", "DEBUG"),
        ({"LOG_LEVEL": "warn", **ON_PLATFORM}, "WARNING", "WARN"),
        ({"LOG_LEVEL": "critical"}, "CRITICAL", "ERROR"),
        ({"LOG_LEVEL": "trace"}, "DEBUG", "DEBUG"),
        ({"LOG_LEVEL": "error", "VLLM_LOGGING_LEVEL": "DEBUG"}, "DEBUG", "ERROR"),
        ({"VLLM_LOGGING_LEVEL": " ", **ON_PLATFORM}, "INFO", "INFO"),
        ({"RUNPOD_LOG_LEVEL": "trace"}, "WARNING", "TRACE"),
        ({"RUNPOD_LOG_LEVEL": "warning"}, "WARNING", "WARN"),
        ({"RUNPOD_LOG_LEVEL": "loud"}, "WARNING", "INFO"),
        ({"RUNPOD_LOG_LEVEL": ""}, "WARNING", "INFO"),
        ({"RUNPOD_LOG_LEVEL": "3"}, "WARNING", "INFO"),
        ({"RUNPOD_DEBUG_LEVEL": "error"}, "WARNING", "ERROR"),
        ({"RUNPOD_DEBUG_LEVEL": "error", "RUNPOD_LOG_LEVEL": "info"}, "WARNING", "INFO"),
    ],
)
def test_the_log_levels_of_the_engine_and_the_sdk(
    environ: dict[str, str], engine: str, sdk: str
) -> None:
    variables = environment(**environ)
    assert (variables["VLLM_LOGGING_LEVEL"], variables["RUNPOD_LOG_LEVEL"]) == (engine, sdk)


def test_every_level_of_the_schema_is_known_to_the_sdk() -> None:
    for level in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        assert environment(LOG_LEVEL=level)["RUNPOD_LOG_LEVEL"] in process_setup.SDK_KNOWN_LEVELS


def test_the_cache_is_on_the_volume_where_there_is_one(tmp_path: Path) -> None:
    assert environment(BASE_PATH=str(tmp_path))["HF_HOME"] == str(tmp_path / "huggingface-cache")
    assert "HF_HOME" not in environment(BASE_PATH=str(tmp_path / "missing"))
    own = environment(BASE_PATH=str(tmp_path), HF_HOME="/own")
    assert own["HF_HOME"] == "/own"


def test_a_token_that_came_by_another_name_reaches_the_hub_library() -> None:
    settings = env_schema.load({"MODEL_NAME": "x/y", "HF_TOKEN": "hf_0123456789"})
    assert process_setup.library_environment(settings, {})["HF_TOKEN"] == "hf_0123456789"  # noqa: S105
    assert "HF_TOKEN" not in process_setup.library_environment(settings, {"HF_TOKEN": "own"})


def test_a_private_directory_is_fresh_empty_and_goes_with_its_block() -> None:
    before = Path.cwd()
    with process_setup.private_directory() as first, process_setup.private_directory() as second:
        assert first != second
        assert Path.cwd() == second
        assert [*second.iterdir()] == []
        assert second.stat().st_mode & 0o077 == 0
        (second / ".runpod_jobs.pkl").touch()
    assert Path.cwd() == before
    assert not first.exists()
    assert not second.exists()


def test_a_private_directory_goes_after_an_exception_too() -> None:
    before = Path.cwd()
    with pytest.raises(RuntimeError), process_setup.private_directory() as directory:
        raise RuntimeError
    assert Path.cwd() == before
    assert not directory.exists()


def test_a_working_directory_that_has_gone_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    with process_setup.private_directory() as directory:
        gone.rmdir()
    assert not directory.exists()
