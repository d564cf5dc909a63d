"""DescribeLogDirs (key 35), versions 1 to 5.

What it does
  For each log directory: its path, the bytes of its disk and of what is free, and the size of each replica asked for
  (all of them, if none are named). A replica that moves to the directory (AlterReplicaLogDirs) is marked as future,
  with the offsets that are still to be copied. A directory that is offline has KAFKA_STORAGE_ERROR and nothing else.
  One that is full, and refuses records, has no usable bytes: what is free is kept for what frees more.

What it does not do
  Cordoned directories.

Versions
  v2   flexible encoding
  v3   an error for the whole answer; v4 bytes of the disk (KIP-827); v5 cordoned directories (KIP-1066)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from pathlib import PurePath
from typing import NamedTuple

from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.replication.partition import Partition
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import PartitionLog
from ottla.wire.generated.describe_log_dirs import (
    MESSAGES,
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN_VOLUME_BYTES = -1


class _Online(NamedTuple):
    directory: LogDirectory
    total_bytes: int
    usable_bytes: int


async def ask_disks(request: Request, _body: DescribeLogDirsRequest) -> dict[PurePath, _Online]:
    """Find the directories that are online, with the sizes of their disks."""
    directories = request.services.replicas.directories.online
    return await asyncio.to_thread(
        lambda: {directory.path: _Online(directory, *_bytes_of_disk(directory)) for directory in directories}
    )


def _bytes_of_disk(directory: LogDirectory) -> tuple[int, int]:
    """Return the size of the disk, and the bytes that records may use."""
    try:
        total, free = directory.disk_bytes()
        return total, 0 if directory.health.is_full else free
    except OSError:  # the disk does not report its size
        return UNKNOWN_VOLUME_BYTES, UNKNOWN_VOLUME_BYTES


def answer(
    request: Request, body: DescribeLogDirsRequest, online: dict[PurePath, _Online], _view: ClusterView
) -> InParts[DescribeLogDirsResponse]:
    """Describe the requested partitions of each directory."""
    response = DescribeLogDirsResponse()
    paths = request.services.replicas.directories.paths
    asked: set[TopicPartition] = set()
    one = partial(_directory, online, None if body.topics is None else asked)
    return InParts(
        response, Each(body.topics or (), partial(_asked_of, asked)), Each(paths, one, into=response.results)
    )


def _asked_of(
    asked: set[TopicPartition], _request: Request, topic: DescribableLogDirTopic, _view: ClusterView
) -> InParts[None]:
    return InParts(None, Each(topic.partitions, partial(_asked, asked, topic.topic)))


def _asked(asked: set[TopicPartition], topic: str, _request: Request, index: int, _view: ClusterView) -> None:
    asked.add(TopicPartition(topic, index))


class _Topics:
    """The topics of one directory, made with their first partition."""

    def __init__(self, directory: LogDirectory, asked: set[TopicPartition] | None) -> None:
        self.directory, self._asked = directory, asked
        self._topics: dict[str, DescribeLogDirsTopic] = {}

    def is_asked(self, where: TopicPartition) -> bool:
        """Return whether a partition is to be described."""
        return self._asked is None or where in self._asked

    def add(self, topic: str, partition: DescribeLogDirsPartition) -> None:
        """Add a partition to its topic."""
        self._topics.setdefault(topic, DescribeLogDirsTopic(name=topic)).partitions.append(partition)

    def by_name(self) -> Iterator[DescribeLogDirsTopic]:
        """Yield the topics in the order of their names: those that there are when the first is taken."""
        for name in sorted(self._topics):
            yield self._topics[name]


def _directory(
    online: dict[PurePath, _Online],
    asked: set[TopicPartition] | None,
    request: Request,
    path: PurePath,
    _view: ClusterView,
) -> InParts[DescribeLogDirsResult]:
    replicas = request.services.replicas
    if path not in online or path in replicas.directories.offline:
        return InParts(DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(path)))
    directory, total, usable = online[path]
    result = DescribeLogDirsResult(
        log_dir=str(path), total_bytes=total, usable_bytes=usable, is_cordoned=path in replicas.directories.cordoned
    )
    topics = _Topics(directory, asked)
    return InParts(
        result,
        Each(list(replicas.partitions.items()), partial(_replica, topics)),
        Each(list(directory.future_logs.items()), partial(_future, topics)),
        Each(topics.by_name(), _in_order, into=result.topics),
    )


def _replica(topics: _Topics, _request: Request, replica: tuple[TopicPartition, Partition], _view: ClusterView) -> None:
    where, partition = replica
    if partition.log.health is topics.directory.health and topics.is_asked(where):
        topics.add(
            where.topic,
            DescribeLogDirsPartition(partition_index=where.partition, partition_size=partition.log.size_bytes),
        )


def _future(
    topics: _Topics, request: Request, replica: tuple[TopicPartition, PartitionLog], _view: ClusterView
) -> None:
    where, future = replica
    move = request.services.replicas.log_dir_move(where)
    if move is not None and move.target is topics.directory and topics.is_asked(where):
        topics.add(
            where.topic,
            DescribeLogDirsPartition(
                partition_index=where.partition,
                partition_size=future.size_bytes,
                offset_lag=move.offset_lag,
                is_future_key=True,
            ),
        )


def _in_order(_request: Request, topic: DescribeLogDirsTopic, _view: ClusterView) -> DescribeLogDirsTopic:
    topic.partitions.sort(key=attrgetter("partition_index"))
    return topic


HANDLER = ElementWiseAfter(MESSAGES, first=ask_disks, answer=answer, access=(on_cluster(AclOperation.DESCRIBE),))
