"""Verifies a segment's files against each other and against their checksums: for the scrubber and `ottla log verify`.

    .log        against `.sums` (`block_checksums.py`) where valid, otherwise batch by batch (`range_verifier.py`)
    .index      each entry names a batch: where it begins and its last offset
    .timeindex  each entry names a batch that is younger than all before it; the last one the youngest of all
    .txnindex   the transactions that a replay of the segment shows as aborted, from its snapshot on
    .snapshot   its own checksum
    .sums       its own checksum

Only reads; may run in any thread, and on the directory of a running broker. It holds a few numbers for each batch in
memory. `SegmentReport` lists what can be rebuilt, and from what.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.files import File, FileAccess, read_file
from ottla.records.batch_reader import BatchLocation, read_headers
from ottla.storage.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
)
from ottla.storage.integrity.block_checksums import BLOCK_BYTES, BlockChecksums, checksums_of, checksums_path, parse
from ottla.storage.integrity.corruption import CACHE_ADVICE, RECORDS_ADVICE, Corruption
from ottla.storage.integrity.metadata_backup import BackedUpFile
from ottla.storage.integrity.range_verifier import find_next_valid_batch, verify_batches
from ottla.storage.log.producer_replay import replay_batch
from ottla.storage.state.aborted_index import AbortedTransaction, read_aborted
from ottla.storage.state.index import OffsetIndex, TimeIndex
from ottla.storage.state.leader_epochs import EpochEntry, LeaderEpochs
from ottla.storage.state.producer_snapshots import load_snapshot, read_snapshot
from ottla.storage.state.producer_state_manager import ProducerStateManager

PORTION_BYTES = 1 << 20
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class SegmentTarget(NamedTuple):
    """One segment, as its log had it when the verification was planned."""

    directory: PurePath
    base_offset: int
    end_offset: int  # where the next segment begins, or the log's end
    size_bytes: int  # the part that is synced
    is_sealed: bool = True  # the active segment has indexes in memory and an end that moves
    may_have_gaps: bool = False  # compaction may have removed batches
    epochs: LeaderEpochs | None = None  # a verified epoch cache, to verify batches with
    claimed: LeaderEpochs | None = None  # an epoch cache without a copy, to be verified itself
    must_end_exactly: bool = True  # whether `end_offset` is known and not just a bound

    def path(self, suffix: str) -> PurePath:
        """Return the path of one of its files."""
        return self.directory / offset_name(self.base_offset, suffix)


class BatchColumns:
    """The header fields of each valid batch of a segment, a column each."""

    __slots__ = ("aborted", "aborts_known", "bases", "epochs", "gaps", "lasts", "positions", "times")

    def __init__(self) -> None:
        self.positions, self.bases, self.lasts, self.times = array("q"), array("q"), array("q"), array("q")
        self.epochs: list[EpochEntry] = []  # where each begins
        self.aborted: list[AbortedTransaction] = []  # the entries that the transaction index should have
        self.aborts_known = False  # whether these include transactions that began in earlier segments
        self.gaps = False  # whether records or batches are missing in between


class SegmentReport(NamedTuple):
    """The findings of `verify_segment`, and what it has read."""

    target: SegmentTarget
    findings: list[Corruption]
    batches: BatchColumns | None  # None if the block checksums matched
    checksums: (
        BlockChecksums | None
    )  # to be written beside the segment: all is in order, and nothing (that counts) records it yet
    bad_indexes: frozenset[str]  # suffixes of what should be rebuilt
    epochs_fit: bool = True  # whether the `claimed` epochs are those of the batches


Spend = Callable[[int], None]


def _unthrottled(size_bytes: int) -> None:
    """Read without a throttle."""
    del size_bytes


def verify_segment(files: FileAccess, target: SegmentTarget, *, spend: Spend = _unthrottled) -> SegmentReport:
    """Verify all files of a segment; `spend` is called with the size of each read, and may wait. Raises OSError."""
    log_path = target.path(LOG_SUFFIX)
    findings: list[Corruption] = []
    _check_snapshot(files, target, findings)
    checksums = _checksums_of(files, target, findings) if target.is_sealed else None
    file = files.open(log_path)
    try:
        if checksums is not None and checksums.counts_for(files, log_path, file.size()):
            if (
                target.claimed is None
                and _blocks_are_right(file, checksums, spend)
                and not _changed_indexes(files, target, checksums)
            ):
                return SegmentReport(target, findings, None, None, frozenset())
        else:
            checksums = None
        modified_ns = files.modified_ns(log_path)
        batches = _walk(files, file, log_path, target, findings, spend)
        if checksums is not None and not any(item.costs_records for item in findings):
            _name_bad_blocks(file, log_path, checksums, batches, findings)
        bad = _check_indexes(files, target, batches, findings) if target.is_sealed else set()
        if checksums is not None:
            bad |= _silently_changed(files, target, checksums, findings, bad)
        fit = target.claimed is None or _epochs_fit(target.claimed, batches)
        if not target.is_sealed or findings or bad:
            return SegmentReport(target, findings, batches, None, frozenset(bad), fit)
        blocks = checksums_of(_blocks(file, target.size_bytes, spend))
        if files.modified_ns(log_path) != modified_ns:
            return SegmentReport(target, findings, batches, None, frozenset(), fit)
        new = BlockChecksums(target.size_bytes, modified_ns, blocks, _index_copies(files, target))
        return SegmentReport(target, findings, batches, new, frozenset(), fit)
    finally:
        file.close()


# ---- The log


class _Replayed(NamedTuple):
    """The part of a segment that a replay needs."""

    file: File


def _load_snapshot(files: FileAccess, target: SegmentTarget, producers: ProducerStateManager) -> bool:
    """Load the transactions that were open where the segment begins; False if they are unknown."""
    try:
        data = read_file(files, target.path(SNAPSHOT_SUFFIX))
    except FileNotFoundError:
        return target.base_offset == 0
    return load_snapshot(data, producers, now_ms=0)


def _walk(
    files: FileAccess, file: File, log_path: PurePath, target: SegmentTarget, findings: list[Corruption], spend: Spend
) -> BatchColumns:
    """Verify every batch; adds corrupt ranges to `findings` and returns the columns of valid batches."""
    batches = BatchColumns()
    position, next_offset, epoch = 0, target.base_offset, -1
    producers = ProducerStateManager()
    batches.aborts_known = _load_snapshot(files, target, producers)
    replayed = _Replayed(file)
    boundaries = _EndOnly(target.size_bytes)
    while position < target.size_bytes:
        limit = min(position + PORTION_BYTES, target.size_bytes)
        result = verify_batches(
            file,
            position,
            limit,
            segment_end=target.size_bytes,
            next_offset=next_offset,
            end_offset=target.end_offset,
            epoch=epoch,
            epochs=target.epochs,
        )
        for batch in read_headers(file, position, result.end, chunk_bytes=PORTION_BYTES):
            _remember(batches, batch, next_offset)
            if batch.header.is_transactional and batch.header.producer_id >= 0:
                aborted = replay_batch(producers, replayed, batch, now_ms=0)
                if aborted is not None:
                    batches.aborted.append(aborted)
            next_offset = batch.header.last_offset + 1
        spend(max(result.end - position, 1))
        position, epoch = result.end, result.epoch
        if result.wrong is not None:
            after = find_next_valid_batch(
                file,
                position,
                target.size_bytes,
                next_offset=next_offset,
                end_offset=target.end_offset,
                boundaries=boundaries,
            )
            end = target.size_bytes if after is None else after.position
            last = (target.end_offset if after is None else after.header.base_offset) - 1
            what = f"the batch at byte {position} is corrupt: {result.wrong}"
            lost = Corruption(
                log_path,
                what,
                RECORDS_ADVICE,
                position,
                end - position,
                next_offset,
                max(last, next_offset),
                costs_records=True,
            )
            findings.append(lost)
            spend(end - position)
            position, next_offset = end, last + 1
    may_end_early = target.may_have_gaps or batches.gaps or not target.must_end_exactly
    if next_offset < target.end_offset and not may_end_early:
        findings.append(_lost_end(log_path, target, next_offset))
    return batches


def _lost_end(log_path: PurePath, target: SegmentTarget, next_offset: int) -> Corruption:
    what = f"the file ends before offset {next_offset}, but what follows begins at {target.end_offset}"
    return Corruption(
        log_path, what, RECORDS_ADVICE, target.size_bytes, 0, next_offset, target.end_offset - 1, costs_records=True
    )


class _EndOnly(NamedTuple):
    """Landmarks for those who trust no index."""

    end: int

    def position_at_or_above(self, position: int) -> int | None:
        """Return the end of the file."""
        return self.end if position <= self.end else None


def _epochs_fit(claimed: LeaderEpochs, batches: BatchColumns) -> bool:
    """Return whether every batch has the epoch that the cache has for its offset."""
    starts = [entry.start_offset for entry in batches.epochs]
    first_known = claimed.entries[0].start_offset if claimed.entries else 0
    return all(
        claimed.epoch_of(max(base, first_known)) == batches.epochs[bisect_right(starts, base) - 1].epoch
        for base, last in zip(batches.bases, batches.lasts, strict=True)
        if last >= first_known  # below it records were deleted, and their epochs forgotten
    )


def _remember(batches: BatchColumns, found: BatchLocation, next_offset: int) -> None:
    header = found.header
    batches.positions.append(found.position)
    batches.bases.append(header.base_offset)
    batches.lasts.append(header.last_offset)
    batches.times.append(header.max_timestamp)
    if header.base_offset > next_offset or header.record_count <= header.last_offset_delta:
        batches.gaps = True
    if not batches.epochs or batches.epochs[-1].epoch != header.partition_leader_epoch:
        batches.epochs.append(EpochEntry(header.partition_leader_epoch, header.base_offset))


def _blocks(file: File, size_bytes: int, spend: Spend) -> Iterator[bytes]:
    for at in range(0, size_bytes, BLOCK_BYTES):
        size = min(BLOCK_BYTES, size_bytes - at)
        spend(size)
        yield file.read_at(at, size)


def _blocks_are_right(file: File, checksums: BlockChecksums, spend: Spend) -> bool:
    return checksums_of(_blocks(file, checksums.log_bytes, spend)) == checksums.blocks


def _name_bad_blocks(
    file: File, log_path: PurePath, checksums: BlockChecksums, batches: BatchColumns, findings: list[Corruption]
) -> None:
    """Add findings for blocks that changed though their batches are valid: offsets or epochs of a compacted log."""
    start = 0
    while (block := checksums.first_bad(file, start, checksums.log_bytes)) is not None:
        at = [
            number
            for number, position in enumerate(batches.positions)
            if position < block.end
            and (batches.positions[number + 1] if number + 1 < len(batches.positions) else checksums.log_bytes)
            > block.start
        ]
        first, last = (batches.bases[at[0]], batches.lasts[at[-1]]) if at else (-1, -1)
        findings.append(
            Corruption(
                log_path,
                "it does not match its block checksum; any batch in it may be the corrupt one",
                RECORDS_ADVICE,
                block.start,
                block.end - block.start,
                first,
                last,
                costs_records=True,
            )
        )
        start = block.end


# ---- Checksums


def _checksums_of(files: FileAccess, target: SegmentTarget, findings: list[Corruption]) -> BlockChecksums | None:
    path = checksums_path(target.directory, target.base_offset)
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return None
    checksums = parse(data)
    if checksums is None:
        findings.append(Corruption(path, "its own checksum does not match", CACHE_ADVICE))
    return checksums


def _index_copies(files: FileAccess, target: SegmentTarget) -> dict[str, BackedUpFile]:
    found = {}
    for suffix in _INDEXES:
        try:
            path = target.path(suffix)
            found[suffix] = BackedUpFile.of(read_file(files, path), files.modified_ns(path), keep_text=False)
        except FileNotFoundError:
            continue
    return found


def _changed_indexes(
    files: FileAccess, target: SegmentTarget, checksums: BlockChecksums
) -> dict[str, BackedUpFile | None]:
    """Return the indexes that do not match their checksums, because they are corrupt or were written again."""
    copies = _index_copies(files, target)
    now = {suffix: copies.get(suffix) for suffix in _INDEXES}
    return {suffix: copy for suffix, copy in now.items() if _content(copy) != _content(checksums.indexes.get(suffix))}


def _content(copy: BackedUpFile | None) -> tuple[int, int] | None:
    return None if copy is None else (copy.size_bytes, copy.crc)


def _silently_changed(
    files: FileAccess, target: SegmentTarget, checksums: BlockChecksums, findings: list[Corruption], known: set[str]
) -> set[str]:
    """Add findings for indexes that are valid by themselves, but changed without a write; returns their suffixes."""
    bad: set[str] = set()
    for suffix, copy in _changed_indexes(files, target, checksums).items():
        before = checksums.indexes.get(suffix)
        if before is not None and (copy is None or copy.modified_ns == before.modified_ns) and suffix not in known:
            findings.append(Corruption(target.path(suffix), "it does not match its checksum", CACHE_ADVICE))
            bad.add(suffix)
    return bad


# ---- Indexes


def _check_indexes(
    files: FileAccess, target: SegmentTarget, batches: BatchColumns, findings: list[Corruption]
) -> set[str]:
    """Compare the indexes with the log; returns the suffixes of corrupt ones. A corrupt log allows few comparisons."""
    bad: set[str] = set()
    for suffix, judge in (
        (INDEX_SUFFIX, _wrong_offsets),
        (TIME_INDEX_SUFFIX, _wrong_times),
        (TXN_INDEX_SUFFIX, _wrong_aborts),
    ):
        wrong = judge(files, target, batches, log_is_corrupt=any(item.costs_records for item in findings))
        if wrong is not None:
            bad.add(suffix)
            findings.append(Corruption(target.path(suffix), wrong, CACHE_ADVICE))
    return bad


def _wrong_offsets(
    files: FileAccess, target: SegmentTarget, batches: BatchColumns, *, log_is_corrupt: bool
) -> str | None:
    index = OffsetIndex(files, target.directory, target.base_offset)
    if not index.sane(log_bytes=max(target.size_bytes, 1)):
        return "it is missing, or cannot be an index of this log"
    ends = dict(zip(batches.positions, batches.lasts, strict=True))
    for entry in () if log_is_corrupt else index.entries():
        if ends.get(entry.position) != entry.offset:
            return f"its entry for offset {entry.offset} points at byte {entry.position}, where no such batch begins"
    return None


def _wrong_times(
    files: FileAccess, target: SegmentTarget, batches: BatchColumns, *, log_is_corrupt: bool
) -> str | None:
    index = TimeIndex(files, target.directory, target.base_offset)
    if not index.sane(end_offset=target.end_offset):
        return "it is missing, or cannot be a time index of this log"
    times = dict(zip(batches.lasts, batches.times, strict=True))
    for entry in () if log_is_corrupt else index.entries():
        known = times.get(entry.offset)
        if known != entry.timestamp:
            return f"its entry for offset {entry.offset} has time {entry.timestamp}, the batch there {known}"
    last = index.last()
    greatest = max(batches.times, default=-1)
    if not log_is_corrupt and greatest >= 0 and (last is None or last.timestamp < greatest):
        return f"it does not reach the greatest time of its log, {greatest}"
    return None


def _wrong_aborts(
    files: FileAccess, target: SegmentTarget, batches: BatchColumns, *, log_is_corrupt: bool
) -> str | None:
    entries = read_aborted(files, target.path(TXN_INDEX_SUFFIX))
    if entries is None:
        return "it cannot be an index of aborted transactions"
    if log_is_corrupt:
        return None
    if batches.aborts_known:
        return None if entries == batches.aborted else "it does not list the transactions that the log shows as aborted"
    known = {(entry.producer_id, entry.last_offset) for entry in entries}
    missing = [
        transaction
        for transaction in batches.aborted
        if (transaction.producer_id, transaction.last_offset) not in known
    ]
    return f"it lacks the transaction aborted at offset {missing[0].last_offset}" if missing else None


def _check_snapshot(files: FileAccess, target: SegmentTarget, findings: list[Corruption]) -> None:
    path = target.directory / offset_name(target.base_offset, SNAPSHOT_SUFFIX)
    try:
        if read_snapshot(read_file(files, path)) is None:
            findings.append(Corruption(path, "its checksum does not match", CACHE_ADVICE))
    except FileNotFoundError:
        pass
