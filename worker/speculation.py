"""Speculative settings -> the engine's speculative config.

Pure: no file is read and the engine is not imported. The engine's field names and rules
are those of `vllm.config.SpeculativeConfig` in the pinned version.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker import catalog, grammar, redaction
from worker import speculation_fields as fields
from worker import speculation_schedule as schedule
from worker.errors import Problem
from worker.grammar import Value

DEFAULT_TOKENS = 3
DEFAULT_TOKENS_OF_MTP = 1  # the one count that each number of prediction layers divides
MOST_TOKENS = 128  # the engine asserts it at each step (MAX_SPEC_LEN), and dies of more
SCHEDULE = "num_speculative_tokens_per_batch_size"
TYPICAL = "typical_acceptance_sampler"
# The historic sampler's own numbers.
DEFAULT_TYPICAL: Mapping[str, float] = {"threshold": 0.09, "alpha": 0.3}
DEFAULT_WINDOW = (2, 4)  # shortest and longest n-gram; the engine's own default is 5 and 5

NGRAM_WORDS = frozenset({"[ngram]", "ngram", "n-gram"})
NGRAM_METHODS = frozenset({"ngram", "ngram_gpu"})
# Methods whose draft's checkpoint says the count.
COUNT_FROM_CHECKPOINT = frozenset({"mtp", "dspark", "mlp_speculator"})
# Methods whose drafts come from text or from the target itself.
WITHOUT_DRAFT = frozenset({"ngram", "ngram_gpu", "suffix"})
# Keys that say something of a draft's weights.
OF_DRAFT = frozenset(
    {"draft_tensor_parallel_size", "max_model_len", "quantization", "revision", "code_revision"}
    | {"draft_load_config"}
)
# Methods that need a model, a head, or a class to draft with.
WITH_DRAFT = frozenset(
    {"draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "custom_class"}
)


@dataclass
class Speculation:
    """What speculative settings come to.

    `config` is the engine's, None for no speculation; `idle` names the fields of the group
    that have no effect on it; `typical` has the numbers of the typical rule, None for the
    engine's own.
    """

    config: dict[str, Value] | None = None
    idle: set[str] = field(default_factory=set)
    typical: dict[str, float] | None = None
    count_is_default: bool = False
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
    _drop_draft_settings(config, sources, result)
    _settle_window(config, result)
    _settle_count(config, result)
    _settle_schedule(config, settings, sources, max_num_seqs, result)
    _settle_acceptance(config, settings, result)
    result.config = config
    return result


def _merged(
    settings: Mapping[str, Any], sources: Mapping[str, str], result: Speculation
) -> dict[str, Value]:
    """SPECULATIVE_CONFIG as the base, each variable into its field."""
    base, source = settings.get("speculative_config") or {}, _base_source(sources)
    config = {str(k).replace("-", "_"): value for k, value in base.items() if value is not None}
    for key in sorted(config.keys() - fields.KEYS):
        result.problems.append(fields.unknown_key(key, source))
        del config[key]
    for key in fields.COUNTS:
        _settle_whole_number(config, key, source, result)
    for name, key in fields.KEY_OF_FIELD.items():
        value = settings.get(name)
        if value is not None:
            _put(config, key, value, sources.get(name, name.upper()), result)
    return config


def _base_source(sources: Mapping[str, str]) -> str:
    return sources.get("speculative_config", "SPECULATIVE_CONFIG")


def _settle_whole_number(
    config: dict[str, Value], key: str, source: str, result: Speculation
) -> None:
    value = config.get(key)
    if isinstance(value, str) and value.strip().isdecimal():
        value = config[key] = int(value)
    if value is not None and (type(value) is not int or value < 1):
        shown = redaction.shown("", value)
        why = f"its {key} is {shown}, which is not a whole number from 1 on"
        result.problems.append(Problem(source, None, why))
        del config[key]


def _put(
    config: dict[str, Value], key: str, value: Value, variable: str, result: Speculation
) -> None:
    there = config.setdefault(key, value)
    if there != value:
        shown, other = redaction.shown("", value), redaction.shown("", there)
        why = f"SPECULATIVE_CONFIG has {key}={other} for the same setting"
        result.problems.append(Problem(variable, shown, why, "Set only one of the two"))


def _settle_method(
    config: dict[str, Value],
    settings: Mapping[str, Any],
    sources: Mapping[str, str],
    result: Speculation,
) -> None:
    method, draft = settings.get("speculative_method"), settings.get("speculative_model")
    _settle_base_method(config, _base_source(sources), result)
    if draft is not None and draft.casefold() in NGRAM_WORDS:
        said = str(method or config.get("method") or "ngram")
        if said in NGRAM_METHODS:
            method, draft = said, None
        elif said not in WITHOUT_DRAFT:
            _refuse_ngram_word(draft, said, result)
    if draft is not None:
        _put(config, "model", draft, sources.get("speculative_model", "SPECULATIVE_MODEL"), result)
    if method is not None:
        variable = sources.get("speculative_method", "SPECULATIVE_MODEL")
        _put(config, "method", method, variable, result)
    window = "prompt_lookup_min" in config or "prompt_lookup_max" in config
    if window and "method" not in config and "model" not in config:
        config["method"] = "ngram"
        _warn_of_old_form(config, result)
    _check_draft_fits(config, window, result)


def _settle_base_method(config: dict[str, Value], source: str, result: Speculation) -> None:
    """The method and the model of SPECULATIVE_CONFIG in the engine's own spelling."""
    if not isinstance(model := config.get("model", ""), str):
        why = f"its model {redaction.shown('', config.pop('model'))} is not a text"
        result.problems.append(Problem(source, None, why))
    elif model.casefold() in NGRAM_WORDS:
        del config["model"]
        config.setdefault("method", "ngram")
    if "method" not in config:
        return
    known = catalog.load().arguments["spec_method"].choices
    try:
        config["method"] = grammar.choice(known)(str(config["method"]))
    except ValueError as error:
        why = f"its method {redaction.shown('', config.pop('method'))} {error}"
        result.problems.append(Problem(source, None, why))


