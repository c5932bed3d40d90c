"""Server-sent events: whole, whatever the cuts."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.sse import DONE, Event, event_of, events

# one to four bytes long; what separates lines of JSON, of events, and of Unicode only
TEXTS = st.text('aé日🙂\u0301\u2028\u2029\x85\x0b\x1c\n\r\t "\\{}:d', max_size=24)


def body_of(texts: Sequence[str]) -> bytes:
    return "".join(event_of({"text": text}).text for text in texts).encode()


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({min(place, len(body)) for place in places} | {len(body)})
    return [body[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def read(parts: Sequence[bytes]) -> list[Event]:
    async def source() -> AsyncGenerator[bytes, None]:
        for part in parts:
            yield part

    async def main() -> list[Event]:
        return [event async for event in events(source())]

    return asyncio.run(main())


@settings(database=None, deadline=None)  # no folder of its own; the machine is shared
@given(st.lists(TEXTS, max_size=5), st.lists(st.integers(0, 200), max_size=12))
def test_any_cut_of_a_body_gives_the_same_whole_events(texts: list[str], places: list[int]) -> None:
    body = body_of(texts)
    read_events = read(cut(body, places))
    assert "".join(event.text for event in read_events).encode() == body
    assert [event.data() for event in read_events] == [{"text": text} for text in texts]


def test_a_body_byte_by_byte_gives_whole_events() -> None:
    texts = ["日本語で", "🙂", "plain"]
    body = body_of(texts) + b"data: [DONE]\n\n"
    read_events = read([bytes([byte]) for byte in body])
    assert [event.data() for event in read_events] == [*({"text": t} for t in texts), None]
    assert all(event.text.endswith("\n\n") for event in read_events)


def test_a_rest_without_an_end_becomes_a_whole_event() -> None:
    assert [event.text for event in read([b"data: 1\n\ndata", b": 2"])] == [
        "data: 1\n\n",
        "data: 2\n\n",
    ]


@pytest.mark.parametrize("parts", [[], [b""], [b"\n"], [b"data: 1\n\n", b"\n"]])
def test_blank_rests_are_no_events(parts: list[bytes]) -> None:
    assert len(read(parts)) == sum(b"data" in part for part in parts)


def test_a_character_broken_off_at_the_end_does_not_break_the_stream() -> None:
    (event,) = read(["data: é".encode()[:-1]])
    assert event.text == "data: \ufffd\n\n"


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (f"data: {DONE}\n\n", None),
        (": a comment\n\n", None),
        ("event: ping\n\n", None),
        ('data:{"a": 1}\n\n', {"a": 1}),
        ('data: {"a":\ndata: 1}\n\n', {"a": 1}),
        ('event: x\nid: 1\ndata: {"a": 1}\n\n', {"a": 1}),
        ('data: {"a": "\u2028\x85"}\n\n', {"a": "\u2028\x85"}),
    ],
)
def test_the_payload_of_an_event(text: str, data: Any) -> None:
    assert Event(text).data() == data


def test_a_payload_that_is_not_json_is_an_error() -> None:
    with pytest.raises(json.JSONDecodeError):
        Event('data: {"a": \n\n').data()
