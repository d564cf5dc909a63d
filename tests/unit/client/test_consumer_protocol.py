"""The bytes members of a classic group exchange, and the range assignor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.consumer_protocol import (
    MalformedConsumerProtocol,
    assign_range,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from ottla.core.ids import TopicPartition

topics = st.text("abc.-_", min_size=1, max_size=10)
partitions = st.sets(st.builds(TopicPartition, topics, st.integers(0, 1 << 30)))


@given(st.sets(topics))
def test_a_subscription_reads_back(names: set[str]) -> None:
    assert read_subscription(write_subscription(names)) == sorted(names)


@given(partitions)
def test_an_assignment_reads_back(given_to: set[TopicPartition]) -> None:
    assert read_assignment(write_assignment(given_to)) == sorted(given_to)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        try:
            read(data)
        except MalformedConsumerProtocol:
            continue


def test_the_encoding_is_that_of_kafkas_version_0() -> None:
    assert write_subscription(["t"]) == bytes.fromhex("0000 00000001 0001 74 ffffffff")
    assert write_assignment([TopicPartition("t", 2)]) == bytes.fromhex(
        "0000 00000001 0001 74 00000001 00000002 ffffffff"
    )


def test_fields_that_newer_versions_append_are_ignored() -> None:
    newer = bytes.fromhex("0003 00000001 0001 74 ffffffff 00000000 ffffffff ffff")
    assert read_subscription(newer) == ["t"]


@given(st.dictionaries(st.text("mn123", min_size=1), st.sets(topics, max_size=3), min_size=1), st.integers(0, 20))
def test_every_partition_is_assigned_to_one_subscribed_member(members: dict[str, set[str]], count: int) -> None:
    counts = {topic: count for wanted in members.values() for topic in wanted}
    given_to = assign_range(members, counts)
    everything = [tp for tps in given_to.values() for tp in tps]
    assert sorted(everything) == sorted(TopicPartition(t, n) for t in counts for n in range(count))
    assert all(tp.topic in members[member] for member, tps in given_to.items() for tp in tps)
    for topic in counts:
        shares = [sum(tp.topic == topic for tp in given_to[m]) for m in sorted(members) if topic in members[m]]
        assert shares == sorted(shares, reverse=True)  # the first members get the odd ones
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    "data", [b"\0", bytes.fromhex("0000 7fffffff"), bytes.fromhex("0000 00000001 0001 74 7fffffff")]
)
def test_impossible_lengths_are_refused_before_memory_is_allocated(data: bytes) -> None:
    with pytest.raises(MalformedConsumerProtocol):
        read_assignment(data)