def _refuse_ngram_word(word: str, method: str, result: Speculation) -> None:
    why = f"stands for n-gram lookup, and the method is {method}"
    fix = "Set SPECULATIVE_METHOD=ngram, or SPECULATIVE_MODEL to a draft model"
    result.problems.append(Problem("SPECULATIVE_MODEL", word, why, fix))


def _warn_of_old_form(config: Mapping[str, Value], result: Speculation) -> None:
    if (config.get("prompt_lookup_max"), config.get("num_speculative_tokens")) == (1, 1):
        result.warnings.append(
            "n-gram speculation is on with a window and a count of 1, the defaults of an old "
            "form; unset NGRAM_PROMPT_LOOKUP_MAX and NUM_SPECULATIVE_TOKENS to switch it off"
        )


def _check_draft_fits(config: Mapping[str, Value], window: bool, result: Speculation) -> None:
    method, draft = config.get("method"), config.get("model")
    if method in WITHOUT_DRAFT and draft is not None:
        result.problems.append(
            Problem(
                "SPECULATIVE_MODEL",
                redaction.shown("", draft),
                f"the {method} method drafts without a model",
                "Unset SPECULATIVE_MODEL, or set SPECULATIVE_METHOD=draft_model",
            )
        )
    elif method in WITH_DRAFT and draft is None:
        why = f"not set, and the {method} method needs something to draft with"
        result.problems.append(Problem("SPECULATIVE_MODEL", None, why, "Set SPECULATIVE_MODEL"))
    elif window and method not in NGRAM_METHODS and (method or draft):
        result.idle |= {"ngram_prompt_lookup_min", "ngram_prompt_lookup_max"}
        result.warnings.append(
            "NGRAM_PROMPT_LOOKUP_MIN and NGRAM_PROMPT_LOOKUP_MAX have no effect: drafts come "
            f"from {draft or method}; set SPECULATIVE_METHOD=ngram for n-gram lookup"
        )


def _drop_draft_settings(
    config: dict[str, Value], sources: Mapping[str, str], result: Speculation
) -> None:
    """Take out what describes a draft's weights where the method has no draft."""
    if config.get("method") not in WITHOUT_DRAFT:
        return
    dropped = []
    for name, key in fields.KEY_OF_FIELD.items():
        if key in OF_DRAFT and key in config:
            del config[key]
            result.idle.add(name)
            dropped.append(sources.get(name, f"{key} of {_base_source(sources)}"))
    if dropped:
        told = f"{', '.join(dropped)}: no effect, since the {config['method']} method has no draft"
        result.warnings.append(told)


def _is_on(config: Mapping[str, Value]) -> bool:
    return "method" in config or "model" in config


