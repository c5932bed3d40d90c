"""The rules of advice: when each speaks, and when it is silent."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker import advice, draft_cost, speculation_log
from worker.acceptance import Acceptance, Totals
from worker.advice import Situation
from worker.engine_args import EnginePlan
from worker.speculation_log import InForce, SpeculationLog

GUIDE = Path(__file__).parents[1] / "docs" / "speculative-decoding.md"


def figures(*per_position: int, steps: int = 100) -> Acceptance:
    """Steps that drafted one token for each position, and how many accepted each."""
    return Acceptance(steps, steps * len(per_position), sum(per_position), per_position)


def asked(acceptance: Acceptance, **more: Any) -> Situation:
    """A calm worker: one request a step, most of the time in decoding."""
    generated = acceptance.steps + acceptance.accepted
    totals = Totals(acceptance, generated, acceptance.steps, 10, prefill_s=1, decode_s=9)
    k = len(acceptance.per_position)
    return replace(Situation(totals, "ngram", k, draft_cost.SMALL), **more)


def busy(situation: Situation, requests: int) -> Situation:
    """The same figures, with so many requests in each step."""
    steps = situation.totals.acceptance.steps // requests
    return replace(situation, totals=replace(situation.totals, engine_steps=steps))


GOOD = figures(80, 64, 51)  # a = 0.8, where 3 is not far from the best of 1 to 6
CALM = figures(60, 36, 22)
POOR = figures(3, 0, 0)


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        (asked(CALM), []),
        (asked(Acceptance()), []),
        # acceptance against cost
        (asked(POOR), ["too low for the draft's cost: 3%"]),
        (asked(POOR, method="suffix"), ["too low"]),
        (asked(figures(3, 0, 0, steps=60)), []),  # too few drafted to tell
        (asked(figures(30, 9, 3), method="draft_model", cost=0.5), ["too low"]),
        (asked(figures(30, 9, 3), method="draft_model", cost=0.05), []),
        # the count
        (asked(figures(98, 96, 94)), ["NUM_SPECULATIVE_TOKENS=6 would suit"]),
        (asked(figures(20, 4, 1, 0, 0, 0)), ["NUM_SPECULATIVE_TOKENS=1 would suit"]),
        (asked(figures(98, 96, 94), method="medusa"), []),
        (asked(figures(98, 96, 94), schedule=((1, 4, 3), (5, 9, 0))), ["=6 would suit"]),
        (asked(figures(98, 96, 94), schedule=((1, 4, 3), (5, 9, 1))), []),
        # the batch
        (busy(asked(CALM), 50), ["batch is above the useful range: 50 requests"]),
        (busy(asked(CALM), 25), []),
        (busy(asked(CALM, useful_tokens=16), 5), ["SPECULATIVE_DISABLE_BY_BATCH_SIZE=4"]),
        (busy(asked(CALM, useful_tokens=2), 5), ["SPECULATIVE_DISABLE_BY_BATCH_SIZE=1"]),
        (busy(asked(CALM, schedule=((1, 16, 3), (17, 99, 0))), 50), []),
        (busy(asked(CALM, schedule=((1, 16, 3),)), 50), ["batch is above"]),
        # prefill
        (asked(CALM, totals=Totals(CALM, 218, 100, 5, 6, 4)), ["prefill dominates: 60%"]),
        (asked(CALM, totals=Totals(CALM, 218, 100, 4, 6, 4)), []),
        (asked(CALM, totals=Totals(CALM, 218, 100, 9, 5, 5)), []),
        (asked(CALM, totals=Totals(Acceptance(), 5, 5, 9, 6, 4)), ["prefill dominates"]),
        # several at once, in the order of the table
        (replace(busy(asked(POOR), 50), totals=Totals(POOR, 103, 2, 9, 6, 4)),
         ["too low", "batch is above", "prefill"]),
    ],
)  # fmt: skip
def test_advice_is_given_where_the_numbers_say_so(situation: Situation, words: list[str]) -> None:
    given = advice.advise(situation)
    assert len(given) == len(words), given
    assert all(word in text for word, text in zip(words, given, strict=True)), given


def test_the_rate_of_a_token_counts_only_what_was_tried() -> None:
    assert advice.token_rate(figures(100, 100, 100)) == 1
    assert advice.token_rate(figures(50, 25, 12)) == pytest.approx(87 / (87 + 88))
    assert advice.token_rate(Acceptance()) == 0


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_expected_tokens_are_those_of_the_formula(rate: float, tokens: int) -> None:
    formula = (1 - rate ** (tokens + 1)) / (1 - rate)
    assert advice.expected_tokens(rate, tokens) == pytest.approx(formula)


def test_every_draft_accepted_gives_one_token_more_than_was_drafted() -> None:
    assert advice.expected_tokens(1.0, 3) == 4


@pytest.mark.parametrize("cost", [0.05, 0.2, 0.5])
def test_no_count_helps_where_acceptance_is_below_the_cost(cost: float) -> None:
    """Corollary 3.9 of Leviathan et al., both ways."""
    assert all(advice.speed_up(cost, tokens, cost) <= 1 for tokens in range(1, 20))
    assert advice.speed_up(cost + 0.01, 1, cost) > 1


@pytest.mark.parametrize(
    ("batch", "count"), [(0.5, 3), (1, 3), (4, 3), (6, 3), (8, 2), (12, 2), (13, 0), (99, 0)]
)
def test_a_schedule_goes_on_over_gaps_and_past_its_end(batch: float, count: int) -> None:
    """As the engine reads it, gaps included."""
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    schedule = ((8, 12, 2), (1, 4, 3), (13, 16, 0))
    assert advice.count_at(schedule, 3, batch) == count
    if batch >= 1:
        dense = build_dynamic_sd_schedule_lookup([list(part) for part in schedule], 99, 3)
        assert dense[int(batch)] == count


def test_without_a_schedule_every_batch_drafts() -> None:
    assert advice.count_at((), 3, 500) == 3


def config(**values: int) -> Any:
    return SimpleNamespace(**values)


EIGHT_B = config(
    hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
    intermediate_size=14336, vocab_size=128256,
)  # fmt: skip
ONE_B = config(
    hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
    intermediate_size=8192, vocab_size=128256, head_dim=64,
)  # fmt: skip


def test_the_weights_of_a_config_are_those_of_the_model() -> None:
    """Llama 3.1 8B has 8.03 billion weights, 0.53 of them the embedding, looked up alone."""
    assert draft_cost.weights_read(EIGHT_B) == pytest.approx(7.50e9, rel=0.01)
    assert draft_cost.weights_read(ONE_B) == pytest.approx(1.24e9, rel=0.01)


def test_only_the_active_experts_are_read() -> None:
    experts = config(**{**vars(ONE_B), "num_experts_per_tok": 2, "moe_intermediate_size": 4096})
    assert draft_cost.weights_read(experts) == draft_cost.weights_read(ONE_B)


@pytest.mark.parametrize(
    ("method", "draft", "cost"),
    [
        ("draft_model", ONE_B, 1.24 / 7.50),
        ("draft_model", EIGHT_B, 1.0),
        ("eagle3", config(**{**vars(EIGHT_B), "num_hidden_layers": 1}), 0.1),
        ("draft_model", config(hidden_size=5), draft_cost.SMALL),
        ("draft_model", config(**{**vars(ONE_B), "num_hidden_layers": 1, "vocab_size": 9}), 0.05),
        ("ngram", None, draft_cost.SMALL),
        ("mtp", EIGHT_B, draft_cost.SMALL),
    ],
)
def test_a_draft_costs_what_its_weights_are_of_the_targets(
    method: str, draft: Any, cost: float
) -> None:
    assert draft_cost.estimate(method, EIGHT_B, draft) == pytest.approx(cost, abs=0.01)


def engine_config(**more: Any) -> Any:
    """What `InForce` reads of an engine's final config."""
    speculative = {
        "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2,
        "prompt_lookup_max": 4, "draft_model_config": None, "rejection_sample_method": "standard",
        "num_speculative_tokens_per_batch_size": None, **more,
    }  # fmt: skip
    model = SimpleNamespace(hf_text_config=EIGHT_B)
    return SimpleNamespace(speculative_config=SimpleNamespace(**speculative), model_config=model)


