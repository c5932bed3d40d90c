"""What can be known of a configuration without loading a weight: the models' own files.

Only files on this machine are read; what they could not tell is reported as not checked.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import env_schema
from env_schema import Settings
from worker import (
    draft_method,
    embedded_model,
    engine_args,
    grammar,
    model_names,
    process_setup,
    redaction,
)
from worker.engine_args import EnginePlan
from worker.errors import ConfigurationError, Problem

# The names under which model families keep the length of their context; the least counts.
LENGTH_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
# Rotary types whose factor is in that length already, or does not lengthen it.
UNSCALED = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
)


@dataclass
class Findings:
    """What the models' files say: problems, and what they could not be asked."""

    problems: list[Problem] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    draft_method: str | None = None
    draft_tokens: int | None = None


# What the embedded model's config says, for a machine where it is not prepared yet.
EMBEDDED = {"max_position_embeddings": 8192, "vocab_size": 49152}


def inspect(plan: EnginePlan, environ: Mapping[str, str]) -> Findings:
    """Check names, lengths and vocabularies, by the `config.json` of target and draft."""
    findings = Findings()
    if "model" not in plan.arguments:
        return findings
    target = _target(plan, environ, findings)
    config = plan.speculative_config or {}
    draft = None
    if "model" in config:
        draft = _read(_Model.named("SPECULATIVE_MODEL", config), plan, environ, findings)
    tokenizer = plan.arguments.get("tokenizer")
    if isinstance(tokenizer, str):
        fault = model_names.fault("TOKENIZER_NAME", tokenizer, plan.arguments)
        findings.problems += [fault] if fault else []
    if target is not None:
        findings.problems += _too_long(plan, target, environ)
    if draft is not None:
        _settle_draft(config, target, draft, findings)
    return findings


def _target(
    plan: EnginePlan, environ: Mapping[str, str], findings: Findings
) -> dict[str, Any] | None:
    if not plan.is_embedded:
        return _read(_Model.named("MODEL_NAME", plan.arguments), plan, environ, findings)
    folder = embedded_model.path()
    if not (folder / "config.json").is_file():
        return EMBEDDED
    prepared = _Model("MODEL_NAME", str(folder), "main")
    return _read(prepared, plan, environ, findings)


def _settle_draft(
    config: Mapping[str, Any],
    target: Mapping[str, Any] | None,
    draft: Mapping[str, Any],
    findings: Findings,
) -> None:
    method, problem = draft_method.choose(str(config["model"]), draft, config.get("method"))
    findings.problems += [problem] if problem else []
    findings.draft_method, findings.draft_tokens = method, draft_method.tokens_of(draft)
    findings.problems += _draft_too_short(config, draft)
    if target is not None and method == "draft_model":
        findings.problems += _vocabularies(config, target, draft)


def _with_draft(plan: EnginePlan, findings: Findings) -> EnginePlan:
    """The plan with what the draft's own config says: its method, and the tokens it predicts."""
    config = plan.speculative_config
    if config is None or findings.draft_method is None:
        return plan
    settled = {**config, "method": findings.draft_method}
    if plan.count_is_default and findings.draft_tokens is not None:
        settled["num_speculative_tokens"] = findings.draft_tokens
    return replace(plan, arguments={**plan.arguments, "speculative_config": settled})


def examine(environ: Mapping[str, str]) -> tuple[Settings, EnginePlan, Findings]:
    """All that can be told of an environment before anything heavy is imported.

    Raises `ConfigurationError` with the problems of its texts, of the arguments that they
    make, and of the models' files, all together.
    """
    settings, problems = env_schema.attempt(environ)
    plan, of_plan = engine_args.attempt(settings)
    libraries = process_setup.library_environment(settings, environ)
    findings = inspect(plan, {**environ, **libraries})
    problems = [*problems, *of_plan, *findings.problems]
    if problems:
        raise ConfigurationError(_without_secrets(problem, settings) for problem in problems)
    return settings, _with_draft(plan, findings), findings


def _without_secrets(problem: Problem, settings: Settings) -> Problem:
    value, why = redaction.clean_value([problem.value, problem.why], settings.secrets)
    return replace(problem, value=value, why=why)


@dataclass(frozen=True)
class _Model:
    """A model as somebody named it, and the revision that goes with it."""

    variable: str
    name: str
    revision: str

    @classmethod
    def named(cls, variable: str, config: Mapping[str, Any]) -> "_Model":
        return cls(variable, str(config["model"]), str(config.get("revision") or "main"))

    @property
    def shown(self) -> str:
        return redaction.shown(self.variable, self.name)

    def problem(self, why: str, fix: str = "") -> Problem:
        return Problem(self.variable, self.shown, why, fix)


