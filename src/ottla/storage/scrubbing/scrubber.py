"""Verifies everything in a log directory, a little at a time, for as long as the broker runs.

    plan       on the loop: lists the segments, as values
    verify     in a thread: verifies one of them (`segment_verifier.py`) at the configured rate; writes its checksums if
               all is valid
    conclude   on the loop: if the segment is still the same, reports what was found and rebuilds what can be rebuilt
               from the log

A segment that was cleaned, truncated or deleted meanwhile is left to the next pass. Corruption in a log is reported and
remembered, never truncated. Findings are written to `ottla-scrub` in the directory's root, for operators and for
`ottla log verify`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.errors import CorruptMessage
from ottla.core.files import FileSystem, read_file, replace_file
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.directory_health import is_passing
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
from ottla.storage.log.log_faults import faulty_from
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.segment import Segment
from ottla.storage.scrubbing.segment_verifier import BatchColumns, SegmentReport, SegmentTarget, Spend, verify_segment
from ottla.storage.small_files import PARTITION_METADATA, partition_metadata_text
from ottla.storage.state.index import OffsetEntry, TimeEntry
from ottla.storage.state.leader_epochs import FILE_NAME as EPOCHS_FILE
from ottla.storage.state.leader_epochs import LeaderEpochs, parse_epochs

logger = logging.getLogger(__name__)

REPORT_FILE = "ottla-scrub"
_FINDINGS_MAX = 1000


class ScrubStopped(Exception):
    """The broker stops while a segment is verified."""


class ScrubThrottle:
    """Limits the bytes a second that a thread reads; a stop ends its wait at once."""

    __slots__ = ("_stop", "bytes_per_second")

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second  # may be changed at any time
        self._stop = threading.Event()

    def stop(self) -> None:
        """End the wait of the caller with ScrubStopped."""
        self._stop.set()

    def __call__(self, size_bytes: int) -> None:
        """Wait as long as reading so many bytes should take. Raises ScrubStopped."""
        if self._stop.wait(size_bytes / max(self.bytes_per_second, 1)):
            raise ScrubStopped


class ScrubTask(NamedTuple):
    """One segment to be verified."""

    log: PartitionLog
    segment: Segment
    target: SegmentTarget
    truncation_count: int  # of the log when this was planned


class Scrubber:
    """Scrubs one log directory. `verify` and `suspects` may run in a thread, everything else runs on the loop."""

    def __init__(self, directory: LogDirectory, files: FileSystem) -> None:
        self._directory = directory
        self._files = files
        self.findings: dict[str, Corruption] = {}  # by their text: each is reported once
        self.segments_seen = 0
        self.passes = 0
        self._checksummed: set[Segment] = set()  # verified: they have checksums, or a finding
        self._judged: dict[
            PartitionLog, dict[Segment, SegmentReport]
        ] = {}  # logs whose epoch cache is not known to be right

    @property
    def path(self) -> PurePath:
        """The directory."""
        return self._directory.path

    # ---- Segments

    def plan(self) -> Iterator[ScrubTask]:
        """Yield every segment of one pass, those of compacted logs first: some faults there need block checksums."""
        return self._plan(sorted(self._directory.logs.values(), key=lambda log: not log.may_have_gaps), frozenset())

    def plan_new(self) -> Iterator[ScrubTask]:
        """Yield the segments that compaction has written since the last pass, so that they get checksums soon.

        A directory that is short of space gets none.
        """
        if self._directory.is_short_of_space:
            return iter(())
        logs = [log for log in self._directory.logs.values() if log.may_have_gaps]
        self._checksummed.intersection_update(segment for log in logs for segment in log.segments)
        return self._plan(logs, self._checksummed, sealed_only=True)

    def _plan(
        self, logs: Iterable[PartitionLog], without: Collection[Segment], *, sealed_only: bool = False
    ) -> Iterator[ScrubTask]:
        for log in logs:
            for segment in list(log.segments):
                is_there = self._directory.logs.get(log.topic_partition) is log and segment in log.segments
                if not is_there or segment in without or (sealed_only and segment is log.active):
                    continue
                if not segment.size_bytes and segment is not log.active:
                    with contextlib.suppress(CorruptMessage):  # which it has reported
                        log.segment_list.check_end(segment)
                work = self._work(log, segment)
                if work is not None:
                    yield work

    def _work(self, log: PartitionLog, segment: Segment) -> ScrubTask | None:
        if segment.is_dirty or not segment.size_bytes or log.is_truncating:
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

    def verify(self, work: ScrubTask, spend: Spend) -> SegmentReport | None:
        """Verify a segment; None if it was deleted meanwhile. Raises OSError, ScrubStopped."""
        try:
            report = verify_segment(self._files, work.target, spend=spend)
            if report.checksums is not None and not self._directory.is_short_of_space:
                write_checksums(
                    self._files, checksums_path(work.target.directory, work.target.base_offset), report.checksums
                )
            return report
        except FileNotFoundError:
            return None
        except OSError as error:
            if is_passing(error):
                raise
            path = work.target.path(LOG_SUFFIX)
            corruption = Corruption(
                path,
                f"it cannot be read: {error.strerror or error}",
                RECORDS_ADVICE,
                costs_records=True,
                first_offset=work.target.base_offset,
                last_offset=work.target.end_offset - 1,
            )
            return SegmentReport(work.target, [corruption], None, None, frozenset())

    def conclude(self, work: ScrubTask, found: SegmentReport | None) -> int:
        """Add the findings of a segment if it is still the same; returns how many are new."""
        log, segment, target = work.log, work.segment, work.target
        is_same = (
            self._directory.logs.get(log.topic_partition) is log
            and segment in log.segments
            and log.truncation_count == work.truncation_count
            and (segment.size_bytes == target.size_bytes or not target.is_sealed)
            and (segment is not log.active) == target.is_sealed
        )
        if found is None and is_same:
            log.segment_list.note_missing_files()
        if found is None or not is_same:
            if found is not None and found.checksums is not None:
                self._files.remove(target.path(CHECKSUMS_SUFFIX))
            return 0
        self.segments_seen += 1
        if target.is_sealed and not self._directory.is_short_of_space:
            self._checksummed.add(segment)
        news = sum(self._add_finding(corruption) for corruption in found.findings)
        for corruption in found.findings:
            if corruption.costs_records:
                segment.distrust()
                log.faults.note(faulty_from(corruption))
        if not found.findings:
            self._forget_findings(segment)  # it was fetched again
        self._rebuild(log, segment, found)
        if target.claimed is not None:
            self._judged.setdefault(log, {})[segment] = found
        return news

    def end_pass(self) -> int:
        """Verify the epoch caches that had no copy against all segments of the pass; returns the new findings."""
        self.passes += 1
        judged, self._judged = self._judged, {}
        return sum(self._judge_epochs(log, found) for log, found in judged.items())

    def _judge_epochs(self, log: PartitionLog, found: dict[Segment, SegmentReport]) -> int:
        seen = [found[segment] for segment in log.segments if segment in found and found[segment].batches]
        if len(seen) < sum(segment.size_bytes > 0 for segment in log.segments) or any(
            report.findings for report in seen
        ):
            return 0
        news = 0
        if not all(report.epochs_fit for report in seen):
            path = log.directory / EPOCHS_FILE
            news = self._add_finding(Corruption(path, "its epochs are not those of the batches", CHECKPOINT_ADVICE))
            if log.may_have_gaps:
                return news  # the first batches of an epoch may be gone: the log does not show where it began
            following = [entry for entry in log.epochs.entries if entry.start_offset >= seen[-1].target.end_offset]
            log.epochs.clear()
            found_epochs = [entry for report in seen if report.batches is not None for entry in report.batches.epochs]
            for entry in [*found_epochs, *following]:
                log.epochs.assign(*entry)
        log.epochs.mark_certain()
        log.pending_flush.write_epochs(log.directory, log.epochs)
        return news

    def _add_finding(self, corruption: Corruption) -> bool:
        key = str(corruption)
        if key in self.findings or len(self.findings) >= _FINDINGS_MAX:
            return False
        self.findings[key] = corruption
        report_corruption(corruption)
        return True

    def _forget_findings(self, segment: Segment) -> None:
        paths = set(segment.paths()) if self.findings else set()
        for key in [key for key, known in self.findings.items() if known.file in paths]:
            del self.findings[key]

    def _rebuild(self, log: PartitionLog, segment: Segment, found: SegmentReport) -> None:
        """Rebuild the corrupt files of a segment whose log itself is valid."""
        for corruption in found.findings:
            if corruption.file.name.endswith(CHECKSUMS_SUFFIX):
                self._files.remove(corruption.file)
            elif corruption.file.name.endswith(SNAPSHOT_SUFFIX) and segment.base_offset in log.snapshots.offsets:
                log.snapshots.drop(segment.base_offset)
        if found.batches is None or any(corruption.costs_records for corruption in found.findings):
            return
        if found.bad_indexes & {INDEX_SUFFIX, TIME_INDEX_SUFFIX}:
            offsets, times = index_entries(found.batches, log.config.index_interval_bytes, segment.size_bytes)
            segment.offset_index.replace(offsets)
            segment.time_index.replace(times)
            logger.warning("the indexes of %s are rebuilt", segment.log_path)
        if TXN_INDEX_SUFFIX in found.bad_indexes:
            rebuild_aborted(segment, log.segment_list, log.snapshots)

    # ---- Small files

    def check_checkpoints(self) -> None:
        """Compare the files in the root with their copies, and rewrite corrupt ones. Runs on the loop."""
        with self._directory.checkpoint_lock:
            backup = MetadataBackup.read(self._files, self._directory.path)
            for name in [name for name, copy in backup.entries.items() if copy.text is not None and "/" not in name]:
                backup.text(name)
        if backup.findings:
            for corruption in backup.findings:
                self._add_finding(corruption)
            self._directory.rewrite_small_files()

    def suspects(self) -> list[PartitionLog]:
        """Return the logs whose small files do not match the broker's state. Runs in a thread.

        A log may change meanwhile: `check_partition_files` decides.
        """
        return [
            log
            for log in list(self._directory.logs.values())
            if not self._has_topic_id(log) or not self._has_epochs(log)
        ]

    def check_partition_files(self, log: PartitionLog) -> None:
        """Compare the small files of a partition with the broker's state, and rewrite corrupt ones, on the loop."""
        if self._directory.logs.get(log.topic_partition) is not log:
            return  # removed meanwhile
        if not self._has_topic_id(log):
            path = log.directory / PARTITION_METADATA
            self._add_finding(Corruption(path, "it does not contain the topic's id", CHECKPOINT_ADVICE))
            self._directory.write_topic_id(log, log.topic_id)
        if not self._has_epochs(log):
            path = log.directory / EPOCHS_FILE
            if parse_epochs(self._text(path) or "") is None or log.epochs.certain:
                self._add_finding(Corruption(path, "it does not match the epoch cache", CHECKPOINT_ADVICE))
            log.pending_flush.write_epochs(log.directory, log.epochs)

    def _has_topic_id(self, log: PartitionLog) -> bool:
        expected = partition_metadata_text(log.topic_id)
        return not log.topic_id.int or self._text(log.directory / PARTITION_METADATA) == expected

    def _has_epochs(self, log: PartitionLog) -> bool:
        if not log.epochs.entries or log.pending_flush.epochs_pending:
            return True
        return self._text(log.directory / EPOCHS_FILE) == log.epochs.to_text()

    def _text(self, path: PurePath) -> str | None:
        try:
            return read_file(self._files, path).decode(errors="replace")
        except OSError:
            return None

    # ---- The report

    def write_report(self, *, now_ms: int) -> None:
        """Write the findings to the directory. Raises OSError."""
        fields = {
            "version": 0,
            "written_ms": now_ms,
            "passes": self.passes,
            "segments_seen": self.segments_seen,
            "findings": [
                {**corruption._asdict(), "file": str(corruption.file)} for corruption in self.findings.values()
            ],
        }
        replace_file(self._files, self._directory.path / REPORT_FILE, json.dumps(fields, indent=1).encode() + b"\n")


def index_entries(
    batches: BatchColumns, interval_bytes: int, size_bytes: int
) -> tuple[list[OffsetEntry], list[TimeEntry]]:
    """Compute the entries of both indexes of a sealed segment, as `Segment.note_batch` and `seal` write them."""
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
    """Read the last report of the broker's scrubber; None if there is none that can be parsed."""
    try:
        fields = json.loads(read_file(files, root / REPORT_FILE))
    except (OSError, ValueError):
        return None
    return fields if isinstance(fields, dict) else None
