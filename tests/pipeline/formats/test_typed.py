"""Declared types: whole columns at once, and the same as Python's own reader of times, value by value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.formats.typed import column_type, formed_time, iso_time, typed
from tests.support.examples import examples


def cast(values: Any, name: str) -> tuple[list[Any], list[bool]]:
    found, lost = typed(values, name)
    assert found.type == column_type(name)
    return found.to_pylist(), [False] * len(values) if lost is None else lost.to_pylist()


@pytest.mark.parametrize(
    ("name", "given_values", "wanted"),
    [
        ("int", ["1", " -2 ", "x", None, "2147483648", "1.5"], [1, -2, None, None, None, None]),
        ("long", [1.0, 2.5, None], [1, None, None]),
        ("double", ["1.5", "1e3", "NaN?"], [1.5, 1000.0, None]),
        ("boolean", ["true", "False", "1", "maybe"], [True, False, True, None]),
        ("string", [1, None], ["1", None]),
        ("string", [True, False], ["true", "false"]),
        ("decimal(5,2)", ["1.25", "1000.00", "x"], [Decimal("1.25"), None, None]),
        (
            "timestamp_ms",
            [0, 1431856800000, 1 << 62],
            [datetime(1970, 1, 1, tzinfo=UTC), datetime(2015, 5, 17, 10, tzinfo=UTC), None],
        ),
        ("timestamp_s", ["10", "x"], [datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC), None]),
        ("timestamp_s", [0.5], [datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)]),
        ("timestamp", [1, 2], [None, None]),
        ("date", ["2015-05-17", "2015-13-01"], [datetime(2015, 5, 17).date(), None]),  # noqa: DTZ001
        ("int", [[1], [2]], [None, None]),
        ("binary", ["x"], [b"x"]),
    ],
)
def test_values_of_a_declared_type(name: str, given_values: list[Any], wanted: list[Any]) -> None:
    found, lost = cast(pa.array(given_values), name)
    assert found == wanted
    assert lost == [g is not None and w is None for g, w in zip(given_values, wanted, strict=True)]


def test_a_column_of_nothing_but_nulls_has_the_type_too() -> None:
    assert cast(pa.nulls(3), "decimal(4,1)") == ([None] * 3, [False] * 3)


@pytest.mark.parametrize("name", ["number", "decimal(39,1)", "decimal(2,3)", "decimal(0,0)", "time"])
def test_unknown_type_names_are_refused(name: str) -> None:
    assert column_type(name) is None


moments = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29))  # noqa: DTZ001 - its offset is drawn apart
offsets = st.one_of(st.none(), st.just("Z"), st.integers(-14 * 60, 14 * 60))


def written(moment: datetime, offset: Any, *, digits: int, blank: bool) -> tuple[str, datetime]:
    text = moment.strftime("%Y").zfill(4) + moment.strftime("-%m-%dT%H:%M:%S")
    if blank:
        text = text.replace("T", " ")
    if digits:
        text += "." + f"{moment.microsecond:06}"[:digits]
    kept = moment.replace(microsecond=int(f"{moment.microsecond:06}"[:digits].ljust(6, "0") or 0))
    if offset is None:
        return text, kept.replace(tzinfo=UTC)
    if offset == "Z":
        return text + "Z", kept.replace(tzinfo=UTC)
    sign = "-" if offset < 0 else "+"
    hours, minutes = divmod(abs(offset), 60)
    return f"{text}{sign}{hours:02}:{minutes:02}", (kept - timedelta(minutes=offset)).replace(tzinfo=UTC)


times = st.builds(written, moments, offsets, digits=st.integers(0, 6), blank=st.booleans())


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.one_of(
            times, st.sampled_from(["", "soon", "2015-02-30T00:00:00", "2015-05-17T25:00:00Z", "2015-05-17T10:61"])
        ),
        max_size=8,
    )
)
def test_times_are_read_as_they_were_written(mix: list[Any]) -> None:
    texts = [one if isinstance(one, str) else one[0] for one in mix]
    wanted = [None if isinstance(one, str) else one[1] for one in mix]
    assert iso_time(pa.array(texts, pa.string())).to_pylist() == wanted


def test_short_forms_and_more_digits() -> None:
    texts = ["2015-05-17", "2015-05-17 10:05", "2015-05-17T10:05:03,123456789+0200", None, "2015-05-17T10:05:03+02"]
    assert iso_time(pa.array(texts)).to_pylist() == [
        datetime(2015, 5, 17, tzinfo=UTC),
        datetime(2015, 5, 17, 10, 5, tzinfo=UTC),
        datetime(2015, 5, 17, 8, 5, 3, 123456, tzinfo=UTC),
        None,
        datetime(2015, 5, 17, 8, 5, 3, tzinfo=UTC),
    ]


def test_times_of_a_form_with_and_without_their_offset() -> None:
    found = formed_time(
        pa.array(["17/May/2015:10:05:03 +0200", "31/Feb/2015:10:05:03 +0200", "x"]), "%d/%b/%Y:%H:%M:%S %z"
    )
    assert found.to_pylist() == [datetime(2015, 5, 17, 8, 5, 3, tzinfo=UTC), None, None]
    assert formed_time(pa.array(["2015 05"]), "%Y %m").to_pylist() == [datetime(2015, 5, 1, tzinfo=UTC)]
