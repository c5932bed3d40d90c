"""One grammar for every variable: how its text becomes a value.

A function takes the trimmed text of one variable and returns a JSON-like value, or
raises `ValueError` with a clause that says what is wrong with the text. Nothing here
knows a variable's name, and nothing here imports the engine.
"""

import ast
import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import TypeAlias

from worker import redaction

Value: TypeAlias = str | int | float | bool | list["Value"] | dict[str, "Value"] | None

TOO_DEEP = "is nested too deeply"
UNSET_WORDS = frozenset({"", "none", "null"})
TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y", "on", "enable", "enabled"})
FALSE_WORDS = frozenset({"0", "false", "f", "no", "n", "off", "disable", "disabled"})

# What people write for a value that the engine knows under another name.
SYNONYMS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "fp32": "float32",
    "f32": "float32",
    "n-gram": "ngram",
    "[ngram]": "ngram",
    "draft": "draft_model",
    "eagle-3": "eagle3",
}

LONGEST_INTEGER = 100  # digits in JSON; Python itself converts 4300 at most
ADAPTER_KEYS = ("name", "path", "base_model_name", "is_3d_lora_weight")

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def is_unset(text: str) -> bool:
    """Whether the text stands for "not given": blank, None or null in any case."""
    return text.strip().casefold() in UNSET_WORDS


def is_zero(given: str) -> bool:
    """Whether the text is the number zero."""
    try:
        return float(given) == 0
    except ValueError:
        return False


def text(given: str) -> str:
    """The text itself."""
    return given


def flag(given: str) -> bool:
    """A boolean in any of its common spellings, any case."""
    word = given.casefold()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError("is neither true nor false; write true or false")


def integer(given: str) -> int:
    """A whole number; `4.0` and `1_000` count as one."""
    try:
        return int(given)
    except ValueError:
        pass
    try:
        number = float(given)
    except ValueError:
        raise ValueError("is not a whole number") from None
    if not number.is_integer():
        raise ValueError("is not a whole number")
    return int(number)


def human_integer(given: str) -> int:
    """A whole number, also with a suffix: 1k = 1000, 1K = 1024, 25.6k = 25600."""
    match = re.fullmatch(r"(\d{1,30}(?:\.\d{1,30})?)([kKmMgGtT])", given.strip())
    if not match:
        return integer(given)
    number, suffix = match.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    if "." in number:
        raise ValueError(f"has decimals before {suffix} (1024s); write {number}{suffix.lower()}")
    return int(number) * _BINARY[suffix]


def human_integer_or_auto(given: str) -> int:
    """As `human_integer`; `auto` is -1, the engine's word for "fit to memory"."""
    return -1 if given.casefold() == "auto" else human_integer(given)


def number(given: str) -> float:
    """A finite number."""
    try:
        value = float(given)
    except ValueError:
        raise ValueError("is not a number") from None
    if not math.isfinite(value):
        raise ValueError("is not a finite number")
    return value


def choice(choices: Iterable[str | int]) -> Callable[[str], str | int]:
    """One of a closed set, case-blind, with the common synonyms."""
    options = list(choices)
    by_word = {str(option).casefold(): option for option in options}

    def parse(given: str) -> str | int:
        word = given.casefold()
        found = by_word.get(word, by_word.get(SYNONYMS.get(word, word)))
        if found is None:
            raise ValueError(_not_among(word, [str(option) for option in options]))
        return found

    return parse


def _not_among(word: str, options: Sequence[str]) -> str:
    words = [option.casefold() for option in options if not option.isdecimal()]
    near = get_close_matches(word, words, n=1, cutoff=0.6)  # digits alike are not numbers alike
    hint = f"did you mean {near[0]}? " if near else ""
    shown = ", ".join(options[:12]) + (", …" if len(options) > 12 else "")
    return f"is not one of the accepted values; {hint}accepted: {shown}"


