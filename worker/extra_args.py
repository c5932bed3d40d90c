"""Engine arguments that do not come as variables: a command line, and a YAML file.

`VLLM_EXTRA_ARGS` reads as the engine's own command line does (`FlexibleArgumentParser`):
dashes or underscores, `--no-x`, short forms, `--config.key value`. Values go through the
same grammar as variables.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from worker import catalog, redaction
from worker.errors import ConfigurationError, Problem
from worker.grammar import Value, human_integer

EXTRA = "VLLM_EXTRA_ARGS"
FILE = "VLLM_CONFIG_FILE"

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
        words = shlex.split(text)
    except ValueError as error:
        why = f"cannot be split into words: {error}"
        raise ConfigurationError([Problem(EXTRA, None, why, "Check its quotes")]) from None
    reader = _CommandLine(words)
    values = dict(reader.read())
    if reader.problems:
        raise ConfigurationError(reader.problems)
    return values


class _CommandLine:
    """One pass over the words of a command line."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
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
                self._refuse(word, "stands alone, without a flag before it")
                continue
            flag, path, value = _split(word)
            argument = self.flags.get(flag)
            if argument is None:
                self._refuse_unknown(flag)
                self._skip_values()
            elif path:
                _insert(nested.setdefault(argument.name, {}), path, value or self._next())
            else:
                yield from self._plain(argument, flag, value)
        yield from nested.items()

    def _plain(
        self, argument: catalog.Argument, flag: str, value: str | None
    ) -> Iterator[tuple[str, Value]]:
        if argument.kind == "flag" and value is None:
            yield argument.name, not flag.startswith("--no-")
            return
        if value is None:
            value = self._value_of(argument)
        if argument.repeatable:
            value = json.dumps([value])
        try:
            yield argument.name, argument.parse(value)
        except ValueError as error:
            self._refuse(f"{flag} {redaction.shown(argument.name, value)}", str(error))

    def _value_of(self, argument: catalog.Argument) -> str:
        if argument.kind == "lora_modules":
            return " ".join(self._values())
        if argument.kind == "list" and not (argument.repeatable or argument.joined):
            return json.dumps(self._values())
        return self._next()

    def _next(self) -> str:
        return self.words.pop(0) if self.words else ""

    def _values(self) -> list[str]:
        values = []
        while self.words and not _is_flag(self.words[0]):
            values.append(self.words.pop(0))
        return values

    def _skip_values(self) -> None:
        self._values()

    def _refuse_unknown(self, flag: str) -> None:
        name = flag.lstrip("-")
        if name in NOT_HERE:
            self._refuse(flag, f"is not for a worker: {NOT_HERE[name]}")
            return
        near = get_close_matches(flag, self.flags, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        self._refuse(flag, f"is not a flag of the engine{hint}")

    def _refuse(self, what: str, why: str) -> None:
        self.problems.append(Problem(EXTRA, what, why.removesuffix(".")))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-[\d.]+", word)


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
        last, value = last[:-1], [part for part in text.split(",")]
    for parent in parents:
        inner = target.setdefault(parent, {})
        target = inner if isinstance(inner, dict) else {}
    target[last] = value


def _loose(text: str) -> Value:
    readers: tuple[Callable[[str], Any], ...] = (json.loads, human_integer)
    for reader in readers:
        try:
            value: Value = reader(text)
        except ValueError:
            continue
        return value
    return text


def read_file(path: str) -> dict[str, Value]:
    """Argument names and values of the engine's YAML file.

    Raises `ConfigurationError` with every problem in it.
    """
    content = _load_yaml(path)
    known, problems, values = catalog.load().arguments, [], {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problems.append(Problem(FILE, path, f"its key {key!r} is not an engine argument{hint}"))
            continue
        if value is None:
            continue
        try:
            values[name] = _from_yaml(known[name], value)
        except ValueError as error:
            shown = redaction.shown(name, value)
            problems.append(Problem(FILE, path, f"its key {key} with value {shown} {error}"))
    if problems:
        raise ConfigurationError(problems)
    return values


def _load_yaml(path: str) -> Mapping[object, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise ConfigurationError([Problem(FILE, path, why, "Check the path")]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = f"is not valid YAML: {' '.join(str(error).split())}"
        raise ConfigurationError([Problem(FILE, path, why)]) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        why = "does not hold names with values"
        raise ConfigurationError([Problem(FILE, path, why, "Write lines like max-num-seqs: 8")])
    return content


def _from_yaml(argument: catalog.Argument, value: Any) -> Value:
    if argument.kind == "flag" and isinstance(value, bool):
        return value
    return argument.parse(json.dumps(value) if isinstance(value, dict | list) else str(value))
