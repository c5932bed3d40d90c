"""Advice from the worker's own figures: pure rules, each with its reason and its source.

`docs/speculative-decoding.md` states each rule; a test compares.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from worker.acceptance import Acceptance, Totals

LEAST_DRAFTED = 200  # the standard error of a rate is then 3.5 points at most
LEAST_FINISHED = 5  # requests whose times are compared
WORTH_A_CHANGE = 1.05  # of the expected speed-up, by another count

# Tokens that a step can verify for the price of one, while decoding waits for memory: peak
# operations / (2 x bandwidth), with two bytes a weight. By the data sheets, from 153 for
# an A100 80 GB to 419 for an L40S; a CPU has a tenth of that.
USEFUL_TOKENS_ON_GPU = 150
USEFUL_TOKENS_ON_CPU = 16

# Methods whose count is free: others draft what their heads or their own trees say.
FREE_COUNT = frozenset({"ngram", "ngram_gpu", "draft_model", "eagle", "eagle3"})

Schedule = tuple[tuple[int, int, int], ...]  # inclusive (first batch size, last, count)


@dataclass(frozen=True)
class Situation:
    """What the rules are asked about.

    `tokens` is k, `cost` a drafted token's as a share of a target's step (c), and
    `useful_tokens` what a step verifies for the price of one.
    """

    totals: Totals
    method: str
    tokens: int
    cost: float
    schedule: Schedule = ()
    useful_tokens: int = USEFUL_TOKENS_ON_GPU


@dataclass(frozen=True)
class Rule:
    """One piece of advice: None where it does not apply."""

    name: str
    says: Callable[[Situation], str | None]
    reason: str
    source: str


def advise(situation: Situation) -> list[str]:
    """All that applies, the most important first."""
    return list(_advice(situation))


def _advice(situation: Situation) -> Iterator[str]:
    for rule in RULES:
        if (text := rule.says(situation)) is not None:
            yield text


def token_rate(acceptance: Acceptance) -> float:
    """The probability that a drafted token is accepted, given that those before it were.

    A step ends at its first rejection, so accepted tokens and rejections are all trials.
    """
    whole = acceptance.per_position[-1] if acceptance.per_position else 0
    trials = acceptance.accepted + acceptance.steps - whole
    return acceptance.accepted / trials if trials else 0.0


def expected_tokens(rate: float, tokens: int) -> float:
    """Tokens per step for k drafted ones: (1 - a^(k+1)) / (1 - a).

    Source: Leviathan et al. 2023, equation 1.
    """
    return float(sum(rate**place for place in range(tokens + 1)))


def speed_up(rate: float, tokens: int, cost: float) -> float:
    """Expected factor over no speculation. Source: Leviathan et al. 2023, theorem 3.8."""
    return expected_tokens(rate, tokens) / (1 + tokens * cost)


def best_count(rate: float, cost: float, most: int) -> int:
    """The count from 1 to `most` with the largest expected factor."""
    return max(range(1, most + 1), key=lambda tokens: speed_up(rate, tokens, cost))


def count_at(schedule: Schedule, tokens: int, batch: float) -> int:
    """Tokens drafted at a batch size: a range's count goes on to the next one's start."""
    begun = [entry for entry in sorted(schedule) if entry[0] <= max(batch, 1)]
    return min(begun[-1][2], tokens) if begun else tokens


def _cost(situation: Situation) -> str | None:
    figures = situation.totals.acceptance
    rate = token_rate(figures)
    if figures.drafted < LEAST_DRAFTED or rate > situation.cost:
        return None
    return (
        f"acceptance is too low for the draft's cost: {rate:.0%} of drafted tokens, where one "
        f"costs {situation.cost:.0%} of a step; another draft or method, or none, would be faster"
    )


def _count(situation: Situation) -> str | None:
    figures, now = situation.totals.acceptance, situation.tokens
    varies = {count for *_, count in situation.schedule} - {0, now}
    if situation.method not in FREE_COUNT or varies or figures.drafted < LEAST_DRAFTED:
        return None
    rate, cost = token_rate(figures), situation.cost
    best = best_count(rate, cost, 2 * now)
    if rate <= cost or speed_up(rate, best, cost) < WORTH_A_CHANGE * speed_up(rate, now, cost):
        return None
    gain = speed_up(rate, best, cost) / speed_up(rate, now, cost) - 1
    return (
        f"NUM_SPECULATIVE_TOKENS={best} would suit this acceptance better than {now}: "
        f"{gain:.0%} faster, by expectation"
    )


def _batch(situation: Situation) -> str | None:
    totals, per_request = situation.totals, situation.tokens + 1
    drafting = count_at(situation.schedule, situation.tokens, totals.batch) > 0
    if totals.acceptance.drafted < LEAST_DRAFTED or not drafting:
        return None
    if totals.batch * per_request <= situation.useful_tokens:
        return None
    most = max(situation.useful_tokens // per_request, 1)
    return (
        f"the batch is above the useful range: {totals.batch:.0f} requests a step, and from "
        f"{most} on verifying drafts competes with other requests; set "
        f"SPECULATIVE_DISABLE_BY_BATCH_SIZE={most}, or a lower MAX_CONCURRENCY"
    )


def _prefill(situation: Situation) -> str | None:
    totals = situation.totals
    whole = totals.prefill_s + totals.decode_s
    if totals.finished < LEAST_FINISHED or totals.prefill_s <= whole / 2:
        return None
    return (
        f"prefill dominates: {totals.prefill_s / whole:.0%} of the requests' time goes to their "
        "prompts, which speculation cannot shorten; prefix caching and shorter prompts can"
    )


RULES = (
    Rule(
        "acceptance too low for the draft's cost",
        _cost,
        "where the acceptance rate a is at most the cost c of a drafted token, no count helps",
        "Leviathan et al. 2023, corollary 3.9",
    ),
    Rule(
        "another count",
        _count,
        "the expected speed-up has its peak at a count that depends on a and c",
        "Leviathan et al. 2023, theorem 3.8",
    ),
    Rule(
        "batch above the useful range",
        _batch,
        "a step verifies for free only while it waits for memory",
        "Williams et al. 2009, the roofline model; the cards' data sheets",
    ),
    Rule(
        "prefill dominating",
        _prefill,
        "speculation shortens decoding alone, at best to nothing",
        "Amdahl 1967",
    ),
)
