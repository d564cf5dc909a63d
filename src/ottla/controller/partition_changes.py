"""Decides the next state of one partition: its leader, its in-sync replicas and who else may lead (KIP-966).

`changed` is the only function that computes a new state. The rules are those of Kafka's PartitionChangeBuilder, with
one difference of layout: the last in-sync replica stays in the ISR while there is no leader, as in Kafka's state nodes.

An eligible leader replica (ELR) has left the ISR, but has every record below the high watermark, which does not move
while the ISR is below `min.insync.replicas`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from ottla.coordination.view import NO_LEADER, BrokerInfo, PartitionView
from ottla.core.errors import EligibleLeadersNotAvailable

_NONE: frozenset[int] = frozenset()


class Election(Enum):
    """Lists the kinds of elections."""

    ONLINE = 0
    """The leader stays if it can; else a replica that is in sync or eligible."""
    PREFERRED = 1
    """The first replica of the assignment if it is in sync."""
    UNCLEAN = 2
    """As ONLINE; without any such replica one that may lack records, also one that its broker reports as suspect."""


class ElectionRules(NamedTuple):
    """Holds what an election depends on besides the state of the partition."""

    brokers: Mapping[int, BrokerInfo]  # those alive
    min_isr: int = 1  # the setting min.insync.replicas
    is_unclean_allowed: bool = False  # the setting unclean.leader.election.enable
    gone: Collection[int] = _NONE  # brokers whose registration has ended, also if they have registered again
    offline: Collection[int] = _NONE  # replicas in a failed log directory
    suspects: Collection[int] = _NONE  # replicas that lost records
    impaired: Collection[int] = _NONE  # replicas that should not lead while others can: corrupt, or on a full disk
    unclean: Collection[int] = _NONE  # brokers that started uncleanly just now and may have lost unsynced records

    def may_lead(self, replica: int) -> bool:
        """Return whether a replica can be elected at all."""
        broker = self.brokers.get(replica)
        return broker is not None and not broker.is_shutting_down and self.may_stay(replica)

    def without_impaired(self, isr: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ISR without impaired replicas, if one of the others can lead; otherwise as it is."""
        if not any(each in self.impaired for each in isr):
            return isr
        others = tuple(each for each in isr if each not in self.impaired)
        return others if any(self.may_lead(each) and each not in self.unclean for each in others) else isr

    def may_stay(self, leader: int) -> bool:
        """Return whether a leader can go on if no other can be elected: also while its broker shuts down."""
        return (
            leader in self.brokers
            and leader not in self.gone
            and leader not in self.offline
            and leader not in self.suspects
        )


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


class _Elected(NamedTuple):
    leader: int
    isr: tuple[int, ...]
    is_unclean: bool = False


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
    elected = _elect(partition, assigned, isr, complete, rules, election)
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
        adding=assigned.adding,
        removing=assigned.removing,
        isr=isr,
        elr=elr,
        last_known_elr=_last_known_leader(partition, elected.leader),
        is_recovering=is_recovering or elected.is_unclean,
        last_unclean_epoch=epoch if elected.is_unclean else partition.last_unclean_epoch,
    )
    if new == partition:
        return None
    if not new.isr:
        raise EligibleLeadersNotAvailable(
            f"the state of partition {partition.index} names no replica that could be in sync"
        )
    assert new.leader == NO_LEADER or new.leader in new.isr, "the leader is in sync"
    return replace(new, partition_epoch=partition.partition_epoch + 1)


def _assignment(partition: PartitionView, target: PartitionTarget) -> _Assignment:
    """Return the assignment and the ISR, without the replicas to remove if the reassignment is complete."""
    replicas = partition.replicas if target.replicas is None else target.replicas
    adding = partition.adding if target.adding is None else target.adding
    removing = partition.removing if target.removing is None else target.removing
    isr = tuple(each for each in (partition.isr if target.isr is None else target.isr) if each in replicas)
    if adding or removing:
        final = tuple(each for each in replicas if each not in removing)
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


def _elect(
    partition: PartitionView,
    assigned: _Assignment,
    isr: tuple[int, ...],
    complete: list[int],
    rules: ElectionRules,
    election: Election,
) -> _Elected:
    candidates = [each for each in assigned.replicas if rules.may_lead(each)]
    in_sync = [each for each in candidates if each in isr and each not in rules.unclean]
    if in_sync:
        if election is Election.PREFERRED and in_sync[0] == assigned.replicas[0]:
            return _Elected(in_sync[0], isr)
        return _Elected(partition.leader if partition.leader in in_sync else in_sync[0], isr)
    for each in sorted(candidates, key=lambda replica: replica in rules.impaired):
        if each in complete:
            return _Elected(each, (each,))
    if partition.leader in isr and partition.leader not in rules.unclean and rules.may_stay(partition.leader):
        return _Elected(partition.leader, isr)
    if isr and isr[0] in rules.unclean and isr[0] in candidates:
        # the last in-sync replica lost its unsynced records, and no replica has more: with others it must say so
        return _Elected(isr[0], isr, is_unclean=len(assigned.replicas) > 1)
    if rules.is_unclean_allowed or election is Election.UNCLEAN:
        alive = candidates
        if election is Election.UNCLEAN and not alive:  # an operator accepts the loss
            alive = [each for each in assigned.replicas if rules._replace(suspects=_NONE).may_lead(each)]
        if alive:
            last = next((each for each in partition.last_known_elr if each in alive), alive[0])
            return _Elected(last, (last,), is_unclean=True)
    return _Elected(NO_LEADER, isr)


def _last_known_leader(partition: PartitionView, leader: int) -> tuple[int, ...]:
    if leader != NO_LEADER:
        return ()
    return partition.last_known_elr if partition.leader == NO_LEADER else (partition.leader,)
