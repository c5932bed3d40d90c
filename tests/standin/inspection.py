"""What a worker's bodies must be: strict JSON, of the right shape, within the limits."""

import json
from typing import Any, NoReturn

MEGABYTE = 1_000_000
CHUNK_LIMIT = 1 * MEGABYTE
FINAL_LIMIT = 20 * MEGABYTE


class BodyError(Exception):
    """Something a worker must not do; the body is refused with 400."""


def chunk_output(raw: bytes) -> Any:
    """The yielded value in the body of a stream post."""
    body = _json_object(raw, "chunk", CHUNK_LIMIT)
    if body.keys() != {"output"}:
        raise BodyError(f"chunk has the keys {sorted(body)} instead of output alone")
    return body["output"]


def final_body(raw: bytes) -> dict[str, Any]:
    """The body of a final result or a progress update."""
    return _json_object(raw, "final result", FINAL_LIMIT)


def _json_object(raw: bytes, what: str, limit: int) -> dict[str, Any]:
    if len(raw) > limit:
        raise BodyError(f"{what} has {len(raw)} bytes; the limit is {limit}")
    body = _strict_json(raw, what)
    if not isinstance(body, dict):
        raise BodyError(f"{what} is not a JSON object: {raw[:80]!r}")
    return body


def _strict_json(raw: bytes, what: str) -> Any:
    try:
        value = json.loads(raw.decode(), parse_constant=_refuse)
        if b"\\ud" in raw.lower():  # an escaped surrogate, perhaps without its partner
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:
        raise BodyError(f"{what} is not strict JSON: {error}") from error
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
