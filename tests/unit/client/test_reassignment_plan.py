"""Plans keep the replication factor, use the right brokers, spread replicas and leaders, and move little."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.reassignment_plan import ImpossiblePlan, leaders_by_broker, plan_drain, plan_reassignment
from ottla.core.ids import TopicPartition

BROKERS = range(1, 7)


def partitions(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("t", number): found for number, found in enumerate(replicas)}


@st.composite
def layouts(draw: st.DrawFn) -> dict[TopicPartition, tuple[int, ...]]:
    factor = draw(st.integers(1, 3))
    replicas = st.lists(st.sampled_from(BROKERS), min_size=factor, max_size=factor, unique=True).map(tuple)
    return partitions(*draw(st.lists(replicas, min_size=1, max_size=30)))


@given(current=layouts(), targets=st.sets(st.sampled_from(BROKERS), min_size=3))
def test_replicas_end_on_the_targets_and_are_spread_evenly(
    current: dict[TopicPartition, tuple[int, ...]], targets: set[int]
) -> None:
    moves = plan_reassignment(current, dict.fromkeys(BROKERS), targets=targets)
    after = current | {move.tp: move.wanted for move in moves}
    assert all(set(replicas) <= targets and len(set(replicas)) == len(replicas) for replicas in after.values())
    assert {tp: len(replicas) for tp, replicas in after.items()} == {tp: len(r) for tp, r in current.items()}
    counts = Counter(dict.fromkeys(targets, 0))
    counts.update(replica for replicas in after.values() for replica in replicas)
    assert max(counts.values()) - min(counts.values()) <= 1
    leaders = Counter(dict.fromkeys(targets, 0))
    leaders.update(replicas[0] for replicas in after.values())
    assert max(leaders.values()) - min(leaders.values()) <= 1


def test_a_new_broker_leads_its_share() -> None:
    current = partitions((3, 1, 2), (1, 3, 2), (2, 1, 3), (3, 2, 1), (1, 2, 3), (2, 3, 1))
    moves = plan_reassignment(current, dict.fromkeys((1, 2, 3, 4)), targets=(1, 2, 3, 4))
    after = current | {move.tp: move.wanted for move in moves}
    assert sorted(Counter(replicas[0] for replicas in after.values()).values()) == [1, 1, 2, 2]
    assert sum(move.added for move in moves) == 4, "no more replicas are copied than the new broker gets"


@given(current=layouts(), broker=st.sampled_from(BROKERS))
def test_a_drain_replaces_one_broker_and_moves_nothing_else(
    current: dict[TopicPartition, tuple[int, ...]], broker: int
) -> None:
    moves = plan_drain(current, dict.fromkeys(BROKERS), broker=broker)
    assert {move.tp for move in moves} == {tp for tp, replicas in current.items() if broker in replicas}
    for move in moves:
        assert broker not in move.wanted
        assert len(set(move.wanted)) == len(move.replicas)
        changed = [(old, new) for old, new in zip(move.replicas, move.wanted, strict=True) if old != new]
        assert [old for old, _ in changed] == [broker]


def test_a_balanced_cluster_is_left_alone() -> None:
    current = partitions((1, 2), (2, 3), (3, 1))
    assert plan_reassignment(current, dict.fromkeys((1, 2, 3)), targets=(1, 2, 3)) == []


def test_a_new_broker_is_filled() -> None:
    current = partitions(*[(1, 2), (2, 1)] * 6)
    moves = plan_reassignment(current, dict.fromkeys((1, 2, 3)), targets=(1, 2, 3))
    assert sum(3 in move.wanted for move in moves) == 8
    assert all(len(set(move.wanted) - set(move.replicas)) <= 1 for move in moves), "one replica of a partition moves"


def test_the_replication_factor_is_raised_and_lowered() -> None:
    raised = plan_reassignment(partitions((1,)), dict.fromkeys((1, 2, 3)), targets=(1, 2, 3), replication_factor=3)
    assert set(raised[0].wanted) == {1, 2, 3}
    assert raised[0].wanted[0] == 1, "the leader stays"
    (lowered,) = plan_reassignment(
        partitions((2, 1, 3)), dict.fromkeys((1, 2, 3)), targets=(1, 2, 3), replication_factor=1
    )
    assert lowered.wanted == (2,)


def test_the_replicas_of_a_partition_go_to_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    moves = plan_reassignment(partitions(*[(1, 2)] * 4), racks, targets=(1, 2, 3, 4))
    after = {move.tp: move.wanted for move in moves}
    assert all({racks[replica] for replica in replicas} == {"a", "b"} for replicas in after.values() if 3 in replicas)


def test_leaders_are_spread_without_moving_records() -> None:
    moves = plan_reassignment(partitions(*[(1, 2, 3)] * 6), dict.fromkeys((1, 2, 3)), targets=(1, 2, 3))
    after = partitions(*[(1, 2, 3)] * 6) | {move.tp: move.wanted for move in moves}
    assert Counter(replicas[0] for replicas in after.values()) == {1: 2, 2: 2, 3: 2}
    assert all(set(move.wanted) == set(move.replicas) for move in moves)


def test_too_few_brokers_are_reported() -> None:
    with pytest.raises(ImpossiblePlan, match="t-0 needs 3 brokers, and there are 2"):
        plan_reassignment(partitions((1,)), dict.fromkeys((1, 2)), targets=(1, 2), replication_factor=3)
    with pytest.raises(ImpossiblePlan, match="broker 9 is not alive"):
        plan_reassignment(partitions((1,)), dict.fromkeys((1, 2)), targets=(9,))
    with pytest.raises(ImpossiblePlan, match="a replica on every broker"):
        plan_drain(partitions((1, 2)), dict.fromkeys((1, 2)), broker=1)


def test_leaders_are_counted_by_broker() -> None:
    tp = TopicPartition
    found = leaders_by_broker({tp("t", 0): (1, (1, 2)), tp("t", 1): (1, (2, 1)), tp("t", 2): (-1, (3,))})
    assert found == {1: (2, 1, 2), 2: (0, 1, 2), 3: (0, 1, 1)}
