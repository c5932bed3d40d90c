"""Keeps secrets out of everything that is printed.

A value is secret by its variable's name; a text is cleaned of every secret value that
was registered and of anything that looks like a Hugging Face token.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
LONGEST_SHOWN = 80

_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASS(WORD|WD|PHRASE)?|PWD|CREDENTIALS?|API_?KEYS?|PRIVATE_KEY|AUTH"
    r"|AUTHORIZATION|CONNECTION_STRING)$|SECRET_|ACCESS_?KEY",
    re.I,
)
# A flag of the engine, and the shell's own name for its folder.
_NO_SECRET = frozenset({"allow_credentials", "PWD"})
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_LOOK = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|(?<=Bearer )\S{8,}"
)
# A secret inside a text: `"api_key": "…"`, `password=…`.
_NAMED_SECRET = re.compile(
    r"""((?:token|secret|passw(?:or)?d|passphrase|credentials?|(?:api|private|access)[_-]?keys?"""
    r"""|connection[_-]?string|(?<![a-z])(?:pwd|pass|auth))["']?\s*[:=]\s*)"""
    r"""(?:"[^"]*|'[^']*|[^"'\s,\]}]+)""",
    re.I,
)
# The scheme and what follows it: `Authorization: Basic …`.
_HEADER = re.compile(r"""(authorization["']?\s*[:=]\s*["']?)(?:[\w-]+[ \t]+)?[^"'\s,\]}]+""", re.I)

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # some end a line


def is_secret(name: str) -> bool:
    """Whether a variable or argument of this name holds a secret."""
    words = _WORD_START.sub("_", name).replace("-", "_")
    known = name in _NO_SECRET or name.casefold() in _NO_SECRET
    return bool(_SECRET_NAME.search(words)) and not known


def holds_secret(text: str) -> bool:
    """Whether a text seems to have a secret somewhere in it."""
    return any(look.search(text) for look in (_SECRET_LOOK, _NAMED_SECRET, _HEADER))


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The secret values in an environment, longest first."""
    values = {v.strip() for k, v in environ.items() if is_secret(k) and len(v.strip()) >= 6}
    return tuple(sorted(values, key=len, reverse=True))


def clean(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the given secrets and without what looks like one."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _SECRET_LOOK.sub(MASK, _HEADER.sub(rf"\g<1>{MASK}", text))


def clean_value(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A JSON-like value with every text in it cleaned, and what has a secret's name masked."""
    if isinstance(value, str):
        return clean(value, secrets)
    if isinstance(value, list | tuple):
        return [clean_value(part, secrets) for part in value]
    if isinstance(value, Mapping):
        return {
            key: MASK if is_secret(str(key)) else clean_value(part, secrets)
            for key, part in value.items()
        }
    return value


def shown(name: str, value: object, secrets: Iterable[str] = ()) -> str:
    """One variable's value as it may be printed: masked if secret, shortened if long."""
    if is_secret(name):
        return MASK
    text = clean(_without_named(value), secrets)
    text = _NAMED_SECRET.sub(rf"\g<1>{MASK}", text)
    text = _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


def _without_named(value: object) -> str:
    """The value as text; where it is JSON, without what has a secret's name in it."""
    try:
        if not isinstance(value, str):
            return str(clean_value(value))
        read = json.loads(value)
        cleaned = clean_value(read)
    except (ValueError, RecursionError):
        return str(value)
    return value if cleaned == read else json.dumps(cleaned, ensure_ascii=False)
