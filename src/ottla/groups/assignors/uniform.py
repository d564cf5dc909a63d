"""Assigns partitions evenly and moves as few as possible: the assignor `uniform` of KIP-848, the default.

If all members subscribe to the same topics, the numbers of partitions of two members differ by at most one, and exactly
the partitions that must move do. Otherwise partitions are given to the least loaded subscriber, and then moved while a
subscriber has at least two more partitions than another. As in Kafka, racks have no influence.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from uuid import UUID

from ottla.groups.assignors.spec import GroupSpec, TargetAssignment

NAME = "uniform"

BALANCE_ROUNDS_MAX = 16
"""Bound on the rounds over all topics that balance different subscriptions; each about halves the imbalance."""

_Mutable = dict[str, dict[UUID, set[int]]]


def assign(spec: GroupSpec) -> TargetAssignment:
    """Assign every partition of a subscribed topic to one subscriber.

    >>> from ottla.groups.assignors.spec import MemberSpec
    >>> topic = UUID(int=1)
    >>> before = MemberSpec(frozenset({topic}), {topic: frozenset({0, 1, 2})})
    >>> spec = GroupSpec({"m1": before, "m2": MemberSpec(frozenset({topic}))}, {topic: 3})
    >>> {member: sorted(partitions[topic]) for member, partitions in assign(spec).items()}
    {'m1': [0, 1], 'm2': [2]}
    """
    if not spec.members:
        return {}
    kept = _still_valid(spec)
    if spec.is_homogeneous:
        _fill_quotas(spec, kept)
    else:
        _Balancer(spec, kept).run()
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in topics.items() if partitions}
        for member_id, topics in kept.items()
    }


def _still_valid(spec: GroupSpec) -> _Mutable:
    """Copy the current assignment without what a member does not subscribe to and what does not exist.

    A partition with two owners, which only a corrupt log can report, stays with the first.
    """
    kept: _Mutable = {}
    owned: dict[UUID, set[int]] = {topic_id: set() for topic_id in spec.partitions}
    for member_id in sorted(spec.members):
        member = spec.members[member_id]
        topics = kept[member_id] = {}
        for topic_id in member.topics & member.assigned.keys():
            count = spec.partitions[topic_id]
            valid = {index for index in member.assigned[topic_id] if index < count} - owned[topic_id]
            owned[topic_id] |= valid
            topics[topic_id] = valid
    return kept


def _unassigned(spec: GroupSpec, kept: _Mutable, topics: Sequence[UUID]) -> list[tuple[UUID, int]]:
    owned: dict[UUID, set[int]] = {topic_id: set() for topic_id in topics}
    for assigned in kept.values():
        for topic_id, partitions in assigned.items():
            owned[topic_id] |= partitions
    return [
        (topic_id, index)
        for topic_id in topics
        for index in range(spec.partitions[topic_id])
        if index not in owned[topic_id]
    ]


# ---- The same subscription for all


def _fill_quotas(spec: GroupSpec, kept: _Mutable) -> None:
    """Cut each member to its quota, and fill the others. Those that have most keep one partition above the minimum."""
    topics = sorted(next(iter(spec.members.values())).topics)
    total = sum(spec.partitions[topic_id] for topic_id in topics)
    minimum, larger = divmod(total, len(kept))
    by_load = sorted(kept, key=lambda member_id: (-_load(kept[member_id]), member_id))
    quotas = {member_id: minimum + (at < larger) for at, member_id in enumerate(by_load)}
    for member_id, assigned in kept.items():
        excess = _load(assigned) - quotas[member_id]
        for topic_id in sorted(assigned, reverse=True):
            if excess <= 0:
                break
            released = sorted(assigned[topic_id])[-excess:]
            assigned[topic_id].difference_update(released)
            excess -= len(released)
    free = iter(_unassigned(spec, kept, topics))
    for member_id in sorted(kept):
        assigned = kept[member_id]
        for _ in range(quotas[member_id] - _load(assigned)):
            topic_id, index = next(free)
            assigned.setdefault(topic_id, set()).add(index)


def _load(assigned: dict[UUID, set[int]]) -> int:
    return sum(len(partitions) for partitions in assigned.values())


# ---- Different subscriptions


class _Balancer:
    """Balances members with different subscriptions. Members are numbered in the order of their ids."""

    def __init__(self, spec: GroupSpec, kept: _Mutable) -> None:
        self._spec = spec
        self._ids = sorted(kept)
        self._assigned = [kept[member_id] for member_id in self._ids]
        self._load = [_load(assigned) for assigned in self._assigned]
        self._subscribers: dict[UUID, list[int]] = {}
        for number, member_id in enumerate(self._ids):
            for topic_id in spec.members[member_id].topics:
                self._subscribers.setdefault(topic_id, []).append(number)

    def run(self) -> None:
        """Assign what is free, the topics with most partitions per subscriber first, and balance."""
        topics = sorted(self._subscribers, key=self._order)
        free: dict[UUID, list[int]] = {}
        kept = dict(zip(self._ids, self._assigned, strict=True))
        for topic_id, index in _unassigned(self._spec, kept, topics):
            free.setdefault(topic_id, []).append(index)
        for topic_id in topics:
            self._assign_free(topic_id, free.get(topic_id, []))
        shared = [topic_id for topic_id in topics if len(self._subscribers[topic_id]) > 1]
        for _ in range(BALANCE_ROUNDS_MAX):
            if not sum(self._balance(topic_id) for topic_id in shared):
                break

    def _order(self, topic_id: UUID) -> tuple[float, int, UUID]:
        subscribers = len(self._subscribers[topic_id])
        return (-self._spec.partitions[topic_id] / subscribers, subscribers, topic_id)

    def _assign_free(self, topic_id: UUID, partitions: list[int]) -> None:
        heap = [(self._load[number], number) for number in self._subscribers[topic_id]]
        heapq.heapify(heap)
        for index in partitions:
            _, number = heap[0]
            self._give(topic_id, index, number)
            heapq.heapreplace(heap, (self._load[number], number))

    def _give(self, topic_id: UUID, index: int, number: int) -> None:
        self._assigned[number].setdefault(topic_id, set()).add(index)
        self._load[number] += 1

    def _balance(self, topic_id: UUID) -> int:
        """Move the topic's partitions to the least loaded subscribers. Returns the number of moves."""
        subscribers = self._subscribers[topic_id]
        owned = {number: sorted(self._assigned[number].get(topic_id, ())) for number in subscribers}
        least = [(self._load[number], number) for number in subscribers]
        most = [(-self._load[number], number) for number in subscribers if owned[number]]
        heapq.heapify(least)
        heapq.heapify(most)
        moves = 0
        while most:
            load, giver = -most[0][0], most[0][1]
            if not owned[giver]:
                heapq.heappop(most)
                continue
            low, taker = least[0]
            if low != self._load[taker]:  # its load changed after it was queued
                heapq.heapreplace(least, (self._load[taker], taker))
                continue
            if load - low <= 1:
                break
            index = owned[giver].pop()
            self._assigned[giver][topic_id].remove(index)
            self._load[giver] -= 1
            self._give(topic_id, index, taker)
            heapq.heapreplace(most, (-self._load[giver], giver))
            heapq.heapreplace(least, (self._load[taker], taker))
            moves += 1
        return moves
