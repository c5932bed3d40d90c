"""Engine arguments that do not come as variables: a command line, and a YAML file.

`VLLM_EXTRA_ARGS` reads as the engine's own command line does (`FlexibleArgumentParser`):
dashes or underscores, `--no-x`, short forms, `--config.key value`. Values go through the
same grammar as variables.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from worker import catalog, redaction
from worker.errors import ConfigurationError, Problem
from worker.grammar import TOO_DEEP, Value, human_integer, plain

EXTRA = "VLLM_EXTRA_ARGS"
FILE = "VLLM_CONFIG_FILE"

LONGEST_NAME = 100  # of those that are compared with known ones

# Flags of `vllm serve` that make no sense in a worker.
NOT_HERE: Mapping[str, str] = {
    "headless": "it starts a process without the API that the worker calls",
    "grpc": "the worker speaks no gRPC",
    "api-server-count": "the worker is the one API process",
    "config": f"the worker reads {FILE}",
    "help": "it starts nothing; see docs/",
}


def parse_command_line(text: str) -> dict[str, Value]:
    """Argument names and values of a command line.

    Raises `ConfigurationError` with one problem for each flag that cannot be taken.
    """
    try:
        words = shlex.split(re.sub(r"\\\r?\n", " ", text))  # a command copied over several lines
    except ValueError as error:
        why = f"cannot be split into words: {error}"
        raise ConfigurationError([Problem(EXTRA, None, why, "Check its quotes")]) from None
    reader = _CommandLine(words)
    values: dict[str, Value] = {}
    for name, value in reader.read():
        repeated = name in values and catalog.load().arguments[name].repeatable
        values[name] = _concatenated(values[name], value) if repeated else value
    if reader.problems:
        raise ConfigurationError(reader.problems)
    return values


class _CommandLine:
    """One pass over the words of a command line."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.last = ""
        self.problems: list[Problem] = []
        self.flags = {
            flag: argument
            for argument in catalog.load().arguments.values()
            for flag in argument.flags
        }

    def read(self) -> Iterator[tuple[str, Value]]:
        nested: dict[str, dict[str, Value]] = {}
        while self.words:
            word = self.words.pop(0)
            if not _is_flag(word):
                self._refuse_stray(word)
                continue
            flag, path, value = _split(word)
            self.last = flag
            argument = self.flags.get(flag)
            if argument is None:
                self._refuse_unknown(flag)
                self._values()
            elif path:
                self._nested(nested.setdefault(flag, {}), ".".join([flag, *path]), path, value)
            else:
                yield from self._plain(argument, flag, value)
        for flag, inner in nested.items():
            yield from self._parsed(self.flags[flag], flag, json.dumps(inner))

    def _nested(
        self, target: dict[str, Value], shown: str, path: list[str], value: str | None
    ) -> None:
        if value is None and self.words:
            value = self.words.pop(0)
        if value is None:
            self._refuse(shown, "needs a value")
        else:
            _insert(target, path, value)

    def _plain(
        self, argument: catalog.Argument, flag: str, value: str | None
    ) -> Iterator[tuple[str, Value]]:
        if value is None and argument.kind == "flag":
            value = "true"
        values = [value] if value is not None else self._values(None if argument.many else 1)
        if values and argument.many:
            yield from self._parsed_items(argument, flag, values)
        elif values:
            yield from self._parsed(argument, flag, values[0])
        elif argument.kind == "flag_or_text":
            yield argument.name, True
        else:
            self._refuse(flag, "needs a value")

    def _parsed(
        self, argument: catalog.Argument, flag: str, text: str
    ) -> Iterator[tuple[str, Value]]:
        try:
            value = None if argument.is_unset(text) else argument.parse(text)
        except ValueError as error:
            self._refuse(f"{flag} {redaction.shown(argument.name, text)}", str(error))
        else:
            inverted = flag.startswith("--no-") and isinstance(value, bool)
            yield argument.name, not value if inverted else value

    def _parsed_items(
        self, argument: catalog.Argument, flag: str, texts: list[str]
    ) -> Iterator[tuple[str, Value]]:
        try:
            yield argument.name, argument.parse_items(texts)
        except ValueError as error:
            self._refuse(f"{flag} {redaction.shown(argument.name, ' '.join(texts))}", str(error))

    def _values(self, most: int | None = None) -> list[str]:
        """The words before the next flag, taken off."""
        values = [*takewhile(lambda word: not _is_flag(word), self.words)][:most]
        del self.words[: len(values)]
        return values

    def _refuse_stray(self, word: str) -> None:
        """A word without a flag; it may be a secret's second half."""
        secret = redaction.is_secret(self.last.lstrip("-").replace("-", "_"))
        shown = redaction.MASK if secret else redaction.shown("", word)
        self._refuse(shown, "stands alone, without a flag before it")

    def _refuse_unknown(self, flag: str) -> None:
        name = flag.lstrip("-")
        if name in NOT_HERE:
            self._refuse(flag, f"is not for a worker: {NOT_HERE[name]}")
            return
        near = get_close_matches(flag[:LONGEST_NAME], self.flags, n=1)
        hint = f"; the nearest is {near[0]}" if near else ""
        self._refuse(redaction.shown("", flag), f"is not a flag of the engine{hint}")

    def _refuse(self, what: str, why: str) -> None:
        self.problems.append(Problem(EXTRA, what, why.removesuffix(".")))


