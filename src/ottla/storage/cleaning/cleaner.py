"""Compacts one log in one pass: builds the map of keys, then rewrites each group of segments. The heavy part.

Runs in a process of its own (`worker.py`), and in tests on a simulated disk. It reads sealed segments and writes files
of its own names; the log itself changes only where the broker swaps those in (`cleaning_pass.py`), group by group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from ottla.core.clock import Clock
from ottla.core.errors import CorruptMessage
from ottla.core.files import FileAccess, FileSystem
from ottla.records.batch import BatchHeader
from ottla.storage.cleaning.batch_filter import BatchFilter, records_of
from ottla.storage.cleaning.cleaned_segment import CleanedSegment, GroupTooLarge, NewSegment
from ottla.storage.cleaning.cleaned_transactions import CleanedTransactions
from ottla.storage.cleaning.cleaning_plan import CleanedGroup, CleaningPlan, Counts, PassDone, SourceSegment
from ottla.storage.cleaning.errors import Uncleanable
from ottla.storage.cleaning.offset_map import OffsetMap
from ottla.storage.cleaning.source_reader import aborted_in, batches_of
from ottla.storage.cleaning.throttler import Throttler
from ottla.storage.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, offset_name
from ottla.storage.log.segment import RELATIVE_OFFSET_MAX
from ottla.storage.state.aborted_index import AbortedTransaction
from ottla.storage.state.end_marker import read_marker


class SizedSource(NamedTuple):
    """A segment and the sizes of its indexes."""

    source: SourceSegment
    index_bytes: int
    time_index_bytes: int


def run_pass(
    plan: CleaningPlan, files: FileSystem, *, clock: Clock, throttle: Throttler
) -> Iterator[CleanedGroup | PassDone]:
    """Clean as far as the map reaches. Each group is to be swapped in before the next is asked for.

    Raises Uncleanable for corruption, SegmentGone where the log lost segments meanwhile, OSError. Files that are not
    swapped in are the caller's to remove; of those begun and not given nothing is left.
    """
    began = clock.monotonic()
    counts = Counts()
    offsets = OffsetMap(memory_bytes=plan.map_bytes, load_factor=plan.load_factor)
    try:
        bases = chain((source.base_offset for source in plan.sources), plan.later_bases)
        aborted = aborted_in(files, plan.directory, bases)
        _fill(offsets, plan, files, aborted, throttle)
        end_offset = offsets.latest_offset + 1
        yield from _groups(offsets, plan, files, aborted, throttle, counts)
        counts.keys, counts.map_bytes = offsets.count, offsets.memory_bytes
    finally:
        offsets.close()
    counts.seconds = clock.monotonic() - began
    yield PassDone(end_offset=end_offset, counts=counts)


def _fill(
    offsets: OffsetMap, plan: CleaningPlan, files: FileAccess, aborted: list[AbortedTransaction], throttle: Throttler
) -> None:
    """Note the latest offset of every key of the dirty part, until the map is full."""
    first = plan.first_dirty_offset
    walk = CleanedTransactions(entry for entry in aborted if entry.last_offset >= first)
    for source in plan.sources:
        if source.end_offset <= first:
            continue
        for header, data, at in batches_of(
            files, plan.directory, source, from_offset=first, buffer_bytes=plan.io_buffer_bytes, throttle=throttle
        ):
            if not _note(offsets, walk, header, data, at, first):
                return
            offsets.update_latest_offset(header.last_offset)
        offsets.update_latest_offset(source.end_offset - 1)  # nothing more comes before the next segment


def _note(offsets: OffsetMap, walk: CleanedTransactions, header: BatchHeader, data: bytes, at: int, first: int) -> bool:
    """Take one batch into the map; False once that is full."""
    try:
        if header.is_control:
            with memoryview(data)[at : at + header.size_bytes] as batch:
                walk.control(header, read_marker(batch) if header.record_count else None)
            return True
        if walk.data(header):
            return True
        body, begin, end = records_of(header, data, at)
        return offsets.note(
            body, begin, end, count=header.record_count, base_offset=header.base_offset, from_offset=first
        )
    except (ValueError, IndexError, OverflowError, CorruptMessage) as error:
        raise Uncleanable(f"the batch at offset {header.base_offset}: {error}") from error


def _groups(
    offsets: OffsetMap,
    plan: CleaningPlan,
    files: FileSystem,
    aborted: list[AbortedTransaction],
    throttle: Throttler,
    counts: Counts,
) -> Iterator[CleanedGroup]:
    """Rewrite every segment that has something below the map's end."""
    batch_filter = BatchFilter(
        offsets,
        CleanedTransactions(aborted),
        producers=plan.producers,
        upper_bound=plan.first_uncleanable_offset,
        now_ms=plan.now_ms,
        delete_retention_ms=plan.delete_retention_ms,
        counts=counts,
    )
    reached = [
        SizedSource(source, _size(files, plan, source, INDEX_SUFFIX), _size(files, plan, source, TIME_INDEX_SUFFIX))
        for source in plan.sources
        if source.base_offset <= offsets.latest_offset
    ]
    waiting = group_sources(reached, segment_bytes=plan.segment_bytes, index_bytes=plan.segment_index_bytes)
    waiting.reverse()
    first = 0
    while waiting:
        group = waiting.pop()
        walk = batch_filter.transactions.copy()
        try:
            cleaned = _clean(group, batch_filter, plan, files, throttle, counts)
        except GroupTooLarge:
            batch_filter.transactions = walk
            half = len(group) // 2
            waiting += [group[half:], group[:half]]
            continue
        yield CleanedGroup(first_source=first, sources=len(group), size_bytes=cleaned[0], has_transactions=cleaned[1])
        first += len(group)