def test_what_speculation_is_read_from_exists_in_the_engines_config() -> None:
    from vllm.config import SpeculativeConfig

    assert vars(engine_config().speculative_config).keys() <= set(
        SpeculativeConfig.__dataclass_fields__
    )


SCHEDULE = [(1, 16, 3), (17, 64, 0)]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "ngram, up to 3 tokens a step, n-grams of 2 to 4 tokens; at any batch size; "
             "acceptance: exact"),
        ({"method": "suffix", "rejection_sample_method": "block"},
         "suffix, up to 3 tokens a step; at any batch size; acceptance: exact, by blocks"),
        ({"num_speculative_tokens_per_batch_size": SCHEDULE},
         "; tokens by batch size 1-16: 3, 17 and more: none; "),
        ({"num_speculative_tokens_per_batch_size": [[1, 8, 3]]}, "batch size 1 and more: 3;"),
    ],
)  # fmt: skip
def test_the_line_at_boot_says_what_is_in_force(more: dict[str, Any], words: str) -> None:
    assert words in str(InForce.of(engine_config(**more)))


def plan(**arguments: Any) -> EnginePlan:
    return EnginePlan({"model": "x", **arguments}, {})


def test_at_boot_the_rule_of_our_own_is_told_with_its_numbers() -> None:
    typical = replace(plan(), typical_acceptance={"threshold": 0.09, "alpha": 0.3})
    (line,) = speculation_log.at_boot(engine_config(), typical)
    assert line.endswith("acceptance: typical, threshold 0.09, alpha 0.3")


