"""What can be known of a configuration without loading a weight: the models' own files.

Only files on this machine are read; what they could not tell is reported as not checked.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.engine_args import EnginePlan
from worker.errors import ConfigurationError, Problem

# The names under which model families keep the length of their context.
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


@dataclass
class Findings:
    """What the models' files say: problems, and what they could not be asked."""

    problems: list[Problem] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


def inspect(plan: EnginePlan, environ: Mapping[str, str]) -> Findings:
    """Check lengths and vocabularies against the `config.json` of target and draft."""
    findings = Findings()
    if plan.is_embedded:
        return findings
    target = _read(str(plan.arguments["model"]), "MODEL_NAME", environ, findings)
    draft_name = (plan.speculative_config or {}).get("model")
    draft = _read(str(draft_name), "SPECULATIVE_MODEL", environ, findings) if draft_name else None
    if target is not None:
        findings.problems += _too_long(plan, target, environ)
    if target is not None and draft is not None:
        findings.problems += _vocabularies(plan, target, draft)
    return findings


def refuse_what_cannot_work(plan: EnginePlan, environ: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` for what `inspect` finds."""
    findings = inspect(plan, environ)
    if findings.problems:
        raise ConfigurationError(findings.problems)


def _read(
    name: str, variable: str, environ: Mapping[str, str], findings: Findings
) -> dict[str, Any] | None:
    """A model's `config.json`, from its folder or from the Hugging Face cache."""
    folder = Path(name)
    if folder.is_absolute() or name.startswith(("./", "../", "~")):
        folder = folder.expanduser()
        if not folder.is_dir():
            why = "is a path, and there is no such folder"
            fix = "Set it to a Hugging Face repository or to an existing folder"
            findings.problems.append(Problem(variable, name, why, fix))
            return None
        file: Path | None = folder / "config.json"
    else:
        file = _cached_config(name, environ)
    if file is None or not file.is_file():
        where = "its config.json is not on this machine"
        findings.unchecked.append(f"{variable}={name}: context length and vocabulary ({where})")
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        findings.problems.append(Problem(variable, name, f"its config.json is broken: {error}"))
        return None
    return content if isinstance(content, dict) else None


def _cached_config(repository: str, environ: Mapping[str, str]) -> Path | None:
    """The newest cached `config.json` of a repository, without asking the Hub."""
    home = Path(environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    hub = Path(environ.get("HF_HUB_CACHE", home / "hub"))
    folder = hub / f"models--{repository.replace('/', '--')}"
    reference = folder / "refs" / "main"
    if reference.is_file():
        return folder / "snapshots" / reference.read_text().strip() / "config.json"
    return None


def _too_long(
    plan: EnginePlan, target: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[Problem]:
    asked, most = plan.arguments.get("max_model_len"), context_length(target)
    allowed = environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("0", "")
    if isinstance(asked, int) and most is not None and asked > most and not allowed:
        yield Problem(
            "MAX_MODEL_LEN",
            str(asked),
            f"is above the model's own context of {most} tokens",
            f"Set it to {most} or less, or unset it",
        )


def _vocabularies(
    plan: EnginePlan, target: Mapping[str, Any], draft: Mapping[str, Any]
) -> Iterator[Problem]:
    config = plan.speculative_config or {}
    mine, its = _text(target).get("vocab_size"), _text(draft).get("vocab_size")
    if config.get("method") != "draft_model" or config.get("use_heterogeneous_vocab"):
        return
    if mine and its and mine != its:
        yield Problem(
            "SPECULATIVE_MODEL",
            str(config.get("model")),
            f"its vocabulary has {its} tokens and the target's {mine}",
            "Choose a draft of the target's own family",
        )


def context_length(config: Mapping[str, Any]) -> int | None:
    """The context that a `config.json` states, in tokens, a rope factor included; else None."""
    text = _text(config)
    length = next((text[key] for key in LENGTH_KEYS if isinstance(text.get(key), int)), None)
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    factor = rope.get("factor") if isinstance(rope, Mapping) else None
    if length is None or (factor and rope.get("rope_type", rope.get("type")) != "yarn"):
        return None if length is None or factor else int(length)
    return int(length * factor) if factor else int(length)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