def json_value(given: str) -> Value:
    """JSON, with one pair of outer quotes stripped; a Python literal is taken too."""
    inner = _strip_quotes(given)
    try:
        return plain(json.loads(inner, parse_constant=_refuse_constant, parse_int=_json_integer))
    except json.JSONDecodeError as error:
        try:
            return plain(_python_literal(inner))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError(_json_fault(inner, error)) from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def json_object(given: str) -> dict[str, Value]:
    """A JSON object."""
    value = json_value(given)
    if not isinstance(value, dict):
        raise ValueError('is not a JSON object; write {"name": value}')
    return value


def json_list(given: str) -> list[Value]:
    """A JSON list."""
    value = json_value(given)
    if not isinstance(value, list):
        raise ValueError('is not a JSON list; write ["value"]')
    return value


def json_or_text(given: str) -> Value:
    """A JSON object where the text opens like one, otherwise the text itself."""
    return json_object(given) if _strip_quotes(given).startswith("{") else given


def list_of(item: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """A JSON list, or items separated by commas or blanks."""

    def parse(given: str) -> list[Value]:
        inner = _strip_quotes(given)
        parts = json_list(inner) if inner.startswith("[") else re.split(r"[,\s]+", inner)
        items = [item(_item_text(part)) for part in parts if part != ""]
        if not items:
            raise ValueError("is a list of nothing; name an item, or unset it")
        return items

    return parse


def _item_text(part: Value) -> str:
    if isinstance(part, dict | list | bool) or part is None:
        raise ValueError(f"holds {json.dumps(part)}, which is not a list's item")
    return str(part)


def lora_modules(given: str) -> list[Value]:
    """Adapters: `name=path` items, a JSON list of objects, or one JSON object.

    An object is either one adapter (`{"name": …, "path": …}`) or a map from name to path.
    """
    inner = _strip_quotes(given)
    parts: list[Value] = [part for part in re.split(r"[,\s]+", inner) if part]
    if inner.startswith(("[", "{")):
        value = json_value(inner)
        parts = value if isinstance(value, list) else [value]
        if isinstance(value, dict) and "path" not in value:
            parts = [{"name": name, "path": path} for name, path in value.items()]
    if not parts:
        raise ValueError("is a list of nothing; name an adapter, or unset it")
    return [_adapter(part) for part in parts]


def _adapter(item: Value) -> Value:
    """An adapter as the engine's `LoRAModulePath` takes it."""
    if isinstance(item, str):
        name, _, path = item.partition("=")
        item = {"name": name, "path": path}
    if not isinstance(item, dict) or item.keys() - ADAPTER_KEYS:
        raise ValueError(f"holds an adapter with other parts than {', '.join(ADAPTER_KEYS)}")
    if not all(item.get(part) and isinstance(item[part], str) for part in ("name", "path")):
        raise ValueError("holds an adapter without a name or a path; write name=path")
    return item


def _strip_quotes(given: str) -> str:
    """JSON out of the quotes that a form or an env file left around it, escapes undone."""
    inner = given.strip()
    if not (re.match(r"""['"]\s*[{\[]""", inner) and inner.endswith(inner[0])):
        return inner
    try:
        return str(json.loads(inner))
    except ValueError:
        within = inner[1:-1]
    escaped = re.match(r"""[\s{\[]+\\["]""", within)
    return within.replace('\\"', '"') if escaped else within


def _python_literal(inner: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a stray backslash in somebody's text
        return ast.literal_eval(inner)


def _json_fault(inner: str, error: json.JSONDecodeError) -> str:
    where = f"at character {error.pos + 1}, line {error.lineno}"
    if not redaction.holds_secret(inner):
        where += f", near {inner[max(0, error.pos - 10) : error.pos + 10]!r}"
    return f"is not valid JSON: {error.msg} {where}"


def _json_integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(f"holds a number of {len(digits)} digits")
    return int(digits)


def _refuse_constant(word: str) -> Value:
    raise ValueError(f"holds {word}, which JSON has no word for")


def plain(value: object) -> Value:
    """The value with every part a JSON type; tuples and sets become lists."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("holds a number that is not finite, which JSON has no word for")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"holds a {type(value).__name__}, which JSON has no word for")
