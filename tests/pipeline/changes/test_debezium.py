"""Debezium's envelopes: the row is cut out as it is, and no value raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline.changes.debezium import ChangeKind, unwrap

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
rows = st.dictionaries(st.text(max_size=5), values, max_size=4)


@given(rows, values, st.sampled_from("cru"), st.sampled_from([None, 1]), st.booleans())
def test_a_row_is_what_the_envelope_has_after(row: Any, other: Any, op: str, indent: int | None, wrapped: bool) -> None:
    envelope: Any = {"source": other, "before": other, "after": row, "op": op}
    text = json.dumps({"schema": other, "payload": envelope} if wrapped else envelope, indent=indent)
    found = unwrap(text.encode())
    assert found.kind is ChangeKind.ROW
    assert json.loads(found.row or b"") == row


@given(st.binary(max_size=40) | st.text('{}[]":, opd1cafter', max_size=40).map(str.encode))
def test_no_value_raises(value: bytes) -> None:
    assert unwrap(value).kind is not ChangeKind.NOTHING


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"op": "c"}', "the Debezium envelope's op is 'c', and it has no after"),
        (b'{"op": "c", "after": null}', "the Debezium envelope's op is 'c', and it has no after"),
        (b'{"op": "m"}', "the Debezium envelope's op is 'm': it changes no one row"),
        (b'{"op": 1}', "the value is no Debezium envelope: it has no op"),
        (b'{"op": "c", "after": {}} more', "not a JSON object"),
        (b'{"payload": null}', "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not a JSON object"),
    ],
)
def test_what_is_no_change_is_refused_with_the_reason(value: bytes, reason: str) -> None:
    found = unwrap(value)
    assert (found.kind, found.reason) == (ChangeKind.REFUSED, reason)


def test_a_deletion_has_the_fields_of_the_key_alone() -> None:
    value = b'{"op": "d", "before": {"b": 1.50, "a": "x", "c": [1]}}'
    assert unwrap(value, ["a", "b"]).row == b'{"a": "x", "b": 1.50}'
    assert unwrap(value).row is None
    assert unwrap(b'{"op": "d", "before": null}', ["a"]).kind is ChangeKind.REFUSED
    assert unwrap(None).kind is ChangeKind.DELETION
    assert unwrap(None, ["a"]).kind is ChangeKind.NOTHING
