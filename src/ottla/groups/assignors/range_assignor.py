"""Assigns consecutive partitions of each topic to the members in order: the assignor `range` of KIP-848.

Topics with equal numbers of partitions and equal subscribers are co-partitioned: a member gets the same partition
numbers of each, so that it can join their records. Static members come first, in the order of their instance ids, which
outlive a restart; the others in the order of their member ids. As in Kafka, racks have no influence.
"""

from __future__ import annotations

from uuid import UUID

from ottla.groups.assignors.spec import GroupSpec, TargetAssignment

NAME = "range"


def assign(spec: GroupSpec) -> TargetAssignment:
    """Assign each topic's partitions in ranges that differ by at most one partition, the longer ones first.

    >>> from ottla.groups.assignors.spec import MemberSpec
    >>> topic = UUID(int=1)
    >>> spec = GroupSpec({"m2": MemberSpec(frozenset({topic})), "m1": MemberSpec(frozenset({topic}))}, {topic: 3})
    >>> {member: sorted(partitions[topic]) for member, partitions in assign(spec).items()}
    {'m1': [0, 1], 'm2': [2]}
    """
    ordered = sorted(spec.members, key=lambda member_id: _order(spec, member_id))
    subscribers: dict[UUID, list[str]] = {}
    for member_id in ordered:
        for topic_id in spec.members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    target: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in ordered}
    for topic_id, member_ids in subscribers.items():
        minimum, longer = divmod(spec.partitions[topic_id], len(member_ids))
        start = 0
        for at, member_id in enumerate(member_ids):
            end = start + minimum + (at < longer)
            if end > start:
                target[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(target)


def _order(spec: GroupSpec, member_id: str) -> tuple[bool, str]:
    instance_id = spec.members[member_id].instance_id
    return (instance_id is None, member_id if instance_id is None else instance_id)
