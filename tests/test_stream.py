"""Emissions on a clock of the test's own: nothing here waits, and nothing depends on speed."""

import asyncio
import gc
import selectors
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

from worker.pace import Pace
from worker.stream import emissions

NEVER = 3600.0  # seconds; long before, the test's source has ended


@dataclass(frozen=True)
class Word:
    """A piece of a stream."""

    text: str
    tokens: int = 1


class _Selector(selectors.DefaultSelector):
    """Waits by moving the clock; complains where a wait has no end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and for nothing")
        self.now += timeout or 0.0
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._selected = _Selector()
        super().__init__(self._selected)

    def time(self) -> float:
        return self._selected.now


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a clock that jumps; what asyncio would log as lost is an error."""
    lost: list[dict[str, Any]] = []

    async def watched() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
        result = await main
        gc.collect()  # a failure that nobody looked at is told when its task goes
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    with asyncio.Runner(loop_factory=_Loop) as runner:
        result = runner.run(watched())
    assert lost == []
    return result


def now() -> float:
    return asyncio.get_running_loop().time()


class Script:
    """A source that follows a list: words, pauses in seconds, an exception, or an event."""

    def __init__(self, *steps: Word | float | BaseException | asyncio.Event) -> None:
        self._steps = steps
        self.closed_at: float | None = None

    async def play(self) -> AsyncGenerator[Word, None]:
        try:
            for step in self._steps:
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Word):
                    yield step
                else:
                    await asyncio.sleep(step)
        finally:
            self.closed_at = now()


def words(count: int) -> list[Word]:
    return [Word(str(number)) for number in range(count)]


def spaced(count: int, pause: float) -> list[Word | float]:
    return [step for word in words(count) for step in (pause, word)]


async def record(script: Script, pace: Pace, slow: float = 0.0) -> list[tuple[float, int]]:
    """When each emission came, and how many pieces it had; `slow` is the consumer's time."""
    seen = []
    async with aclosing(emissions(script.play(), pace)) as stream:
        async for pieces in stream:
            seen.append((round(now(), 3), len(pieces)))
            await asyncio.sleep(slow)
    return seen


def sizes(pace: Pace, count: int = 90) -> list[int]:
    """The sizes of the emissions of a source slow enough for each bound to show."""
    return [size for _, size in run(record(Script(*spaced(count, 0.01)), pace))]


def test_the_first_piece_goes_at_once() -> None:
    script = Script(Word("a"), NEVER / 2, Word("b"))
    assert run(record(script, Pace(least_tokens=20, most_tokens=50, flush_s=9)))[0] == (0.0, 1)


def test_an_emission_grows_from_one_token_to_the_most() -> None:
    assert sizes(Pace(flush_s=NEVER), 140)[:6] == [1, 3, 9, 27, 50, 50]


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        (Pace(least_tokens=4, most_tokens=50, growth=3, flush_s=NEVER), [1, 4, 12, 36]),
        (Pace(least_tokens=1, most_tokens=5, growth=3, flush_s=NEVER), [1, 3, 5, 5, 5]),
        (Pace(least_tokens=1, most_tokens=50, growth=2, flush_s=NEVER), [1, 2, 4, 8, 16, 32]),
        (Pace(least_tokens=1, most_tokens=50, growth=1.5, flush_s=NEVER), [1, 1, 2, 3, 5, 7, 11]),
        (Pace(least_tokens=1, most_tokens=50, growth=1, flush_s=NEVER), [1] * 9),
        (Pace(least_tokens=7, most_tokens=7, growth=9, flush_s=NEVER), [1, 7, 7, 7]),
        (Pace(least_tokens=1, most_tokens=1, growth=3, flush_s=NEVER), [1] * 9),
    ],
    ids=str,
)
def test_least_most_and_growth_each_change_the_emissions(pace: Pace, expected: list[int]) -> None:
    assert sizes(pace)[: len(expected)] == expected


@pytest.mark.parametrize(("flush_s", "expected"), [(0.05, 6), (0.1, 11)])
def test_the_flush_time_changes_the_emissions(flush_s: float, expected: int) -> None:
    pace = Pace(least_tokens=40, most_tokens=40, flush_s=flush_s)
    # the oldest piece waits this long, while one more comes every 10 ms
    assert expected - 1 <= sizes(pace)[1] <= expected


def test_without_a_flush_time_nothing_waits() -> None:
    assert sizes(Pace(least_tokens=40, most_tokens=40, flush_s=0), 9) == [1] * 9


def test_the_age_limit_wins_over_the_bound() -> None:
    script = Script(Word("a"), 1.0, Word("b"), 1.0, Word("c"), 1.0)
    seen = run(record(script, Pace(least_tokens=50, most_tokens=50, flush_s=0.05)))
    assert seen == [(0.0, 1), (1.05, 1), (2.05, 1)]


def test_the_age_is_that_of_the_oldest_piece() -> None:
    script = Script(Word("a"), 1.0, Word("b"), 0.04, Word("c"), 0.04, Word("d"), 1.0)
    seen = run(record(script, Pace(least_tokens=50, most_tokens=50, flush_s=0.05)))
    assert seen == [(0.0, 1), (1.05, 2), (1.13, 1)]


