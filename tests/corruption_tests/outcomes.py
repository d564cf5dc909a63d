"""Reads a corrupted directory and classifies the outcome: refused, reported, or silently wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath

from ottla.core.errors import CorruptMessage, KafkaError
from ottla.core.ids import TopicPartition
from ottla.records.batch import BatchHeader, split
from ottla.storage.directories.log_directory import ForeignDirectory, LogDirectory
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.scrubbing.directory_verifier import verify_directory
from ottla.storage.scrubbing.scrubber import Scrubber
from ottla.testing.sim_disk import SimDisk
from tests.corruption_tests.directories import copy_of, opened
from tests.support.storage import NOW_MS, ROOT, StillClock, content

TIMES_MS = (0, *range(NOW_MS - 30, NOW_MS + 400, 37), NOW_MS + 10_000)


@dataclass
class Contents:
    """Everything one partition says."""

    bounds: tuple[int, int]
    batches: dict[int, bytes] = field(default_factory=dict)  # by first offset
    refused: set[int] = field(default_factory=set)
    times: list[object] = field(default_factory=list)
    youngest: object = None
    epochs: list[object] = field(default_factory=list)
    producers: list[object] = field(default_factory=list)
    stable: int = 0
    aborted: object = None
    topic_id: object = None


class Outcome(Enum):
    UNCHANGED = "nothing differs"
    REPAIRED = "nothing differs, and corruption was found"
    REFUSED = "the corrupt part is refused or the start is"
    REPORTED = "something differs and corruption was reported"
    SILENT = "something differs and nothing was reported"
    WRONG = "bytes were served that were never written"
    CRASHED = "an error that is no answer"


@dataclass
class Verdict:
    outcome: Outcome
    why: str = ""


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def captured_warnings() -> Iterator[list[str]]:
    """What the broker's log says meanwhile, warnings and errors."""
    handler, logger = _Lines(), logging.getLogger("ottla")
    propagates, level = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.WARNING)  # whatever a suite before this one wanted to hear
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        logger.setLevel(level)


def _asked(log: PartitionLog, what: object) -> object:
    try:
        return what()  # type: ignore[operator]
    except CorruptMessage:
        return CorruptMessage


def read_contents(log: PartitionLog) -> Contents:
    """Read everything through the read path, and ask every question that has an answer in the files."""
    found = Contents((log.log_start_offset, log.end_offset))
    offset, end = log.log_start_offset, log.end_offset
    if end - offset > 10_000:
        raise AssertionError(f"the log ends at {end}")
    while offset < end:
        try:
            region = log.read(offset, max_bytes=400, end_offset=end)
        except CorruptMessage:
            found.refused.add(offset)
            offset += 1
            continue
        data = content(region)
        if not data:
            break  # compaction took the rest of a segment; or the rest is missing, which the caller sees
        for at, header in _batches_in(data):
            if header.base_offset in found.batches and header.base_offset > offset:
                raise AssertionError(f"offset {header.base_offset} comes twice")
            found.batches[header.base_offset] = bytes(data[at : at + header.size_bytes])
            offset = max(offset, header.last_offset + 1)
    found.times = [_asked(log, lambda at=at: log.offset_for_timestamp(at, end_offset=end)) for at in TIMES_MS]
    found.youngest = _asked(log, lambda: log.offset_of_max_timestamp(end))
    found.epochs = [log.epochs.entries, *(log.epoch_end_offset(epoch) for epoch in range(-1, 6))]
    found.producers = [
        (one.producer_id, one.producer_epoch, one.last_sequence, one.current_txn_start_offset)
        for one in log.producers.describe()
    ]
    found.stable = log.last_stable_offset
    found.aborted = _asked(log, lambda: log.aborted_transactions(log.log_start_offset, end))
    found.topic_id = log.topic_id
    return found


