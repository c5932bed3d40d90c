"""Engine outputs -> emissions: whole pieces, paced.

The SDK posts one emission at a time and asks for the next only when it has been posted,
so one emission per token would cap a stream at one token per round trip. A reader task
takes the pieces as they come; an emission carries all that have gathered.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Generic, Protocol, TypeVar

from worker.pace import Pace


class Piece(Protocol):
    """A part of an answer that must not be split."""

    @property
    def tokens(self) -> int:
        """How many tokens it carries."""


P = TypeVar("P", bound=Piece)


class _Gathering(Generic[P]):
    """What the reader has taken and nobody has sent yet."""

    def __init__(self, flush_s: float) -> None:
        self._flush_s = flush_s
        self._arrived = asyncio.Event()
        self._pieces: list[P] = []
        self._tokens = 0
        self._due_at = 0.0
        self.finished = False

    async def read(self, source: AsyncGenerator[P, None]) -> None:
        clock = asyncio.get_running_loop().time
        try:
            async with aclosing(source):
                async for piece in source:
                    if not self._pieces:
                        self._due_at = clock() + self._flush_s
                    self._pieces.append(piece)
                    self._tokens += piece.tokens
                    self._arrived.set()
        finally:
            self.finished = True
            self._arrived.set()

    async def due(self, bound: int) -> None:
        """Return when the pieces should be sent, or when no more will come."""
        clock = asyncio.get_running_loop().time
        while not (self.finished or self._tokens >= bound):
            self._arrived.clear()
            wait = self._due_at - clock() if self._pieces else None
            if wait is not None and wait <= 0:
                return
            try:
                async with asyncio.timeout(wait):
                    await self._arrived.wait()
            except TimeoutError:
                return

    def take(self) -> list[P]:
        pieces, self._pieces, self._tokens = self._pieces, [], 0
        return pieces


async def emissions(source: AsyncGenerator[P, None], pace: Pace) -> AsyncGenerator[list[P], None]:
    """The pieces of `source` in lists, none empty, each to be sent as one.

    What `source` raises is raised after everything before it has been given out. Closing
    this generator closes `source`.
    """
    gathering: _Gathering[P] = _Gathering(pace.flush_s)
    bounds = pace.bounds()
    reader = asyncio.create_task(gathering.read(source))
    try:
        while True:
            await gathering.due(bounds.tokens)
            if pieces := gathering.take():
                yield pieces
                bounds.advance()
            elif gathering.finished:
                break
        await reader
    finally:
        reader.cancel()
        await asyncio.wait([reader])