def _read(
    model: _Model, plan: EnginePlan, environ: Mapping[str, str], findings: Findings
) -> dict[str, Any] | None:
    """A model's `config.json`, from its folder or from the Hugging Face cache."""
    if fault := model_names.fault(model.variable, model.name, plan.arguments):
        findings.problems.append(fault)
        return None
    try:
        file = _config_file(model, environ)
        if file.is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
            return content if isinstance(content, dict) else None
        fault = None
        if Path(model.name).is_dir():
            fault = model_names.folder_fault(model.variable, model.name, plan.arguments)
    except (OSError, ValueError, RecursionError) as error:
        why = f"its config.json cannot be read: {type(error).__name__}"
        findings.problems.append(model.problem(why))
        return None
    if fault:
        findings.problems.append(fault)
        return None
    what = f"{model.variable}={model.shown}: context length and vocabulary"
    findings.unchecked.append(f"{what} (its config.json is not on this machine)")
    return None


def _config_file(model: _Model, environ: Mapping[str, str]) -> Path:
    """Where the `config.json` of a model would be; the Hub is not asked."""
    folder = Path(model.name)
    if folder.is_dir():
        return folder / "config.json"
    cached = _hub(environ) / f"models--{model.name.replace('/', '--')}"
    reference = cached / "refs" / model.revision
    commit = reference.read_text().strip() if reference.is_file() else model.revision
    return cached / "snapshots" / commit / "config.json"


def _hub(environ: Mapping[str, str]) -> Path:
    """The folder of the Hugging Face cache."""
    set_to = {name: text for name, text in environ.items() if not grammar.is_unset(text)}
    cache = set_to.get("XDG_CACHE_HOME", str(Path(set_to.get("HOME", "/root"), ".cache")))
    home = set_to.get("HF_HOME", str(Path(cache, "huggingface")))
    return Path(set_to.get("HF_HUB_CACHE", str(Path(home, "hub"))))


def _too_long(
    plan: EnginePlan, target: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[Problem]:
    overrides = plan.arguments.get("hf_overrides")
    config = {**target, **overrides} if isinstance(overrides, dict) else target
    asked, most = plan.arguments.get("max_model_len"), context_length(config)
    allowed = environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").strip().lower() in ("1", "true")
    if isinstance(asked, int) and most is not None and asked > most and not allowed:
        yield Problem(
            "MAX_MODEL_LEN",
            str(asked),
            f"is above the model's own context of {most} tokens",
            f"Set it to {most} or less, or unset it",
        )


def _vocabularies(
    config: Mapping[str, Any], target: Mapping[str, Any], draft: Mapping[str, Any]
) -> Iterator[Problem]:
    mine, its = _text(target).get("vocab_size"), _text(draft).get("vocab_size")
    if mine and its and mine != its and not config.get("use_heterogeneous_vocab"):
        yield Problem(
            "SPECULATIVE_MODEL",
            redaction.shown("SPECULATIVE_MODEL", config.get("model")),
            f"its vocabulary has {its} tokens and the target's {mine}",
            "Choose a draft of the target's own family, or set "
            "SPECULATIVE_USE_HETEROGENEOUS_VOCAB=true",
        )


def _draft_too_short(config: Mapping[str, Any], draft: Mapping[str, Any]) -> Iterator[Problem]:
    asked, most = config.get("max_model_len"), context_length(draft)
    if isinstance(asked, int) and most is not None and asked > most:
        why = f"is above the draft's own context of {most} tokens"
        fix = f"Set it to {most} or less, or unset it"
        yield Problem("SPECULATIVE_MAX_MODEL_LEN", str(asked), why, fix)


def context_length(config: Mapping[str, Any]) -> int | None:
    """The context that a `config.json` states, in tokens, a rope factor included; else None.

    Source: `vllm.config.model._get_and_verify_max_len`.
    """
    text = _text(config)
    lengths = [text[key] for key in LENGTH_KEYS if type(text.get(key)) is int]
    if isinstance(text.get("model_max_length"), int):
        lengths = [text["model_max_length"]]
    if not lengths:
        return None
    scaled = "gemma3" not in str(config.get("model_type"))
    return int(min(lengths) * (_rope_factor(text) if scaled else 1))


def _rope_factor(text: Mapping[str, Any]) -> float:
    """What the rotary parameters, of all layers or of each type of layer, lengthen it by."""
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    rope = rope if isinstance(rope, Mapping) else {}
    nested = [part for part in rope.values() if isinstance(part, Mapping)]
    factors = [
        part.get("factor")
        for part in nested or [rope]
        if part.get("rope_type", part.get("type")) not in UNSCALED
    ]
    return float(max((factor for factor in factors if isinstance(factor, int | float)), default=1))


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config
