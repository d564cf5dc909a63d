"""Finds the partitions that a newer snapshot of the cluster creates, changes or deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.core.slices import SLICE_WORK
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView

PARTITION_WORK = SLICE_WORK
"""A replica that is created or deleted is a slice of work: it makes, syncs or renames files."""

APPLY_WORK = PARTITION_WORK // 10
"""Work of the next state of a replica that is there, or of the first one of a log that a start has loaded.

A broker has thousands of them to apply when leaders move, and when it starts."""

AT_ONCE_MAX = 10
"""A change of more partitions is applied in slices."""


def gone_topic(before: TopicView | None, topic: TopicView | None) -> TopicView | None:
    """Return the topic that was deleted, which may have been created again, or None."""
    if before is not None and (topic is None or before.topic_id != topic.topic_id):
        return before
    return None


def partitions_to_apply(before: TopicView | None, topic: TopicView, indexes: Sequence[int]) -> Sequence[PartitionView]:
    """Return the partitions to apply: those that changed, or all if the topic is new or its settings changed."""
    if before is None or before.topic_id != topic.topic_id or before.config != topic.config:
        return topic.partitions
    return [topic.partitions[index] for index in indexes if index < len(topic.partitions)]


def is_small(old: ClusterView, new: ClusterView, delta: Mapping[str, Sequence[int]]) -> bool:
    """Return whether so few partitions are to be applied that it needs no slices."""
    if len(delta) > AT_ONCE_MAX:
        return False
    count = 0
    for name, indexes in delta.items():
        before, topic = old.topics.get(name), new.topics.get(name)
        gone = gone_topic(before, topic)
        count += len(gone.partitions) if gone is not None else 0
        count += len(partitions_to_apply(before, topic, indexes)) if topic is not None else 0
    return count <= AT_ONCE_MAX
