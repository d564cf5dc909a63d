"""Proposals of leaders: the order of the checks, their errors, and what an accepted one changes."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

import pytest

from ottla.controller.isr import AlterPartition, AlterPartitionResult, ProposedIsr, alter_partition, alter_partitions
from ottla.controller.overlay import Overlay
from ottla.core import errors
from ottla.core.ids import TopicPartition
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.store import Put
from tests.unit.controller.cluster_views import BROKER_EPOCH, RULES, TOPIC_ID, a_partition, only, view_of


def with_epochs(*nodes: int) -> list[tuple[int, int]]:
    return [(node, BROKER_EPOCH + node) for node in nodes]


def proposed(*nodes: int, **fields: Any) -> ProposedIsr:
    values: dict[str, Any] = {
        "topic_id": TOPIC_ID,
        "partition": 0,
        "leader_epoch": 4,
        "partition_epoch": 6,
        "new_isr": with_epochs(*nodes),
        **fields,
    }
    return ProposedIsr(**values)


def decide(view: ClusterView, proposal: ProposedIsr, leader: int = 1) -> tuple[AlterPartitionResult, Overlay]:
    overlay = Overlay(view, RULES)
    return alter_partition(overlay, leader, proposal), overlay


def test_a_shrunk_isr_is_written_with_the_same_leader_epoch() -> None:
    altered, overlay = decide(view_of(a_partition()), proposed(1, 2))

    assert altered == AlterPartitionResult(TOPIC_ID, 0, 1, 4, (1, 2), False, 7)
    (op,) = overlay.ops()
    assert isinstance(op, Put)
    assert (op.path, op.expected_version) == (znodes.state_path("t", 0), 6)
    assert znodes.decode_state("t", 0, op.value) == znodes.PartitionState(1, 4, (1, 2), 5)


def test_an_expanded_isr_is_in_the_order_of_the_assignment() -> None:
    altered, _ = decide(view_of(a_partition(isr=(1, 3))), proposed(3, 2, 1))
    assert altered.isr == (1, 2, 3)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic_id": uuid.UUID(int=8)}, errors.UnknownTopicId),
        ({"partition": 1}, errors.UnknownTopicOrPartition),
        ({"leader_epoch": 5}, errors.NotController),
        ({"partition_epoch": 7}, errors.NotController),
        ({"leader_epoch": 3}, errors.FencedLeaderEpoch),
        ({"leader_epoch": 3, "partition_epoch": 5}, errors.FencedLeaderEpoch),  # before the partition epoch
        ({"leader_epoch": 3, "partition_epoch": 7}, errors.NotController),  # newer counts first
        ({"partition_epoch": 5}, errors.InvalidUpdateVersion),
        ({"partition_epoch": 5, "new_isr": with_epochs(1, 9)}, errors.InvalidUpdateVersion),  # before the ISR
        ({"new_isr": []}, errors.InvalidRequest),
        ({"new_isr": with_epochs(2, 3)}, errors.InvalidRequest),  # without the leader
        ({"new_isr": with_epochs(1, 9)}, errors.InvalidRequest),  # not a replica
        ({"new_isr": with_epochs(1, 1, 2)}, errors.InvalidRequest),
        ({"is_recovering": True}, errors.InvalidRequest),  # with two in sync
        ({"new_isr": with_epochs(1), "is_recovering": True}, errors.InvalidRequest),  # it has recovered
        ({"new_isr": [*with_epochs(1), (2, BROKER_EPOCH + 1)]}, errors.IneligibleReplica),  # an older life
    ],
)
def test_a_refused_proposal_changes_nothing(fields: dict[str, Any], error: type[errors.KafkaError]) -> None:
    overlay = Overlay(view_of(a_partition()), RULES)
    with pytest.raises(error):
        alter_partition(overlay, 1, proposed(1, 2)._replace(**fields))
    assert overlay.ops() == []


def test_only_the_leader_may_propose() -> None:
    with pytest.raises(errors.InvalidRequest):
        decide(view_of(a_partition()), proposed(1, 2), leader=2)


def test_a_change_that_is_in_force_already_succeeds_with_an_old_partition_epoch() -> None:
    altered, overlay = decide(view_of(a_partition()), proposed(3, 1, 2, partition_epoch=2))
    assert (altered.isr, altered.partition_epoch) == ((1, 2, 3), 6)
    assert overlay.ops() == []


def test_replicas_of_brokers_that_are_gone_shut_down_or_lost_records_are_ineligible() -> None:
    gone = view_of(a_partition(isr=(1,)), alive=(1, 3))
    stopping = view_of(a_partition(isr=(1,)), shutting_down=(2,))
    for view in (gone, stopping):
        with pytest.raises(errors.IneligibleReplica):
            decide(view, proposed(1, 2))
    here = frozenset({TopicPartition("t", 0)})
    for report in (znodes.ReplicaReport(True, suspects=here), znodes.ReplicaReport(True, offline=here)):
        view = view_of(a_partition(isr=(1,)))
        view.replica_reports[2] = report  # type: ignore[index]
        with pytest.raises(errors.IneligibleReplica):
            decide(view, proposed(1, 2))
    altered, _ = decide(gone, proposed(1, 3))
    assert altered.isr == (1, 3)


def test_an_impaired_replica_joins_only_where_all_are_impaired_and_an_impaired_leader_hands_over() -> None:
    corrupt = znodes.ReplicaReport(True, impaired={znodes.Impairment.CORRUPT: frozenset({TopicPartition("t", 0)})})
    view = view_of(a_partition(isr=(1,)))
    view.replica_reports[2] = corrupt  # type: ignore[index]
    with pytest.raises(errors.IneligibleReplica, match="corrupt records"):
        decide(view, proposed(1, 2))
    view.replica_reports[1] = corrupt  # type: ignore[index]
    altered, _ = decide(view, proposed(1, 2))
    assert altered.isr == (1, 2)
    with pytest.raises(errors.NewLeaderElected):
        decide(view, proposed(1, 3))


def test_a_broker_epoch_that_the_leader_does_not_know_is_not_compared() -> None:
    altered, _ = decide(view_of(a_partition(isr=(1,))), proposed(new_isr=[(1, -1), (2, -1)]))
    assert altered.isr == (1, 2)


def test_a_leader_reports_that_it_has_recovered() -> None:
    view = view_of(a_partition(isr=(1,), is_recovering=True, last_unclean_epoch=4))
    with pytest.raises(errors.InvalidRequest):
        decide(view, proposed(1, 2, is_recovering=True))
    altered, overlay = decide(view, proposed(1))
    assert not altered.is_recovering
    assert only(overlay.view()).last_unclean_epoch == 4


def test_those_who_leave_an_isr_below_its_minimum_are_eligible_until_it_is_reached_again() -> None:
    two = {"min.insync.replicas": "2"}
    _, overlay = decide(view_of(a_partition(), config=two), proposed(1))
    assert (only(overlay.view()).isr, only(overlay.view()).elr) == ((1,), (2, 3))
    _, overlay = decide(overlay.view(), proposed(1, 3, partition_epoch=7))
    assert (only(overlay.view()).isr, only(overlay.view()).elr) == ((1, 3), ())


def test_a_proposal_completes_a_reassignment_and_the_old_leader_gets_to_know_it() -> None:
    moving = a_partition(replicas=(2, 3, 1), adding=(2, 3), removing=(1,), isr=(1, 2))
    overlay = Overlay(view_of(moving), RULES)
    with pytest.raises(errors.NewLeaderElected):
        alter_partition(overlay, 1, proposed(1, 2, 3))
    new = only(overlay.view())
    assert (new.replicas, new.adding, new.removing, new.isr) == ((2, 3), (), (), (2, 3))
    assert (new.leader, new.leader_epoch) == (2, 5)
    assert [op.path for op in overlay.ops()] == [znodes.topic_path("t"), znodes.state_path("t", 0)]


@pytest.mark.parametrize(
    ("replicas", "adding", "removing", "is_complete"),
    [
        ((4, 2, 1, 3), (4,), (3,), True),
        ((1, 2, 3, 4), (4,), (), True),
        ((4, 5, 2, 1, 3), (4, 5), (1, 3), False),  # 5 is not in sync
        ((4, 2, 1, 3), (4,), (1, 3), False),  # fewer are added than removed
        ((2, 1, 3), (), (3,), False),
    ],
)
def test_a_reassignment_completes_without_a_staying_replica_that_is_down_unless_the_isr_would_shrink(
    replicas: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...], is_complete: bool
) -> None:
    kept = tuple(each for each in replicas if each not in removing)
    moving = a_partition(replicas=replicas, adding=adding, removing=removing, isr=(1, 3))
    overlay = Overlay(view_of(moving, alive=(1, 3, 4)), RULES)
    with suppress(errors.NewLeaderElected):
        alter_partition(overlay, 1, proposed(*sorted({1, 3, *adding} - {5})))
    new = only(overlay.view())
    assert (new.adding, new.removing) == (((), ()) if is_complete else (adding, removing))
    assert new.replicas == (kept if is_complete else replicas)
    if is_complete:
        assert 2 not in new.isr
        assert set(new.isr) <= set(kept)


def test_each_proposal_of_a_request_has_its_own_outcome_and_an_old_broker_epoch_fails_all() -> None:
    overlay = Overlay(view_of(a_partition(), a_partition()), RULES)
    request = AlterPartition(
        1, BROKER_EPOCH + 1, [proposed(1, 2), proposed(1, 9, partition=1), proposed(1, partition=1)]
    )
    outcomes = alter_partitions(overlay, request)
    assert [type(each).__name__ for each in outcomes] == [
        "AlterPartitionResult",
        "InvalidRequest",
        "AlterPartitionResult",
    ]
    for broker, epoch in ((1, BROKER_EPOCH), (9, BROKER_EPOCH + 9)):
        with pytest.raises(errors.StaleBrokerEpoch):
            alter_partitions(overlay, request._replace(broker_id=broker, broker_epoch=epoch))
