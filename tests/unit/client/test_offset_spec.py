"""Offset expressions as people type them, and the offsets they resolve to."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.cluster import Cluster
from ottla.client.offset_spec import HELP, InvalidOffsetSpec, OffsetKind, OffsetSpec, parse, resolve
from ottla.client.offsets import OffsetBounds
from ottla.core.ids import TopicPartition

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("start", OffsetSpec(OffsetKind.START)),
        ("END", OffsetSpec(OffsetKind.END)),
        ("earliest", OffsetSpec(OffsetKind.START)),
        ("0", OffsetSpec(OffsetKind.OFFSET, 0)),
        ("100", OffsetSpec(OffsetKind.OFFSET, 100)),
        ("-10", OffsetSpec(OffsetKind.BEFORE_END, 10)),
        ("+10", OffsetSpec(OffsetKind.AFTER, 10)),
        ("-1h", OffsetSpec(OffsetKind.TIMESTAMP_MS, NOW_MS - 3_600_000)),
        ("-1h30m", OffsetSpec(OffsetKind.TIMESTAMP_MS, NOW_MS - 5_400_000)),
        ("-250ms", OffsetSpec(OffsetKind.TIMESTAMP_MS, NOW_MS - 250)),
        ("-1m", OffsetSpec(OffsetKind.TIMESTAMP_MS, NOW_MS - 60_000)),
        ("@-2d", OffsetSpec(OffsetKind.TIMESTAMP_MS, NOW_MS - 172_800_000)),
        ("-999999w", OffsetSpec(OffsetKind.TIMESTAMP_MS, 0)),
        ("@2015-05-17", OffsetSpec(OffsetKind.TIMESTAMP_MS, 1431820800000)),
        ("@2015-05-17T10:00", OffsetSpec(OffsetKind.TIMESTAMP_MS, 1431856800000)),
        ("@2015-05-17T12:00+02:00", OffsetSpec(OffsetKind.TIMESTAMP_MS, 1431856800000)),
        ("@2015-05-17T10:00:00.250Z", OffsetSpec(OffsetKind.TIMESTAMP_MS, 1431856800250)),
        ("@1431856800000", OffsetSpec(OffsetKind.TIMESTAMP_MS, 1431856800000)),
    ],
)
def test_every_form_of_an_offset_expression_is_parsed(text: str, spec: OffsetSpec) -> None:
    assert parse(text, now_ms=NOW_MS) == spec


@pytest.mark.parametrize(
    "text",
    ["", "5x", "--5", "1.5", "-", "+", "@", "@soon", "@1969-01-01", "-h", "1h", "+1h", "9" * 30, "٣", "@" + "9" * 30],
)
def test_an_invalid_offset_expression_is_refused(text: str) -> None:
    with pytest.raises(InvalidOffsetSpec):
        parse(text, now_ms=NOW_MS)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused_with_a_short_message(text: str) -> None:
    refused = spec = None
    try:
        spec = parse(text, now_ms=NOW_MS)
    except InvalidOffsetSpec as refusal:
        refused = str(refusal)
    assert (spec is None) != (refused is None)
    assert spec is None or 0 <= spec.number < 1 << 63
    assert refused is None or len(refused) < 300


def test_every_example_in_the_help_is_parsed() -> None:
    examples = [line.split("  ")[0].strip() for line in HELP.splitlines() if not line.startswith(" ")]
    words = [word.strip(",") for example in examples for word in example.split(", ")]
    words = [part for word in words for part in word.split(" ") if part]
    assert {"start", "end", "100", "-10", "+10", "-90s", "-1h30m"} <= set(words)
    for word in words:
        parse(word, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "offset"),
    [("start", 10), ("end", 20), ("15", 15), ("0", 10), ("99", 20), ("-3", 17), ("-99", 10), ("+3", 13), ("+99", 20)],
)
def test_a_spec_resolves_to_an_offset_clamped_to_the_bounds(text: str, offset: int) -> None:
    assert resolved(text) == offset


def test_a_count_after_another_offset_resolves_relative_to_that_offset() -> None:
    assert resolved("+3", after=15) == 18


def resolved(text: str, after: int | None = None) -> int:
    no_cluster: Cluster = None  # type: ignore[assignment]  # only a time needs a broker
    tp = TopicPartition("t", 0)
    spec = parse(text, now_ms=NOW_MS)
    found = resolve(no_cluster, spec, {tp: OffsetBounds(10, 20)}, after=None if after is None else {tp: after})
    return asyncio.run(found)[tp]
