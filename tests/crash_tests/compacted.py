"""What must be true of a log that compaction has been at, whatever a crash has left of it.

Batches may be gone or hold fewer records, never other ones. The latest committed record of each key below what was
acknowledged is there, tombstones until their horizon is over; no older value reappears after a removed one;
aborted records that are there are listed as such; the sequences of producers go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.records.batch import BatchHeader
from ottla.records.record_reader import Record, read_records
from ottla.storage.log.partition_log import PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.crash_tests.expected_state import ExpectedLog, Written
from tests.crash_tests.invariants import DataLoss, Lying, check_indexes, check_reads, replayed, require

Plain = tuple[int, bytes | None, bytes | None, int]  # offset, key, value, time


class _Seen(NamedTuple):
    header: BatchHeader
    records: list[Plain]


def check_compacted(
    disk: SimDisk,
    log: PartitionLog,
    expected_log: ExpectedLog,
    found: Sequence[Lying],
    *,
    acknowledged: int,
    context: str,
) -> None:
    """All of it."""
    del disk
    seen = [_Seen(lying.header, _records(lying.raw)) for lying in found]
    written = {batch.first_offset: batch for batch in expected_log.batches}
    for lying, each in zip(found, seen, strict=True):
        _check_batch(lying, each, written.get(lying.header.base_offset), context)
    require(log.end_offset >= acknowledged, f"{context}: acknowledged records are lost", DataLoss)
    require(expected_log.start_least <= log.log_start_offset <= expected_log.start_most, f"{context}: wrong start")
    # Of what was not flushed some may be lost and some not, where gaps are nothing strange.
    there = {lying.header.base_offset for lying in found}
    sure = [batch for batch in expected_log.batches if batch.last_offset < acknowledged]
    below = [*sure, *(batch for batch in expected_log.batches[len(sure) :] if batch.first_offset in there)]
    aborted = _aborted_offsets(below)
    _check_keys(log, expected_log, seen, sure, aborted, context)
    _check_transactions(log, found, aborted, context)
    _check_producers(log, below, context)
    _check_times(log, seen)
    check_reads(log, found)
    check_indexes(log, found)


def _records(raw: bytes) -> list[Plain]:
    return [_plain(record) for record in read_records(memoryview(raw))]


def _plain(record: Record) -> Plain:
    return record.offset, record.key, record.value, record.timestamp_ms


def _check_batch(lying: Lying, each: _Seen, written: Written | None, context: str) -> None:
    header = lying.header
    require(written is not None, f"{context}: a batch at {header.base_offset} that was never written")
    assert written is not None
    if lying.raw == written.raw:
        return
    original = written.header
    same = (
        header.last_offset,
        header.partition_leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_control,
        header.is_transactional,
    ) == (
        original.last_offset,
        original.partition_leader_epoch,
        original.producer_id,
        original.producer_epoch,
        original.base_sequence,
        original.is_control,
        original.is_transactional,
    )
    require(same, f"{context}: compaction has changed the header at {header.base_offset}: {header}")
    require(header.record_count == len(each.records), f"{context}: {header} counts its records wrong")
    require(set(each.records) <= set(_records(written.raw)), f"{context}: other records at {header.base_offset}")


def _aborted_offsets(batches: Sequence[Written]) -> set[int]:
    """Offsets of data of transactions that were aborted."""
    found: set[int] = set()
    for entry in replayed(batches).aborted:
        for batch in batches:
            header = batch.header
            mine = header.producer_id == entry.producer_id and header.is_transactional and not header.is_control
            if mine and entry.first_offset <= batch.first_offset <= entry.last_offset:
                found.update(range(batch.first_offset, batch.last_offset + 1))
    return found


def _check_keys(
    log: PartitionLog,
    expected_log: ExpectedLog,
    seen: Sequence[_Seen],
    below: Sequence[Written],
    aborted: set[int],
    context: str,
) -> None:
    there = {record[0]: record for each in seen if not each.header.is_control for record in each.records}
    latest: dict[bytes | None, Plain] = {}
    for batch in below:
        if batch.marker is None:
            for record in _records(batch.raw):
                if record[0] >= log.log_start_offset and record[0] not in aborted:
                    latest[record[1]] = record
    for key, record in latest.items():
        if record[2] is None and record[0] not in there:
            require(expected_log.tombstones_may_go, f"{context}: the tombstone of {key!r} is gone before its time")
            older = [
                offset
                for offset, other in there.items()
                if other[1] == key and log.log_start_offset <= offset < record[0]
            ]
            require(not set(older) - aborted, f"{context}: {key!r} is back at {older}")
        else:
            require(record[0] in there, f"{context}: the latest value of {key!r} at {record[0]} is gone", DataLoss)


def _check_transactions(log: PartitionLog, found: Sequence[Lying], aborted: set[int], context: str) -> None:
    entries = log.aborted_transactions(log.log_start_offset, log.end_offset)
    for lying in found:
        header = lying.header
        if header.is_transactional and not header.is_control and header.last_offset >= log.log_start_offset:
            hidden = any(
                entry.producer_id == header.producer_id
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in entries
            )
            if header.record_count:
                require(
                    hidden == (header.base_offset in aborted),
                    f"{context}: batch {header} is hidden: {hidden}, by {entries}",
                )


def _check_producers(log: PartitionLog, below: Sequence[Written], context: str) -> None:
    oracle = replayed(below)
    infos = {info.producer_id: info for info in log.producers.describe()}
    for producer_id, known in oracle.known.items():
        info = infos.get(producer_id)
        require(info is not None, f"{context}: producer {producer_id} is forgotten")
        assert info is not None
        expected = (known.epoch, -1 if known.last_sequence is None else known.last_sequence)
        require(
            (info.producer_epoch, info.last_sequence) == expected, f"{context}: {info}, and should be at {expected}"
        )
        transaction = -1 if known.transaction is None else known.transaction
        require(
            info.current_txn_start_offset == transaction, f"{context}: {info}, and its transaction is at {transaction}"
        )
    log.update_high_watermark(log.end_offset)
    first = oracle.first_open()
    stable = log.end_offset if first is None else max(first, log.log_start_offset)
    require(
        log.last_stable_offset == stable, f"{context}: the last stable offset is {log.last_stable_offset}, not {stable}"
    )


def _check_times(log: PartitionLog, seen: Sequence[_Seen]) -> None:
    live = [(record[0], record[3]) for each in seen for record in each.records if record[0] >= log.log_start_offset]
    for _, time in live[:: max(len(live) // 4, 1)]:
        expected = next(offset for offset, at in live if at >= time)
        answer = log.offset_for_timestamp(time, end_offset=log.end_offset)
        require(answer is not None and answer.offset == expected, f"time {time} is at {expected}, not {answer}")
    newest = log.offset_of_max_timestamp(log.end_offset)
    greatest = max((time for _, time in live), default=None)
    require((newest.timestamp if newest else None) == greatest, f"the newest time is {greatest}, not {newest}")
