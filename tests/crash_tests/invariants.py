"""Checks what must be true of a directory that was recovered, whatever the disk had lost.

Every check compares with a plain walk over the bytes of the `.log` files or with the expected state; none asks the code under
test for what it should be. An `InvariantViolation` has the reason in one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ottla.core.files import read_file
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.records.batch import BatchHeader
from ottla.records.batch_faults import is_checksum_right
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.file_names import LOG_SUFFIX, TXN_INDEX_SUFFIX
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.small_files import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    parse_offsets,
    text_or_none,
)
from ottla.storage.state.aborted_index import read_aborted
from ottla.testing.sim_disk import SimDisk
from tests.crash_tests.expected_state import ExpectedLog, ExpectedState, Written
from tests.support.producer_oracle import ProducerOracle, Taken
from tests.support.storage import content


class InvariantViolation(AssertionError):
    """The recovered directory differs from what is allowed."""


class DataLoss(InvariantViolation):
    """Acknowledged records are gone."""


class Lying(NamedTuple):
    """A batch as a plain walk over a file finds it."""

    base_offset: int  # of its segment
    position: int
    raw: bytes
    header: BatchHeader


def require(true: bool, what: str, error: type[InvariantViolation] = InvariantViolation) -> None:
    if not true:
        raise error(what)


def all_logs(directories: Iterable[LogDirectory]) -> dict[TopicPartition, PartitionLog]:
    """Every log of some directories; each is in one of them."""
    found: dict[TopicPartition, PartitionLog] = {}
    for directory in directories:
        for tp, log in directory.logs.items():
            require(tp not in found, f"{tp} is in two directories")
            found[tp] = log
    return found


def check(disk: SimDisk, directories: Sequence[LogDirectory], expected_state: ExpectedState, *, killed: bool) -> None:
    """Compare directories that have just been opened with the expected state. `killed`: all that was written is there."""
    logs = all_logs(directories)
    for tp in logs:
        require(tp in expected_state.logs, f"{tp}: a deleted topic is back")
    for tp, expected_log in expected_state.logs.items():
        log = logs.get(tp)
        if log is None:
            require(
                expected_log.may_be_gone or not (expected_log.surely_there or (killed and expected_log.made)),
                f"{tp}: the log is gone",
                DataLoss,
            )
            continue
        if expected_log.surely_there:
            require(log.topic_id == expected_log.topic_id, f"{tp}: the topic id is {log.topic_id}")
        else:
            require(log.topic_id in {expected_log.topic_id, NO_TOPIC_ID}, f"{tp}: the topic id is {log.topic_id}")
        check_log(disk, log, expected_log, acknowledged=expected_log.written if killed else expected_log.flushed)
    for directory in directories:
        check_checkpoints(disk, directory)


def check_log(disk: SimDisk, log: PartitionLog, expected_log: ExpectedLog, *, acknowledged: int) -> None:
    """One log: its bytes, both ends, reads, indexes, times, epochs, producers and transactions."""
    from tests.crash_tests.compacted import check_compacted  # which uses what is below

    found = walk(disk, log)
    first_base = log.segments[0].base_offset
    start, end = log.log_start_offset, log.end_offset
    context = f"{log.topic_partition} holds {start} to {end}, {acknowledged} acknowledged"
    if expected_log.cleaned:
        check_compacted(disk, log, expected_log, found, acknowledged=acknowledged, context=context)
        return
    kept = as_appended(found, expected_log, first_base=first_base, acknowledged=acknowledged, context=context)
    require(
        end == max(found[-1].header.last_offset + 1 if found else 0, log.active.base_offset), f"{context}: wrong end"
    )
    if expected_log.may_be_empty and not found:
        return
    require(
        expected_log.start_least <= start <= expected_log.start_most,
        f"{context}: start not in {expected_log.start_least} to {expected_log.start_most}",
    )
    require(first_base <= start, f"{context}: the files begin at {first_base}")
    require(
        not kept or kept[0].first_offset <= start or first_base == start, f"{context}: records are missing at the start"
    )
    require(end >= acknowledged, f"{context}: acknowledged records are lost", DataLoss)
    require(log.flushed_offset == end, f"{context}: what recovery kept does not count as durable")
    require(start <= log.high_watermark <= end, f"{context}: high watermark {log.high_watermark}")
    check_reads(log, found)
    check_indexes(log, found)
    check_times(log, kept)
    check_epochs(log, expected_log, found)
    if not has_holes(expected_log, kept, log.end_offset):
        check_producers(disk, log, expected_log, kept)


def walk(disk: SimDisk, log: PartitionLog) -> list[Lying]:
    """Every batch in the files, checked for its checksum and for bytes that belong to none."""
    found = []
    for segment in log.segments:
        data = read_file(disk, segment.path(LOG_SUFFIX))
        require(
            len(data) == segment.size_bytes, f"{segment.path(LOG_SUFFIX)} is taken for {segment.size_bytes} bytes long"
        )
        at = 0
        while at < len(data):
            require(len(data) - at >= 61, f"{segment.path(LOG_SUFFIX)} ends with {len(data) - at} loose bytes")
            header = BatchHeader(data, at)
            raw = data[at : at + header.size_bytes]
            require(
                len(raw) == header.size_bytes and is_checksum_right(raw, header),
                f"bad batch at {at} of {segment.base_offset}",
            )
            found.append(Lying(segment.base_offset, at, raw, header))
            at += header.size_bytes
    return found


def as_appended(
    found: Sequence[Lying], expected_log: ExpectedLog, *, first_base: int, acknowledged: int, context: str
) -> list[Written]:
    """The batches found must be a range of those appended, byte for byte, with none missing between two."""
    if not found:
        return []
    numbers = {batch.first_offset: number for number, batch in enumerate(expected_log.batches)}
    number = numbers.get(found[0].header.base_offset)
    require(number is not None, f"{context}: a batch at {found[0].header.base_offset} that was never written")
    assert number is not None
    tolerant = (
        expected_log.compacts and expected_log.batches[number - 1].last_offset + 1 >= acknowledged if number else True
    )
    require(
        tolerant or expected_log.batches[number].first_offset == first_base,
        f"{context}: batches are missing at the start",
    )
    kept: list[Written] = []
    for before, lying in zip([None, *found], found, strict=False):
        begins_segment = before is not None and before.base_offset != lying.base_offset
        if (
            begins_segment and expected_log.compacts
        ):  # the end of the segment before may be lost where gaps are nothing strange
            expected, number = number, numbers.get(lying.header.base_offset, len(expected_log.batches))
            require(
                number == expected or kept[-1].last_offset + 1 >= acknowledged, f"{context}: a gap after {kept[-1]}"
            )
        require(number < len(expected_log.batches), f"{context}: more batches than were written")
        written = expected_log.batches[number]
        require(lying.raw == written.raw, f"{context}: other bytes at offset {written.first_offset}")
        kept.append(written)
        number += 1
    return kept


def has_holes(expected_log: ExpectedLog, kept: Sequence[Written], end: int) -> bool:
    """Return whether unflushed batches in the middle were lost where recovery cannot distinguish that from compaction."""
    below = [batch for batch in expected_log.batches if batch.last_offset < end]
    return expected_log.compacts and (
        not kept or kept != below[-len(kept) :] or below[0].first_offset < kept[0].first_offset
    )


def check_reads(log: PartitionLog, found: Sequence[Lying]) -> None:
    for lying in found:
        header = lying.header
        if header.last_offset < log.log_start_offset:
            continue
        for offset in {max(header.base_offset, log.log_start_offset), header.last_offset}:
            log.segment_list.forget_positions()
            read = content(log.read(offset, max_bytes=1, end_offset=log.end_offset))
            require(read == lying.raw, f"a read at {offset} gives something else")


def check_indexes(log: PartitionLog, found: Sequence[Lying]) -> None:
    for segment in log.segments:
        here = [lying for lying in found if lying.base_offset == segment.base_offset]
        segment.check_indexes()
        places = {(lying.header.last_offset, lying.position) for lying in here}
        entries = segment.offset_index.entries()
        require(
            all(tuple(entry) in places for entry in entries), f"offset index of {segment.base_offset} names no batch"
        )
        newest: dict[int, int] = {}  # last offset -> greatest time up to there
        greatest = -1
        for lying in here:
            greatest = max(greatest, lying.header.max_timestamp)
            newest[lying.header.last_offset] = greatest
        for entry in segment.time_index.entries():
            require(newest.get(entry.offset) == entry.timestamp, f"time index of {segment.base_offset} has {entry}")


def check_times(log: PartitionLog, kept: Sequence[Written]) -> None:
    live = [
        (batch.first_offset + nth, time)
        for batch in kept
        for nth, time in enumerate(batch.times)
        if batch.first_offset + nth >= log.log_start_offset
    ]
    for _, time in live[:: max(len(live) // 3, 1)]:
        expected = next(offset for offset, at in live if at >= time)
        answer = log.offset_for_timestamp(time, end_offset=log.end_offset)
        require(answer is not None and answer.offset == expected, f"time {time} is at {expected}, not {answer}")
    newest = log.offset_of_max_timestamp(log.end_offset)
    greatest = max((time for _, time in live), default=None)
    require((newest.timestamp if newest else None) == greatest, f"the newest time is {greatest}, not {newest}")


def check_epochs(log: PartitionLog, expected_log: ExpectedLog, found: Sequence[Lying]) -> None:
    entries = log.epochs.entries
    rising = all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(entries))
    require(rising, f"leader epochs do not rise: {entries}")
    for lying in found:
        for offset in (lying.header.base_offset, lying.header.last_offset):
            if offset >= log.log_start_offset:
                epoch = log.epochs.epoch_of(offset)
                require(epoch == lying.header.partition_leader_epoch, f"offset {offset} is taken for epoch {epoch}")
    for nth, entry in enumerate(entries):
        known = tuple(entry) in expected_log.epochs or (
            nth == 0
            and any(epoch == entry.epoch and start <= entry.start_offset for epoch, start in expected_log.epochs)
        )
        require(known, f"leader epoch entry {entry} was never made")


def replayed(batches: Sequence[Written]) -> ProducerOracle:
    """What the batches say of producers and transactions."""
    oracle = ProducerOracle()
    for batch in batches:
        header = batch.header
        if header.producer_id < 0:
            continue
        if batch.marker is not None:
            oracle.mark(
                header.producer_id,
                header.producer_epoch,
                offset=batch.last_offset,
                abort=batch.marker[0],
                coordinator_epoch=batch.marker[1],
                timestamp=header.max_timestamp,
            )
        else:
            last = header.base_sequence
            if last >= 0:
                last = (last + header.last_offset_delta) % (1 << 31)
            taken = Taken(header.base_sequence, last, batch.first_offset, batch.last_offset, header.max_timestamp)
            oracle.take(header.producer_id, header.producer_epoch, taken, transactional=header.is_transactional)
    return oracle


def check_producers(disk: SimDisk, log: PartitionLog, expected_log: ExpectedLog, kept: Sequence[Written]) -> None:
    """Producer state is that of a replay of all batches, or of those since some place where the files once began."""
    first = kept[0].first_offset if kept else log.end_offset
    below = [batch for batch in expected_log.batches if batch.last_offset < first] + list(kept)
    context = None
    for base in sorted(expected_log.bases):
        oracle = replayed([batch for batch in below if batch.first_offset >= base])
        difference = producers_differ(log, oracle)
        if difference is None:
            check_transactions(disk, log, oracle)
            return
        context = context or difference
    raise InvariantViolation(f"{log.topic_partition} to {log.end_offset}: {context}")


def producers_differ(log: PartitionLog, oracle: ProducerOracle) -> str | None:
    states = log.producers
    infos = {info.producer_id: info for info in states.describe()}
    if infos.keys() != oracle.known.keys():
        return f"producers {sorted(infos)} are known, and should be {sorted(oracle.known)}"
    for producer_id, known in oracle.known.items():
        info, producer = infos[producer_id], states.entry(producer_id)
        assert producer is not None
        expected = (
            producer_id,
            known.epoch,
            -1 if known.last_sequence is None else known.last_sequence,
            known.last_timestamp,
            known.coordinator_epoch,
            -1 if known.transaction is None else known.transaction,
        )
        if tuple(info) != expected:
            return f"{info}, and should be {expected}"
        remembered = [tuple(batch) for batch in producer.batches]
        if remembered != [tuple(batch) for batch in known.batches[-5:]][-len(remembered) or 5 :]:
            return f"producer {producer_id} remembers {remembered}"
    return None


def check_transactions(disk: SimDisk, log: PartitionLog, oracle: ProducerOracle) -> None:
    first_base = log.segments[0].base_offset
    context = []
    for segment in log.segments:
        entries = read_aborted(disk, segment.path(TXN_INDEX_SUFFIX))
        require(entries is not None, f"the index of aborted transactions of {segment.base_offset} is corrupt")
        assert entries is not None
        for entry in entries:
            require(
                segment.base_offset <= entry.last_offset < log.end_offset,
                f"{entry} is in segment {segment.base_offset}",
            )
        context += [tuple(entry) for entry in entries]
    expected = [tuple(entry) for entry in oracle.aborted if entry.last_offset >= first_base]
    require(context == expected, f"aborted transactions are {context}, and should be {expected}")
    asked = [tuple(entry) for entry in log.aborted_transactions(log.log_start_offset, log.end_offset)]
    require(asked == [entry for entry in expected if entry[2] >= log.log_start_offset], f"a reader gets {asked}")
    log.update_high_watermark(log.end_offset)
    stable = oracle.first_open()
    stable = log.end_offset if stable is None else max(stable, log.log_start_offset)
    require(
        log.last_stable_offset == stable, f"the last stable offset is {log.last_stable_offset}, and should be {stable}"
    )


def check_checkpoints(disk: SimDisk, directory: LogDirectory) -> None:
    """Each file is whole, and names nothing that is not there."""
    for name in (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS):
        noted = parse_offsets(text_or_none(disk, directory.path / name))
        require(noted is not None, f"{name} is corrupt")
        for tp, offset in (noted or {}).items():
            log = directory.logs.get(tp) or directory.future_logs.get(tp)
            require(log is None or offset <= log.end_offset, f"{name} says {offset} of {tp}")
    require(
        not disk.exists(directory.path / CLEAN_SHUTDOWN), "the clean marker is still there while the directory is open"
    )
