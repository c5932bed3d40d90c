"""The typical rule, on both runners' interfaces, against a written-out reference."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worker import typical_acceptance
from worker.typical_acceptance import Rule

VOCABULARY = 11
RULE = Rule()


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("the exact rule is for batches that are greedy as a whole")


def reference(
    logits: list[list[float]], drafts: list[int], final: int, greedy: bool, rule: Rule
) -> list[int]:
    """What one request ends with, token by token, in plain Python."""
    tokens: list[int] = []
    for row, draft in zip(logits, drafts, strict=True):
        best = max(range(len(row)), key=row.__getitem__)
        top = max(row)
        weights = [math.exp(value - top) for value in row]
        p = [weight / sum(weights) for weight in weights]
        entropy = -sum(value * math.log(value) for value in p if value > 0)
        bound = min(rule.threshold, rule.alpha * math.exp(-entropy))
        is_token = 0 <= draft < len(row)
        if not (draft == best if greedy else is_token and p[draft] > bound):
            return [*tokens, best]
        tokens.append(draft)
    return [*tokens, final]


class Batch:
    """Random requests: the lengths of their drafts, which are greedy, and all tensors."""

    def __init__(self, lengths: list[int], greedy: list[bool], seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.lengths, self.greedy = lengths, greedy
        self.drafts = [
            torch.randint(-1, VOCABULARY, (n,), generator=random).tolist() for n in lengths
        ]
        scale = 3 * torch.rand(1, generator=random).item()
        self.logits = [
            scale * torch.randn(n, VOCABULARY, generator=random) for n in lengths
        ]  # spread over flat and steep distributions
        for rows in self.logits:
            rows[:, :3] = float("-inf")  # as after top-k
        self.final = torch.randint(VOCABULARY, (len(lengths),), generator=random).tolist()

    def expected(self, rule: Rule = RULE) -> list[list[int]]:
        return [
            reference(rows.tolist(), drafts, final, greedy, rule)
            for rows, drafts, final, greedy in zip(
                self.logits, self.drafts, self.final, self.greedy, strict=True
            )
        ]

    def through_v1(self, rule: Rule = RULE) -> list[list[int]]:
        ends = torch.tensor(self.lengths, dtype=torch.int32).cumsum(0).to(torch.int32)
        metadata = SimpleNamespace(
            all_greedy=False,
            all_random=not any(self.greedy),
            temperature=torch.tensor([0.0 if greedy else 1.0 for greedy in self.greedy]),
        )
        tokens = typical_acceptance.for_v1(rule, never)(
            torch.tensor([t for drafts in self.drafts for t in drafts], dtype=torch.int32),
            self.lengths,
            max(self.lengths),
            ends,
            None,
            torch.cat(self.logits),
            torch.tensor(self.final, dtype=torch.int32).unsqueeze(1),
            metadata,
        )
        assert tokens.dtype == torch.int32
        assert tokens.shape == (len(self.lengths), max(self.lengths) + 1)
        rows = tokens.tolist()
        for row in rows:  # what is behind the last token is all padding
            assert row == [t for t in row if t != -1] + [-1] * row.count(-1)
        return [[token for token in row if token != -1] for row in rows]

    def through_v2(self, rule: Rule = RULE, steps: int = 5) -> list[list[int]]:
        rows_of = [torch.cat((rows, torch.zeros(1, VOCABULARY))) for rows in self.logits]
        sampled = [token for drafts in self.drafts for token in (7, *drafts)]
        ends = torch.tensor([0, *(n + 1 for n in self.lengths)], dtype=torch.int32).cumsum(0)
        slots = torch.arange(len(self.lengths)).flip(0)  # request-state slots in another order
        expanded = torch.cat([slots[i].expand(n + 1) for i, n in enumerate(self.lengths)])
        temperature = torch.empty(len(self.lengths))
        temperature[slots] = torch.tensor([0.0 if greedy else 0.7 for greedy in self.greedy])

        def sample_bonus(logits: Any, draft_logits: Any, *_: Any, **__: Any) -> Any:
            assert draft_logits is None
            assert logits.shape == (len(self.lengths), VOCABULARY)
            return torch.tensor(self.final).unsqueeze(1), torch.ones(len(self.lengths))

        tokens, counts = typical_acceptance.for_v2(rule, sample_bonus)(
            torch.cat(rows_of),
            None,
            torch.tensor(sampled),
            ends.to(torch.int32),
            torch.arange(len(sampled)),
            slots,
            expanded,
            torch.cat([torch.arange(n + 1) for n in self.lengths]),
            temperature,
            torch.arange(len(self.lengths)),
            steps,
        )
        assert tokens.shape == (len(self.lengths), steps + 1)
        assert tokens.dtype == torch.int64
        assert counts.dtype == torch.int32
        return [row[:count] for row, count in zip(tokens.tolist(), counts.tolist(), strict=True)]


BATCHES = [
    ([3], [False]),
    ([5, 5, 5], [False, False, False]),
    ([0, 2, 5, 0, 1], [False, True, False, True, False]),
    ([0], [False]),
    ([0, 0], [True, False]),
    ([1, 4], [True, True]),
]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("lengths", "greedy"), BATCHES)
def test_both_runners_get_what_the_reference_says(
    lengths: list[int], greedy: list[bool], seed: int
) -> None:
    batch = Batch(lengths, greedy, seed)
    expected = batch.expected()
    assert batch.through_v1() == expected
    assert batch.through_v2() == expected


def test_the_batches_hold_every_outcome() -> None:
    batches = [Batch(*shape, seed) for shape in BATCHES for seed in range(20)]
    outcomes = {
        (len(tokens) - 1 == length, len(tokens) > 1)
        for batch in batches
        for tokens, length in zip(batch.expected(), batch.lengths, strict=True)
        if length
    }
    assert outcomes == {(True, True), (False, True), (False, False)}


@pytest.mark.parametrize("rule", [Rule(0.005, 0.3), Rule(0.09, 5.0), Rule(0.5, 0.01)])
def test_threshold_and_alpha_both_count(rule: Rule) -> None:
    batches = [Batch([5, 4], [False, False], seed) for seed in range(40)]
    assert [b.through_v1(rule) for b in batches] == [b.expected(rule) for b in batches]
    assert [b.expected(rule) for b in batches] != [b.expected() for b in batches]


def test_a_batch_that_is_greedy_as_a_whole_keeps_the_exact_rule() -> None:
    def exact(*given: Any, **named: Any) -> Any:
        return given, named

    metadata = SimpleNamespace(all_greedy=True, temperature=None)
    hooked = typical_acceptance.for_v1(RULE, exact)
    given, named = hooked(1, [2], 3, 4, 5, 6, 7, metadata, False, None, use_fp64_gumbel=True)
    assert given == (1, [2], 3, 4, 5, 6, 7, metadata, False, None)
    assert named == {"use_fp64_gumbel": True}


def test_a_certain_distribution_accepts_its_token_alone() -> None:
    logits = torch.full((2, VOCABULARY), float("-inf"))
    logits[:, 4] = 0.0
    assert RULE.accepts(logits, torch.tensor([4, 5])).tolist() == [True, False]


def test_the_engines_own_dummy_pass_at_boot_goes_through() -> None:
    batch = Batch([1, 1, 1], [False, False, False], 0)
    batch.logits = [torch.zeros(1, VOCABULARY) for _ in range(3)]
    batch.drafts = [[0], [0], [0]]
    assert [len(tokens) for tokens in batch.through_v1()] == [2, 2, 2]


@pytest.mark.engine
def test_the_engine_resolves_the_rule_at_each_call() -> None:
    """Its sampler looks the function up in its module; the signature is still the one copied."""
    import inspect

    from vllm.v1.sample import rejection_sampler as older
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler as newer

    assert "rejection_sample" in older.RejectionSampler.forward.__code__.co_names
    assert "rejection_sample" in newer.RejectionSampler._verify.__code__.co_names
    first = list(inspect.signature(older.rejection_sample).parameters)
    assert (
        first[:8] == list(inspect.signature(typical_acceptance.for_v1(RULE, never)).parameters)[:8]
    )
    second = list(inspect.signature(newer.rejection_sample).parameters)
    assert (
        second[:11]
        == list(inspect.signature(typical_acceptance.for_v2(RULE, never)).parameters)[:11]
    )
