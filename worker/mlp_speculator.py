"""Drafting with MLP-speculator heads, for which the pinned engine has weights and no proposer.

Each head drafts one token from the state of the head before it and the token that came
last; the first starts from the target's hidden state (arXiv 2404.19124). Greedy, as the
engine's `generate_proposals` was until 0.9. The engine's seat for a proposer class of
one's own passes no hidden states, so the runner is given one more line.
"""

import math
from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.models.mlp_speculator import MLPSpeculator


class DraftingHeads(MLPSpeculator):  # type: ignore[misc]  # the engine's classes are Any to mypy
    """The engine's heads, and what they draft. Made by the engine's loader, by architecture."""

    head: Any

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        own = copy(vllm_config)
        own.model_config = vllm_config.speculative_config.draft_model_config
        super().__init__(vllm_config=own, prefix=prefix)
        if self.tie_weights:
            # The engine ties all but this one, and a tied checkpoint may hold the first alone.
            self.head = nn.ModuleList([self.head[0]] * len(self.head))

    def draft(self, hidden: Tensor, tokens: Tensor, count: int) -> Tensor:
        """The `count` most likely tokens to follow, head by head: [requests, count].

        `hidden` is the target's state that `tokens` were sampled from, after its last
        norm: [requests, hidden size] and [requests].
        """
        drafted = tokens.new_empty(len(tokens), count)
        state = self.ln0(hidden) / math.sqrt(2) if self.scale_input else hidden
        for number in range(count):
            state = self.next_state(number, state, tokens)
            tokens = self.logits_processor(self.head[number], state).argmax(dim=-1)
            drafted[:, number] = tokens
        return drafted

    def next_state(self, number: int, state: Tensor, tokens: Tensor) -> Tensor:
        """The state of one head. The norm takes out the scale, so only the ratio counts."""
        ratio = self.emb_weight / self.state_weight
        mixed = torch.add(self.proj[number](state), self.emb[number](tokens), alpha=ratio)
        normed: Tensor = self.activation(self.ln[number](mixed))
        return normed


class Proposer:
    """What the engine makes and asks for drafts, in each process that runs a model."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        _pass_hidden_states()

    def load_model(self, target: nn.Module) -> None:
        """Load the heads as the engine loads any model, beside the target."""
        from vllm.model_executor.model_loader import get_model

        own = self._config.speculative_config.draft_model_config
        self._heads = get_model(vllm_config=self._config, model_config=own)

    def propose(
        self,
        rows: Tensor,
        sampled: Sequence[Sequence[int]],
        verified: Sequence[int] | None,
        count: int,
    ) -> Tensor:
        """Draft `count` tokens for each request: [requests, count].

        `sampled` has what each request got in this step, nothing while its prompt is
        still being read. `rows` has the hidden states that the samples came from, request
        after request: one more than the drafts `verified` there, one where that is None.
        """
        last, tokens = last_sampled(sampled, verified, rows.device)
        drafted: Tensor = self._heads.draft(rows[last], tokens, count)
        return drafted


def last_sampled(
    sampled: Sequence[Sequence[int]], verified: Sequence[int] | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The row of each request's last token among all rows, and that token.

    A request that got none has its first row and token 0; the scheduler drops its drafts.
    """
    drafts = torch.tensor(verified if verified is not None else [0] * len(sampled))
    rows = drafts + 1
    accepted = torch.tensor([len(tokens) for tokens in sampled]).clamp(min=1)
    last = rows.cumsum(0) - rows + accepted - 1
    tokens = torch.tensor([own[-1] if own else 0 for own in sampled])
    both = torch.stack((last, tokens)).to(device, non_blocking=True)
    return both[0], both[1]


def _pass_hidden_states() -> None:
    """Have the engine's runner ask a `Proposer` with the hidden states; others as before.

    Upstream: `propose_draft_token_ids` in `vllm/v1/worker/gpu_model_runner.py`, which gives
    a proposer of one's own only the tokens. A second call changes nothing.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    theirs: Any = GPUModelRunner.propose_draft_token_ids
    if theirs.__module__ == __name__:
        return

    def propose_draft_token_ids(
        self: Any,
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Any,
        sample_hidden_states: Any,
        aux_hidden_states: Any,
        spec_decode_metadata: Any,
        *rest: Any,
    ) -> Any:
        if not isinstance(self.drafter, Proposer):
            return theirs(
                self,
                scheduler_output,
                sampled_token_ids,
                sampling_metadata,
                hidden_states,
                sample_hidden_states,
                aux_hidden_states,
                spec_decode_metadata,
                *rest,
            )
        verified = spec_decode_metadata.num_draft_tokens if spec_decode_metadata else None
        count = scheduler_output.num_spec_tokens_to_schedule
        return self.drafter.propose(sample_hidden_states, sampled_token_ids, verified, count)

    GPUModelRunner.propose_draft_token_ids = propose_draft_token_ids


def take_seat(config: Any) -> None:
    """Name `Proposer` as the engine's proposer class, where the heads fit the target.

    `config` is a finished `VllmConfig` of the method `mlp_speculator`; `ValueError` where
    the heads do not fit. The engine drafts with no such method; with `custom_class` it
    imports the class that `model` names, in every process and however that was started.
    """
    speculation, target = config.speculative_config, config.model_config
    heads, count = speculation.draft_model_config.hf_config, speculation.num_speculative_tokens
    if count > heads.n_predict:
        raise ValueError(
            f"the MLP speculator has {heads.n_predict} heads, and {count} speculative tokens "
            f"were asked for; set NUM_SPECULATIVE_TOKENS to at most {heads.n_predict}"
        )
    for what, its_own, the_targets in (
        ("hidden size", heads.emb_dim, target.get_hidden_size()),
        ("vocabulary", heads.vocab_size, target.get_vocab_size()),
    ):
        if its_own != the_targets:
            raise ValueError(
                f"the MLP speculator is for a target with a {what} of {its_own}, and this "
                f"one's is {the_targets}; set SPECULATIVE_MODEL to heads of this target"
            )
    speculation.method = "custom_class"
    speculation.model = f"{Proposer.__module__}.{Proposer.__qualname__}"
