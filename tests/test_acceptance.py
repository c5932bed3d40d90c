"""The figures of speculation: a job's, and the worker's from the engine's counters."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from vllm.config import SpeculativeConfig
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics
from vllm.v1.spec_decode.metrics import SpecDecodingProm, SpecDecodingStats

from worker import acceptance
from worker.acceptance import Acceptance, Totals


def measured(*accepted: int, tokens: int = 3) -> RequestSpecDecodeMetrics:
    """The engine's figures of steps that drafted `tokens` each and accepted so many."""
    figures = RequestSpecDecodeMetrics.new(num_spec_tokens=tokens)
    for count in accepted:
        figures.observe(num_draft_tokens=tokens, num_accepted=count)
    return figures


def test_the_figures_of_a_job_are_the_engines() -> None:
    engines = measured(3, 0, 1, 3)
    ours, theirs = Acceptance.of_request([engines]), engines.to_dict()
    assert ours == Acceptance(4, 12, 7, (3, 2, 2))
    assert ours.rate == theirs["draft_acceptance_rate"]
    assert ours.mean_length == theirs["mean_acceptance_length"]
    assert ours == Acceptance.of_openai(theirs)


def test_choices_are_added_up_also_where_they_draft_differently() -> None:
    together = Acceptance.of_request([measured(3, 0), measured(1, 5, tokens=5)])
    assert together == Acceptance(4, 16, 9, (3, 2, 2, 1, 1))


@pytest.mark.parametrize("figures", [Acceptance(), Acceptance.of_request([measured()])])
def test_without_a_draft_the_rates_are_those_of_no_speculation(figures: Acceptance) -> None:
    assert (figures.rate, figures.mean_length) == (0.0, 1.0)
    assert "0 of 0 drafted tokens" in str(figures)


def test_a_report_has_every_figure() -> None:
    assert Acceptance(4, 12, 7, (3, 2, 2)).shown() == {
        "steps": 4,
        "drafted": 12,
        "accepted": 7,
        "acceptance_rate": 7 / 12,
        "mean_acceptance_length": 1 + 7 / 4,
        "accepted_per_position": [3, 2, 2],
    }


def counters(engines: int = 1) -> tuple[CollectorRegistry, SpecDecodingProm]:
    """The engine's own counters, in a registry of the test's own."""
    from prometheus_client import Counter, Histogram

    registry = CollectorRegistry()

    class OfTheTest(SpecDecodingProm):
        @staticmethod
        def _counter_cls(**named: Any) -> Counter:  # type: ignore[override]
            return Counter(**named, registry=registry)

    config = SpeculativeConfig.__new__(SpeculativeConfig)
    object.__setattr__(config, "num_speculative_tokens", 3)
    made = OfTheTest(config, ["engine"], {index: [str(index)] for index in range(engines)})
    Counter("vllm:generation_tokens", "", ["engine"], registry=registry).labels("0").inc(20)
    for name, values in (
        ("vllm:iteration_tokens_total", [4.0, 4.0]),
        ("vllm:request_prefill_time_seconds", [0.5, 1.0]),
        ("vllm:request_decode_time_seconds", [2.0, 3.0, 4.0]),
    ):
        histogram = Histogram(name, "", ["engine"], registry=registry).labels("0")
        for value in values:
            histogram.observe(value)
    return registry, made


def step(*accepted: int) -> SpecDecodingStats:
    stats = SpecDecodingStats.new(3)
    for count in accepted:
        stats.observe_draft(3, count)
    return stats


def test_the_totals_are_those_of_the_engines_counters() -> None:
    registry, engine = counters()
    engine.observe(step(3, 1))
    engine.observe(step(0))
    assert acceptance.totals(registry.collect()) == Totals(
        Acceptance(3, 9, 4, (2, 1, 1)), 20, 2, 3, 1.5, 9.0
    )


def test_the_totals_of_replicas_are_added() -> None:
    registry, engine = counters(engines=2)
    engine.observe(step(3), engine_idx=0)
    engine.observe(step(1), engine_idx=1)
    read = acceptance.totals(registry.collect())
    assert read is not None
    assert read.acceptance == Acceptance(2, 6, 4, (2, 1, 1))


def test_without_counters_there_are_no_totals() -> None:
    assert acceptance.totals([]) is None
    assert acceptance.totals(CollectorRegistry().collect()) is None


def test_the_process_own_registry_is_read_by_default() -> None:
    assert acceptance.totals() is None  # no engine has run in this process


def test_what_happened_between_two_readings_is_their_difference() -> None:
    earlier = Totals(Acceptance(3, 9, 4, (2, 1, 1)), 20, 2, 3, 1.5, 9.0)
    later = Totals(Acceptance(5, 15, 9, (4, 3, 2)), 50, 12, 4, 2.0, 10.0)
    assert later.since(earlier) == Totals(Acceptance(2, 6, 5, (2, 2, 1)), 30, 10, 1, 0.5, 1.0)
    assert later.since(Totals()) == later
    assert later.since(later).acceptance.rate == 0


def test_the_batch_is_the_requests_of_a_step() -> None:
    """Two requests, ten steps, each step one token for each and what it accepted."""
    assert Totals(Acceptance(20, 60, 40, ()), generated=60, engine_steps=10).batch == 2
    assert Totals().batch == 0


FIGURES = measured(3, 1).to_dict()


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ({"id": 1}, {"id": 1}),
        ({"metrics": None}, {"metrics": None}),
        ({"metrics": {"speculative_decoding": FIGURES}}, {}),
        ({"metrics": {"a": None, "speculative_decoding": FIGURES}}, {"metrics": None}),
        ({"metrics": {"a": 1, "b": None, "speculative_decoding": FIGURES}},
         {"metrics": {"a": 1, "b": None}}),
        ({"metrics": {"a": None}}, {"metrics": {"a": None}}),
        ({"metrics": "odd"}, {"metrics": "odd"}),
    ],
)  # fmt: skip
def test_the_figures_are_taken_out_and_nothing_else_is(
    answer: dict[str, Any], left: dict[str, Any]
) -> None:
    acceptance.hide(answer)
    assert answer == left
