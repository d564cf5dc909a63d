"""Places in a topic as people type them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.failures import Failure
from ottla.cli.places import check_range
from ottla.client.ranges import HELP, BadPlace, Kind, Place, parse_partitions, parse_place, parse_span_ms, parse_time_ms

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("start", Place(Kind.START)),
        ("END", Place(Kind.END)),
        ("earliest", Place(Kind.START)),
        ("0", Place(Kind.OFFSET, 0)),
        ("100", Place(Kind.OFFSET, 100)),
        ("-10", Place(Kind.BEFORE_END, 10)),
        ("+10", Place(Kind.AFTER, 10)),
        ("-1h", Place(Kind.TIMESTAMP_MS, NOW_MS - 3_600_000)),
        ("-1h30m", Place(Kind.TIMESTAMP_MS, NOW_MS - 5_400_000)),
        ("-250ms", Place(Kind.TIMESTAMP_MS, NOW_MS - 250)),
        ("-1m", Place(Kind.TIMESTAMP_MS, NOW_MS - 60_000)),
        ("@-2d", Place(Kind.TIMESTAMP_MS, NOW_MS - 172_800_000)),
        ("-999999w", Place(Kind.TIMESTAMP_MS, 0)),
        ("@2015-05-17", Place(Kind.TIMESTAMP_MS, 1431820800000)),
        ("@2015-05-17T10:00", Place(Kind.TIMESTAMP_MS, 1431856800000)),
        ("@2015-05-17T12:00+02:00", Place(Kind.TIMESTAMP_MS, 1431856800000)),
        ("@2015-05-17T10:00:00.250Z", Place(Kind.TIMESTAMP_MS, 1431856800250)),
        ("@1431856800000", Place(Kind.TIMESTAMP_MS, 1431856800000)),
    ],
)
def test_every_form_of_a_place_is_read(text: str, place: Place) -> None:
    assert parse_place(text, now_ms=NOW_MS) == place


@pytest.mark.parametrize(
    "text",
    ["", "5x", "--5", "1.5", "-", "+", "@", "@soon", "@1969-01-01", "-h", "1h", "+1h", "9" * 30, "٣", "@" + "9" * 30],
)
def test_what_is_no_place_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadPlace):
        parse_place(text, now_ms=NOW_MS)


@given(st.text(max_size=40))
def test_any_text_is_a_place_or_is_refused(text: str) -> None:
    refused = place = None
    try:
        place = parse_place(text, now_ms=NOW_MS)
    except BadPlace as refusal:
        refused = str(refusal)
    assert (place is None) != (refused is None)
    assert place is None or 0 <= place.number < 1 << 63
    assert refused is None or len(refused) < 300


@given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h", "d", "w"]))
def test_a_span_is_its_number_times_its_unit(number: int, unit: str) -> None:
    each = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}[unit]
    assert parse_span_ms(f"{number}{unit}") == number * each


def test_a_time_without_an_offset_is_utc_whatever_the_machine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_time_ms("2015-05-17T10:00") == 1431856800000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", (0,)), ("2,0,2", (0, 2)), ("5-7,0", (0, 5, 6, 7)), (" 1 , 3 ", (1, 3))]
)
def test_partitions_are_read_once_each_in_order(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_partitions(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,,2", "0-999999999", "1-2-3"])
def test_a_wrong_list_of_partitions_is_refused(text: str) -> None:
    with pytest.raises(BadPlace):
        parse_partitions(text)


@pytest.mark.parametrize(
    ("first", "end"),
    [("10", "5"), ("@2015-05-18", "@2015-05-17"), ("-1h", "-2h"), ("-5", "-10")],
)
def test_a_range_that_is_upside_down_whatever_the_topic_holds_is_refused(first: str, end: str) -> None:
    with pytest.raises(Failure, match="--from lies after --to"):
        check_range(parse_place(first, now_ms=NOW_MS), parse_place(end, now_ms=NOW_MS))


@pytest.mark.parametrize(("first", "end"), [("5", "10"), ("5", "5"), ("-10", "-5"), ("start", "end"), ("100", "-5")])
def test_a_range_that_may_hold_something_is_let_through(first: str, end: str) -> None:
    check_range(parse_place(first, now_ms=NOW_MS), parse_place(end, now_ms=NOW_MS))


def test_the_help_names_every_form_with_an_example_that_parses() -> None:
    examples = [line.split("  ")[0].strip() for line in HELP.splitlines() if not line.startswith(" ")]
    words = [word.strip(",") for example in examples for word in example.split(", ")]
    words = [part for word in words for part in word.split(" ") if part]
    assert {"start", "end", "100", "-10", "+10", "-90s", "-1h30m"} <= set(words)
    for word in words:
        parse_place(word, now_ms=NOW_MS)


def test_places_become_offsets_that_are_kept() -> None:
    from ottla.cli.places import Bounds, resolve
    from ottla.client.cluster import Cluster
    from ottla.core.ids import TopicPartition

    tp = TopicPartition("t", 0)
    bounds: Mapping[TopicPartition, Bounds] = {tp: Bounds(10, 20)}
    nobody: Cluster = None  # type: ignore[assignment]  # only times are asked of a broker

    def at(text: str, after: int | None = None) -> int:
        place = parse_place(text, now_ms=NOW_MS)
        return asyncio.run(resolve(nobody, place, bounds, after=None if after is None else {tp: after}))[tp]

    assert [at(text) for text in ("start", "end", "15", "0", "99", "-3", "-99", "+3", "+99")] == [
        10, 20, 15, 10, 20, 17, 10, 13, 20,
    ]  # fmt: skip
    assert at("+3", after=15) == 18
