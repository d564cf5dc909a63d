"""Verifies everything in a log directory, a little at a time, for as long as the broker runs.

    plan       on the loop: lists the segments, as values
    look       in a thread: verifies one of them (`segment_verifier.py`) at the configured rate; writes its checksums if
               all is valid
    conclude   on the loop: if the segment is still the same, reports what was found and rebuilds what can be rebuilt
               from the log

A segment that was cleaned, truncated or deleted meanwhile is left to the next pass. Corruption in a log is reported and
remembered, never cut off. Findings are written to `ottla-scrub` in the directory's root, for people and for
`ottla log verify`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.files import FileSystem, read_file, replace_file
from ottla.storage.checkpoint_files import PARTITION_METADATA, partition_metadata_text
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.file_names import (
    CHECKSUMS_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from ottla.storage.integrity.block_checksums import checksums_path, write_checksums
from ottla.storage.integrity.corruption import CHECKPOINT_ADVICE, RECORDS_ADVICE, Corruption, report_corruption
from ottla.storage.integrity.metadata_backup import MetadataBackup
from ottla.storage.log.aborted_transactions import rebuild_aborted
from ottla.storage.log.flush import is_passing
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.segment import Segment
from ottla.storage.scrubbing.segment_verifier import BatchColumns, SegmentReport, SegmentTarget, Spend, verify_segment
from ottla.storage.state.index import OffsetEntry, TimeEntry
from ottla.storage.state.leader_epochs import FILE_NAME as EPOCHS_FILE
from ottla.storage.state.leader_epochs import LeaderEpochs, parse_epochs

logger = logging.getLogger(__name__)

REPORT_FILE = "ottla-scrub"
_FINDINGS_MAX = 1000


class ScrubStopped(Exception):
    """The broker stops in the middle of a look."""


class ScrubThrottle:
    """Bytes a second for a thread that reads; a wait that a stop ends at once."""

    __slots__ = ("_stop", "bytes_per_second")

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second  # may be changed at any time
        self._stop = threading.Event()

    def stop(self) -> None:
        """A waiting caller goes on, to find that it is over."""
        self._stop.set()

    def __call__(self, size_bytes: int) -> None:
        """So much was read. Raises Stopped."""
        if self._stop.wait(size_bytes / max(self.bytes_per_second, 1)):
            raise ScrubStopped


class ScrubTask(NamedTuple):
    """One segment to be looked at."""

    log: PartitionLog
    segment: Segment
    target: SegmentTarget
    truncation_count: int  # of the log when this was planned


class Scrubber:
    """One log directory's. `look` may run in a thread, all else is for the loop."""

    def __init__(self, directory: LogDirectory, files: FileSystem) -> None:
        self._directory = directory
        self._files = files
        self.findings: dict[str, Corruption] = {}  # by what they say: found again it is not news
        self.segments_seen = 0
        self.passes = 0
        self._summed: set[Segment] = set()  # looked at: they have checksums, or a finding
        self._judged: dict[
            PartitionLog, dict[Segment, SegmentReport]
        ] = {}  # logs whose epoch cache is not known to be right

    @property
    def path(self) -> PurePath:
        """The directory."""
        return self._directory.path

    # ---- Segments

    def plan(self) -> Iterator[ScrubTask]:
        """Every segment of one pass; those come first whose log has room for what only a checksum tells."""
        return self._plan(sorted(self._directory.logs.values(), key=lambda log: not log.may_have_gaps), frozenset())

    def plan_new(self) -> Iterator[ScrubTask]:
        """Between two passes: segments that compaction has written, so that they have their checksums soon."""
        logs = [log for log in self._directory.logs.values() if log.may_have_gaps]
        self._summed.intersection_update(segment for log in logs for segment in log.segments)
        return self._plan(logs, self._summed, sealed_only=True)

    def _plan(
        self, logs: Iterable[PartitionLog], without: Collection[Segment], *, sealed_only: bool = False
    ) -> Iterator[ScrubTask]:
        for log in logs:
            for segment in list(log.segments):
                is_there = self._directory.logs.get(log.topic_partition) is log and segment in log.segments
                if not is_there or segment in without or (sealed_only and segment is log.active):
                    continue
                work = self._work(log, segment)
                if work is not None:
                    yield work

    def _work(self, log: PartitionLog, segment: Segment) -> ScrubTask | None:
        if segment.is_dirty or not segment.size_bytes:
            return None
        is_sealed = segment is not log.active
        end_offset = log.segment_list.end_of(segment.base_offset) if is_sealed else log.end_offset
        if end_offset > log.flushed_offset:
            return None
        epochs = LeaderEpochs(log.epochs.entries)
        target = SegmentTarget(
            log.directory,
            segment.base_offset,
            end_offset,
            segment.size_bytes,
            is_sealed,
            log.may_have_gaps,
            epochs if log.epochs.certain else None,
            None if log.epochs.certain else epochs,
        )
        return ScrubTask(log, segment, target, log.truncation_count)

    def look(self, work: ScrubTask, spend: Spend) -> SegmentReport | None:
        """Examine a segment; None if it went meanwhile. Raises OSError, Stopped."""
        try:
            found = verify_segment(self._files, work.target, spend=spend)
            if found.checksums is not None:
                write_checksums(
                    self._files, checksums_path(work.target.directory, work.target.base_offset), found.checksums
                )
            return found
        except FileNotFoundError:
            return None
        except OSError as error:
            if is_passing(error):
                raise
            path = work.target.path(LOG_SUFFIX)
            damage = Corruption(
                path,
                f"it cannot be read: {error.strerror or error}",
                RECORDS_ADVICE,
                costs_records=True,
                first_offset=work.target.base_offset,
                last_offset=work.target.end_offset - 1,
            )
            return SegmentReport(work.target, [damage], None, None, frozenset())

    def conclude(self, work: ScrubTask, found: SegmentReport | None) -> int:
        """What was found counts if the segment is what it was; how many findings are new."""
        log, segment, target = work.log, work.segment, work.target
        is_same = (
            self._directory.logs.get(log.topic_partition) is log
            and segment in log.segments
            and log.truncation_count == work.truncation_count
            and (segment.size_bytes == target.size_bytes or not target.is_sealed)
            and (segment is not log.active) == target.is_sealed
        )
        if found is None or not is_same:
            if found is not None and found.checksums is not None:
                self._files.remove(target.path(CHECKSUMS_SUFFIX))
            return 0
        self.segments_seen += 1
        if target.is_sealed:
            self._summed.add(segment)
        news = sum(self._note(damage) for damage in found.damage)
        self._mend(log, segment, found)
        if target.claimed is not None:
            self._judged.setdefault(log, {})[segment] = found
        return news

    def end_pass(self) -> int:
        """All has been looked at: epoch caches nobody vouched for are now known to be right, or to be wrong."""
        self.passes += 1
        judged, self._judged = self._judged, {}
        return sum(self._judge_epochs(log, found) for log, found in judged.items())

    def _judge_epochs(self, log: PartitionLog, found: dict[Segment, SegmentReport]) -> int:
        seen = [found[segment] for segment in log.segments if segment in found and found[segment].batches]
        if len(seen) < sum(segment.size_bytes > 0 for segment in log.segments) or any(each.damage for each in seen):
            return 0
        news = 0
        if not all(each.epochs_fit for each in seen):
            path = log.directory / EPOCHS_FILE
            news = self._note(Corruption(path, "its epochs are not those of the batches", CHECKPOINT_ADVICE))
            if log.may_have_gaps:
                return news  # the first batches of an epoch may be gone: the log cannot say where it began
            following = [entry for entry in log.epochs.entries if entry.start_offset >= seen[-1].target.end_offset]
            log.epochs.clear()
            found_epochs = [entry for each in seen if each.batches is not None for entry in each.batches.epochs]
            for entry in [*found_epochs, *following]:
                log.epochs.assign(*entry)
        log.epochs.certain = True
        log.pending_flush.write_epochs(log.directory, log.epochs)
        return news

    def _note(self, damage: Corruption) -> bool:
        key = str(damage)
        if key in self.findings or len(self.findings) >= _FINDINGS_MAX:
            return False
        self.findings[key] = damage
        report_corruption(damage)
        return True

    def _mend(self, log: PartitionLog, segment: Segment, found: SegmentReport) -> None:
        """Make again what can be rebuilt. Only where the log itself is sound."""
        for damage in found.damage:
            if damage.file.name.endswith(CHECKSUMS_SUFFIX):
                self._files.remove(damage.file)
            elif damage.file.name.endswith(SNAPSHOT_SUFFIX) and segment.base_offset in log.snapshots.offsets:
                log.snapshots.drop(segment.base_offset)
        if found.batches is None or any(damage.costs_records for damage in found.damage):
            return
        if found.bad_indexes & {INDEX_SUFFIX, TIME_INDEX_SUFFIX}:
            offsets, times = index_entries(found.batches, log.config.index_interval_bytes, segment.size_bytes)
            segment.offset_index.replace(offsets)
            segment.time_index.replace(times)
            logger.warning("the indexes of %s are made anew", segment.log_path)
        if TXN_INDEX_SUFFIX in found.bad_indexes:
            rebuild_aborted(segment, log.segment_list, log.snapshots)

    # ---- Small files

    def check_small_files(self) -> int:
        """Compare the files in the root with their copies, and those of each partition with what the broker knows.

        Gives the number of new findings; what is wrong is rewritten. On the loop: each is a few hundred bytes.
        """
        news = 0
        with self._directory.checkpoint_lock:
            backup = MetadataBackup.read(self._files, self._directory.path)
            for name in [name for name, copy in backup.entries.items() if copy.text is not None and "/" not in name]:
                backup.text(name)
        if backup.damage:
            news += sum(self._note(damage) for damage in backup.damage)
            self._directory.write_anew()
        for log in list(self._directory.logs.values()):
            news += self._check_partition_files(log)
        return news

    def _check_partition_files(self, log: PartitionLog) -> int:
        news = 0
        path = log.directory / PARTITION_METADATA
        if log.topic_id.int and self._text(path) != partition_metadata_text(log.topic_id):
            news += self._note(Corruption(path, "it is not the topic's id", CHECKPOINT_ADVICE))
            self._directory.write_topic_id(log, log.topic_id)
        path = log.directory / EPOCHS_FILE
        if log.epochs.entries and not log.pending_flush.epochs_pending and self._text(path) != log.epochs.to_text():
            if parse_epochs(self._text(path) or "") is None or log.epochs.certain:
                news += self._note(Corruption(path, "it is not what the broker knows", CHECKPOINT_ADVICE))
            log.pending_flush.write_epochs(log.directory, log.epochs)
        return news

    def _text(self, path: PurePath) -> str | None:
        try:
            return read_file(self._files, path).decode(errors="replace")
        except OSError:
            return None

    # ---- The report

    def write_report(self, *, now_ms: int) -> None:
        """Say in the directory what was found. Raises OSError."""
        fields = {
            "version": 0,
            "written_ms": now_ms,
            "passes": self.passes,
            "segments_seen": self.segments_seen,
            "findings": [{**damage._asdict(), "file": str(damage.file)} for damage in self.findings.values()],
        }
        replace_file(self._files, self._directory.path / REPORT_FILE, json.dumps(fields, indent=1).encode() + b"\n")


