"""The MLP speculator's drafts against a written-out reference, and what it refuses."""

import math
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.models.mlp_speculator import MLPSpeculatorLayerNorm

from worker import mlp_speculator

INNER, HIDDEN, VOCABULARY, HEADS = 6, 5, 11, 3


def random_heads(*, scale_input: bool, seed: int) -> Any:
    """The engine's heads, as plain modules with random weights in double precision."""

    class Heads(nn.Module):  # type: ignore[misc]  # torch is Any to mypy
        draft, next_state = (
            mlp_speculator.DraftingHeads.draft,
            mlp_speculator.DraftingHeads.next_state,
        )

    torch.manual_seed(seed)
    heads: Any = Heads()
    heads.emb = nn.ModuleList(nn.Embedding(VOCABULARY, INNER) for _ in range(HEADS))
    heads.proj = nn.ModuleList(
        nn.Linear(INNER if number else HIDDEN, INNER, bias=False) for number in range(HEADS)
    )
    heads.head = nn.ModuleList(nn.Linear(INNER, VOCABULARY, bias=False) for _ in range(HEADS))
    heads.ln = nn.ModuleList(MLPSpeculatorLayerNorm(INNER) for _ in range(HEADS))
    for norm in heads.ln:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    heads.ln0 = MLPSpeculatorLayerNorm(HIDDEN, elementwise_scale_and_shift=False)
    heads.scale_input, heads.activation = scale_input, nn.GELU()
    heads.state_weight = 0.5 ** (0.5 / HEADS)
    heads.emb_weight = math.sqrt((1 - heads.state_weight**2) * INNER / 2)
    heads.logits_processor = lambda head, state: head(state)
    return heads.double()


def written_out(heads: Any, hidden: list[float], token: int, count: int) -> list[int]:
    """What one request's heads draft, number by number (arXiv 2404.19124, section 3)."""

    def normed(values: list[float]) -> list[float]:
        size = math.sqrt(sum(v * v for v in values) / len(values) + 1e-6)
        return [v / size for v in values]

    def product(matrix: list[list[float]], vector: list[float]) -> list[float]:
        return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix]

    state = [v / math.sqrt(2) for v in normed(hidden)] if heads.scale_input else hidden
    drafted = []
    for number in range(count):
        read = heads.emb[number].weight.tolist()[token]
        carried = product(heads.proj[number].weight.tolist(), state)
        mixed = [
            heads.state_weight * c + heads.emb_weight * r
            for c, r in zip(carried, read, strict=True)
        ]
        weight, bias = heads.ln[number].weight.tolist(), heads.ln[number].bias.tolist()
        scaled = [w * v + b for w, v, b in zip(weight, normed(mixed), bias, strict=True)]
        state = [v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in scaled]
        logits = product(heads.head[number].weight.tolist(), state)
        token = logits.index(max(logits))
        drafted.append(token)
    return drafted


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("scale_input", [False, True])
@pytest.mark.parametrize("count", [0, 1, HEADS])
def test_chained_heads_draft_what_the_reference_says(
    count: int, scale_input: bool, seed: int
) -> None:
    heads = random_heads(scale_input=scale_input, seed=seed)
    hidden = torch.randn(7, HIDDEN, dtype=torch.float64)
    tokens = torch.randint(VOCABULARY, (7,))
    with torch.inference_mode():
        drafted = heads.draft(hidden, tokens, count)
    assert drafted.tolist() == [
        written_out(heads, own, token, count)
        for own, token in zip(hidden.tolist(), tokens.tolist(), strict=True)
    ]


# What each request got, the drafts that were verified, and the row and the token to go on from.
SAMPLED = [
    ([[4], [7]], None, [0, 1], [4, 7]),
    ([[4, 5, 6], [7]], [3, 3], [2, 4], [6, 7]),
    ([[4], [5, 6, 8, 9], [7, 3]], [0, 3, 2], [0, 4, 6], [4, 9, 3]),
    ([[], [7], []], None, [0, 1, 2], [0, 7, 0]),
    ([[5, 6], [], [7]], [1, 0, 2], [1, 2, 3], [6, 0, 7]),
]


@pytest.mark.parametrize(("sampled", "verified", "rows", "tokens"), SAMPLED)
def test_each_request_goes_on_from_its_last_token(
    sampled: list[list[int]], verified: list[int] | None, rows: list[int], tokens: list[int]
) -> None:
    found = mlp_speculator.last_sampled(sampled, verified, torch.device("cpu"))
    assert [part.tolist() for part in found] == [rows, tokens]


def config_of_heads(count: int = 3, hidden: int = 64, vocabulary: int = 100) -> Any:
    """As much of the engine's config as says whether heads fit a target of 64 and 100."""
    heads = SimpleNamespace(n_predict=3, emb_dim=hidden, vocab_size=vocabulary)
    speculation = SimpleNamespace(
        method="mlp_speculator",
        model="/heads",
        num_speculative_tokens=count,
        draft_model_config=SimpleNamespace(hf_config=heads),
    )
    target = SimpleNamespace(get_hidden_size=lambda: 64, get_vocab_size=lambda: 100)
    return SimpleNamespace(speculative_config=speculation, model_config=target)


MISFITS = [
    ({"count": 6}, "3 heads, and 6 speculative tokens"),
    ({"hidden": 32}, "hidden size of 32, and this one's is 64"),
    ({"vocabulary": 90}, "vocabulary of 90, and this one's is 100"),
]


@pytest.mark.parametrize(("change", "words"), MISFITS)
def test_heads_that_do_not_fit_are_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mlp_speculator.take_seat(config_of_heads(**change))


def test_heads_that_fit_take_the_engines_seat() -> None:
    config = config_of_heads(count=2)
    mlp_speculator.take_seat(config)
    assert config.speculative_config.method == "custom_class"
    module, name = config.speculative_config.model.rsplit(".", 1)
    assert getattr(import_module(module), name) is mlp_speculator.Proposer