def _batches_in(data: bytes) -> list[tuple[int, BatchHeader]]:
    try:
        return list(split(data))
    except CorruptMessage as error:
        raise AssertionError(f"no batches were served: {error}") from error


def contents_of_undamaged(disk: SimDisk) -> dict[TopicPartition, Contents]:
    """What the undamaged directory says."""
    directory = opened(copy_of(disk), StillClock())
    return {tp: read_contents(log) for tp, log in directory.logs.items()}


def classify(disk: SimDisk, expected: dict[TopicPartition, Contents]) -> Verdict:
    """Open, read, ask; then look for corruption; compare."""
    with captured_warnings() as lines:
        try:
            findings = [str(one) for one in verify_directory(disk, ROOT).findings]
            try:
                directory = opened(disk, StillClock())
            except (ForeignDirectory, KafkaError) as error:
                return Verdict(Outcome.REFUSED, str(error))
            found = {tp: read_contents(log) for tp, log in directory.logs.items()}
            scrub(directory, disk)
        except AssertionError as error:
            return Verdict(Outcome.WRONG, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
            return Verdict(Outcome.CRASHED, f"{type(error).__name__}: {error}")
    return compare(found, expected, [*lines, *findings])


def scrub(directory: LogDirectory, disk: SimDisk) -> None:
    scrubber = Scrubber(directory, disk)
    scrubber.check_checkpoints()
    for log in scrubber.suspects():
        scrubber.check_partition_files(log)
    for work in scrubber.plan():
        scrubber.conclude(work, scrubber.verify(work, lambda size_bytes: None))
    scrubber.end_pass()


def compare(
    found: dict[TopicPartition, Contents], expected: dict[TopicPartition, Contents], reported: list[str]
) -> Verdict:
    differences: list[str] = []
    refused = False
    if found.keys() != expected.keys():
        differences.append(f"the partitions are {sorted(found)}")
    for tp in found.keys() & expected.keys():
        here, there = found[tp], expected[tp]
        for offset, data in here.batches.items():
            if there.batches.get(offset) != data:
                return Verdict(
                    Outcome.WRONG, f"{tp}, the batch at {offset}, although this was reported: {reported[:3]}"
                )
        refused = refused or bool(here.refused)
        missing = [
            offset
            for offset, data in there.batches.items()
            if offset not in here.batches and not any(at in here.refused for at in _offsets(offset, data))
        ]
        if missing:
            differences.append(f"{tp}: nothing is said of the batches at {missing}")
        for name in ("bounds", "times", "youngest", "epochs", "producers", "stable", "aborted", "topic_id"):
            mine, its = getattr(here, name), getattr(there, name)
            if name == "times":
                wrong = [
                    pair for pair in zip(mine, its, strict=True) if pair[0] != pair[1] and pair[0] is not CorruptMessage
                ]
                refused = refused or CorruptMessage in mine
                if wrong:
                    differences.append(f"{tp}: times {wrong[0]}")
            elif mine is CorruptMessage:
                refused = True
            elif mine != its:
                differences.append(f"{tp}: {name} is {mine}, not {its}")
    if differences:
        return Verdict(Outcome.REPORTED if reported else Outcome.SILENT, f"{differences[:3]} {reported[:3]}")
    if refused:
        return Verdict(Outcome.REFUSED) if reported else Verdict(Outcome.SILENT, "refused without a line in the log")
    return Verdict(Outcome.REPAIRED if reported else Outcome.UNCHANGED, str(reported[:2]))


def _offsets(first: int, data: bytes) -> range:
    _, header = next(iter(split(data)))
    return range(first, header.last_offset + 1)


def files_of(disk: SimDisk) -> list[PurePath]:
    """Every file that holds something."""
    found: list[PurePath] = []
    for name in disk.names_in(ROOT):
        place = ROOT / name
        if disk.is_directory(place):
            found += [place / inner for inner in disk.names_in(place) if disk.size_of(place / inner)]
        elif disk.size_of(place):
            found.append(place)
    return found
