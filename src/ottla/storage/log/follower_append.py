"""What an append by a leader and one by a follower have in common, and the follower's own.

A leader's append is `PartitionLog.append`: it makes the offsets. A follower takes what its leader made, several batches
at a time. Both tell the producer state and the index of aborted transactions of what was written.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ottla.records.batch import BatchHeader
from ottla.storage.file_names import TXN_INDEX_SUFFIX
from ottla.storage.state.producer_state import SEQUENCE_MAX, WrittenBatch
from ottla.storage.state.transactions import Marker, read_marker
from ottla.storage.validation.batch_validator import check_follower_batches

if TYPE_CHECKING:
    from ottla.storage.log.partition_log import PartitionLog


class AppendOrigin(Enum):
    """Who made the records."""

    CLIENT = "client"
    COORDINATOR = "coordinator"  # this broker: group offsets, transaction state and markers


class AppendInfo(NamedTuple):
    """Where an append went."""

    first_offset: int
    last_offset: int
    append_time_ms: int  # -1 unless the topic stamps arrival
    log_start_offset: int
    duplicate: bool = False


def append_replicated(log: PartitionLog, records: memoryview, *, now_ms: int) -> AppendInfo | None:
    """`PartitionLog.append_replicated`, once the directory is known to be well."""
    batches = check_follower_batches(records, end_offset=log.end_offset)
    if not batches:
        return None
    if not log.has_gaps and _leaves_gaps(log.end_offset, batches):
        log.before_gaps()
    size = batches[-1][0] + batches[-1][1].size_bytes
    last_offset = batches[-1][1].last_offset
    greatest = max(header.max_timestamp for _, header in batches)
    first_offset = batches[0][1].base_offset
    segment = log.segment_for(size, first_offset=first_offset, last_offset=last_offset, max_timestamp=greatest)
    position = segment.size_bytes
    try:
        segment.append(records[:size])
    except OSError as error:
        raise log.refused("append", segment, error) from error
    for at, header in batches:
        segment.note_batch(
            last_offset=header.last_offset, position=position + at, size_bytes=header.size_bytes,
            max_timestamp=header.max_timestamp, interval_bytes=log.config.index_interval_bytes,
        )  # fmt: skip
        if header.partition_leader_epoch > log.epochs.latest:
            log.assign_epoch(header.partition_leader_epoch, header.base_offset)
        log.end_offset = header.last_offset + 1
        if header.producer_id >= 0:
            marker = read_marker(records[at : at + header.size_bytes]) if header.is_control else None
            note_producer(log, header, marker, header.base_offset, header.last_offset, header.max_timestamp, now_ms)
    return AppendInfo(batches[0][1].base_offset, last_offset, -1, log.log_start_offset)


def _leaves_gaps(end_offset: int, batches: list[tuple[int, BatchHeader]]) -> bool:
    """Whether the leader has compacted some of what would be next."""
    for _, header in batches:
        if header.base_offset != end_offset:
            return True
        end_offset = header.last_offset + 1
    return False


def note_producer(
    log: PartitionLog,
    header: BatchHeader,
    marker: Marker | None,
    first: int,
    last: int,
    max_timestamp: int,
    now_ms: int,
) -> None:
    """Producer state after the write of a batch with a producer id. `header` may not have its offsets yet."""
    if not header.is_control:
        sequence = header.base_sequence
        batch = WrittenBatch(sequence, (sequence + header.last_offset_delta) & SEQUENCE_MAX, first, last, max_timestamp)
        log.producer_states.record(
            header.producer_id, header.producer_epoch, batch, transactional=header.is_transactional, now_ms=now_ms
        )
    elif marker is not None:
        aborted = log.transactions.end(log.producer_states, header, marker, offset=last, now_ms=now_ms)
        if aborted is not None:
            log.pending_flush.add_aborted(log.active.path(TXN_INDEX_SUFFIX), aborted)


def duplicate_of(log: PartitionLog, again: WrittenBatch) -> AppendInfo:
    """The answer to a batch that came again: where it lies since the first time."""
    append_time_ms = again.timestamp if log.config.uses_log_append_time else -1
    return AppendInfo(again.first_offset, again.last_offset, append_time_ms, log.log_start_offset, duplicate=True)
