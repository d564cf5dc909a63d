"""The format language of `consume`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.record_formatter import InvalidFormat, compile_format, time_text
from ottla.cli.record_json import TextRecord
from ottla.client.times import parse_time_ms

RECORD = TextRecord(
    key=b"k\xff",
    value=b"v",
    headers=[("a", b"1"), ("b", None)],
    timestamp_ms=1431856800250,
    partition=3,
    topic="t",
    offset=7,
)


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ("%t %p %o %v", b"t 3 7 v"),
        ("%k", b"k\xff"),
        ("%s", b"v"),
        ("%h %H", b"a=1,b 2"),
        ("%T %d", b"1431856800250 2015-05-17T10:00:00.250Z"),
        ("%K %V %S", b"2 1 1"),
        ("%k{hex} %k{base64}", b"6bff a/8="),
        ("%v{json} %k{json}", '"v" "k\ufffd"'.encode()),
        ("100%%", b"100%"),
        (r"\n\t\r\0\\\x41\u00e9", b"\n\t\r\0\\A\xc3\xa9"),
        ("plain {} text", b"plain {} text"),
        ("", b""),
    ],
)
def test_every_directive_prints_its_part_of_the_record(form: str, printed: bytes) -> None:
    assert compile_format(form)(RECORD) == printed


def test_null_prints_as_the_null_text_and_empty_prints_as_nothing() -> None:
    show = compile_format("%k|%v|%K|%V|%v{json}", null=b"NULL")
    assert show(TextRecord(key=None, value=b"")) == b'NULL||-1|0|""'
    assert compile_format("%v{json}")(TextRecord()) == b"null"


def test_a_record_as_json_within_a_format_is_one_line() -> None:
    assert json.loads(compile_format("%j")(RECORD))["offset"] == 7


@pytest.mark.parametrize("form", ["%q", "%", "\\", "\\q", "\\x4", "\\xzz", "\\u12", "%k{", "%k{upper}", "%t{hex}%"])
def test_an_invalid_format_is_refused(form: str) -> None:
    with pytest.raises(InvalidFormat):
        compile_format(form)


@given(st.text())
def test_any_text_either_compiles_or_is_refused_and_then_prints_bytes(form: str) -> None:
    try:
        show = compile_format(form)
    except InvalidFormat:
        return
    assert isinstance(show(RECORD), bytes)


@given(st.binary())
def test_values_are_printed_as_their_bytes(value: bytes) -> None:
    assert compile_format("<%v>")(TextRecord(value=value)) == b"<" + value + b">"


@given(st.integers(0, 4_102_444_800_000))
def test_a_printed_time_parses_to_the_same_millisecond(timestamp_ms: int) -> None:
    assert parse_time_ms(time_text(timestamp_ms)) == timestamp_ms


def test_times_outside_the_calendar_are_printed_too() -> None:
    assert time_text(-1) == ""
    assert time_text(None) == ""
    assert "ms after 1970" in time_text((1 << 63) - 1)
