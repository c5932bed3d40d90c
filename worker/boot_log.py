"""The engine's children write to our stdout and stderr; this listens, for the cause.

A child that fails at boot reaches us only as "Engine core initialization failed"; the
reason stands in what it printed. While the engine boots, file descriptors 1 and 2 lead
into a pipe; a thread passes on what comes and looks for the first error.
"""

import os
import re
import select
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

LONGEST_LINE = 4096  # of what is searched; everything is passed on

_END_OF_BOOT = b"\0end of boot\0"  # what a quiet boot hides ends here, in the order of the pipe
_END_OF_LINE = re.compile(rb"(?:[\r\n]|%b)+" % _END_OF_BOOT)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

# `(EngineCore pid=1) ERROR 11-29 14:00:00 [core.py:1] ValueError: text`
_CAUSE = re.compile(
    r"(?:ERROR\b[^\]]*\]|^(?:\([^)]*\) )?)\s*"
    r"(?P<kind>(?:\w+\.)*\w*(?:Error|Exception|Interrupt))(?:: (?P<text>\S.*))?$"
)
_NOT_THE_CAUSE = ("Engine core initialization failed", "WorkerProc initialization failed")


class BootLog:
    """Passes the output of this process and its children on, and remembers the first error."""

    def __init__(self, *, forward: bool, secrets: Iterable[str] = ()) -> None:
        self._secrets = [secret.encode() for secret in secrets]
        self._forward = forward
        self._saved: dict[int, int] = {}
        self._partial = b""
        self._cause: str | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to this process until the block ends, and to its children until they do."""
        _flush()
        reader, writer = os.pipe()
        self._saved = {fd: os.dup(fd) for fd in (1, 2)}
        self._thread = threading.Thread(
            target=self._pump, args=(reader, os.dup(2)), name="boot-log", daemon=True
        )
        for fd in self._saved:
            os.dup2(writer, fd)
        os.close(writer)
        self._thread.start()
        try:
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        _flush()
        if self._saved and not self._forward:
            os.write(2, _END_OF_BOOT)
        while self._saved:
            fd, original = self._saved.popitem()
            os.dup2(original, fd)
            os.close(original)

    def finish(self, seconds: float = 1.0) -> None:
        """Wait, at most this long, until the children's last words have been passed on."""
        if self._thread is not None:
            self._thread.join(seconds)

    def cause(self) -> str | None:
        """The first error that a child named, as `Kind: text`, or None.

        Ends the listening to this process, so that all that ended children wrote is known.
        """
        self._restore()
        self.finish()
        return self._cause or first_cause([_text(self._partial)])

    def _pump(self, reader: int, out: int) -> None:
        forward, hidden = self._forward, b""
        while data := os.read(reader, 65536):
            self._search(data)
            if not forward:
                hidden, mark, data = (hidden + data).partition(_END_OF_BOOT)
                forward, hidden = bool(mark), hidden[-len(_END_OF_BOOT) :]
            if forward:
                _pass_on(out, self._without_secrets(data))
        os.close(reader)
        os.close(out)

    def _without_secrets(self, data: bytes) -> bytes:
        """The data without secret values; one that two reads cut in half is not found."""
        for secret in self._secrets:
            data = data.replace(secret, b"***")
        return data

    def _search(self, data: bytes) -> None:
        *lines, rest = _END_OF_LINE.split(self._partial + data)
        self._partial = rest[:LONGEST_LINE]
        self._cause = self._cause or first_cause(map(_text, lines))


def first_cause(lines: Iterable[str]) -> str | None:
    """The first line that names an error which is not merely a consequence of another."""
    for line in lines:
        found = _CAUSE.search(line)
        if found and not any(words in line for words in _NOT_THE_CAUSE):
            kind = found["kind"].rpartition(".")[2]
            return f"{kind}: {found['text']}" if found["text"] else kind
    return None


def _text(line: bytes) -> str:
    return _COLOURS.sub("", line[:LONGEST_LINE].decode(errors="replace")).rstrip()


def _pass_on(out: int, data: bytes) -> None:
    """Write all of it; where nobody reads any more, drop it: the children must not block."""
    while data:
        try:
            data = data[os.write(out, data) :]
        except BlockingIOError:
            select.select([], [out], [])
        except OSError:
            return


def _flush() -> None:
    """Python's own buffers go where they were meant to."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
