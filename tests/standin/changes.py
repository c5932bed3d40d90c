"""Waiting, inside the platform's loop, for something to become true."""

import asyncio
import contextlib
import time
from collections.abc import Callable


class Changes:
    """Wakes those who wait whenever what they look at may have changed.

    Only for use inside one event loop.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def announce(self) -> None:
        """Let every waiting coroutine look at its condition again."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Whether `condition` became true within `timeout` seconds.

        Nothing runs between the last evaluation and the return, so what was
        seen to be there can be taken.
        """
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._event.wait()
        return True
