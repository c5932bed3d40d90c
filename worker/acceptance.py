"""What speculation did: a job's figures, and the worker's own totals.

A job's come from the engine's per-request metrics, the worker's from the counters that
the engine keeps in this process for Prometheus.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import Metric
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

OPENAI_KEY = "speculative_decoding"  # in `metrics` of an OpenAI answer

# The engine's counters as Prometheus names their samples.
_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_GENERATED = "vllm:generation_tokens_total"
_STEPS = "vllm:iteration_tokens_total_count"  # a histogram with a counter's name
_PREFILL = "vllm:request_prefill_time_seconds_sum"
_DECODE = "vllm:request_decode_time_seconds"


@dataclass(frozen=True)
class Acceptance:
    """Counts over steps that verified a draft.

    `per_position[i]` counts the steps that accepted more than `i` drafted tokens.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    per_position: tuple[int, ...] = ()

    @classmethod
    def of_request(cls, choices: Sequence["RequestSpecDecodeMetrics"]) -> "Acceptance":
        """The figures of a job's choices, added up."""
        histograms = [choice.histogram for choice in choices]
        together = [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]
        return cls._of_histogram(together, sum(choice.num_draft_tokens for choice in choices))

    @classmethod
    def of_openai(cls, metrics: Mapping[str, Any]) -> "Acceptance":
        """The figures in `metrics.speculative_decoding` of an OpenAI answer."""
        return cls._of_histogram(metrics["acceptance_histogram"], metrics["num_draft_tokens"])

    @classmethod
    def _of_histogram(cls, histogram: Sequence[int], drafted: int) -> "Acceptance":
        """`histogram[j]` counts the steps that accepted `j` tokens."""
        reached = tuple(sum(histogram[i:]) for i in range(1, len(histogram)))
        return cls(sum(histogram), drafted, sum(reached), reached)

    @property
    def rate(self) -> float:
        """Accepted of drafted tokens; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_length(self) -> float:
        """Tokens per step, the target's own included; 1 where nothing was drafted."""
        return 1 + (self.accepted / self.steps if self.steps else 0.0)

    def since(self, earlier: "Acceptance") -> "Acceptance":
        """What was added after `earlier`."""
        pairs = zip_longest(self.per_position, earlier.per_position, fillvalue=0)
        return Acceptance(
            self.steps - earlier.steps,
            self.drafted - earlier.drafted,
            self.accepted - earlier.accepted,
            tuple(now - before for now, before in pairs),
        )

    def shown(self) -> dict[str, Any]:
        """As a job's output carries it."""
        return {
            "steps": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.rate,
            "mean_acceptance_length": self.mean_length,
            "accepted_per_position": list(self.per_position),
        }

    def __str__(self) -> str:
        return (
            f"{self.accepted} of {self.drafted} drafted tokens accepted ({self.rate:.0%}), "
            f"{self.mean_length:.2f} tokens per step over {self.steps} steps with a draft"
        )


@dataclass(frozen=True)
class Totals:
    """What the engine has done since it started, or between two readings.

    `prefill_s` and `decode_s` are added up over the `finished` requests; `engine_steps`
    are those that gave out a token.
    """

    acceptance: Acceptance = Acceptance()
    generated: int = 0
    engine_steps: int = 0
    finished: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def batch(self) -> float:
        """Requests per engine step, on average: each gets one token and what it accepted."""
        own = self.generated - self.acceptance.accepted
        return own / self.engine_steps if self.engine_steps else 0.0

    def since(self, earlier: "Totals") -> "Totals":
        """What was added after `earlier`."""
        return Totals(
            self.acceptance.since(earlier.acceptance),
            self.generated - earlier.generated,
            self.engine_steps - earlier.engine_steps,
            self.finished - earlier.finished,
            self.prefill_s - earlier.prefill_s,
            self.decode_s - earlier.decode_s,
        )


def totals(families: Iterable["Metric"] | None = None) -> Totals | None:
    """The engine's counters, over all its replicas; None where it keeps none.

    It keeps none without speculation, and with DISABLE_LOG_STATS.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    positions: defaultdict[int, float] = defaultdict(float)
    for family in _of_process() if families is None else families:
        for sample in family.samples:
            sums[sample.name] += sample.value
            if sample.name == _PER_POSITION:
                positions[int(sample.labels["position"])] += sample.value
    if _DRAFTS not in sums:
        return None
    per_position = tuple(int(positions[position]) for position in sorted(positions))
    return Totals(
        Acceptance(int(sums[_DRAFTS]), int(sums[_DRAFTED]), int(sums[_ACCEPTED]), per_position),
        generated=int(sums[_GENERATED]),
        engine_steps=int(sums[_STEPS]),
        finished=int(sums[f"{_DECODE}_count"]),
        prefill_s=sums[_PREFILL],
        decode_s=sums[f"{_DECODE}_sum"],
    )


def _of_process() -> Iterable["Metric"]:
    from prometheus_client import REGISTRY

    return REGISTRY.collect()


def hide(answer: MutableMapping[str, Any]) -> None:
    """Take the figures out of an OpenAI answer; other metrics stay."""
    metrics = answer.get("metrics")
    if not isinstance(metrics, Mapping) or OPENAI_KEY not in metrics:
        return
    others = {name: value for name, value in metrics.items() if name != OPENAI_KEY}
    if not others:  # a stream's events have no nulls
        del answer["metrics"]
    else:
        answer["metrics"] = others if set(others.values()) != {None} else None
