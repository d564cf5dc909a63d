"""Rates between two snapshots of offsets."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.activity import Snapshot
from ottla.client.activity_rates import activity_between
from ottla.client.group_lag import GroupLag
from ottla.client.groups import GroupDescription, MemberDescription, OffsetAndMetadata
from ottla.client.offsets import OffsetBounds
from ottla.core.ids import GroupType, TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def lag(committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], *members: str) -> GroupLag:
    owned = [tuple(ends)[n :: len(members)] for n in range(len(members))]
    described = tuple(
        MemberDescription(f"{name}-1", None, name, "/10.0.0.1", partitions)
        for name, partitions in zip(members, owned, strict=True)
    )
    return GroupLag(
        GroupDescription("g", "Stable", GroupType.CLASSIC, "range", 1, described),
        {tp: OffsetAndMetadata(at, -1, "") for tp, at in committed.items()},
        sorted(ends),
        {tp: OffsetBounds(0, end) for tp, end in ends.items()},
    )


def snapshot(at_s: float, ends: Mapping[TopicPartition, int], groups: Mapping[str, GroupLag] | None = None) -> Snapshot:
    return Snapshot(at_s, 0, 1, ends, groups or {})


def test_a_topics_rate_is_that_of_its_end_offsets_and_the_busiest_topic_is_first() -> None:
    quiet = TopicPartition("quiet", 0)
    activity = activity_between(snapshot(10, {quiet: 5, A: 0, B: 0}), snapshot(12, {quiet: 5, A: 30, B: 10}))
    assert [(t.topic, t.partitions, t.written_per_s, t.busiest_share) for t in activity.topics] == [
        ("orders", 2, 20.0, 0.75),
        ("quiet", 1, 0.0, None),
    ]


def test_a_groups_rate_lag_and_time_to_catch_up() -> None:
    before = lag({A: 0, B: 0}, {A: 100, B: 0}, "app")
    after = lag({A: 40, B: 0}, {A: 110, B: 0}, "app")
    group = activity_between(snapshot(0, {}, {"g": before}), snapshot(2, {}, {"g": after})).groups[0]
    assert (group.read_per_s, group.written_per_s, group.lag, group.lag_change) == (20.0, 5.0, 70, -30)
    assert group.catches_up_s == 70 / 15


def test_a_group_that_reads_less_than_is_written_does_not_catch_up() -> None:
    before, after = lag({A: 0}, {A: 100}), lag({A: 1}, {A: 110})
    group = activity_between(snapshot(0, {}, {"g": before}), snapshot(1, {}, {"g": after})).groups[0]
    assert group.catches_up_s is None


def test_each_client_has_the_rate_of_its_partitions() -> None:
    before = lag({A: 0, B: 0}, {A: 100, B: 100}, "one", "two")
    after = lag({A: 10, B: 30}, {A: 100, B: 100}, "one", "two")
    clients = activity_between(snapshot(0, {}, {"g": before}), snapshot(1, {}, {"g": after})).clients
    assert [(c.client, c.host, c.group, c.partitions, c.read_per_s) for c in clients] == [
        ("two", "10.0.0.1", "g", 1, 30.0),
        ("one", "10.0.0.1", "g", 1, 10.0),
    ]


def test_what_is_new_or_moved_back_has_no_rate() -> None:
    activity = activity_between(
        snapshot(0, {A: 50}, {}), snapshot(1, {A: 10, B: 99}, {"g": lag({A: 5}, {A: 10}, "app")})
    )
    assert [topic.written_per_s for topic in activity.topics] == [0.0]
    assert (activity.groups[0].read_per_s, activity.groups[0].lag_change) == (0.0, None)
    moved_back = activity_between(
        snapshot(0, {}, {"g": lag({A: 9}, {A: 10})}), snapshot(1, {}, {"g": lag({A: 2}, {A: 10})})
    )
    assert (moved_back.groups[0].read_per_s, moved_back.groups[0].lag_change) == (0.0, 7)
