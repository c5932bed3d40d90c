"""Typical acceptance: the rule that the engine no longer has, in torch alone.

A drafted token x is accepted where p(x) > min(threshold, alpha * exp(-H(p))), with p the
target's distribution after the request's own temperature, top-k and top-p, and H its
entropy in nats (Cai et al., "Medusa", 2024, section 2.3.1). The first rejected position takes the
target's most likely token. Requests at temperature 0 keep the exact rule. It changes the
distribution of the output.

`install` replaces the engine's rule in the process that calls it, on both of the engine's
runners. No loop over requests, and nothing that waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DEFAULT_THRESHOLD = 0.09
DEFAULT_ALPHA = 0.3
VARIABLE = "WORKER_TYPICAL_ACCEPTANCE"  # tells the engine's processes the rule's numbers, as JSON
REJECTED = -1  # the engine's PLACEHOLDER_TOKEN_ID


@dataclass(frozen=True)
class Rule:
    """The two numbers of the rule: `threshold` in (0, 1], `alpha` above 0."""

    threshold: float = DEFAULT_THRESHOLD
    alpha: float = DEFAULT_ALPHA

    def accepts(self, logits: Any, drafted: Any) -> Any:
        """Whether each drafted token is accepted.

        `logits` is [tokens, vocabulary] with masked entries at -inf, `drafted` [tokens],
        negative where there is no token. Gives a boolean tensor [tokens].
        """
        import torch

        probabilities = logits.softmax(dim=-1, dtype=torch.float32)
        entropy = torch.special.entr(probabilities).sum(dim=-1)
        bound = (self.alpha * torch.exp(-entropy)).clamp(max=self.threshold)
        chosen = drafted.long().clamp(0, logits.shape[-1] - 1)
        its_own = probabilities.gather(1, chosen.unsqueeze(1)).squeeze(1)
        return (its_own > bound) & (drafted >= 0) & (drafted < logits.shape[-1])


def verify(
    accepted: Any, drafted: Any, likeliest: Any, final: Any, request: Any, place: Any, shape: Any
) -> tuple[Any, Any]:
    """Lay out what each request ends with: its accepted prefix and one more token.

    Per token, in any order: `accepted`, `drafted`, `likeliest` (the target's most likely
    token), `request` and `place` (its index among the request's drafts). Per request:
    `final`, the token that follows a wholly accepted draft. `shape` is (requests, longest
    draft + 1). Gives the tokens [requests, longest + 1], `REJECTED` behind the last one,
    and how many there are [requests].
    """
    import torch

    requests, width = shape
    table = drafted.new_zeros(requests, width, dtype=torch.long)
    passed = table.bool()
    passed[request, place] = accepted
    table[request, place] = drafted.long()
    best = torch.zeros_like(table)
    best[request, place] = likeliest.long()
    lengths = torch.zeros_like(table[:, 0]).index_add_(0, request, torch.ones_like(request))
    kept = passed.long().cumprod(dim=1).sum(dim=1)
    last = torch.where(kept == lengths, final.long(), best.gather(1, kept.unsqueeze(1)).squeeze(1))
    table.scatter_(1, kept.unsqueeze(1), last.unsqueeze(1))
    behind = torch.arange(width, device=table.device) > kept.unsqueeze(1)
    return table.masked_fill(behind, REJECTED), kept + 1


def for_v1(rule: Rule, exact: Callable[..., Any]) -> Callable[..., Any]:
    """The rule in the shape of `vllm.v1.sample.rejection_sampler.rejection_sample`.

    Tokens of all requests are flattened; `cu_num_draft_tokens` is their inclusive
    cumulative count. In a mixed batch greedy rows come with temperature 1, so that their
    logits' maximum is still the exact rule's.
    """

    def rejection_sample(
        draft_token_ids: Any,
        num_draft_tokens: list[int],
        max_spec_len: int,
        cu_num_draft_tokens: Any,
        draft_probs: Any,
        target_logits: Any,
        bonus_token_ids: Any,
        sampling_metadata: Any,
        *more: Any,
        **named: Any,
    ) -> Any:
        import torch

        if sampling_metadata.all_greedy:
            return exact(
                draft_token_ids,
                num_draft_tokens,
                max_spec_len,
                cu_num_draft_tokens,
                draft_probs,
                target_logits,
                bonus_token_ids,
                sampling_metadata,
                *more,
                **named,
            )
        ends = cu_num_draft_tokens.long()
        token = torch.arange(draft_token_ids.shape[0], device=ends.device)
        request = torch.searchsorted(ends, token, right=True)
        place = token - torch.cat((ends.new_zeros(1), ends[:-1]))[request]
        likeliest = target_logits.argmax(dim=-1)
        accepted = torch.where(
            (sampling_metadata.temperature == 0)[request],
            draft_token_ids == likeliest,
            rule.accepts(target_logits, draft_token_ids),
        )
        tokens, _ = verify(
            accepted,
            draft_token_ids,
            likeliest,
            bonus_token_ids.squeeze(1),
            request,
            place,
            (len(num_draft_tokens), max_spec_len + 1),
        )
        return tokens.to(torch.int32)

    return rejection_sample


def for_v2(rule: Rule, exact: Callable[..., Any]) -> Callable[..., Any]:
    """The rule in the shape of the newer runner's `rejection_sample`.

    Source: `vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py`. Each request has
    one row more than it has drafts: the row at `start + i` judges the token at
    `start + i + 1`, and the last one is the bonus token's, which the engine's own
    function samples with the request's seed.
    """

    def rejection_sample(
        target_logits: Any,
        draft_logits: Any,
        draft_sampled: Any,
        cu_num_logits: Any,
        pos: Any,
        idx_mapping: Any,
        expanded_idx_mapping: Any,
        expanded_local_pos: Any,
        temperature: Any,
        seed: Any,
        num_speculative_steps: int,
        *more: Any,
        **named: Any,
    ) -> tuple[Any, Any]:
        import torch

        ends = cu_num_logits[1:].long()
        last = ends - 1
        row = torch.arange(target_logits.shape[0], device=ends.device)
        request = torch.searchsorted(ends, row, right=True)
        place = row - cu_num_logits[:-1].long()[request]
        ones = torch.arange(ends.shape[0] + 1, device=ends.device, dtype=cu_num_logits.dtype)
        final, _ = exact(
            target_logits[last],
            None,
            draft_sampled[last],
            ones,
            pos[last],
            idx_mapping,
            idx_mapping,
            torch.zeros_like(expanded_local_pos[last]),
            temperature,
            seed,
            num_speculative_steps,
            *more,
            **named,
        )
        drafted = torch.cat((draft_sampled[1:], draft_sampled[:1]))  # the bonus rows' are not read
        likeliest = target_logits.argmax(dim=-1)
        accepted = torch.where(
            (temperature[idx_mapping] == 0)[request],
            drafted == likeliest,
            rule.accepts(target_logits, drafted),
        )
        is_bonus = torch.zeros_like(accepted).index_fill_(0, last, True)
        return _lay_out_with_bonus_rows(
            accepted & ~is_bonus, drafted, likeliest, final[:, 0], request, place,
            (ends.shape[0], num_speculative_steps + 1),
        )  # fmt: skip

    return rejection_sample


def _lay_out_with_bonus_rows(
    accepted: Any, drafted: Any, likeliest: Any, final: Any, request: Any, place: Any, shape: Any
) -> tuple[Any, Any]:
    """`verify` for rows that include each request's bonus row.

    A bonus row is never accepted and holds the final token as its most likely one, so a
    wholly accepted draft ends with it.
    """
    import torch

    following = torch.cat((request[1:], request.new_full((1,), -1)))
    is_bonus = following != request
    best = torch.where(is_bonus, final.long()[request], likeliest)
    tokens, counts = verify(accepted, drafted, best, final, request, place, shape)
    return tokens, counts.to(torch.int32)


def install(rule: Rule) -> None:
    """Replace the engine's rule in this process; calling it again changes nothing."""
    from vllm.v1.sample import rejection_sampler as older

    if getattr(older.rejection_sample, "__module__", "") != __name__:
        older.rejection_sample = for_v1(rule, older.rejection_sample)
    try:
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler as newer
    except ImportError:  # the newer runner needs Triton, which a CPU build may lack
        return
    if getattr(newer.rejection_sample, "__module__", "") != __name__:
        newer.rejection_sample = for_v2(rule, newer.rejection_sample)
