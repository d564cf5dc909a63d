"""Elects the leader of one partition: which replica may lead, in what order, and when records may be lost (KIP-966).

`next_partition_state.py` makes the next state of the partition of it, `election_events.py` says when to elect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from ottla.metadata_store.cluster_view import NO_LEADER, BrokerInfo, PartitionView

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
        return others if any(self.may_lead(other) and other not in self.unclean for other in others) else isr

    def may_stay(self, leader: int) -> bool:
        """Return whether a leader can go on if no other can be elected: also while its broker shuts down."""
        return (
            leader in self.brokers
            and leader not in self.gone
            and leader not in self.offline
            and leader not in self.suspects
        )


class Elected(NamedTuple):
    """Holds the result of an election."""

    leader: int
    isr: tuple[int, ...]
    is_unclean: bool = False


def elect_leader(
    partition: PartitionView,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    complete: list[int],
    rules: ElectionRules,
    election: Election,
) -> Elected:
    """Elect among the replicas of the assignment, in its order; `complete` are those with every committed record.

    The ISR is the one that is to be. Without a leader the result has NO_LEADER.
    """
    candidates = [replica for replica in replicas if rules.may_lead(replica)]
    in_sync = [candidate for candidate in candidates if candidate in isr and candidate not in rules.unclean]
    if in_sync:
        if election is Election.PREFERRED and in_sync[0] == replicas[0]:
            return Elected(in_sync[0], isr)
        return Elected(partition.leader if partition.leader in in_sync else in_sync[0], isr)
    for candidate in sorted(candidates, key=lambda replica: replica in rules.impaired):
        if candidate in complete:
            return Elected(candidate, (candidate,))
    if partition.leader in isr and partition.leader not in rules.unclean and rules.may_stay(partition.leader):
        return Elected(partition.leader, isr)
    if isr and isr[0] in rules.unclean and isr[0] in candidates:
        # the last in-sync replica lost its unsynced records, and no replica has more: with others it must say so
        return Elected(isr[0], isr, is_unclean=len(replicas) > 1)
    if rules.is_unclean_allowed or election is Election.UNCLEAN:
        alive = candidates
        if election is Election.UNCLEAN and not alive:  # an operator accepts the loss
            alive = [replica for replica in replicas if rules._replace(suspects=_NONE).may_lead(replica)]
        if alive:
            last = next((each for each in partition.last_known_elr if each in alive), alive[0])
            return Elected(last, (last,), is_unclean=True)
    return Elected(NO_LEADER, isr)