def test_a_bound_counts_tokens_not_pieces() -> None:
    steps = [step for word in words(12) for step in (0.01, Word(word.text, tokens=3))]
    seen = run(record(Script(*steps), Pace(flush_s=NEVER)))
    assert [size for _, size in seen] == [1, 1, 3, 7]  # 3, 3, 9, then the end


def test_a_piece_without_tokens_is_sent_by_its_age() -> None:
    script = Script(Word("role", tokens=0), 1.0, Word("a"))
    assert run(record(script, Pace(flush_s=0.05)))[0] == (0.05, 1)


def test_a_slow_consumer_gets_all_that_gathered_in_one_emission() -> None:
    seen = run(record(Script(*spaced(100, 0.01)), Pace(), slow=0.3))
    first, *middle, _ = [size for _, size in seen]
    assert first == 1
    assert middle == [pytest.approx(30, abs=1)] * 3  # in 0.3 s, one every 10 ms


def test_a_slow_consumer_does_not_hold_the_source_up() -> None:
    script = Script(*spaced(100, 0.01))
    run(record(script, Pace(), slow=NEVER))
    assert script.closed_at == pytest.approx(1.0)


def test_nothing_is_lost_or_reordered() -> None:
    async def main() -> list[str]:
        steps = spaced(200, 0.007)
        stream = emissions(Script(*steps).play(), Pace(flush_s=0.02))
        return [piece.text async for pieces in stream for piece in pieces]

    assert run(main()) == [word.text for word in words(200)]


def test_no_emission_is_empty() -> None:
    assert 0 not in sizes(Pace(flush_s=0.001))


def test_a_source_without_pieces_gives_no_emission() -> None:
    assert run(record(Script(), Pace())) == []


def test_what_gathered_comes_before_the_failure_of_the_source() -> None:
    async def main() -> list[str]:
        script = Script(*words(5), RuntimeError("the engine broke"))
        seen: list[str] = []
        with pytest.raises(RuntimeError, match="the engine broke"):  # noqa: PT012  # a loop
            async for pieces in emissions(script.play(), Pace(least_tokens=9, flush_s=NEVER)):
                seen += [piece.text for piece in pieces]
        return seen

    assert run(main()) == ["0", "1", "2", "3", "4"]


def test_a_cancellation_inside_the_source_is_not_taken_for_its_end() -> None:
    async def main() -> None:
        script = Script(Word("a"), asyncio.CancelledError())
        with pytest.raises(asyncio.CancelledError):
            await record(script, Pace())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(main())


async def close_waiting(stream: AsyncGenerator[list[Word], None]) -> None:
    await anext(stream)
    await stream.aclose()


async def close_unread(stream: AsyncGenerator[list[Word], None]) -> None:
    await anext(stream)
    await asyncio.sleep(1)  # more has gathered, and the source has failed
    await stream.aclose()


async def abandon(stream: AsyncGenerator[list[Word], None]) -> None:
    async for _ in stream:
        break
    await stream.aclose()


@pytest.mark.parametrize("close", [close_waiting, close_unread, abandon])
def test_closing_the_consumer_closes_the_source(
    close: Callable[[AsyncGenerator[list[Word], None]], Awaitable[None]],
) -> None:
    async def main() -> Script:
        script = Script(Word("a"), 0.1, Word("b"), 0.1, ValueError("nobody asks"))
        await close(emissions(script.play(), Pace(flush_s=NEVER)))
        return script

    assert run(main()).closed_at is not None


async def consume(script: Script, slow: float) -> None:
    await record(script, Pace(least_tokens=50, flush_s=0.5), slow)


@pytest.mark.parametrize(
    ("steps", "slow", "cancel_at"),
    [
        ([NEVER], 0, 0.0),  # as soon as it has started
        ([NEVER], 0, 1.0),  # before the first piece
        ([Word("a"), NEVER], 0, 1.0),  # between pieces
        ([Word("a"), 1.0, Word("b"), NEVER], 0, 1.2),  # while pieces wait for their age
        ([Word("a"), NEVER], NEVER, 1.0),  # while an emission is being posted
        ([Word("a")], NEVER, 1.0),  # the same, with the source at its end
        ([Word("a"), RuntimeError("late")], NEVER, 1.0),  # the same, with the source broken
    ],
)
def test_cancellation_closes_the_source_in_each_state(
    steps: list[Word | float | BaseException], slow: float, cancel_at: float
) -> None:
    async def main() -> None:
        script = Script(*steps)
        task = asyncio.create_task(consume(script, slow))
        await asyncio.sleep(cancel_at)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() == cancel_at
        assert script.closed_at is not None

    run(main())


def test_a_second_cancellation_during_the_cleaning_up_is_a_cancellation_still() -> None:
    """The source takes its time to close; closing it twice at once would be an error."""
    closed = False

    async def stubborn() -> AsyncGenerator[Word, None]:
        nonlocal closed
        try:
            yield Word("a")
            await asyncio.sleep(NEVER)
        finally:
            await asyncio.sleep(1)
            closed = True

    async def consume_all() -> None:
        async for _ in emissions(stubborn(), Pace()):
            pass

    async def main() -> None:
        task = asyncio.create_task(consume_all())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(2)
        assert closed

    run(main())
