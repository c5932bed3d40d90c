"""What a draft costs: the time of one drafted token as a share of one of the target's steps.

This is c of Leviathan et al., "Fast Inference from Transformers via Speculative
Decoding" (2023, arXiv 2211.17192, section 3.3). While decoding waits for memory, a pass
takes as long as its weights take to be read, so that c is the ratio of the two models'
weights; quantization of one of them alone is not taken into account.
"""

from typing import Any

# The largest that the paper saw for drafts of a hundredth of the target's size (section 3.3).
SMALL = 0.05

# Methods that run the draft once for each token, and whose config describes all of it.
ONE_PASS_PER_TOKEN = frozenset({"draft_model", "eagle", "eagle3"})


def estimate(method: str, target: Any, draft: Any) -> float:
    """c for a method and the text configs of target and draft; `SMALL` where they do not tell.

    Lookups and heads cost little beside the target, and so get `SMALL` as well: what
    remains is the verification of one more token.
    """
    if method not in ONE_PASS_PER_TOKEN or draft is None:
        return SMALL
    of_target, of_draft = weights_read(target), weights_read(draft)
    if of_target is None or of_draft is None:
        return SMALL
    return max(SMALL, of_draft / of_target)


def weights_read(config: Any) -> int | None:
    """The weights that a pass reads, of a Hugging Face config; None where it does not tell.

    Attention, the active part of a gated feed-forward network, and the output head.
    """
    hidden, layers = _number(config, "hidden_size"), _number(config, "num_hidden_layers")
    heads, inner = _number(config, "num_attention_heads"), _number(config, "intermediate_size")
    vocabulary = _number(config, "vocab_size")
    if not (hidden and layers and heads and inner and vocabulary):
        return None
    key_heads = _number(config, "num_key_value_heads") or heads
    width = _number(config, "head_dim") or hidden // heads
    active = _number(config, "num_experts_per_tok")
    expert = _number(config, "moe_intermediate_size") or inner
    attention = 2 * hidden * width * (heads + key_heads)
    feed_forward = 3 * hidden * (active * expert if active else inner)
    return layers * (attention + feed_forward) + vocabulary * hidden


def _number(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else 0
