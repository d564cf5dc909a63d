"""Encodes and decodes records as JSON lines: `produce --input json` reads `consume --format json` without loss.

    {"topic":"t","partition":0,"offset":7,"timestamp":1431856800000,"key":"k","value":"v","headers":[{"key":"h","value":"x"}]}

- `null` and `""` are different, for key, value and header values.
- Bytes that are not UTF-8 are in base64 under another name: `key_base64`, `value_base64`, in headers `value_base64`.
- Headers keep their order and may repeat.
- In a line for `produce` every field is optional: without a key or value it is null (a tombstone), without a timestamp
  it is the current time, without a partition the key chooses one. `offset` is ignored: the broker assigns it.

No I/O.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import Any

from ottla.core.settings import INT_MAX, LONG_MAX

_KNOWN = frozenset(
    {"topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers"}
)
_KNOWN_IN_HEADER = frozenset({"key", "value", "value_base64"})


@dataclass(frozen=True, slots=True)
class TextRecord:
    """A record, with its topic, partition and offset if they are known."""

    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    timestamp_ms: int | None = None
    partition: int | None = None
    topic: str | None = None
    offset: int | None = None


class InvalidLine(ValueError):
    """A line of input is not a valid record; the caller adds the number of the line to the message."""


def to_json(line: TextRecord) -> bytes:
    r"""Encode a record as one line, without the line end.

    >>> to_json(TextRecord(key=b"k", value=b"\xff"))
    b'{"key":"k","value_base64":"/w==","headers":[]}'
    """
    place = {"topic": line.topic, "partition": line.partition, "offset": line.offset, "timestamp": line.timestamp_ms}
    shown: dict[str, Any] = {name: known for name, known in place.items() if known is not None}
    _put(shown, "key", line.key)
    _put(shown, "value", line.value)
    shown["headers"] = [_put({"key": name}, "value", value) for name, value in line.headers]
    text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair in a header's name: JSON can encode it, UTF-8 cannot
        return json.dumps(shown, separators=(",", ":")).encode()


def from_json(text: bytes | str) -> TextRecord:
    """Decode one line. Raises `InvalidLine`."""
    try:
        found = json.loads(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise InvalidLine(f"it is not UTF-8 at byte {error.start}; write other bytes as value_base64") from None
    except json.JSONDecodeError as error:
        raise InvalidLine(f"it is not JSON at column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # numbers or nesting beyond the limits of Python
        raise InvalidLine(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidLine(f'a record must be an object like {{"key": "k", "value": "v"}}, not {_kind(found)}')
    if unknown := sorted(set(found) - _KNOWN):
        raise InvalidLine(f"unknown field {unknown[0]!r}; the known fields are {', '.join(sorted(_KNOWN))}")
    return TextRecord(
        key=_bytes(found, "key"),
        value=_bytes(found, "value"),
        headers=_headers(found.get("headers")),
        timestamp_ms=_number(found, "timestamp", LONG_MAX),
        partition=_number(found, "partition", INT_MAX),
        topic=_topic(found.get("topic")),
        offset=_number(found, "offset", LONG_MAX),
    )


def _put(shown: dict[str, Any], name: str, value: bytes | None) -> dict[str, Any]:
    try:
        shown[name] = None if value is None else value.decode()
    except UnicodeDecodeError:
        assert value is not None
        shown[name + "_base64"] = base64.b64encode(value).decode()
    return shown


def _bytes(found: dict[str, Any], name: str) -> bytes | None:
    plain, coded = found.get(name), found.get(name + "_base64")
    if name in found and name + "_base64" in found:
        raise InvalidLine(f"{name} and {name}_base64 are both present; write one of them")
    if coded is not None:
        if not isinstance(coded, str):
            raise InvalidLine(f"{name}_base64 must be a base64 string, not {_kind(coded)}")
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidLine(f"{name}_base64 is not base64: {error}") from None
    if plain is None:
        return None
    if not isinstance(plain, str):
        raise InvalidLine(
            f"{name} must be a string or null, not {_kind(plain)}; write a JSON value as an escaped string"
        )
    try:
        return plain.encode()
    except UnicodeEncodeError:
        raise InvalidLine(
            f"{name} contains half a surrogate pair; write bytes that are not text as {name}_base64"
        ) from None


def _headers(found: Any) -> list[tuple[str, bytes | None]]:
    if found is None:
        return []
    if isinstance(found, dict):  # the short form: {"name": "value"}
        found = [{"key": name, "value": value} for name, value in found.items()]
    if not isinstance(found, list):
        raise InvalidLine(f'headers must be a list like [{{"key": "name", "value": "text"}}], not {_kind(found)}')
    headers = []
    for header in found:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str):
            raise InvalidLine('a header must be an object with a string "key" and a "value" or "value_base64"')
        if unknown := sorted(set(header) - _KNOWN_IN_HEADER):
            raise InvalidLine(f"unknown field {unknown[0]!r} in a header")
        if any("\ud800" <= letter <= "\udfff" for letter in header["key"]):
            raise InvalidLine("a header's key contains half a surrogate pair; header keys must be UTF-8")
        headers.append((header["key"], _bytes(header, "value")))
    return headers


def _number(found: dict[str, Any], name: str, most: int) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    least = -1 if name == "timestamp" else 0  # Kafka stores -1 for a record without a timestamp
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidLine(f"{name} must be an integer from {least} to {most}, not {_kind(value)}")
    return value


def _topic(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidLine(f"topic must be a string, not {_kind(value)}")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return str(value)[:40]
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
