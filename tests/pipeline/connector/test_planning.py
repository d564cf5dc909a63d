"""From offsets to tasks and triggers, and a stream's position as text."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.offset_client import Topics
from ottla.pipeline.connector.planning import bounded, cut, ranges
from ottla.pipeline.connector.reader import is_new, losses
from ottla.pipeline.connector.stream_position import StreamPosition, position_from_json

_partitions = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "version"]), st.integers(0, 4))
_offsets = st.dictionaries(_partitions, st.integers(0, 10**6), max_size=8)


@st.composite
def bounds(draw: st.DrawFn) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    start = draw(_offsets)
    return start, {tp: at + draw(st.integers(0, 2000)) for tp, at in start.items()}


@settings(deadline=None)
@given(bounds(), st.integers(1, 40) | st.none(), st.integers(1, 10**5) | st.none())
def test_the_pieces_of_the_ranges_are_the_ranges(
    both: tuple[dict[TopicPartition, int], dict[TopicPartition, int]], least: int | None, longest: int | None
) -> None:
    start, end = both
    whole = ranges(start, end, {"a": "id"})
    pieces = cut(whole, min_partitions=least, max_records=longest)
    joined: dict[TopicPartition, list[tuple[int, int]]] = {}
    for piece in pieces:
        assert piece.first_offset < piece.end_offset
        assert longest is None or piece.end_offset - piece.first_offset <= longest
        assert piece.topic_id == ("id" if piece.topic == "a" else "")
        joined.setdefault(piece.topic_partition, []).append((piece.first_offset, piece.end_offset))
    for r in whole:
        parts = joined.pop(r.topic_partition)
        assert parts[0][0] == r.first_offset
        assert parts[-1][1] == r.end_offset
        assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))
    assert not joined
    total = sum(r.end_offset - r.first_offset for r in whole)
    if least is not None:
        assert len(pieces) >= min(least, total)
    if least is None and longest is None:
        assert pieces == whole


@given(bounds(), st.integers(1, 20_000))
def test_triggers_respect_their_limit_and_take_everything_in_the_end(
    both: tuple[dict[TopicPartition, int], dict[TopicPartition, int]], limit: int
) -> None:
    start, end = both
    taken = bounded(start, end, limit)
    assert all(start[tp] <= at <= end[tp] for tp, at in taken.items())
    waiting = sum(end[tp] - start[tp] for tp in end)
    assert sum(taken[tp] - start[tp] for tp in end) == min(limit, waiting)


def test_a_small_limit_starves_no_partition() -> None:
    tps = [TopicPartition("t", n) for n in range(3)]
    at = dict.fromkeys(tps, 0)
    end = {tps[0]: 1000, tps[1]: 10, tps[2]: 1}
    turns = 0
    while at != end:
        at = bounded(at, end, 3)
        turns += 1
    assert turns == -(-1011 // 3)


@given(_offsets, st.dictionaries(st.sampled_from(["a", "version"]), st.just("some-id")))
def test_a_position_survives_the_checkpoint_and_equal_ones_are_written_alike(
    offsets: dict[TopicPartition, int], ids: dict[str, str]
) -> None:
    text = json.dumps(StreamPosition(offsets, ids).as_json())
    back = position_from_json(json.loads(text))
    assert back.offsets == offsets
    assert json.dumps(back.as_json()) == text
    turned = StreamPosition(dict(reversed(offsets.items())), dict(reversed(ids.items())))
    assert json.dumps(turned.as_json()) == text


def test_a_position_of_the_official_connector_is_parsed_even_for_a_topic_named_version() -> None:
    document = {"version": {"0": 5}, "web": {"1": 7}}
    assert position_from_json(document).offsets == {TopicPartition("version", 0): 5, TopicPartition("web", 1): 7}


@pytest.mark.parametrize(
    "document", [{"version": 2, "offsets": {}}, {"web": 5}, {"web": {"x": 1}}, {"version": 1, "offsets": 3}]
)
def test_an_invalid_position_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="position"):
        position_from_json(document)


def test_lost_partitions_and_recreated_topics_are_reported() -> None:
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    before = StreamPosition({a: 5, b: 6}, {"a": "first", "b": "same"})
    assert losses(before, Topics(frozenset({a, b}), {"a": "first", "b": "same"})) == []
    (gone,) = losses(before, Topics(frozenset({a}), {"a": "first"}))
    assert "b-0" in gone.what
    (another,) = losses(before, Topics(frozenset({a, b}), {"a": "second", "b": "same"}))
    assert "recreated" in another.what
    assert is_new(a, before, {"a": "second"})
    assert not is_new(a, before, {"a": "first"})
    assert not is_new(a, StreamPosition({a: 5}, {}), {"a": "first"}), (
        "a checkpoint of the official connector has no ids"
    )
    assert is_new(TopicPartition("a", 1), before, {"a": "first"})