def test_at_boot_a_schedule_that_the_engine_dropped_is_told() -> None:
    asked_for = plan(speculative_config={"num_speculative_tokens_per_batch_size": SCHEDULE})
    in_force = engine_config(num_speculative_tokens_per_batch_size=SCHEDULE)
    assert len(list(speculation_log.at_boot(in_force, asked_for))) == 1
    (_, told) = speculation_log.at_boot(engine_config(), asked_for)
    assert "dropped the schedule" in told


def test_at_boot_it_is_told_that_nothing_is_counted() -> None:
    (_, told) = speculation_log.at_boot(engine_config(), plan(disable_log_stats=True))
    assert "DISABLE_LOG_STATS" in told


def test_without_speculation_there_is_nothing_to_say() -> None:
    assert list(speculation_log.at_boot(SimpleNamespace(speculative_config=None), plan())) == []  # type: ignore[arg-type]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines logged by speculation; more appear as they are logged."""
    monkeypatch.setattr(logging.getLogger("worker"), "propagate", True)
    caplog.set_level(logging.INFO, "worker.speculation")

    class Lines(list[str]):
        def __iter__(self) -> Any:
            return iter([record.getMessage() for record in caplog.records])

    return Lines()


def log_of(*readings: Totals | None) -> SpeculationLog:
    in_force = InForce.of(engine_config(num_speculative_tokens_per_batch_size=SCHEDULE))
    assert in_force is not None
    clock = iter(range(0, 6000, 60))
    read = iter(readings)
    return SpeculationLog(in_force, lambda: next(read), lambda: next(clock))


def test_a_minute_with_traffic_is_one_line_and_one_without_is_none(lines: list[str]) -> None:
    first = Totals(figures(50, 30, 20), 200, 100, 1, 1, 9)
    second = Totals(figures(110, 66, 42, steps=200), 418, 200, 2, 2, 18)
    speculation = log_of(Totals(), first, first, second, second)
    speculation.tell()
    speculation.tell()
    (line,) = lines
    assert "speculation in the last 60 s: 100 of 300 drafted tokens accepted (33%)" in line
    assert "2.00 tokens per step over 100 steps with a draft" in line
    assert "accepted by position: 50, 30, 20" in line
    assert "1.0 requests a step" in line
    assert "1-16: 3, 17 and more: none" in line
    speculation.tell()
    (_, line) = lines
    assert "118 of 300 drafted" in line
    assert "since the start 218 of 600 (36%)" in line
    speculation.tell_all()
    (*_, line) = lines
    assert "speculation since the start: 218 of 600" in line


def test_the_line_ends_with_the_advice(lines: list[str]) -> None:
    log_of(Totals(), Totals(POOR, 103, 100, 1, 1, 9)).tell()
    (line,) = lines
    assert line.endswith("would be faster")
    assert ". Advice: acceptance is too low" in line


def test_traffic_without_drafts_is_told(lines: list[str]) -> None:
    log_of(Totals(), Totals(Acceptance(), 50, 10, 1, 1, 9)).tell()
    (line,) = lines
    assert "0 of 0 drafted" in line
    assert "5.0 requests a step" in line


def test_an_engine_that_counts_nothing_is_left_alone(lines: list[str]) -> None:
    speculation = log_of(None, None, None)
    speculation.tell()
    speculation.tell_all()
    assert list(lines) == []


def test_every_rule_has_its_row_in_the_guide() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for rule in advice.RULES:
        (row,) = (row for row in rows if row.startswith(f"| {rule.name} |"))
        assert row.endswith(f"| {rule.source} |")
        assert rule.reason


@pytest.mark.parametrize(
    "number",
    [
        f"before {advice.LEAST_DRAFTED} tokens",
        f"before {advice.LEAST_FINISHED}\nrequests",
        f"{advice.USEFUL_TOKENS_ON_GPU} tokens on a GPU, {advice.USEFUL_TOKENS_ON_CPU} on a CPU",
        f"{draft_cost.SMALL} at\n  least",
        f"{round((advice.WORTH_A_CHANGE - 1) * 100)} % faster",
    ],
)
def test_the_guide_has_the_rules_numbers(number: str) -> None:
    assert number in GUIDE.read_text(encoding="utf-8")
