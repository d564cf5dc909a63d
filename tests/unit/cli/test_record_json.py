"""Records as JSON lines, without loss."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.input_reader import InputFormat, ReaderOptions, parse_json_line, parse_lines
from ottla.cli.record_json import InvalidLine, TextRecord, from_json, to_json
from ottla.records.builder import NewRecord

bytes_or_null = st.none() | st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))
header_names = st.text(st.characters(exclude_categories=["Cs"]))
lines = st.builds(
    TextRecord,
    key=bytes_or_null,
    value=bytes_or_null,
    headers=st.lists(st.tuples(header_names, bytes_or_null)),
    timestamp_ms=st.none() | st.integers(-1, (1 << 63) - 1),
    partition=st.none() | st.integers(0, (1 << 31) - 1),
    topic=st.none() | st.text("abc.-_"),
    offset=st.none() | st.integers(0, (1 << 63) - 1),
)


@given(lines)
def test_any_record_is_one_line_that_reads_back_equal(line: TextRecord) -> None:
    text = to_json(line)
    assert b"\n" not in text
    assert from_json(text) == line


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_any_bytes_are_a_record_or_are_refused_with_a_reason(text: bytes) -> None:
    reason, line = "", None
    try:
        line = from_json(text)
    except InvalidLine as refusal:
        reason = str(refusal)
    assert (line is None) == bool(reason)


def test_null_empty_and_missing_are_distinct() -> None:
    assert from_json('{"value": ""}').value == b""
    assert from_json('{"value": null}').value is None
    assert from_json("{}").value is None
    assert b'"value":null' in to_json(TextRecord(value=None))
    assert b'"value":""' in to_json(TextRecord(value=b""))


def test_headers_may_be_an_object() -> None:
    assert from_json('{"headers": {"a": "1", "b": null}}').headers == [("a", b"1"), ("b", None)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON at column 2"),
        ("3", "a record must be an object"),
        ('{"valu": "x"}', "unknown field 'valu'"),
        ('{"value": 3}', "value must be a string or null, not 3"),
        ('{"value": {"a": 1}}', "value must be a string or null, not an object"),
        ('{"value": "a", "value_base64": "YQ=="}', "both present"),
        ('{"value_base64": "%"}', "value_base64 is not base64"),
        ('{"value_base64": 1}', "a base64 string"),
        ('{"key": "\\ud800"}', "half a surrogate pair"),
        ('{"partition": -1}', "partition must be an integer"),
        ('{"partition": true}', "partition must be an integer"),
        ('{"timestamp": "now"}', "timestamp must be an integer"),
        ('{"headers": 1}', "headers must be a list"),
        ('{"headers": [{"value": "x"}]}', "a header must be an object"),
        ('{"headers": [{"key": "x", "more": 1}]}', "unknown field 'more' in a header"),
        ('{"topic": 1}', "topic must be a string"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_an_invalid_line_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(InvalidLine, match=says.replace("(", r"\(")):
        from_json(text)


def test_lines_of_text_are_values_with_optional_keys() -> None:
    plain = ReaderOptions(InputFormat.LINES)
    assert parse_lines([b"a:b", b""], plain, now_ms=7) == (
        [NewRecord(None, b"a:b", 7, []), NewRecord(None, b"", 7, [])],
        None,
    )
    nulls = ReaderOptions(
        InputFormat.LINES, null=b"NULL", defaults=TextRecord(key=b"k", headers=[("h", b"x")], timestamp_ms=5)
    )
    assert parse_lines([b"NULL", b"a"], nulls, now_ms=7)[0] == [
        NewRecord(b"k", None, 5, [("h", b"x")]),
        NewRecord(b"k", b"a", 5, [("h", b"x")]),
    ]
    keyed = ReaderOptions(InputFormat.LINES, key_separator=b":", null=b"NULL")
    records, invalid = parse_lines([b"a:b:c", b"a:NULL", b"NULL:v", b":", b"no separator", b"d:e"], keyed, now_ms=7)
    assert [record[:2] for record in records] == [(b"a", b"b:c"), (b"a", None), (None, b"v"), (b"", b"")]
    assert "no ':' between key and value" in str(invalid)


def test_options_are_the_defaults_of_fields_that_lines_lack() -> None:
    defaults = TextRecord(key=b"k", headers=[("h", b"x")], timestamp_ms=5, partition=1, topic="given")
    with_defaults = ReaderOptions(InputFormat.JSON, defaults=defaults)
    assert parse_json_line(b'{"key":"own","partition":0,"timestamp":7,"topic":"own"}', with_defaults) == TextRecord(
        key=b"own", headers=[("h", b"x")], timestamp_ms=7, partition=1, topic="given"
    )
    assert parse_json_line(b"{}", with_defaults) == defaults
    assert parse_json_line(b"  ", with_defaults) is None
    chosen_again = ReaderOptions(InputFormat.JSON, repartition=True)
    assert parse_json_line(b'{"partition":3,"topic":"own"}', chosen_again) == TextRecord(topic="own")
