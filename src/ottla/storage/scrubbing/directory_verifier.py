"""Verifies a log directory, one partition of it or one file: `ottla log verify`.

Only reads, and needs no lock: in a running broker's directory it verifies what does not change, and accepts the end of
a file that is being written. It verifies logs against their checksums or batch by batch, indexes against batches, and
small files against the copy that Ottla keeps of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath

from ottla.core.files import FileSystem, read_file
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.records.batch import NO_END_OFFSET
from ottla.storage import small_files as names
from ottla.storage.directory_names import parse_log_name
from ottla.storage.file_names import (
    CHECKSUMS_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from ottla.storage.integrity.corruption import CACHE_ADVICE, Corruption
from ottla.storage.integrity.metadata_backup import FILE_NAME as COPIES_FILE
from ottla.storage.integrity.metadata_backup import MetadataBackup
from ottla.storage.integrity.range_verifier import is_reserve
from ottla.storage.scrubbing.segment_verifier import SegmentTarget, verify_segment
from ottla.storage.small_files import parse_meta, parse_offsets, parse_partition_metadata
from ottla.storage.state.leader_epochs import FILE_NAME as EPOCHS_FILE
from ottla.storage.state.leader_epochs import LeaderEpochs, parse_epochs
from ottla.storage.state.producer_snapshots import read_snapshot

_NUMBERED = re.compile(r"(?P<base>[0-9]{20})(?P<suffix>\.[a-z]+)")
BROKEN_FILE = "remove or repair it by hand: without it the broker rebuilds its content from the log"


class NothingToVerify(Exception):
    """The path is not part of a log directory."""


@dataclass
class VerifyReport:
    """The findings of `verify_directory`, and what it has read."""

    findings: list[Corruption] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # for information: no corruption
    partitions: int = 0
    segments: int = 0
    bytes_read: int = 0


Progress = Callable[[int], None]


def verify_directory(files: FileSystem, path: PurePath, *, progress: Progress | None = None) -> VerifyReport:
    """Verify a log directory, a partition's directory or one of their files. Raises OSError and NothingToVerify."""
    report = VerifyReport()

    def spend(size_bytes: int) -> None:
        report.bytes_read += size_bytes
        if progress is not None:
            progress(size_bytes)

    if not files.is_directory(path):
        _verify_file(files, path, report, spend)
    elif parse_log_name(path.name) is not None and any(_NUMBERED.fullmatch(name) for name in files.names_in(path)):
        _Root(files, path.parent, report, spend).verify_partition(path.name)
    else:
        partitions = [name for name in files.names_in(path) if parse_log_name(name) is not None]
        if not partitions and not files.exists(path / names.META_PROPERTIES):
            raise NothingToVerify(f"{path} is neither a log directory nor a partition's")
        root = _Root(files, path, report, spend)
        root.verify_small_files()
        for name in partitions:
            if files.is_directory(path / name):
                root.verify_partition(name)
    return report


def bytes_below(files: FileSystem, path: PurePath) -> int:
    """Estimate how many bytes there are to read, for a progress bar. Raises OSError."""
    if not files.is_directory(path):
        return files.size_of(path)
    total = 0
    for name in files.names_in(path):
        inner = path / name
        if parse_log_name(name) is not None and files.is_directory(inner):
            total += bytes_below(files, inner)
        elif name.endswith(LOG_SUFFIX):
            total += files.size_of(inner)
    return total