def _warn_of_idle(
    settings: Mapping[str, Any], sources: Mapping[str, str], result: Speculation
) -> None:
    """Speculation is off; say so to whoever set one of its details."""
    exact = settings.get("spec_decoding_acceptance_method") != TYPICAL
    silent = {"spec_decoding_acceptance_method"} if exact else set()
    details = [
        sources[name]
        for name, value in settings.items()
        if value is not None and name in sources and name not in silent
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
            "n-gram window not set: NGRAM_PROMPT_LOOKUP_MIN=2 and NGRAM_PROMPT_LOOKUP_MAX=4 "
            "are used"
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
    elif isinstance(low, int) and isinstance(high, int) and low > high:
        why = f"is above NGRAM_PROMPT_LOOKUP_MAX={high}"
        fix = "Lower the one or raise the other"
        result.problems.append(Problem("NGRAM_PROMPT_LOOKUP_MIN", str(low), why, fix))


def _settle_count(config: dict[str, Value], result: Speculation) -> None:
    method, count = str(config.get("method", "")), config.get("num_speculative_tokens")
    if isinstance(count, int) and count > MOST_TOKENS:
        why = f"is above {MOST_TOKENS}, the most that the engine verifies in a step"
        fix = "Set it to 3 to 5, and raise it while the acceptance rate stays high"
        result.problems.append(Problem("NUM_SPECULATIVE_TOKENS", str(count), why, fix))
    has_own = method == "suffix" or (method in COUNT_FROM_CHECKPOINT and "model" in config)
    if count is None and not has_own:
        count = DEFAULT_TOKENS_OF_MTP if method.endswith("mtp") else DEFAULT_TOKENS
        config["num_speculative_tokens"] = count
        result.count_is_default = True
        result.warnings.append(f"NUM_SPECULATIVE_TOKENS is not set: {count} is used")


def _settle_schedule(
    config: dict[str, Value],
    settings: Mapping[str, Any],
    sources: Mapping[str, str],
    max_num_seqs: int | None,
    result: Speculation,
) -> None:
    """The cut-off as a schedule, and what no schedule may be."""
    cutoff, method = settings.get("speculative_disable_by_batch_size"), config.get("method")
    variable = "SPECULATIVE_DISABLE_BY_BATCH_SIZE"
    if cutoff is not None and SCHEDULE not in config:
        tokens = config.get("num_speculative_tokens", MOST_TOKENS)  # the engine takes the lesser
        config[SCHEDULE] = schedule.cut_off(cutoff, int(str(tokens)), max_num_seqs)
    elif cutoff is not None:
        why = "a schedule of tokens per batch size is set as well"
        result.problems.append(Problem(variable, str(cutoff), why, "Set only one of the two"))
    elif "speculative_tokens_per_batch_size" in sources:
        variable = sources["speculative_tokens_per_batch_size"]
    else:
        variable = _base_source(sources)
    if SCHEDULE not in config:
        return
    if method in schedule.FIXED_COUNT:
        why = f"the {method} method drafts a fixed count, and a schedule would end the engine"
        fix = "Unset it, or choose another SPECULATIVE_METHOD, for instance ngram"
        result.problems.append(Problem(variable, _shown(cutoff), why, fix))
    elif wrong := schedule.fault(config[SCHEDULE]):
        result.problems.append(Problem(variable, None, f"its {SCHEDULE} {wrong}"))


def _shown(cutoff: int | None) -> str | None:
    return None if cutoff is None else str(cutoff)


def _settle_acceptance(
    config: dict[str, Value], settings: Mapping[str, Any], result: Speculation
) -> None:
    """The worker's typical rule beside the engine's own rules."""
    if settings.get("spec_decoding_acceptance_method") == TYPICAL:
        own = config.get("rejection_sample_method", "standard")
        if own != "standard":
            why = f"the engine's own rule is set as well, to {own}"
            fix = "Unset SPECULATIVE_REJECTION_SAMPLE_METHOD"
            result.problems.append(Problem("SPEC_DECODING_ACCEPTANCE_METHOD", TYPICAL, why, fix))
        result.typical = {
            name: settings.get(f"typical_acceptance_sampler_posterior_{name}") or default
            for name, default in DEFAULT_TYPICAL.items()
        }
    elif details := list(_typical_details(settings)):
        result.warnings.append(
            f"{' and '.join(details)}: no effect without SPEC_DECODING_ACCEPTANCE_METHOD={TYPICAL}"
        )


def _typical_details(settings: Mapping[str, Any]) -> Iterator[str]:
    for name in ("posterior_threshold", "posterior_alpha"):
        if settings.get(f"typical_acceptance_sampler_{name}") is not None:
            yield f"TYPICAL_ACCEPTANCE_SAMPLER_{name.upper()}"
