"""Asks a leader where its logs start and end, and brings a follower's log into this range.

A leader refuses a fetch offset that is outside of its log, or of an epoch that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.client.connection import Connection, ConnectTo
from ottla.core.error_codes import ErrorCode
from ottla.replication.partition import Partition
from ottla.wire.apis import ApiKey
from ottla.wire.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

_EARLIEST: Final = -2
_LATEST: Final = -1


class LeaderRange(NamedTuple):
    """The start and the end of a leader's log."""

    start: int
    end: int

    def take_into(self, partition: Partition) -> bool:
        """Begin the log at the leader's start if it ends below, truncate it to the leader's end if it ends above.

        Return False if it does neither: then the leader has no epoch in common with it.
        """
        end = partition.log.end_offset
        if self.start > end:
            partition.restart_log_at(self.start)
        elif self.end < end:
            partition.truncate(self.end)
        else:
            return False
        return True


async def fetch_leader_ranges(
    connect: ConnectTo, leader: int, partitions: Sequence[Partition], *, node_id: int, timeout_s: float
) -> dict[Partition, LeaderRange]:
    """Ask the leader, on a connection of its own, for the ranges of these partitions; those it refuses are left out.

    Raises CannotConnect, KafkaError, OSError or MalformedRequest.
    """
    connection = await connect(leader)
    try:
        starts = await _offsets(connection, partitions, _EARLIEST, node_id, timeout_s)
        ends = await _offsets(connection, partitions, _LATEST, node_id, timeout_s)
    finally:
        await connection.close()
    return {
        partition: LeaderRange(starts[partition], ends[partition])
        for partition in partitions
        if partition in starts and partition in ends
    }


async def _offsets(
    connection: Connection, partitions: Sequence[Partition], timestamp: int, node_id: int, timeout_s: float
) -> dict[Partition, int]:
    """Ask the leader for the start or the end of its logs, as a replica: the end is not the high watermark."""
    topics: dict[str, ListOffsetsTopic] = {}
    asked: dict[tuple[str, int], Partition] = {}
    for partition in partitions:
        name, index = partition.topic_partition
        asked[(name, index)] = partition
        topics.setdefault(name, ListOffsetsTopic(name=name)).partitions.append(
            ListOffsetsPartition(
                partition_index=index, current_leader_epoch=partition.leader_epoch, timestamp=timestamp
            )
        )
    request = ListOffsetsRequest(replica_id=node_id, topics=list(topics.values()))
    response = await connection.request(ApiKey.LIST_OFFSETS, request, timeout_s=timeout_s)
    return {
        asked[(topic.name, found.partition_index)]: found.offset
        for topic in response.topics
        for found in topic.partitions
        if found.error_code == ErrorCode.NONE and found.offset >= 0
    }
