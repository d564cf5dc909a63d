"""Gives each partition to the same number of members and each member about as many as the others: `simple` of KIP-932.

A partition has one member for each time that the members outnumber the partitions, rounded up: five members of four
partitions are two for each. So a partition is still consumed while one of its members is dead and its session has not
expired. If all members subscribe to the same topics, the numbers of partitions of two members differ by at most one;
otherwise that holds for each topic. Members keep what they have as far as that allows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias
from uuid import UUID

from ottla.groups.assignors.spec import GroupSpec, TargetAssignment

NAME = "simple"

TopicPartition: TypeAlias = tuple[UUID, int]


def assign(spec: GroupSpec) -> TargetAssignment:
    """Assign every partition of a subscribed topic to at least one subscriber.

    >>> from ottla.groups.assignors.spec import MemberSpec
    >>> topic = UUID(int=1)
    >>> members = {name: MemberSpec(frozenset({topic})) for name in ("m1", "m2", "m3")}
    >>> {name: sorted(found[topic]) for name, found in assign(GroupSpec(members, {topic: 2})).items()}
    {'m1': [0, 1], 'm2': [0], 'm3': [1]}
    """
    target: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in spec.members}
    together = (
        [sorted(spec.partitions)] if spec.is_homogeneous else [[topic_id] for topic_id in sorted(spec.partitions)]
    )
    for topics in together:
        members = sorted(name for name, member in spec.members.items() if member.topics.issuperset(topics))
        partitions = [(topic_id, index) for topic_id in topics for index in range(spec.partitions[topic_id])]
        if not members or not partitions:
            continue
        for name, held in _Division(spec, partitions, members).run().items():
            for topic_id, index in held:
                target[name].setdefault(topic_id, set()).add(index)
    return {
        member_id: {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}
        for member_id, topics in target.items()
    }


class _Division:
    """Divides partitions among members that may all have each of them, beginning with what they have."""

    def __init__(self, spec: GroupSpec, partitions: Sequence[TopicPartition], members: Sequence[str]) -> None:
        self._partitions = partitions
        self._owners_wanted = -(-len(members) // len(partitions))
        self._owners: dict[TopicPartition, set[str]] = {partition: set() for partition in partitions}
        self._held: dict[str, set[TopicPartition]] = {}
        for name in members:
            assigned = spec.members[name].assigned
            pairs = {(topic_id, index) for topic_id, indexes in assigned.items() for index in indexes}
            self._held[name] = pairs & self._owners.keys()
            for partition in self._held[name]:
                self._owners[partition].add(name)
        # Those that have most keep most.
        self._ranked = sorted(members, key=lambda name: (-len(self._held[name]), name))
        least, larger = divmod(self._owners_wanted * len(partitions), len(members))
        self._quota = {name: least + (rank < larger) for rank, name in enumerate(self._ranked)}

    def run(self) -> dict[str, set[TopicPartition]]:
        """Return the partitions of each member."""
        for name in self._ranked:
            self._revoke_above_quota(name)
        for partition in self._partitions:
            excess = len(self._owners[partition]) - self._owners_wanted
            for name in self._fullest(self._owners[partition])[: max(excess, 0)]:
                self._revoke(name, partition)
        self._assign_missing()
        return self._held

    def _revoke_above_quota(self, name: str) -> None:
        excess = len(self._held[name]) - self._quota[name]
        if excess > 0:
            most_shared = sorted(self._held[name], key=lambda partition: (-len(self._owners[partition]), partition))
            for partition in most_shared[:excess]:
                self._revoke(name, partition)

    def _assign_missing(self) -> None:
        """Give each partition the members that it lacks, in turn."""
        unfilled = [name for name in self._ranked if len(self._held[name]) < self._quota[name]]
        for partition in self._partitions:
            for _ in range(self._owners_wanted - len(self._owners[partition])):
                at = next((at for at, name in enumerate(unfilled) if partition not in self._held[name]), None)
                if at is None:
                    self._exchange(unfilled[0], partition)
                    name = unfilled.pop(0)
                else:
                    name = unfilled.pop(at)
                    self._give(name, partition)
                if len(self._held[name]) < self._quota[name]:
                    unfilled.append(name)

    def _exchange(self, unfilled: str, partition: TopicPartition) -> None:
        """Give a partition that `unfilled` has already to another member, from which it gets one that it lacks.

        There is one: a member with its quota has at most one partition less than `unfilled` may have.
        """
        others = [name for name in self._ranked if partition not in self._held[name]]
        giver, given = next((name, min(more)) for name in others if (more := self._held[name] - self._held[unfilled]))
        self._revoke(giver, given)
        self._give(unfilled, given)
        self._give(giver, partition)

    def _fullest(self, names: Collection[str]) -> list[str]:
        return sorted(names, key=lambda name: (-len(self._held[name]), name))

    def _give(self, name: str, partition: TopicPartition) -> None:
        self._held[name].add(partition)
        self._owners[partition].add(name)

    def _revoke(self, name: str, partition: TopicPartition) -> None:
        self._held[name].discard(partition)
        self._owners[partition].discard(name)
