"""SPEC_DECODING_ACCEPTANCE_METHOD and its numbers, on the real engine."""

from functools import cache
from pathlib import Path

import pytest
from engine_run import Answer, run_engine
from worker_under_test import NGRAM

pytestmark = pytest.mark.engine

TYPICAL = {**NGRAM, "SPEC_DECODING_ACCEPTANCE_METHOD": "typical_acceptance_sampler"}
# n-gram drafts of a text that repeats itself, sampled at a temperature
PROMPTS = [f"{word} one two three four five six " * 6 for word in ("red", "green", "blue", "grey")]
SAMPLED = [
    {"prompt": text, "sampling_params": {"max_tokens": 64, "temperature": 0.8, "seed": n,
                                         "ignore_eos": True}}
    for n, text in enumerate(PROMPTS)
]  # fmt: skip
GREEDY = [
    {"prompt": text, "sampling_params": {"max_tokens": 24, "temperature": 0, "ignore_eos": True}}
    for text in PROMPTS
]


@cache
def answers(model: Path, variables: tuple[tuple[str, str], ...]) -> list[list[Answer]]:
    """Sampled, greedy, and mixed rounds under some variables; one boot for each."""
    return run_engine(model, dict(variables), [SAMPLED, GREEDY, [*SAMPLED[:2], *GREEDY[:2]]])


def under(model: Path, variables: dict[str, str]) -> list[list[Answer]]:
    return answers(model, tuple(sorted(variables.items())))


def acceptance(found: list[Answer]) -> float:
    """Accepted over drafted tokens."""
    metrics = [answer.metrics or {} for answer in found]
    drafted = sum(m["num_draft_tokens"] for m in metrics)
    assert drafted > 50, "too few drafts to tell anything"
    return sum(m["num_accepted_draft_tokens"] for m in metrics) / float(drafted)


def test_typical_acceptance_accepts_more_of_a_sampled_text(embedded: Path) -> None:
    exact, typical = under(embedded, NGRAM)[0], under(embedded, TYPICAL)[0]
    assert acceptance(typical) > acceptance(exact) + 0.1


def test_greedy_requests_keep_the_exact_rule_alone_and_beside_others(embedded: Path) -> None:
    exact, typical = under(embedded, NGRAM), under(embedded, TYPICAL)
    assert [a.token_ids for a in typical[1]] == [a.token_ids for a in exact[1]]
    assert [a.token_ids for a in typical[2][2:]] == [a.token_ids for a in exact[1][:2]]


def test_a_high_bound_accepts_less(embedded: Path) -> None:
    strict = {
        **TYPICAL,
        "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD": "0.9",
        "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA": "5",
    }
    assert acceptance(under(embedded, strict)[0]) < acceptance(under(embedded, TYPICAL)[0]) - 0.05
