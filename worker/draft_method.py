"""Which method a draft is for: read from its own `config.json`, never from its name.

The engine guesses from the draft's name as well, after the config and even where a
method is given (`SpeculativeConfig.__post_init__`, 0.32.0); `engines_choice` says where
it would end, so that a difference can be refused instead of met at run time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from worker import redaction
from worker.errors import Problem

# The engine keeps these as they are given; every other method it decides again.
KEPT_BY_ENGINE = frozenset({"eagle", "eagle3", "dflash", "dspark"})
# What the engine looks for in a draft's name, in its order.
WORDS_IN_NAMES = (
    ("eagle-", "eagle"),
    ("eagle3", "eagle3"),
    ("dflash", "dflash"),
    ("dspark", "dspark"),
)
# Beginnings and parts of architecture names, for heads that name their kind there.
ARCHITECTURES = (
    ("eagle3", "eagle3"),
    ("eagle", "eagle"),
    ("dspark", "dspark"),
    ("dflash", "dflash"),
    ("museglimmerassistant", "dflash"),
    ("medusa", "medusa"),
    ("mlpspeculator", "mlp_speculator"),
)
MODEL_TYPES = frozenset({"medusa", "mlp_speculator", "eagle", "eagle3", "dflash"})
# Keys that only heads of one kind have, for checkpoints that predate model_type.
TELLING_KEYS = (
    ("medusa_num_heads", "medusa"),
    ("eagle_config", "eagle3"),
    ("draft_vocab_size", "eagle3"),
)


def of_config(config: Mapping[str, Any]) -> str:
    """The method that a draft's `config.json` says it is for; `draft_model` for a plain model."""
    kind = str(config.get("speculators_model_type") or config.get("model_type") or "")
    if kind in MODEL_TYPES:
        return kind
    if kind == "mtp" or kind.endswith("_mtp"):
        return "mtp"
    for name in _architectures(config):
        for part, method in ARCHITECTURES:
            if part in name.casefold():
                return method
    for key, method in TELLING_KEYS:
        if key in config:
            return method
    return "draft_model"


def engines_choice(name: str, config: Mapping[str, Any], method: str | None) -> str:
    """The method that the engine ends with for a draft of this name, config and method."""
    if method in KEPT_BY_ENGINE:
        return str(method)
    for word, guessed in WORDS_IN_NAMES:
        if word in name.casefold():
            return guessed
    of_itself = of_config(config)
    if of_itself in ("medusa", "mlp_speculator", "mtp", "dspark"):
        return of_itself
    return "medusa" if method == "medusa" else (method or "draft_model")


def choose(name: str, config: Mapping[str, Any], asked: str | None) -> tuple[str, Problem | None]:
    """The method for a draft: the one asked for, else its config's; and what is against it."""
    own = of_config(config)
    method = asked or own
    shown = redaction.shown("SPECULATIVE_MODEL", name)
    if own not in ("draft_model", method):
        why = f"its config.json says that it is for the {own} method, and {method} is asked for"
        return method, Problem("SPECULATIVE_MODEL", shown, why, f"Set SPECULATIVE_METHOD={own}")
    ends = engines_choice(name, config, method)
    if ends != method:
        said = "SPECULATIVE_METHOD asks for" if asked else "its config.json says"
        why = f"the engine takes it for {ends} because of its name, and {said} {method}"
        fix = (
            f"Set SPECULATIVE_METHOD={ends} if it is one, or serve it from a folder of another name"
        )
        return method, Problem("SPECULATIVE_MODEL", shown, why, fix)
    return method, None


def tokens_of(config: Mapping[str, Any]) -> int | None:
    """How many tokens a head's `config.json` says it predicts, or None."""
    for key in ("n_predict", "num_nextn_predict_layers", "num_lookahead_tokens"):
        if isinstance(config.get(key), int) and config[key] > 0:
            return int(config[key])
    return None


def _architectures(config: Mapping[str, Any]) -> Sequence[str]:
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []
