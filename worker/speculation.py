"""Speculative settings -> the engine's speculative config.

Pure: no file is read and the engine is not imported. The engine's field names and rules
are those of `vllm.config.SpeculativeConfig` in the pinned version.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.errors import Problem
from worker.grammar import Value

DEFAULT_TOKENS = 3
DEFAULT_WINDOW = (2, 4)  # shortest and longest n-gram; the engine's own default is 5 and 5

NGRAM_WORDS = frozenset({"[ngram]", "ngram", "n-gram"})
NGRAM_METHODS = frozenset({"ngram", "ngram_gpu"})
# Methods that take the count from the checkpoint, or have a default of their own.
COUNT_FROM_CHECKPOINT = frozenset({"mtp", "dspark", "suffix", "eagle", "eagle3", "dflash"})
# Methods whose drafts come from text or from the target itself.
WITHOUT_DRAFT = frozenset({"ngram", "ngram_gpu", "suffix"})
# Methods whose proposer asserts a fixed count: a schedule kills the engine at its first step.
FIXED_COUNT = frozenset({"suffix", "medusa", "ngram_gpu", "extract_hidden_states"})

# Where each variable's value goes in the engine's config.
ENGINE_FIELDS: Mapping[str, str] = {
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_max_model_len": "max_model_len",
    "speculative_quantization": "quantization",
    "speculative_model_revision": "revision",
    "speculative_enforce_eager": "enforce_eager",
}

# Keys that the engine's config had once, and what to set now.
REMOVED_KEYS: Mapping[str, str] = {
    "disable_by_batch_size": "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
    "speculative_disable_by_batch_size": "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
    "acceptance_method": "SPEC_DECODING_ACCEPTANCE_METHOD",
    "spec_decoding_acceptance_method": "SPEC_DECODING_ACCEPTANCE_METHOD",
    "posterior_threshold": "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_THRESHOLD",
    "posterior_alpha": "TYPICAL_ACCEPTANCE_SAMPLER_POSTERIOR_ALPHA",
    "ngram_prompt_lookup_min": "NGRAM_PROMPT_LOOKUP_MIN",
    "ngram_prompt_lookup_max": "NGRAM_PROMPT_LOOKUP_MAX",
    "tensor_parallel_size": "SPECULATIVE_DRAFT_TENSOR_PARALLEL_SIZE",
}


@dataclass
class Speculation:
    """What speculative settings come to: the engine's config, or None for no speculation."""

    config: dict[str, Value] | None = None
    warnings: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def resolve(
    settings: Mapping[str, Any], sources: Mapping[str, str], max_num_seqs: int | None = None
) -> Speculation:
    """The engine's speculative config for the fields of the speculation group.

    `settings` maps field names to values, None where unset; `sources` maps them to the
    variables that set them.
    """
    result = Speculation()
    config = _merged(settings, sources, result)
    _settle_method(config, settings, sources, result)
    if not _is_on(config):
        _warn_of_idle(settings, sources, result)
        return result
    _settle_window(config, result)
    _settle_count(config, result)
    _settle_cutoff(config, settings, max_num_seqs, result)
    _settle_acceptance(settings, result)
    result.config = config
    return result


def _merged(
    settings: Mapping[str, Any], sources: Mapping[str, str], result: Speculation
) -> dict[str, Value]:
    """SPECULATIVE_CONFIG as the base, each variable into its field."""
    base = settings.get("speculative_config") or {}
    config = {str(key).replace("-", "_"): value for key, value in base.items()}
    for key in sorted(REMOVED_KEYS.keys() & config.keys()):
        result.problems.append(
            Problem(
                "SPECULATIVE_CONFIG",
                None,
                f"its key {key!r} is not one of the engine's any more",
                f"Remove it and set {REMOVED_KEYS[key]}",
            )
        )
        del config[key]
    for name, key in ENGINE_FIELDS.items():
        value = settings.get(name)
        if value is not None:
            _put(config, key, value, sources.get(name, name.upper()), result)
    return config


def _put(
    config: dict[str, Value], key: str, value: Value, variable: str, result: Speculation
) -> None:
    there = config.setdefault(key, value)
    if there != value:
        why = f"SPECULATIVE_CONFIG has {key}={there!r} for the same setting"
        result.problems.append(Problem(variable, str(value), why, "Set only one of the two"))


def _settle_method(
    config: dict[str, Value],
    settings: Mapping[str, Any],
    sources: Mapping[str, str],
    result: Speculation,
) -> None:
    method, draft = settings.get("speculative_method"), settings.get("speculative_model")
    if draft is not None and draft.casefold() in NGRAM_WORDS:
        method, draft = method or "ngram", None
    if str(config.get("model", "")).casefold() in NGRAM_WORDS:
        del config["model"]
        config.setdefault("method", "ngram")
    if draft is not None:
        _put(config, "model", draft, sources["speculative_model"], result)
    if method is not None:
        variable = sources.get("speculative_method", "SPECULATIVE_MODEL")
        _put(config, "method", method, variable, result)
    window = "prompt_lookup_min" in config or "prompt_lookup_max" in config
    if window and "method" not in config and "model" not in config:
        config["method"] = "ngram"
    _check_draft_fits(config, window, result)


