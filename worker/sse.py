"""Server-sent events: bytes in any cut -> whole events.

An event ends at a blank line (WHATWG HTML, section 9.2.5), which is ASCII, so that a
whole event never ends inside a character.
"""

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

DONE = "[DONE]"
_END = b"\n\n"


@dataclass(frozen=True)
class Event:
    """One event, its closing blank line included."""

    text: str
    tokens: int = 1  # of a stream's pace: the engine sends an event for each of its steps

    def data(self) -> Any:
        """The decoded payload; None for the closing event and for comments."""
        # not `splitlines`: JSON may hold the other line separators of Unicode as they are
        lines = [line[5:].strip() for line in self.text.split("\n") if line.startswith("data:")]
        payload = "\n".join(lines)
        return None if payload in ("", DONE) else json.loads(payload)


def event_of(data: Any) -> Event:
    """The payload as one event."""
    return Event(f"data: {json.dumps(data, ensure_ascii=False)}\n\n")


async def events(source: AsyncGenerator[bytes, None]) -> AsyncGenerator[Event, None]:
    """Whole events from the parts of a body; a rest without an end becomes the last one."""
    rest = b""
    async for part in source:
        *whole, rest = (rest + part).split(_END)
        for event in whole:
            yield Event((event + _END).decode("utf-8", "replace"))
    if rest.strip():
        yield Event((rest + _END).decode("utf-8", "replace"))
