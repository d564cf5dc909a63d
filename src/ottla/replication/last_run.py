"""Compares the replicas on this broker's disks with what the cluster expects of them, before the broker registers.

Two things follow that must be known before any election:

- a replica that is in the ISR or the ELR, and has no log here, has lost records: it must not lead before it has caught
  up. A disk that was emptied has nothing else to show for it;
- the terms of the last run: a leader that died may have sent followers records that its own disk has lost. It must not
  write others in their place in the same leader epoch, so it waits for the controller to begin a new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from ottla.coordination.view import ClusterView, TopicView
from ottla.core.ids import NO_TOPIC_ID, TopicPartition, is_damaged_copy
from ottla.storage.directories.log_manager import LogManager


class LastRun(NamedTuple):
    """What the last run of this broker has left."""

    missing: frozenset[TopicPartition]  # replicas that may be elected, without a log
    led: Mapping[tuple[uuid.UUID, TopicPartition], int]  # the leader epochs of the partitions that it led


def inspect_last_run(view: ClusterView, directories: LogManager, *, node_id: int) -> LastRun:
    """Compare the logs of the directories with the newest state of the cluster."""
    missing: set[TopicPartition] = set()
    led: dict[tuple[uuid.UUID, TopicPartition], int] = {}
    for topic in view.topics.values():
        for partition in topic.partitions:
            if node_id not in partition.replicas:
                continue
            topic_partition = TopicPartition(topic.name, partition.index)
            if partition.leader == node_id:
                led[topic.topic_id, topic_partition] = partition.leader_epoch
            is_electable = node_id in partition.isr or node_id in partition.elr
            if is_electable and not _has_log(directories, topic_partition, topic):
                missing.add(topic_partition)
    return LastRun(frozenset(missing), led)


def _has_log(directories: LogManager, topic_partition: TopicPartition, topic: TopicView) -> bool:
    for directory in directories.holding(topic_partition):
        found = directory.logs[topic_partition].topic_id
        if found in {topic.topic_id, NO_TOPIC_ID} or is_damaged_copy(found, topic.topic_id):
            return True
    return False
