"""Decides the next state of one partition: its leader, its in-sync replicas and who else may lead (KIP-966).

`changed` is the only function that computes a new state. The rules are those of Kafka's PartitionChangeBuilder, with
one difference of layout: the last in-sync replica stays in the ISR while there is no leader, as in Kafka's state nodes.

An eligible leader replica (ELR) has left the ISR, but has every record below the high watermark, which does not move
while the ISR is below `min.insync.replicas`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ottla.controller.elections import Election, ElectionRules, elect_leader
from ottla.core.errors import EligibleLeadersNotAvailable
from ottla.metadata_store.cluster_view import NO_LEADER, PartitionView


class PartitionTarget(NamedTuple):
    """Holds the wanted values of a state; None for those of the present state."""

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    is_recovering: bool | None = None


UNCHANGED = PartitionTarget()


class _Assignment(NamedTuple):
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    isr: tuple[int, ...]


def changed(
    partition: PartitionView,
    rules: ElectionRules,
    target: PartitionTarget = UNCHANGED,
    *,
    election: Election = Election.ONLINE,
    starts_term: bool = False,
) -> PartitionView | None:
    """Return the next state of a partition, or None if nothing changes.

    The leader epoch grows if the leader changes, if a replica leaves the assignment, or with `starts_term`, for a
    leader that was started again. A reassignment completes when the ISR holds what it adds, or the whole target if it
    removes more. Raises
    `EligibleLeadersNotAvailable` if the state contradicts the assignment: no replica could be in sync.
    """
    assigned = _assignment(partition, target)
    lost = {*rules.suspects, *rules.unclean}
    # all who have every record below the high watermark; the order is that of the assignment
    complete = [
        replica
        for replica in assigned.replicas
        if replica not in lost and (replica in partition.isr or replica in partition.elr or replica in assigned.isr)
    ]
    isr = rules.without_impaired(_remaining_isr(partition, assigned, complete, lost))
    elected = elect_leader(partition, assigned.replicas, isr, complete, rules, election)
    isr = elected.isr
    min_isr = min(rules.min_isr, len(assigned.replicas) - len(assigned.adding))
    is_enough = len(isr) >= min_isr and elected.leader != NO_LEADER
    elr = () if is_enough or elected.is_unclean else tuple(each for each in complete if each not in isr)
    leader_changes = elected.leader != partition.leader
    bumps = leader_changes or starts_term or not set(partition.replicas).issubset(assigned.replicas)
    epoch = partition.leader_epoch + 1 if bumps else partition.leader_epoch
    is_recovering = partition.is_recovering if target.is_recovering is None else target.is_recovering
    new = replace(
        partition,
        leader=elected.leader,
        leader_epoch=epoch,
        replicas=assigned.replicas,
        isr=isr,
        partition_epoch=partition.partition_epoch + 1,
        adding=assigned.adding,
        removing=assigned.removing,
        is_recovering=is_recovering or elected.is_unclean,
        elr=elr,
        last_known_elr=_last_known_leader(partition, elected.leader),
        last_unclean_epoch=epoch if elected.is_unclean else partition.last_unclean_epoch,
    )
    if epoch == partition.leader_epoch and replace(new, partition_epoch=partition.partition_epoch) == partition:
        return None
    if not new.isr:
        raise EligibleLeadersNotAvailable(
            f"the state of partition {partition.index} names no replica that could be in sync"
        )
    assert new.leader == NO_LEADER or new.leader in new.isr, "the leader is in sync"
    return new


def _assignment(partition: PartitionView, target: PartitionTarget) -> _Assignment:
    """Return the assignment and the ISR, without the replicas to remove if the reassignment is complete."""
    replicas = partition.replicas if target.replicas is None else target.replicas
    adding = partition.adding if target.adding is None else target.adding
    removing = partition.removing if target.removing is None else target.removing
    isr = tuple(each for each in (partition.isr if target.isr is None else target.isr) if each in replicas)
    if adding or removing:
        final = tuple(replica for replica in replicas if replica not in removing)
        final_isr = tuple(each for each in isr if each not in removing)
        if final and final_isr and set(_awaited(final, adding, removing)).issubset(final_isr):
            return _Assignment(final, (), (), final_isr)
    return _Assignment(replicas, adding, removing, isr)


def _awaited(final: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]) -> tuple[int, ...]:
    """Return the replicas that must be in sync before a reassignment to `final` completes.

    If at least as many replicas are added as removed, the ISR does not shrink, and one that stays may be down.
    """
    return final if len(adding) < len(removing) else adding


def _remaining_isr(
    partition: PartitionView, assigned: _Assignment, complete: list[int], lost: set[int]
) -> tuple[int, ...]:
    """Return the ISR without replicas that lost records; one replica remains, the best that there is.

    It is empty only if a reassignment removes the whole ISR, for which the caller requires an unclean election.
    """
    isr = tuple(each for each in assigned.isr if each not in lost)
    if isr:
        return isr
    if partition.leader in complete:
        return (partition.leader,)
    if complete:
        return (complete[0],)
    kept = assigned.isr or tuple(each for each in partition.isr if each in assigned.replicas)
    return (partition.leader,) if partition.leader in kept else kept[-1:]


def _last_known_leader(partition: PartitionView, leader: int) -> tuple[int, ...]:
    if leader != NO_LEADER:
        return ()
    return partition.last_known_elr if partition.leader == NO_LEADER else (partition.leader,)
