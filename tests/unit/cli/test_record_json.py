"""Records as JSON lines, without loss."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.record_json import InvalidLine, TextRecord, from_json, to_json
from ottla.cli.record_reader import InputFormat, ReaderOptions, parse_line

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


def test_a_line_of_text_is_a_value_with_an_optional_key() -> None:
    assert parse_line(b"a:b", ReaderOptions(InputFormat.LINES)) == TextRecord(value=b"a:b")
    keyed = ReaderOptions(InputFormat.LINES, key_separator=b":", null=b"NULL")
    assert parse_line(b"a:b:c", keyed) == TextRecord(key=b"a", value=b"b:c")
    assert parse_line(b"a:NULL", keyed) == TextRecord(key=b"a", value=None)
    assert parse_line(b":", keyed) == TextRecord(key=b"", value=b"")
    with pytest.raises(InvalidLine, match="no ':' between key and value"):
        parse_line(b"no separator", keyed)


def test_options_are_the_defaults_of_fields_that_lines_lack() -> None:
    with_defaults = ReaderOptions(
        InputFormat.JSON, defaults=TextRecord(key=b"k", headers=[("h", b"x")], timestamp_ms=5, partition=1)
    )
    assert parse_line(b'{"key":"own","partition":0,"timestamp":7}', with_defaults) == TextRecord(
        key=b"own", headers=[("h", b"x")], timestamp_ms=7, partition=1
    )
    assert parse_line(b"{}", with_defaults) == TextRecord(key=b"k", headers=[("h", b"x")], timestamp_ms=5, partition=1)
    assert parse_line(b"  ", with_defaults) is None