def index_entries(
    batches: BatchColumns, interval_bytes: int, size_bytes: int
) -> tuple[list[OffsetEntry], list[TimeEntry]]:
    """The entries of both indexes of a sealed segment, as `Segment.note_batch` and `seal` would make them."""
    offsets: list[OffsetEntry] = []
    times: list[TimeEntry] = []
    greatest, greatest_offset, since = -1, -1, 0
    for number, position in enumerate(batches.positions):
        if batches.times[number] > greatest:
            greatest, greatest_offset = batches.times[number], batches.lasts[number]
        if since > interval_bytes:
            offsets.append(OffsetEntry(batches.lasts[number], position))
            if greatest > (times[-1].timestamp if times else -1):
                times.append(TimeEntry(greatest, greatest_offset))
            since = 0
        end = batches.positions[number + 1] if number + 1 < len(batches.positions) else size_bytes
        since += end - position
    if greatest > (times[-1].timestamp if times else -1):
        times.append(TimeEntry(greatest, greatest_offset))
    return offsets, times


def read_report(files: FileSystem, root: PurePath) -> dict[str, object] | None:
    """What the broker's scrubber wrote last; None if there is nothing that can be read."""
    try:
        fields = json.loads(read_file(files, root / REPORT_FILE))
    except (OSError, ValueError):
        return None
    return fields if isinstance(fields, dict) else None
