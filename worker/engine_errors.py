"""What the engine's exceptions say, in one sentence and without a dump of the arguments."""

import re
from collections.abc import Callable, Mapping
from typing import Any

_DUMP = re.compile(r"\s*\[type=.*?\](?: For further information visit \S+)?")


def one_sentence(error: BaseException) -> str:
    """What a foreign exception says, without its dump of the arguments.

    The exception may wrap one of pydantic's, whose own text repeats every value.
    """
    for part in (error, error.__cause__, error.__context__):
        details: Callable[[], list[Any]] | None = getattr(part, "errors", None)
        if callable(details):
            try:
                return "; ".join(_detail(found) for found in details())
            except (TypeError, KeyError):
                continue
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    text = _DUMP.sub("", " ".join(text.split()))
    return text or type(error).__name__


def _detail(found: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in found.get("loc", ()))
    said = str(found["msg"]).removeprefix("Value error, ")
    return f"{where}: {said}" if where else said