class _Root:
    """Verifies one log directory, with the offsets in its small files."""

    def __init__(self, files: FileSystem, path: PurePath, report: VerifyReport, spend: Progress) -> None:
        self._files, self._path, self.report, self._spend = files, path, report, spend
        self.backup = MetadataBackup.read(files, path, on_corruption=report.findings.append)
        self.is_clean = files.exists(path / names.CLEAN_SHUTDOWN)
        self.recovery_points = self._offsets(names.RECOVERY_POINTS)
        self.cleaner_offsets = self._offsets(names.CLEANER_OFFSETS)

    def _offsets(self, name: str) -> dict[TopicPartition, int] | None:
        """Read an offset checkpoint; None if it is unknown."""
        quiet = MetadataBackup(self._files, self._path, self.backup.entries, on_corruption=_ignore)
        return parse_offsets(quiet.text(name).text)

    def verify_small_files(self) -> None:
        """Verify the small files in the root."""
        for name in (*names.OFFSET_FILES, names.META_PROPERTIES):
            text, is_certain, was_restored = self.backup.text(name)
            if is_certain or was_restored or not self._files.exists(self._path / name):
                continue
            if name == names.META_PROPERTIES:
                is_good = {"cluster.id", "node.id"} <= parse_meta(text or "").keys()
            else:
                is_good = parse_offsets(text) is not None
            if not is_good:
                self.report.findings.append(Corruption(self._path / name, "it cannot be read", BROKEN_FILE))

    def verify_partition(self, name: str) -> None:
        """Verify everything in one partition's directory."""
        directory = self._path / name
        topic_partition = parse_log_name(name)
        assert topic_partition is not None, "the caller has looked"
        self.report.partitions += 1
        bases = _bases(self._files, directory, LOG_SUFFIX)
        epochs, is_certain = self._epochs(name)
        fits = True
        for number in range(len(bases)):
            target = self._target(topic_partition, directory, bases, number)
            judge = target._replace(epochs=epochs) if is_certain else target._replace(claimed=epochs)
            fits = self._segment(judge) and fits
        if not fits:
            self.report.findings.append(
                Corruption(directory / EPOCHS_FILE, "its epochs are not those of the batches", BROKEN_FILE)
            )
        known = set(bases)
        for base in _bases(self._files, directory, SNAPSHOT_SUFFIX):
            if base not in known:
                _verify_snapshot(self._files, directory / f"{base:020}{SNAPSHOT_SUFFIX}", self.report)
        path = directory / names.PARTITION_METADATA
        metadata = self.backup.text(f"{name}/{names.PARTITION_METADATA}", must_exist=False)
        is_unknown = not metadata.was_restored and parse_partition_metadata(metadata.text) == NO_TOPIC_ID
        if is_unknown and self._files.exists(path):
            self.report.findings.append(Corruption(path, "it contains no topic id", CACHE_ADVICE))

    def _epochs(self, name: str) -> tuple[LeaderEpochs | None, bool]:
        text, is_certain, was_restored = self.backup.text(f"{name}/{EPOCHS_FILE}", must_exist=False)
        if text is None and not self._files.exists(self._path / name / EPOCHS_FILE):
            return None, False
        epochs = parse_epochs(text or "")
        if epochs is None and not was_restored:
            self.report.findings.append(Corruption(self._path / name / EPOCHS_FILE, "it cannot be read", CACHE_ADVICE))
        return epochs, is_certain and epochs is not None

    def _target(
        self, topic_partition: TopicPartition, directory: PurePath, bases: list[int], number: int
    ) -> SegmentTarget:
        base, is_last = bases[number], number == len(bases) - 1
        size = self._files.size_of(directory / f"{base:020}{LOG_SUFFIX}")
        end = NO_END_OFFSET if is_last else bases[number + 1]
        checkpointed_end = (self.recovery_points or {}).get(topic_partition) if is_last and self.is_clean else None
        if checkpointed_end is not None and checkpointed_end >= base:
            end = checkpointed_end
        return SegmentTarget(
            directory,
            base,
            max(end, base + 1),
            size,
            is_sealed=not is_last or self.is_clean,
            may_have_gaps=self.cleaner_offsets is None or topic_partition in self.cleaner_offsets,
            must_end_exactly=not is_last or (checkpointed_end is not None and checkpointed_end > base),
        )

    def _segment(self, target: SegmentTarget) -> bool:
        """Verify one segment; returns whether the epochs of the cache are those of its batches."""
        report = self.report
        try:
            segment_report = verify_segment(self._files, target, spend=self._spend)
        except FileNotFoundError:
            return True  # deleted meanwhile
        report.segments += 1
        is_open = not target.is_sealed
        for corruption in segment_report.findings:
            reaches_end = corruption.position + corruption.size_bytes >= target.size_bytes
            if not (is_open and corruption.costs_records and reaches_end):
                report.findings.append(corruption)
            elif not self._is_reserve(corruption):
                report.notes.append(
                    f"{corruption.file} ends with {corruption.size_bytes} bytes that are no whole batch: they are "
                    "being written, or the next start truncates them"
                )
        if target.is_sealed and target.end_offset == NO_END_OFFSET:
            report.notes.append(
                f"the end of {target.path(LOG_SUFFIX)} is not verified: no checkpoint has its end offset"
            )
        names_of_indexes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
        known = {corruption.file for corruption in report.findings}
        for suffix in names_of_indexes:
            path = target.path(suffix)
            if path not in known:
                self.backup.is_corrupt(str(path.relative_to(self._path)))
        return segment_report.epochs_fit or any(corruption.costs_records for corruption in segment_report.findings)

    def _is_reserve(self, corruption: Corruption) -> bool:
        file = self._files.open(corruption.file)
        try:
            return is_reserve(file, corruption.position)
        finally:
            file.close()


