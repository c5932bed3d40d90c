"""How fast a stream is sent: when what has gathered is due."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """When an emission is due.

    The first piece goes at once. After it, an emission is due when the tokens that have
    gathered reach a bound, which grows from `least_tokens` by the factor `growth` up to
    `most_tokens`, or when the oldest of them has waited `flush_s` seconds.
    """

    least_tokens: int = 1
    most_tokens: int = 50
    growth: float = 3.0
    flush_s: float = 0.05

    def bounds(self) -> "Bounds":
        """The sequence of bounds for one stream."""
        return Bounds(self)


class Bounds:
    """The bound in force: 1 for the first emission, then growing."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._next: float = pace.least_tokens
        self.tokens = 1
        if pace.least_tokens == 1:  # the first emission was already of the least size
            self._grow()

    def advance(self) -> None:
        """Go on to the bound of the next emission."""
        self.tokens = int(self._next)
        self._grow()

    def _grow(self) -> None:
        self._next = min(self._next * self._pace.growth, self._pace.most_tokens)
