"""Unwraps Debezium's envelopes in JSON: the row is cut out of the value, byte for byte.

A change event is `{"before": ..., "after": ..., "op": "c"}`, or that in a `payload` beside its `schema`. The row is
then parsed as any other value, so that numbers keep their digits and columns are found, added and widened as usual: a
change of the source's schema is nothing but rows with other fields. A null value after a deletion is for the log
cleaner alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from json.decoder import scanstring  # type: ignore[attr-defined]

Members = Mapping[str, tuple[int, int]]
"""The beginning and the end of the value of each member of an object."""
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_ROWS, _DELETION = frozenset({"c", "u", "r"}), "d"
NO_ENVELOPE = "the value is no Debezium envelope: it has no op"


class ChangeKind(IntEnum):
    """Names what a record does with its key."""

    ROW = 0
    """Its value is the key's row from now on."""
    DELETION = 1
    """It deletes its key."""
    REFUSED = 2
    NOTHING = 3


@dataclass(frozen=True, slots=True)
class UnwrappedValue:
    """A record's row, or why there is none."""

    kind: ChangeKind
    row: bytes | None = None
    """Of a deletion the fields that are the key, if there are such."""
    reason: str | None = None


def unwrap(value: bytes | None, key_fields: Sequence[str] = ()) -> UnwrappedValue:
    """Unwrap the value of a record. Never raises over it.

    >>> unwrap(b'{"before": null, "after": {"id": 1.50}, "op": "u"}').row
    b'{"id": 1.50}'
    >>> unwrap(b'{"before": {"id": 7, "total": 8}, "op": "d"}', ["id"]).row
    b'{"id": 7}'
    """
    if value is None:  # with fields as key it does not say which, and the event before it did
        return UnwrappedValue(ChangeKind.NOTHING if key_fields else ChangeKind.DELETION)
    try:
        text = value.decode()
        members = dict(_members(text, 0, whole=True))
        if "op" not in members and "payload" in members:
            members = dict(_members(text, members["payload"][0]))
        return _of_members(text, members, key_fields)
    except (ValueError, RecursionError):
        return UnwrappedValue(ChangeKind.REFUSED, reason="not a JSON object")


def _of_members(text: str, members: Members, key_fields: Sequence[str]) -> UnwrappedValue:
    op = _value(text, members, "op")
    if not isinstance(op, str):
        return UnwrappedValue(ChangeKind.REFUSED, reason=NO_ENVELOPE)
    if op == _DELETION:
        return _deletion(text, members, key_fields)
    if op not in _ROWS:
        return UnwrappedValue(ChangeKind.REFUSED, reason=f"the Debezium envelope's op is {op!r}: it changes no one row")
    row = text[slice(*members.get("after", (0, 0)))]
    if not row.startswith("{"):
        return UnwrappedValue(ChangeKind.REFUSED, reason=f"the Debezium envelope's op is {op!r}, and it has no after")
    return UnwrappedValue(ChangeKind.ROW, row.encode())


def _deletion(text: str, members: Members, key_fields: Sequence[str]) -> UnwrappedValue:
    if not key_fields:
        return UnwrappedValue(ChangeKind.DELETION)
    first = members.get("before", (0, 0))[0]
    if not first or text[first] != "{":
        return UnwrappedValue(
            ChangeKind.REFUSED, reason="the Debezium envelope's op is 'd', and no before says which key it deletes"
        )
    before = dict(_members(text, first))
    key = ", ".join(f"{json.dumps(name)}: {text[slice(*before[name])]}" for name in key_fields if name in before)
    return UnwrappedValue(ChangeKind.DELETION, f"{{{key}}}".encode())


def _value(text: str, members: Members, name: str) -> object:
    return json.loads(text[slice(*members[name])]) if name in members else None


def _members(text: str, at: int, *, whole: bool = False) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the names of an object's members, each with where its value begins and ends. Raises ValueError."""
    at = _expect(text, at, "{")
    more = text[at : at + 1] != "}"
    while more:
        name, at = scanstring(text, _expect(text, at, '"'))
        first = _expect(text, at, ":")
        _, end = _DECODER.raw_decode(text, first)
        yield name, (first, end)
        at = _skip(text, end)
        more = text[at : at + 1] == ","
        at = _skip(text, at + 1) if more else at
    end = _expect(text, at, "}")
    if whole and end != len(text):
        raise ValueError("there is more after the object")


def _expect(text: str, at: int, what: str) -> int:
    """Return where the text goes on after a character and the space around it; after a quotation mark at once."""
    at = _skip(text, at)
    if text[at : at + 1] != what:
        raise ValueError(f"{what} is missing")
    return at + 1 if what == '"' else _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None, "it matches nothing too"
    return match.end()
