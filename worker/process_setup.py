"""What this process needs before anything heavy is imported.

Environment variables that libraries read at import, the OpenMP library that only a new
process can preload, and a private working directory.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from worker import catalog

if TYPE_CHECKING:
    from env_schema import Settings

SDK_LOG_LEVELS = {"WARNING": "WARN", "CRITICAL": "ERROR", "FATAL": "ERROR"}
SDK_KNOWN_LEVELS = frozenset({"NOTSET", "TRACE", "DEBUG", "INFO", "WARN", "ERROR"})


def openmp_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that make the CPU engine fast; empty where nothing is to be changed.

    Intel's OpenMP has to be preloaded, and the engine's own binding keeps one core idle:
    on two cores both together nearly double its speed.
    """
    if not catalog.is_cpu_build():
        return {}
    changes = {}
    library = Path(sys.prefix, "lib", "libiomp5.so")
    preload = environ.get("LD_PRELOAD", "")
    if library.exists() and library.name not in preload:
        changes["LD_PRELOAD"] = f"{preload}:{library}".strip(":")
        changes["KMP_WARNINGS"] = environ.get("KMP_WARNINGS", "0")
    if "VLLM_CPU_OMP_THREADS_BIND" not in environ:
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        changes["VLLM_CPU_OMP_THREADS_BIND"] = cores
    return changes


def restart_for_openmp(environ: Mapping[str, str]) -> None:
    """Replace this process by itself with OpenMP preloaded, where that is still to be done."""
    changes = openmp_environment(environ)
    if "LD_PRELOAD" in changes:
        again = [sys.executable, *sys.orig_argv[1:]]  # with the interpreter's own options
        os.execve(sys.executable, again, {**environ, **changes})  # noqa: S606  # ourselves
    os.environ.update(changes)


def library_environment(settings: "Settings", environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for the libraries, from the settings; the user's own win.

    A level that the SDK does not know would end its import with a traceback.
    """
    on_platform = settings.on_platform
    level = settings.process.log_level or ("INFO" if on_platform else "WARNING")
    changes = {"VLLM_LOGGING_LEVEL": level, "TOKENIZERS_PARALLELISM": "false"}
    cache = Path(settings.model.base_path)
    if cache.is_dir():
        changes["HF_HOME"] = str(cache / "huggingface-cache")
    if settings.model.hf_token is not None:  # it may have come by an old name
        changes["HF_TOKEN"] = settings.model.hf_token.get_secret_value()
    # a blank variable is an unset one to us, and a level that does not exist to the engine
    changes = {name: value for name, value in changes.items() if not environ.get(name, "").strip()}
    sdk_level = environ.get("RUNPOD_LOG_LEVEL", environ.get("RUNPOD_DEBUG_LEVEL", level)).upper()
    sdk_level = SDK_LOG_LEVELS.get(sdk_level, sdk_level)
    changes["RUNPOD_LOG_LEVEL"] = sdk_level if sdk_level in SDK_KNOWN_LEVELS else "INFO"
    return changes


@contextmanager
def private_directory() -> Iterator[Path]:
    """Work in a fresh directory, which goes with the block.

    The SDK keeps its jobs in a file of the working directory: a stale or shared one makes
    a worker take no jobs at all, for ever.
    """
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="worker-", ignore_cleanup_errors=True) as directory:
        os.chdir(directory)
        try:
            yield Path(directory)
        finally:
            with suppress(FileNotFoundError):
                os.chdir(before)
