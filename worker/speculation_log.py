"""What the log says of speculation: at boot, each minute with traffic, and at the end."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker import acceptance, advice, catalog, draft_cost
from worker.acceptance import Totals
from worker.advice import Schedule, Situation
from worker.engine_args import EnginePlan

if TYPE_CHECKING:
    from vllm.config import VllmConfig

log = logging.getLogger("worker.speculation")

_SCHEDULE = "num_speculative_tokens_per_batch_size"

# The engine's own acceptance rules, in words.
RULES: Mapping[str, str] = {
    "standard": "exact",
    "block": "exact, by blocks",
    "synthetic": "synthetic, for benchmarks alone",
}


@dataclass(frozen=True)
class InForce:
    """Speculation as the engine runs it, read from its final config.

    The engine may have dropped what it was asked for: a schedule, under data parallelism.
    """

    method: str
    tokens: int
    rule: str
    cost: float
    window: tuple[int, int] | None = None
    schedule: Schedule = ()

    @classmethod
    def of(
        cls, config: "VllmConfig", typical: Mapping[str, float] | None = None
    ) -> "InForce | None":
        """What is in force with a running engine's config; None without speculation."""
        given: Any = config.speculative_config
        if given is None:
            return None
        draft = getattr(given.draft_model_config, "hf_text_config", None)
        kind = getattr(draft, "model_type", None)
        # the worker's own proposer sits in the engine's seat for custom classes
        method = str(kind if kind == "mlp_speculator" else given.method)
        window = (given.prompt_lookup_min, given.prompt_lookup_max)
        schedule = given.num_speculative_tokens_per_batch_size or ()
        return cls(
            method,
            int(given.num_speculative_tokens),
            _rule(given.rejection_sample_method, typical),
            draft_cost.estimate(method, config.model_config.hf_text_config, draft),
            window if method.startswith("ngram") else None,
            tuple((first, last, count) for first, last, count in schedule),
        )

    def __str__(self) -> str:
        window = f", n-grams of {self.window[0]} to {self.window[1]} tokens" if self.window else ""
        return (
            f"{self.method}, up to {self.tokens} tokens a step{window}; "
            f"{in_words(self.schedule)}; acceptance: {self.rule}"
        )

    def situation(self, totals: Totals) -> Situation:
        """The question for the rules of advice."""
        on_cpu = catalog.is_cpu_build()
        useful = advice.USEFUL_TOKENS_ON_CPU if on_cpu else advice.USEFUL_TOKENS_ON_GPU
        return Situation(totals, self.method, self.tokens, self.cost, self.schedule, useful)


def _rule(engines: str, typical: Mapping[str, float] | None) -> str:
    if typical is None:
        return RULES.get(engines, engines)
    return "typical, " + ", ".join(f"{name} {value:g}" for name, value in typical.items())


def in_words(schedule: Schedule) -> str:
    """A schedule as one clause; the count of its last range goes on."""
    if not schedule:
        return "at any batch size"
    *ranges, (first, _, count) = sorted(schedule)
    parts = [f"{a}-{b}: {tokens or 'none'}" for a, b, tokens in ranges]
    return "tokens by batch size " + ", ".join([*parts, f"{first} and more: {count or 'none'}"])


def at_boot(config: "VllmConfig", plan: EnginePlan) -> Iterator[str]:
    """What is in force in the engine that a plan has started, and what it has left out."""
    in_force = InForce.of(config, plan.typical_acceptance)
    if in_force is None:
        return
    yield f"speculation: {in_force}"
    if (plan.speculative_config or {}).get(_SCHEDULE) and not in_force.schedule:
        yield "note: the engine has dropped the schedule by batch size that it was given"
    if plan.arguments.get("disable_log_stats"):
        yield "note: with DISABLE_LOG_STATS nothing is counted, so no line tells of acceptance"


class SpeculationLog:
    """The lines of one worker. `read` gives the engine's totals so far, None without any."""

    def __init__(
        self,
        in_force: InForce,
        read: Callable[[], Totals | None] = acceptance.totals,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._in_force = in_force
        self._read = read
        self._clock = clock
        self._start = self._last = read() or Totals()
        self._last_at = clock()

    def tell(self) -> None:
        """One line on what happened since the last one, if anything did."""
        now = self._read()
        if now is None or now.generated == self._last.generated:
            return
        at = self._clock()
        whole = now.since(self._start).acceptance
        since_start = f"; since the start {whole.accepted} of {whole.drafted} ({whole.rate:.0%})"
        when = f"in the last {at - self._last_at:.0f} s"
        log.info("%s", self._line(when, now.since(self._last), since_start))
        self._last, self._last_at = now, at

    def tell_all(self) -> None:
        """The last line: everything since the start."""
        now = self._read()
        if now is not None:
            log.info("%s", self._line("since the start", now.since(self._start)))

    def _line(self, when: str, totals: Totals, more: str = "") -> str:
        figures = totals.acceptance
        by_position = ", ".join(map(str, figures.per_position)) or "none"
        said = advice.advise(self._in_force.situation(totals))
        return (
            f"speculation {when}: {figures}; accepted by position: {by_position}; "
            f"{totals.batch:.1f} requests a step; {in_words(self._in_force.schedule)}{more}"
            + "".join(f". Advice: {text}" for text in said)
        )
