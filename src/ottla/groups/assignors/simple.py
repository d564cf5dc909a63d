"""Gives each partition to at least one member and each member about as many as the others: `simple` of KIP-932.

With more members than partitions, a partition has several members, which then share its records.
"""

from __future__ import annotations

from uuid import UUID

from ottla.groups.assignors.spec import GroupSpec, TargetAssignment

NAME = "simple"


def assign(spec: GroupSpec) -> TargetAssignment:
    """Deal the partitions to the members in turn; the shorter of the two lists is dealt again from its start.

    >>> from ottla.groups.assignors.spec import MemberSpec
    >>> topic = UUID(int=1)
    >>> members = {name: MemberSpec(frozenset({topic})) for name in ("m1", "m2", "m3")}
    >>> {name: sorted(found[topic]) for name, found in assign(GroupSpec(members, {topic: 2})).items()}
    {'m1': [0], 'm2': [1], 'm3': [0]}
    """
    target: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in spec.members}
    by_topics: dict[frozenset[UUID], None] = {}
    if spec.is_homogeneous:
        by_topics = {member.topics: None for member in spec.members.values()}
    else:
        by_topics = {frozenset({topic_id}): None for topic_id in sorted(spec.partitions)}
    for topics in by_topics:
        members = sorted(name for name, member in spec.members.items() if topics <= member.topics)
        members.sort(key=lambda name: sum(len(found) for found in target[name].values()))
        partitions = [(topic_id, index) for topic_id in sorted(topics) for index in range(spec.partitions[topic_id])]
        if not members or not partitions:
            continue
        for turn in range(max(len(members), len(partitions))):
            topic_id, index = partitions[turn % len(partitions)]
            target[members[turn % len(members)]].setdefault(topic_id, set()).add(index)
    return {
        member_id: {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}
        for member_id, topics in target.items()
    }
