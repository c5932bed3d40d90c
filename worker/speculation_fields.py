"""The keys of the engine's speculative config, and the variables that set each.

A test compares the keys with the pinned engine's `SpeculativeConfig`.
"""

from collections.abc import Mapping
from difflib import get_close_matches

from worker import redaction
from worker.catalog import Argument, Kind
from worker.errors import Problem

# Where the value of each published variable goes.
PUBLISHED: Mapping[str, str] = {
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_max_model_len": "max_model_len",
    "speculative_quantization": "quantization",
    "speculative_model_revision": "revision",
    "speculative_enforce_eager": "enforce_eager",
    "speculative_tokens_per_batch_size": "num_speculative_tokens_per_batch_size",
}


def _key(name: str, kind: Kind, summary: str, **more: object) -> Argument:
    return Argument(name, "engine", kind, (), summary, **more)  # type: ignore[arg-type]


# Every other key, each set by SPECULATIVE_ and its name in upper case.
OTHERS: tuple[Argument, ...] = (
    _key("attention_backend", "text", "Attention backend of the draft."),
    _key("code_revision", "text", "Revision of the draft's own code."),
    _key("disable_eagle_block_drop", "flag", "Keep the last cache block under EAGLE."),
    _key("disable_padded_drafter_batch", "flag", "Draft without padding the batch."),
    _key("draft_load_config", "json", "How the draft's weights are loaded."),
    _key("draft_sample_method", "choice", "How drafts are sampled.",
         choices=("greedy", "probabilistic")),
    _key("dspark_draft_topk", "integer", "Candidates per position of DSpark.", minimum=1),
    _key("enable_adaptive_verification", "flag", "Verify fewer tokens under load."),
    _key("index_share_for_mtp_iteration", "flag", "Share the sparse index over MTP passes."),
    _key("kv_cache_dtype", "text", "Data type of the draft's KV cache."),
    _key("moe_backend", "text", "Kernels of a mixture-of-experts draft."),
    _key("parallel_drafting", "flag", "Draft all tokens in one pass, where the draft can."),
    _key("rejection_sample_method", "choice", "The engine's own acceptance rule.",
         choices=("standard", "synthetic", "block")),
    _key("suffix_decoding_max_cached_requests", "integer", "Answers kept for suffix lookup.",
         minimum=0),
    _key("suffix_decoding_max_spec_factor", "number", "Suffix drafts per matched token.",
         minimum=0),
    _key("suffix_decoding_max_tree_depth", "integer", "Longest suffix kept, in tokens.",
         minimum=1),
    _key("suffix_decoding_min_token_prob", "number", "Least estimated probability to draft.",
         minimum=0, maximum=1),
    _key("synthetic_acceptance_length", "number", "Benchmarks: mean acceptance length.",
         minimum=1),
    _key("synthetic_acceptance_rates", "json_list", "Benchmarks: acceptance by position."),
    _key("use_heterogeneous_vocab", "flag", "Allow a draft with another vocabulary."),
    _key("use_local_argmax_reduction", "flag", "Reduce the draft's argmax on each GPU."),
)  # fmt: skip

# Where each variable's value goes in the engine's config, by the variable's field name.
KEY_OF_FIELD: Mapping[str, str] = {
    **PUBLISHED,
    **{f"speculative_{key.name}": key.name for key in OTHERS},
}

KEYS = frozenset({*KEY_OF_FIELD.values(), "method", "model"})

COUNTS = (
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "draft_tensor_parallel_size",
    "max_model_len",
)

# Keys that the engine's config had once, and what to set now, if anything.
REMOVED: Mapping[str, str] = {
    "disable_by_batch_size": "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
    "speculative_disable_by_batch_size": "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
    "acceptance_method": "SPEC_DECODING_ACCEPTANCE_METHOD",
    "spec_decoding_acceptance_method": "SPEC_DECODING_ACCEPTANCE_METHOD",
    "posterior_threshold": "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD",
    "posterior_alpha": "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA",
    "ngram_prompt_lookup_min": "NGRAM_PROMPT_LOOKUP_MIN",
    "ngram_prompt_lookup_max": "NGRAM_PROMPT_LOOKUP_MAX",
    "tensor_parallel_size": "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE",
    "disable_logprobs": "",
    "disable_mqa_scorer": "",
}


def unknown_key(key: str, source: str) -> Problem:
    """What to say of a key that the engine's config does not have."""
    shown = redaction.shown("", key)
    if key in REMOVED:
        instead = f" and set {REMOVED[key]}" if REMOVED[key] else ""
        why = f"its key {shown} is not one of the engine's any more"
        return Problem(source, None, why, f"Remove it{instead}")
    near = get_close_matches(key[:100], KEYS, n=1)
    hint = f"; the nearest is {near[0]}" if near else ""
    return Problem(source, None, f"its key {shown} is not one of the engine's{hint}")