def _size(files: FileAccess, plan: CleaningPlan, source: SourceSegment, suffix: str) -> int:
    try:
        return files.size_of(plan.directory / offset_name(source.base_offset, suffix))
    except FileNotFoundError:
        return 0  # of a cache: the limits are watched again while the new one is written


def _clean(
    group: list[SourceSegment],
    batch_filter: BatchFilter,
    plan: CleaningPlan,
    files: FileSystem,
    throttle: Throttler,
    counts: Counts,
) -> tuple[int, bool]:
    """Write one group; its size, and whether it has aborted transactions. Nothing is left where that fails."""
    place = NewSegment(
        plan.directory,
        group[0].base_offset,
        plan.suffix,
        is_alone=len(group) == 1,
        index_interval_bytes=plan.index_interval_bytes,
        io_buffer_bytes=plan.io_buffer_bytes,
        segment_bytes=plan.segment_bytes,
        segment_index_bytes=plan.segment_index_bytes,
    )
    target = CleanedSegment(files, place, throttle)
    walk = batch_filter.transactions
    walk.kept.clear()
    try:
        for source in group:
            for header, data, at in batches_of(
                files,
                plan.directory,
                source,
                from_offset=source.base_offset,
                buffer_bytes=plan.io_buffer_bytes,
                throttle=throttle,
            ):
                counts.bytes_read += header.size_bytes
                kept = batch_filter.apply(header, data, at)
                if kept is not None:
                    target.append(header, kept)
        target.seal(walk.kept)
    except BaseException:
        target.discard()
        raise
    counts.bytes_written += target.written
    return target.written, bool(walk.kept)


def group_sources(
    segments: Sequence[SizedSource], *, segment_bytes: int, index_bytes: int
) -> list[list[SourceSegment]]:
    """Group neighbours that together exceed neither a segment's size, nor an index's, nor an index entry's reach.

    A segment that is too large by itself is a group of its own.
    """
    groups: list[list[SourceSegment]] = []
    size = index = time_index = 0
    for source, own_index, own_time_index in segments:
        size += source.size_bytes
        index += own_index
        time_index += own_time_index
        fits = (
            groups
            and size <= segment_bytes
            and index <= index_bytes
            and time_index <= index_bytes
            and source.end_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
        )
        if fits:
            groups[-1].append(source)
        else:
            groups.append([source])
            size, index, time_index = source.size_bytes, own_index, own_time_index
    return groups
