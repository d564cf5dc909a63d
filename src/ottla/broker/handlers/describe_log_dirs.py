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
from collections.abc import Collection
from operator import attrgetter

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.storage.directories.log_directory import LogDirectory
from ottla.wire.messages.describe_log_dirs import (
    MESSAGES,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN_VOLUME_BYTES = -1


async def handle(request: Request, body: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Describe the requested partitions of each directory."""
    asked = None
    if body.topics is not None:
        each_of = request.services.slices.each
        asked = {
            TopicPartition(topic.topic, index)
            async for topic in each_of(body.topics)
            async for index in each_of(topic.partitions)
        }
    directories = request.services.replicas.directories
    offline = directories.offline
    results = []
    for path in directories.paths:
        if path in offline:
            results.append(DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(path)))
        else:
            results.append(await _one(request, next(each for each in directories.opened if each.path == path), asked))
    return DescribeLogDirsResponse(results=results)


async def _one(
    request: Request, directory: LogDirectory, asked: Collection[TopicPartition] | None
) -> DescribeLogDirsResult:
    partitions, log_dir_move = request.services.replicas.partitions, request.services.replicas.log_dir_move
    topics: dict[str, DescribeLogDirsTopic] = {}
    async for where, partition in request.services.slices.each(list(partitions.items())):
        if partition.log.health is directory.health and (asked is None or where in asked):
            topic = topics.setdefault(where.topic, DescribeLogDirsTopic(name=where.topic))
            topic.partitions.append(
                DescribeLogDirsPartition(partition_index=where.partition, partition_size=partition.log.size_bytes)
            )
    async for where, future in request.services.slices.each(list(directory.future_logs.items())):
        move = log_dir_move(where)
        if move is not None and move.target is directory and (asked is None or where in asked):
            topic = topics.setdefault(where.topic, DescribeLogDirsTopic(name=where.topic))
            topic.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=where.partition,
                    partition_size=future.size_bytes,
                    offset_lag=move.offset_lag,
                    is_future_key=True,
                )
            )
    in_order = [topics[name] for name in sorted(topics)]
    for topic in in_order:
        topic.partitions.sort(key=attrgetter("partition_index"))
    total, free = await asyncio.to_thread(_bytes_of_disk, directory)
    return DescribeLogDirsResult(
        log_dir=str(directory.path),
        topics=in_order,
        total_bytes=total,
        usable_bytes=free,
        is_cordoned=directory.path in request.services.replicas.directories.cordoned,
    )


def _bytes_of_disk(directory: LogDirectory) -> tuple[int, int]:
    """Return the size of the disk, and the bytes that records may use."""
    try:
        total, free = directory.disk_bytes()
        return total, 0 if directory.health.is_full else free
    except OSError:  # the disk does not report its size
        return UNKNOWN_VOLUME_BYTES, UNKNOWN_VOLUME_BYTES


HANDLER = Awaited(MESSAGES, handle)