def _is_flag(word: str) -> bool:
    """Whether the engine's parser would take a word for a flag."""
    head = word.partition("=")[0]
    return bool(re.match(r"-\S", word)) and not re.search(r"\s|^-\d*\.?\d+$", head)


def _split(word: str) -> tuple[str, list[str], str | None]:
    """A flag in its dashed form, the path into its value, and the value after `=`."""
    if word.startswith("-O") and word != "-O":
        return "--optimization-level", [], word[2:].lstrip("=")
    flag, equals, value = word.partition("=")
    flag, *path = flag.split(".")
    if flag.startswith("--"):
        flag = flag.replace("_", "-")
    return ("--optimization-level" if flag == "-O" else flag), path, value if equals else None


def _insert(target: dict[str, Value], path: list[str], text: str) -> None:
    """Put a value at a dotted path; a path that ends in `+` takes a comma-separated list."""
    *parents, last = path
    value = _loose(text)
    if last.endswith("+"):
        last, value = last[:-1], [*text.split(",")]
    for parent in parents:
        inner = target.get(parent)
        if not isinstance(inner, dict):
            inner = target[parent] = {}
        target = inner
    target[last] = _concatenated(target.get(last), value)


def _concatenated(first: Value, second: Value) -> Value:
    """The second value, after the first where both are lists."""
    both = isinstance(first, list) and isinstance(second, list)
    return [*first, *second] if both else second  # type: ignore[misc]  # lists, see above


def _loose(text: str) -> Value:
    readers: tuple[Callable[[str], Value], ...] = (_json, human_integer)
    for reader in readers:
        try:
            return reader(text)
        except (ValueError, RecursionError):
            continue
    return text


def _json(text: str) -> Value:
    return plain(json.loads(text))


def read_file(path: str) -> dict[str, Value]:
    """Argument names and values of the engine's YAML file.

    Raises `ConfigurationError` with every problem in it.
    """
    content = _load_yaml(path)
    known = catalog.load().arguments
    problems: list[Problem] = []
    values: dict[str, Value] = {}
    shown_path = redaction.shown(FILE, path)
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in known:
            near = get_close_matches(name[:LONGEST_NAME], known, n=1)
            hint = f"; the nearest is {near[0]}" if near else ""
            why = f"its key {redaction.shown('', key)} is not an engine argument{hint}"
            problems.append(Problem(FILE, shown_path, why))
            continue
        try:
            parsed = _from_yaml(known[name], value)
        except ValueError as error:
            shown = redaction.shown(name, value)
            problems.append(Problem(FILE, shown_path, f"its key {key} with value {shown} {error}"))
        else:
            values |= {} if parsed is None else {name: parsed}
    if problems:
        raise ConfigurationError(problems)
    return values


def _load_yaml(path: str) -> Mapping[object, Any]:
    def refuse(why: str, fix: str = "") -> ConfigurationError:
        return ConfigurationError([Problem(FILE, redaction.shown(FILE, path), why, fix)])

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror}", "Check the path") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise refuse(f"is not valid YAML: {_yaml_fault(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise refuse("does not hold names with values", "Write lines like max-num-seqs: 8")
    return content


def _yaml_fault(error: Exception) -> str:
    """What is wrong and where, without the text around it, which may hold a secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem} at line {mark.line + 1}, column {mark.column + 1}"
    if isinstance(error, UnicodeDecodeError):
        return "its text is not UTF-8"
    return TOO_DEEP if isinstance(error, RecursionError) else str(error).splitlines()[0]


def _from_yaml(argument: catalog.Argument, value: Any) -> Value:
    """A YAML value as the argument's own; None where it stands for "not given"."""
    try:
        value = plain(value.isoformat() if isinstance(value, date) else value)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if isinstance(value, bool) and argument.kind in ("flag", "flag_or_text"):
        return value
    if value is None or (isinstance(value, str) and argument.is_unset(value)):
        return None
    if isinstance(value, dict | list):
        if argument.kind in ("text", "flag_or_text"):
            raise ValueError("is not a text")
        return argument.parse(json.dumps(value))
    return argument.parse_items([str(value)]) if argument.many else argument.parse(str(value))
