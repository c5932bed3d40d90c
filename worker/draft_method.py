"""Which method a draft is for: read from its own `config.json`, never from its name.

The engine guesses from the draft's name as well, after the config and even where a
method is given (`SpeculativeConfig.__post_init__`, 0.32.0); `engines_choice` says where
it would end, so that a difference can be refused instead of met at run time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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


def _architectures(config: Mapping[str, Any]) -> Sequence[str]:
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []
