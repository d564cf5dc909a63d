"""What must be true of a log that compaction has been at, whatever a crash has left of it.

Batches may be gone or hold fewer records, never other ones. The latest committed record of each key below what was
promised is there, tombstones until their horizon is over; no older value shows itself again behind one that is gone;
aborted records that are there are listed as such; the sequences of producers go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.records.batch import BatchHeader
from ottla.records.scanner import Record, scan
from ottla.storage.log import PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.sweep.book import Life, Written
from tests.sweep.promise import Lost, Lying, check_indexes, check_reads, must, replayed

Plain = tuple[int, bytes | None, bytes | None, int]  # offset, key, value, time


class _Seen(NamedTuple):
    header: BatchHeader
    records: list[Plain]


def check_compacted(
    disk: SimDisk, log: PartitionLog, life: Life, found: Sequence[Lying], *, promised: int, told: str
) -> None:
    """All of it."""
    del disk
    seen = [_Seen(lying.header, _records(lying.raw)) for lying in found]
    written = {batch.first_offset: batch for batch in life.batches}
    for lying, each in zip(found, seen, strict=True):
        _check_batch(lying, each, written.get(lying.header.base_offset), told)
    must(log.end_offset >= promised, f"{told}: acknowledged records are lost", Lost)
    must(life.start_least <= log.log_start_offset <= life.start_most, f"{told}: wrong start")
    # Of what was not flushed some may be lost and some not, where gaps are nothing strange.
    there = {lying.header.base_offset for lying in found}
    sure = [batch for batch in life.batches if batch.last_offset < promised]
    below = [*sure, *(batch for batch in life.batches[len(sure) :] if batch.first_offset in there)]
    aborted = _aborted_offsets(below)
    _check_keys(log, life, seen, sure, aborted, told)
    _check_transactions(log, found, aborted, told)
    _check_producers(log, below, told)
    _check_times(log, seen)
    check_reads(log, found)
    check_indexes(log, found)


def _records(raw: bytes) -> list[Plain]:
    return [_plain(record) for record in scan(memoryview(raw))]


def _plain(record: Record) -> Plain:
    return record.offset, record.key, record.value, record.timestamp_ms


def _check_batch(lying: Lying, each: _Seen, written: Written | None, told: str) -> None:
    header = lying.header
    must(written is not None, f"{told}: a batch at {header.base_offset} that was never written")
    assert written is not None
    if lying.raw == written.raw:
        return
    original = written.header
    same = (
        header.last_offset, header.partition_leader_epoch, header.producer_id, header.producer_epoch,
        header.base_sequence, header.is_control, header.is_transactional,
    ) == (
        original.last_offset, original.partition_leader_epoch, original.producer_id, original.producer_epoch,
        original.base_sequence, original.is_control, original.is_transactional,
    )  # fmt: skip
    must(same, f"{told}: compaction has changed the header at {header.base_offset}: {header}")
    must(header.record_count == len(each.records), f"{told}: {header} counts its records wrong")
    must(set(each.records) <= set(_records(written.raw)), f"{told}: other records at {header.base_offset}")


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
    log: PartitionLog, life: Life, seen: Sequence[_Seen], below: Sequence[Written], aborted: set[int], told: str
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
            must(life.tombstones_may_go, f"{told}: the tombstone of {key!r} is gone before its time")
            older = [
                offset
                for offset, other in there.items()
                if other[1] == key and log.log_start_offset <= offset < record[0]
            ]
            must(not set(older) - aborted, f"{told}: {key!r} is back at {older}")
        else:
            must(record[0] in there, f"{told}: the latest value of {key!r} at {record[0]} is gone", Lost)


def _check_transactions(log: PartitionLog, found: Sequence[Lying], aborted: set[int], told: str) -> None:
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
                must(
                    hidden == (header.base_offset in aborted),
                    f"{told}: batch {header} is hidden: {hidden}, by {entries}",
                )


def _check_producers(log: PartitionLog, below: Sequence[Written], told: str) -> None:
    oracle = replayed(below)
    infos = {info.producer_id: info for info in log.producers()}
    for producer_id, known in oracle.known.items():
        info = infos.get(producer_id)
        must(info is not None, f"{told}: producer {producer_id} is forgotten")
        assert info is not None
        expected = (known.epoch, -1 if known.last_sequence is None else known.last_sequence)
        must((info.producer_epoch, info.last_sequence) == expected, f"{told}: {info}, and should be at {expected}")
        transaction = -1 if known.transaction is None else known.transaction
        must(info.current_txn_start_offset == transaction, f"{told}: {info}, and its transaction is at {transaction}")
    log.update_high_watermark(log.end_offset)
    first = oracle.first_open()
    stable = log.end_offset if first is None else max(first, log.log_start_offset)
    must(log.last_stable_offset == stable, f"{told}: the last stable offset is {log.last_stable_offset}, not {stable}")


def _check_times(log: PartitionLog, seen: Sequence[_Seen]) -> None:
    live = [(record[0], record[3]) for each in seen for record in each.records if record[0] >= log.log_start_offset]
    for _, time in live[:: max(len(live) // 4, 1)]:
        expected = next(offset for offset, at in live if at >= time)
        answer = log.offset_for_timestamp(time, end_offset=log.end_offset)
        must(answer is not None and answer.offset == expected, f"time {time} is at {expected}, not {answer}")
    newest = log.offset_of_max_timestamp(log.end_offset)
    greatest = max((time for _, time in live), default=None)
    must((newest.timestamp if newest else None) == greatest, f"the newest time is {greatest}, not {newest}")
