"""The engine's children write to our stdout and stderr; this listens, for the cause.

A child that fails at boot reaches us only as "Engine core initialization failed"; the
reason stands in what it printed. While the engine boots, file descriptors 1 and 2 lead
into a pipe; a thread passes on what comes and keeps the last lines.
"""

import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

KEPT_LINES = 400

# `(EngineCore pid=1) ERROR 11-29 14:00:00 [core.py:1] ValueError: text`
_CAUSE = re.compile(
    r"(?:ERROR\b[^\]]*\]|^(?:\([^)]*\) )?)\s*"
    r"(?P<kind>(?:\w+\.)*\w*(?:Error|Exception|Interrupt)): (?P<text>\S.*)$"
)
_NOT_THE_CAUSE = ("Engine core initialization failed", "WorkerProc initialization failed")


class BootLog:
    """Passes the output of this process and its children on, and remembers its end."""

    def __init__(self, *, forward: bool) -> None:
        self._forward = forward
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._partial = b""
        self._thread: threading.Thread | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to this process until the block ends, and to its children until they do."""
        reader, writer = os.pipe()
        saved = {fd: os.dup(fd) for fd in (1, 2)}
        self._thread = threading.Thread(
            target=self._pump, args=(reader, saved[2]), name="boot-log", daemon=True
        )
        for fd in saved:
            os.dup2(writer, fd)
        os.close(writer)
        self._thread.start()
        try:
            yield
        finally:
            for fd, original in saved.items():
                os.dup2(original, fd)
            os.close(saved[1])  # the pump owns saved[2]
            self._forward = True

    def finish(self, seconds: float = 1.0) -> None:
        """Wait, at most this long, until the children's last words have been passed on."""
        if self._thread is not None:
            self._thread.join(seconds)

    def cause(self) -> str | None:
        """The first error that a child named, as `Kind: text`, or None."""
        return first_cause(self._lines)

    def _pump(self, reader: int, out: int) -> None:
        while data := os.read(reader, 65536):
            if self._forward:
                os.write(out, data)
            *lines, self._partial = (self._partial + data).split(b"\n")
            self._lines.extend(line.decode(errors="replace").rstrip() for line in lines)
        os.close(reader)
        os.close(out)


def first_cause(lines: Iterable[str]) -> str | None:
    """The first line that names an error which is not merely a consequence of another."""
    for line in lines:
        found = _CAUSE.search(line)
        if found and not any(words in line for words in _NOT_THE_CAUSE):
            return f"{found['kind'].rpartition('.')[2]}: {found['text']}"
    return None
