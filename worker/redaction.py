"""Keeps secrets out of everything that is printed.

A value is secret by its variable's name; a text is cleaned of every secret value that
was registered and of anything that looks like a Hugging Face token.
"""

import re
from collections.abc import Iterable, Mapping

MASK = "***"
LONGEST_SHOWN = 80

_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEYS?)$|SECRET_|ACCESS_KEY", re.I
)
_SECRET_LOOK = re.compile(r"\bhf_[A-Za-z0-9]{8,}|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|(?<=Bearer )\S{8,}")


def is_secret(name: str) -> bool:
    """Whether a variable or argument of this name holds a secret."""
    return bool(_SECRET_NAME.search(name))


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The secret values in an environment, longest first."""
    values = {v.strip() for k, v in environ.items() if is_secret(k) and len(v.strip()) >= 6}
    return tuple(sorted(values, key=len, reverse=True))


def clean(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the given secrets and without what looks like one."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _SECRET_LOOK.sub(MASK, text)


def shown(name: str, value: object) -> str:
    """One variable's value as it may be printed: masked if secret, shortened if long."""
    if is_secret(name):
        return MASK
    text = clean(str(value)).replace("\n", "\\n")
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"
