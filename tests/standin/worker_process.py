"""A worker as a process of its own: started, watched and ended together with its children."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

# The rest of the caller's environment stays outside: proxies make pings vanish,
# and a developer's HOME can hold a key that replaces the platform's.
INHERITED = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
LOG_NAME = "worker.log"
POLL_SECONDS = 0.02
CLOSE_SECONDS = 10.0


class WorkerProcess:
    """One worker in its own session and process group, with `cwd` as its directory.

    It sees `environment`, a few inherited variables, and an empty HOME below
    `cwd` unless `environment` names one. Its output goes to `log_path`. Leaving
    the context, or `close`, kills it and everything below it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        cwd = cwd.resolve()
        home = cwd / "home"
        home.mkdir(parents=True, exist_ok=True)
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self.log_path = cwd / LOG_NAME
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                list(command),
                env={**inherited, "PYTHONUNBUFFERED": "1", "HOME": str(home), **environment},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        return self._process.poll()

    def log(self) -> str:
        """Everything printed so far, to either stream."""
        return self.log_path.read_text(errors="replace")

    def tail(self, lines: int = 30) -> str:
        """The log's last lines under a headline, for an assertion's message."""
        state = "running" if self.exit_code is None else f"exit code {self.exit_code}"
        return "\n".join(
            [f"worker {self.pid} ({state}), end of its log:", *self.log().splitlines()[-lines:]]
        )

    def wait_for_log(self, pattern: str, timeout: float = 30.0) -> re.Match[str]:
        """The first match in the log.

        Raises TimeoutError, or AssertionError once the worker has ended without it.
        """
        deadline = time.monotonic() + timeout
        while True:
            ended = self.exit_code is not None
            if match := re.search(pattern, self.log(), re.MULTILINE):
                return match
            if ended:
                raise AssertionError(f"the worker ended without {pattern!r}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {pattern!r} within {timeout:g} s\n{self.tail()}")
            time.sleep(POLL_SECONDS)

    def signal(self, number: int) -> None:
        """Send a signal to the worker's main process alone."""
        self._process.send_signal(number)

    def wait(self, timeout: float = 30.0) -> int:
        """The exit code, negative for a signal; raises TimeoutError."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            message = f"the worker has not ended within {timeout:g} s\n{self.tail()}"
            raise TimeoutError(message) from None

    def descendants(self) -> list[int]:
        """The live processes below the worker, also those that outlived their parent.

        A process that left both the family tree and the session is not found.
        """
        found = {process.pid for process in self._children() if _is_live(process)}
        found.update(process.pid for process in psutil.process_iter() if self._is_ours(process))
        return sorted(found - {self.pid})

    def close(self) -> None:
        """Kill the worker, its group and its descendants, and see them gone."""
        stray = self.descendants()
        if stray or self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        for pid in stray:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait(CLOSE_SECONDS)
        deadline = time.monotonic() + CLOSE_SECONDS
        while left := self.descendants():
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {left} survive SIGKILL\n{self.tail()}")
            time.sleep(POLL_SECONDS)

    def _children(self) -> Iterator[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield from psutil.Process(self.pid).children(recursive=True)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            ours = self.pid in (os.getsid(process.pid), os.getpgid(process.pid))
        except (ProcessLookupError, PermissionError):
            return False
        return ours and _is_live(process)


def _is_live(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
