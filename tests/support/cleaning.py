"""Compaction in one process, on whatever disk a test has: the same functions that the broker and its worker call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ottla.records.batch import DELETE_HORIZON, BatchHeader
from ottla.records.record_reader import Record, read_records
from ottla.storage.cleaning import log_to_clean
from ottla.storage.cleaning.cleaner import run_pass
from ottla.storage.cleaning.cleaner_config import CleanerConfig
from ottla.storage.cleaning.cleaning_pass import CleaningPass, start_cleaning
from ottla.storage.cleaning.cleaning_plan import CleanedGroup, CleaningPlan, PassDone
from ottla.storage.cleaning.offset_map import SLOT_BYTES
from ottla.storage.cleaning.throttler import Throttler
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.state.aborted_index import AbortedTransaction
from ottla.storage.state.end_marker import MarkerType, read_marker
from tests.support.storage import StillClock

_tokens = itertools.count()


def no_sleep(seconds: float) -> None:
    raise AssertionError(f"nothing may wait here, but something wanted {seconds} s")


def throttle_free(clock: StillClock) -> Throttler:
    return Throttler(float("inf"), clock=clock, sleep=no_sleep)


def begin_pass(log: PartitionLog, clock: StillClock, *, slots: int = 1000, load: float = 0.9) -> CleaningPass | None:
    """A pass over the log, if there is anything to clean, whatever its dirty ratio."""
    found = log_to_clean.log_to_clean(log, now_ms=clock.now_ms)
    if found is None:
        return None
    log.note_gaps()
    cleaning = start_cleaning(
        found, CleanerConfig(load_factor=load), token=f"{next(_tokens):016x}", now_ms=clock.now_ms
    )
    cleaning.plan = replace(cleaning.plan, map_bytes=slots * SLOT_BYTES)
    # Over the wire and back, as to the worker.
    assert CleaningPlan.from_json(cleaning.plan.to_json()) == cleaning.plan
    return cleaning


def run(cleaning: CleaningPass, log: PartitionLog, clock: StillClock) -> PassDone:
    """All of a pass, each group swapped in."""
    for step in run_pass(cleaning.plan, log.files, clock=clock, throttle=throttle_free(clock)):
        if isinstance(step, PassDone):
            return step
        assert cleaning.swap_in(step) == ""
    raise AssertionError("a pass ends with what it has done")


def clean_once(directory: LogDirectory, log: PartitionLog, clock: StillClock, *, slots: int = 1000) -> PassDone | None:
    """One pass and the note of it."""
    cleaning = begin_pass(log, clock, slots=slots)
    if cleaning is None:
        return None
    done = run(cleaning, log, clock)
    log.files.sync_directory(log.directory)
    log.cleaner_line.cleaned_to(done.end_offset)
    directory.checkpoint()
    return done


def groups_of(cleaning: CleaningPass, log: PartitionLog, clock: StillClock) -> Iterator[CleanedGroup]:
    """The groups of a pass; the test swaps them in or does not."""
    for step in run_pass(cleaning.plan, log.files, clock=clock, throttle=throttle_free(clock)):
        if isinstance(step, CleanedGroup):
            yield step


class Seen(NamedTuple):
    """A batch of the log and its records."""

    header: BatchHeader
    records: tuple[Record, ...]
    raw: bytes

    @property
    def horizon_ms(self) -> int | None:
        return self.header.base_timestamp if self.header.attributes & DELETE_HORIZON else None


def batches_in(log: PartitionLog) -> list[Seen]:
    """Every batch of every segment, in order."""
    found = []
    for segment in log.segments:
        for each in segment.batches():
            raw = segment.file.read_at(each.position, each.header.size_bytes)
            found.append(Seen(each.header, tuple(read_records(raw)), raw))
    return found


def records_in_log(log: PartitionLog) -> list[Record]:
    """Users' records, whatever became of their transactions."""
    return [record for seen in batches_in(log) if not seen.header.is_control for record in seen.records]


@dataclass
class CommittedReader:
    """What a consumer with isolation.level=read_committed sees, by the rules of the Java client (`CompletedFetch`)."""

    aborted: Sequence[AbortedTransaction]

    def read(self, batches: Sequence[Seen]) -> list[Record]:
        waiting = sorted(self.aborted, key=lambda entry: entry.first_offset)
        skipped: set[int] = set()
        found: list[Record] = []
        for header, records, raw in batches:
            if header.producer_id >= 0:
                while waiting and waiting[0].first_offset <= header.last_offset:
                    skipped.add(waiting.pop(0).producer_id)
                if header.is_control:
                    marker = read_marker(memoryview(raw)) if records else None
                    if marker is not None and marker.type is MarkerType.ABORT:
                        skipped.discard(header.producer_id)
                    continue
                if header.is_transactional and header.producer_id in skipped:
                    continue
            found.extend(records)
        return found


def committed_in(log: PartitionLog, batches: Sequence[Seen] | None = None) -> list[Record]:
    """Every committed record up to the last stable offset."""
    stable = min(log.last_stable_offset, log.high_watermark)
    shown = [seen for seen in batches_in(log) if seen.header.last_offset < stable] if batches is None else batches
    return CommittedReader(log.aborted_transactions(log.segments[0].base_offset, stable)).read(shown)
