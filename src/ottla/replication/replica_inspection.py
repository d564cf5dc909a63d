"""Compares the replicas on this broker's disks with what the cluster expects of them, before the broker registers.

Three things follow that must be known before any election:

- a replica that is in the ISR or the ELR, and has no log here, has lost records if a log directory is missing or was
  emptied: it must not lead before it has caught up. If all directories are here the crash came before the first flush
  of the log. No record of the partition can have been committed where records count once they are flushed; where they
  count in the page cache the start is unclean, and the controller decides as for a log that has lost its end;
- a replica that the last run reported as suspect, and that has not caught up since, still is if there are others;
- the terms of the last run: a leader that died may have sent followers records that its own disk has lost. It must not
  write others in their place in the same leader epoch, so it waits for the controller to begin a new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Mapping
from typing import NamedTuple

from ottla.core.ids import TopicPartition, may_be_topic_id
from ottla.core.slices import WorkSlice
from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.storage.directories.log_manager import LogManager


class ReplicaInspection(NamedTuple):
    """The result of the comparison."""

    missing: frozenset[TopicPartition]  # replicas that may be elected, and whose logs are lost with a directory
    is_unclean: bool  # the last run ended before the first flush of such a log: all directories are here
    suspects: frozenset[TopicPartition]  # replicas that the last run has reported
    led: Mapping[tuple[uuid.UUID, TopicPartition], int]  # the leader epochs of the partitions that it led


def inspect_replicas(
    view: ClusterView, directories: LogManager, slices: WorkSlice, *, node_id: int, is_complete: bool
) -> Generator[None, None, ReplicaInspection]:
    """Compare the logs of the directories with the newest state of the cluster.

    The directories are complete if each that was ever used is here, by its id. Yields when a slice of work is spent.
    """
    report = view.replica_reports.get(node_id)
    absent: set[TopicPartition] = set()
    suspects: set[TopicPartition] = set()
    led: dict[tuple[uuid.UUID, TopicPartition], int] = {}
    for topic in view.topics.values():
        for partition in topic.partitions:
            if slices.spend():
                yield
            if node_id not in partition.replicas:
                continue
            topic_partition = TopicPartition(topic.name, partition.index)
            if partition.leader == node_id:
                led[topic.topic_id, topic_partition] = partition.leader_epoch
            is_electable = node_id in partition.isr or node_id in partition.elr
            if is_electable and not _has_log(directories, topic_partition, topic):
                absent.add(topic_partition)
            if report is not None and topic_partition in report.suspects and len(partition.replicas) > 1:
                suspects.add(topic_partition)
    missing = frozenset[TopicPartition]() if is_complete else frozenset(absent)
    return ReplicaInspection(missing, bool(absent) and is_complete, frozenset(suspects), led)


def _has_log(directories: LogManager, topic_partition: TopicPartition, topic: TopicView) -> bool:
    for directory in directories.holding(topic_partition):
        if may_be_topic_id(directory.logs[topic_partition].topic_id, topic.topic_id):
            return True
    return False
