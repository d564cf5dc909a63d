"""Lines of separated values, the wrong ones among them."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.formats.csv_lines import HEADER, CsvLines, names_in
from ottla.pipeline.formats.format import NO_TEXT, NO_VALUE
from tests.pipeline.formats.records import parse
from tests.support.examples import examples

AB = CsvLines(("a", "b"))


def test_fields_are_texts_and_empty_ones_null() -> None:
    rows, reasons = parse(AB, b"1,x", b",y\r\n", b'"a,b","say ""hi"""')
    assert [(row["a"], row["b"]) for row in rows] == [("1", "x"), (None, "y"), ("a,b", 'say "hi"')]
    assert reasons == [None] * 3


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, NO_VALUE),
        (b"\xff,1", NO_TEXT),
        (b"1", "1 fields where there are 2 columns"),
        (b"1,2,3", "3 fields where there are 2 columns"),
        (b"", "1 fields where there are 2 columns"),
        (b"1,2\n3,4", "more than one line"),
        (b'1,"2', "not a line of separated values"),
    ],
)
def test_invalid_lines_get_a_reason_and_the_others_are_read(value: bytes | None, reason: str) -> None:
    rows, reasons = parse(AB, b"1,2", value, b"3,4")
    assert [(rows[n]["a"], rows[n]["b"]) for n in (0, 2)] == [("1", "2"), ("3", "4")]
    assert (rows[1]["a"], rows[1]["b"]) == (None, None)
    assert reasons[1] is not None
    assert reasons[1].startswith(reason)
    assert reasons[0] is reasons[2] is None


def test_a_line_break_in_quotes_is_part_of_its_field() -> None:
    rows, reasons = parse(AB, b'1,"x\ny"', b"2,z")
    assert ([row["b"] for row in rows], reasons) == (["x\ny", "z"], [None, None])


def test_quotes_that_would_swallow_the_next_record_do_not() -> None:
    rows, reasons = parse(AB, b'1,"', b'",2', b"3,4")
    assert [row["a"] for row in rows] == [None, None, "3"]
    assert all(reasons[:2])


def test_other_delimiters_and_no_quotes() -> None:
    rows, _ = parse(CsvLines(("a", "b"), ";", ""), b'1;"x', b"2;y,z")
    assert [row["b"] for row in rows] == ['"x', "y,z"]


def test_a_header_line_is_quarantined_at_any_position() -> None:
    form = CsvLines(("a", "b"), header=True)
    _, reasons = parse(form, b"a,b", b"1,2", b'"a","b"', b"a,b\n")
    assert reasons == [HEADER, None, HEADER, HEADER]
    assert parse(AB, b"a,b")[1] == [None], "only where it is to come"


def test_names_are_taken_from_a_header_line() -> None:
    assert names_in('id,"full name",,id', AB) == ("id", "full name", "column_3", "id_4")
    rows, _ = parse(CsvLines(names_in("id;full name", CsvLines((), ";")), ";"), b"1;x")
    assert rows == [{"id": "1", "full_name": "x"}]


def test_one_column_reads_empty_records_as_null() -> None:
    rows, reasons = parse(CsvLines(("a",)), b"x", b"", b"y")
    assert ([row["a"] for row in rows], reasons) == (["x", None, "y"], [None] * 3)


text = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=6)
line = st.lists(text, min_size=1, max_size=4)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(line, max_size=20))
def test_every_line_that_pythons_writer_writes_is_read_as_it_was(lines: list[list[str]]) -> None:
    values = []
    for fields in lines:
        out = io.StringIO()
        csv.writer(out, lineterminator="\r\n").writerow(fields)
        values.append(out.getvalue().removesuffix("\r\n").encode())
    rows, reasons = parse(AB, *values)
    for fields, row, reason in zip(lines, rows, reasons, strict=True):
        if len(fields) == 2:
            assert reason is None
            assert [row["a"], row["b"]] == [field or None for field in fields]
        else:
            assert reason is not None