def _ignore(corruption: Corruption) -> None:
    """Ignore corruption that is reported elsewhere."""
    del corruption


def _bases(files: FileSystem, directory: PurePath, suffix: str) -> list[int]:
    found = (_NUMBERED.fullmatch(name) for name in files.names_in(directory))
    return sorted(int(match["base"]) for match in found if match and match["suffix"] == suffix)


def _verify_snapshot(files: FileSystem, path: PurePath, report: VerifyReport) -> None:
    if read_snapshot(read_file(files, path)) is None:
        report.findings.append(Corruption(path, "its checksum does not match", CACHE_ADVICE))


def _verify_file(files: FileSystem, path: PurePath, report: VerifyReport, spend: Progress) -> None:
    """Verify one file. An index is compared with the log beside it; findings about other files are left out."""
    match = _NUMBERED.fullmatch(path.name)
    directory = path.parent
    suffixes = {LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX, CHECKSUMS_SUFFIX}
    files.size_of(path)
    root = _Root(files, directory if match is None else directory.parent, VerifyReport(), spend)
    if match is not None and match["suffix"] in suffixes:
        if parse_log_name(directory.name) is not None:
            root.verify_partition(directory.name)
        else:
            _alone(files, path, report)
    elif path.name in (*names.OFFSET_FILES, names.META_PROPERTIES, COPIES_FILE):
        root.verify_small_files()
    elif path.name in (EPOCHS_FILE, names.PARTITION_METADATA):
        root = _Root(files, directory.parent, VerifyReport(), spend)
        root.verify_partition(directory.name)
    else:
        raise NothingToVerify(f"{path} is no file of a log directory")
    report.findings += [corruption for corruption in root.report.findings if corruption.file == path]
    report.notes += [note for note in root.report.notes if str(path) in note]
    report.segments, report.bytes_read = root.report.segments, report.bytes_read


def _alone(files: FileSystem, path: PurePath, report: VerifyReport) -> None:
    """Verify a file outside a partition's directory, such as a copy."""
    match = _NUMBERED.fullmatch(path.name)
    assert match is not None, "the caller has looked"
    if match["suffix"] == SNAPSHOT_SUFFIX:
        _verify_snapshot(files, path, report)
        return
    base = int(match["base"])
    log_path = path.with_name(f"{base:020}{LOG_SUFFIX}")
    size = files.size_of(log_path)
    target = SegmentTarget(
        path.parent,
        base,
        NO_END_OFFSET,
        size,
        is_sealed=match["suffix"] != LOG_SUFFIX,
        may_have_gaps=True,
        must_end_exactly=False,
    )
    report.findings += [corruption for corruption in verify_segment(files, target).findings if corruption.file == path]
    report.segments += 1
