"""Computes the target assignment of a group from its members' subscriptions and the cluster's topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.groups.assignors.spec import NO_PARTITIONS, Assignor, GroupSpec, MemberSpec, Partitions, TargetAssignment
from ottla.groups.modern.topics import TopicsImage


class MemberSubscription(NamedTuple):
    """Holds what the target assignment of one member depends on."""

    topics: Iterable[str]
    instance_id: str | None = None
    rack_id: str | None = None


def compute_target(
    assignor: Assignor,
    subscriptions: Mapping[str, MemberSubscription],
    current: Mapping[str, Partitions],
    image: TopicsImage,
) -> TargetAssignment:
    """Compute the target assignment of every member. Topics that do not exist are left out."""
    partitions: dict[UUID, int] = {}
    ids: dict[str, UUID | None] = {}
    members = {}
    for member_id, subscription in subscriptions.items():
        for name in subscription.topics:
            if name not in ids:
                topic = image.get(name)
                ids[name] = None if topic is None else topic.topic_id
                if topic is not None:
                    partitions[topic.topic_id] = topic.partitions
        topics = frozenset(topic_id for name in subscription.topics if (topic_id := ids[name]) is not None)
        members[member_id] = MemberSpec(
            topics, current.get(member_id, NO_PARTITIONS), subscription.instance_id, subscription.rack_id
        )
    return assignor(GroupSpec(members, partitions))