def _check_draft_fits(config: Mapping[str, Value], window: bool, result: Speculation) -> None:
    method, draft = config.get("method"), config.get("model")
    if method in WITHOUT_DRAFT and draft is not None:
        result.problems.append(
            Problem(
                "SPECULATIVE_MODEL",
                str(draft),
                f"the {method} method drafts without a model",
                "Unset SPECULATIVE_MODEL, or set SPECULATIVE_METHOD=draft_model",
            )
        )
    elif method == "draft_model" and draft is None:
        why = "the draft_model method needs a model to draft with"
        result.problems.append(Problem("SPECULATIVE_MODEL", None, why, "Set SPECULATIVE_MODEL"))
    elif window and method not in NGRAM_METHODS and (method or draft):
        result.warnings.append(
            "NGRAM_PROMPT_LOOKUP_MIN and NGRAM_PROMPT_LOOKUP_MAX have no effect: drafts come "
            f"from {draft or method}; set SPECULATIVE_METHOD=ngram for n-gram lookup"
        )


def _is_on(config: Mapping[str, Value]) -> bool:
    return "method" in config or "model" in config


def _warn_of_idle(
    settings: Mapping[str, Any], sources: Mapping[str, str], result: Speculation
) -> None:
    """Speculation is off; say so to whoever set one of its details."""
    details = [
        sources[name]
        for name, value in settings.items()
        if value is not None and name in sources and name != "spec_decoding_acceptance_method"
    ]
    if details:
        result.warnings.append(
            f"{', '.join(details)}: speculation stays off, since nothing says where drafts "
            "come from; set SPECULATIVE_METHOD=ngram, or SPECULATIVE_MODEL to a draft model"
        )


def _settle_window(config: dict[str, Value], result: Speculation) -> None:
    if config.get("method") not in NGRAM_METHODS:
        return
    low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
    if low is None and high is None:
        config["prompt_lookup_min"], config["prompt_lookup_max"] = DEFAULT_WINDOW
        result.warnings.append(
            "n-gram window not set: NGRAM_PROMPT_LOOKUP_MIN=2 and NGRAM_PROMPT_LOOKUP_MAX=4 are used"
        )
    elif low is None and isinstance(high, int):
        config["prompt_lookup_min"] = min(DEFAULT_WINDOW[0], high)
        result.warnings.append(
            f"NGRAM_PROMPT_LOOKUP_MIN is not set: {config['prompt_lookup_min']} is used, since "
            "the engine's own choice (equal to the maximum) would almost never draft"
        )
    elif high is None and isinstance(low, int):
        config["prompt_lookup_max"] = max(DEFAULT_WINDOW[1], low)
        result.warnings.append(
            f"NGRAM_PROMPT_LOOKUP_MAX is not set: {config['prompt_lookup_max']} is used"
        )
    if (config.get("prompt_lookup_max"), config.get("num_speculative_tokens")) == (1, 1):
        result.warnings.append(
            "n-gram speculation is on with a window and a count of 1, the defaults of an old "
            "form; unset NGRAM_PROMPT_LOOKUP_MAX and NUM_SPECULATIVE_TOKENS to switch it off"
        )


def _settle_count(config: dict[str, Value], result: Speculation) -> None:
    method = config.get("method")
    if "num_speculative_tokens" in config or method in COUNT_FROM_CHECKPOINT:
        return
    config["num_speculative_tokens"] = DEFAULT_TOKENS
    result.warnings.append(f"NUM_SPECULATIVE_TOKENS is not set: {DEFAULT_TOKENS} is used")


def _settle_cutoff(
    config: dict[str, Value],
    settings: Mapping[str, Any],
    max_num_seqs: int | None,
    result: Speculation,
) -> None:
    """The cut-off as the engine's schedule of inclusive (first, last, count) batch ranges."""
    cutoff, method = settings.get("speculative_disable_by_batch_size"), config.get("method")
    if cutoff is None:
        return
    if method in FIXED_COUNT:
        result.problems.append(
            Problem(
                "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
                str(cutoff),
                f"the {method} method drafts a fixed count, and a cut-off would end the engine "
                "at its first step",
                "Unset it, or choose another SPECULATIVE_METHOD, for instance ngram",
            )
        )
        return
    count = config.get("num_speculative_tokens", DEFAULT_TOKENS)
    schedule: list[Value] = [[1, cutoff, count]]
    if max_num_seqs is None or max_num_seqs > cutoff:
        # the last range goes on to any larger batch
        schedule.append([cutoff + 1, max(max_num_seqs or 0, cutoff + 1), 0])
    _put(
        config,
        "num_speculative_tokens_per_batch_size",
        schedule,
        "SPECULATIVE_DISABLE_BY_BATCH_SIZE",
        result,
    )


def _settle_acceptance(settings: Mapping[str, Any], result: Speculation) -> None:
    typical = "typical_acceptance_sampler"
    details = list(_typical_details(settings))
    if settings.get("spec_decoding_acceptance_method") == typical:
        result.problems.append(
            Problem(
                "SPEC_DECODING_ACCEPTANCE_METHOD",
                typical,
                "this release has the exact rule alone",
                "Set SPEC_DECODING_ACCEPTANCE_METHOD=rejection_sampler",
            )
        )
    elif details:
        result.warnings.append(
            f"{' and '.join(details)}: no effect without SPEC_DECODING_ACCEPTANCE_METHOD={typical}"
        )


def _typical_details(settings: Mapping[str, Any]) -> Iterator[str]:
    for name in ("posterior_threshold", "posterior_alpha"):
        if settings.get(f"typical_acceptance_sampler_{name}") is not None:
            yield f"TYPICAL_ACCEPTANCE_SAMPLER_{name.upper()}"
