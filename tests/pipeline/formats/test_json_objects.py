"""JSON records: what they become, and that a wrong one never touches its neighbours."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.formats.format import NO_TEXT, NO_VALUE
from ottla.pipeline.formats.json_kinds import DEPTH_MAX
from ottla.pipeline.formats.json_objects import JsonObjects
from tests.pipeline.formats.records import parse, records
from tests.support.examples import examples

JSON = JsonObjects()


def test_fields_become_columns_and_missing_ones_are_null() -> None:
    rows, reasons = parse(JSON, b'{"a":1,"b":"x"}', b'{"b":"y","c":true}')
    assert rows == [{"a": 1, "b": "x", "c": None}, {"a": None, "b": "y", "c": True}]
    assert reasons == [None, None]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, NO_VALUE),
        (b"", "not a JSON object"),
        (b"\xff{}", NO_TEXT),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a":1', "not a JSON object"),
        (b'{"a":1}{"a":2}', "not a JSON object: Extra data"),
        (b'{"a":1} {"b":2}', "not a JSON object: Extra data"),
        (b'{"a":}', "not a JSON object: Expecting value"),
        (b'{"a":1,"a":2}', "a field comes twice"),
        (b'{"a":1e999}', "1e999 is beyond what a double holds"),
        (b'{"b":"\\ud800"}', "not a JSON object that a table can hold"),
        (b'{"s":"x\ny"}', "not a JSON object: Invalid control character"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "objects and arrays in each other"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "objects and arrays in each other"),
        (b'{"b":[1,"x"]}', "field an array is a text, and the table has a number"),
    ],
)
def test_invalid_objects_get_a_reason_and_the_others_are_read(value: bytes | None, reason: str) -> None:
    rows, reasons = parse(JSON, b'{"a":1}', value, b'{"a":2}')
    assert reasons[0] is reasons[2] is None
    assert (rows[0]["a"], rows[2]["a"]) == (1, 2)
    assert reasons[1] is not None
    assert reasons[1].startswith(reason)


def test_records_that_only_together_are_objects_are_not() -> None:
    """Joined by a line break, the first two would be one object and the third two: as many rows as records."""
    rows, reasons = parse(JSON, b'{"a":', b"1}", b'{"a":2}{"a":3}', b'{"a":4}')
    assert [row["a"] for row in rows] == [None, None, None, 4]
    assert all(reasons[:3])


def test_a_value_over_several_lines_is_one_record() -> None:
    rows, reasons = parse(JSON, b'{\n "a": 1\n}\n', b'\t{"a":2}')
    assert ([row["a"] for row in rows], reasons) == ([1, 2], [None, None])


def test_texts_that_look_like_times_stay_texts_at_every_depth() -> None:
    time = "2015-05-17T10:00:00Z"
    value = json.dumps({"t": time, "s": {"t": time, "n": 1}, "l": [{"t": time}], "m": [time]}).encode()
    rows, _ = parse(JSON, value)
    assert rows == [{"t": time, "s": {"t": time, "n": 1}, "l": [{"t": time}], "m": [time]}]


def test_the_first_record_decides_a_fields_type_and_the_table_before_it() -> None:
    rows, reasons = parse(JSON, b'{"a":"x"}', b'{"a":1}', b'{"a":null}')
    assert [row["a"] for row in rows] == ["x", None, None]
    assert reasons == [None, "field a is a number, and the table has a text", None]
    rows, reasons = parse(JSON, b'{"a":"x"}', b'{"a":1}', known=pa.schema([("a", pa.int64())]))
    assert reasons == ["field a is a text, and the table has a number", None]


def test_a_type_conflict_inside_an_object_is_reported_with_its_path() -> None:
    _, reasons = parse(JSON, b'{"a":{"b":{"c":1}}}', b'{"a":{"b":{"c":"x"}}}', b'{"a":{"b":1}}')
    assert reasons == [
        None,
        "field a.b.c is a text, and the table has a number",
        "field a.b is a number, and the table has an object",
    ]


def test_a_type_conflict_in_a_name_with_half_a_surrogate_pair_is_reported_with_the_name_escaped() -> None:
    rows, reasons = parse(JSON, b'{"a": [{"\\ud800": 1}, {"\\ud800": true}]}', b'{"b": 1}')
    assert [row["b"] for row in rows] == [None, 1]
    assert reasons[0] is not None
    assert "\\ud800" in reasons[0]


def test_a_type_conflict_between_distant_records_is_found() -> None:
    values = [b'{"a":1}'] * 300 + [b'{"a":"x"}'] * 300 + [b'{"a":2}'] * 300
    rows, reasons = parse(JSON, *values)
    assert [n for n, reason in enumerate(reasons) if reason] == list(range(300, 600))
    assert [row["a"] for row in rows[600:]] == [2] * 300


def test_declared_fields_may_be_a_number_here_and_a_text_there() -> None:
    declared = JsonObjects(declared={"a": "string"})
    rows, reasons = parse(declared, b'{"a":1,"b":1}', b'{"a":"x","b":2}', b'{"a":true}', b'{"a":[1]}', b'{"b":"no"}')
    assert [(row["a"], row["b"]) for row in rows[:3]] == [("1", 1), ("x", 2), ("true", None)]
    assert reasons[3:] == ["field a is an array", "field b is a text, and the table has a number"]


def test_names_that_no_column_may_have_are_changed_and_kept_apart() -> None:
    rows, _ = parse(JSON, b'{"a b":1,"a,b":2,"":3}')
    assert rows == [{"a_b": 1, "a_b_2": 2, "_": 3}]


def test_the_deepest_object_that_is_read() -> None:
    value: Any = 1
    for _ in range(DEPTH_MAX - 1):
        value = {"a": value}
    assert parse(JSON, json.dumps(value).encode())[1] == [None]
    reason = parse(JSON, json.dumps({"a": {"a": value}}).encode())[1][0]
    assert reason is not None


good = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-(1 << 63), (1 << 63) - 1),
        "f": st.floats(allow_nan=False, allow_infinity=False),
        "t": st.text(st.characters(codec="utf-8"), max_size=8),
        "b": st.booleans(),
        "s": st.fixed_dictionaries({}, optional={"x": st.integers(-9, 9), "y": st.text(max_size=3)}),
        "l": st.lists(st.integers(-9, 9), max_size=3),
    },
)
wrong = st.sampled_from([None, b"", b"{", b"}", b'{"i":', b"1}", b"{}{}", b'{"t":"', b'"}', b"[{}]", b"\xff", b"{} x"])


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.one_of(good, wrong), max_size=30))
def test_valid_records_among_invalid_ones_are_read_as_by_pythons_reader(mix: list[Any]) -> None:
    values = [json.dumps(one).encode() if isinstance(one, dict) else one for one in mix]
    rows, reasons = parse(JSON, *values)
    for one, row, reason in zip(mix, rows, reasons, strict=True):
        if not isinstance(one, dict):
            assert reason is not None
            continue
        assert reason is None
        for name, value in one.items():
            if value in ({}, []) or (isinstance(value, dict) and name not in row):
                continue  # says no type: no column
            if isinstance(value, dict):
                assert {k: v for k, v in row[name].items() if v is not None} == value
            elif isinstance(value, float):
                assert math.isclose(row[name], value, rel_tol=1e-15, abs_tol=0) or row[name] == value
            else:
                assert row[name] == value
        assert all(row[name] is None or name in one for name in row)


def test_no_records_give_no_rows() -> None:
    parsed = JSON.parse(records(), pa.schema([]))
    assert len(parsed.reasons) == 0


@pytest.mark.parametrize(
    "arrays",
    [
        ["[null,1]"],
        ["[null,null]"],
        ["[null,[]]"],
        ["[null,null,[1]]", "[[null,2]]"],
        ["[null,null]", "[2]"],
        ['[null,{"a":[null,null]}]'],
        ['[null,null,"2015-05-17T10:00:00Z"]'],
        ["[]", "[null,null]", "[[]]"],
    ],
)
def test_arrays_that_begin_with_nulls_keep_them_all(arrays: list[str]) -> None:
    rows, reasons = parse(JsonObjects(), *(f'{{"x":{text}}}'.encode() for text in arrays))
    assert [row["x"] for row in rows] == [json.loads(text) for text in arrays]
    assert reasons == [None] * len(arrays)
