"""Tracks what a log must sync, and creates the flush job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Final

from ottla.core.files import FileSystem
from ottla.storage.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from ottla.storage.integrity.metadata_backup import BackedUpFile
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.segment import Segment
from ottla.storage.state.aborted_index import AbortedTransaction, append_aborted
from ottla.storage.state.leader_epochs import FILE_NAME, EpochEntry, LeaderEpochs

_NO_PATHS: Final[frozenset[PurePath]] = frozenset()  # one for all logs: most of thousands have nothing pending


class PendingFlush:
    """Collects sealed segments, small files that were written and closed, and directories whose entries changed.

    The active segment has its own dirty flag. The leader-epoch file is written here too, since it may lag its cache
    until a flush: recovery restores the epochs lost in between.
    """

    __slots__ = (
        "_aborted",
        "_directories",
        "_epochs_backup",
        "_epochs_pending",
        "_epochs_written",
        "_files",
        "_partition_metadata_backup",
        "_paths",
        "_sealed",
        "needs_checkpoint",
    )

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._sealed: tuple[Segment, ...] = ()
        self._paths = self._directories = _NO_PATHS
        self._epochs_pending = False
        self._epochs_written: tuple[EpochEntry, ...] | None = ()  # the file's content; None: unknown
        self._epochs_backup: BackedUpFile | None = None
        self._partition_metadata_backup: BackedUpFile | None = None
        # Whether the recovery point on the disk may be beyond the log's end: no flush counts before it is lowered.
        self.needs_checkpoint = False
        self._aborted: tuple[tuple[PurePath, AbortedTransaction], ...] = ()  # entries that are not in a file yet

    def __bool__(self) -> bool:
        epochs_lost = self._epochs_pending and self._epochs_written is None
        return bool(self._sealed or self._paths or self._directories or epochs_lost or self._aborted)

    def small_files_loaded(
        self,
        epochs: tuple[EpochEntry, ...] | None,
        *,
        epochs_backup: BackedUpFile | None,
        partition_metadata_backup: BackedUpFile | None,
    ) -> None:
        """Note what a start has found in the small files: the epochs, None if unknown, and copies for checkpoints."""
        self._epochs_written = epochs
        self._epochs_backup, self._partition_metadata_backup = epochs_backup, partition_metadata_backup

    @property
    def epochs_backup(self) -> BackedUpFile | None:
        """The copy of the leader-epoch file as it is now, if it is known to be right."""
        return self._epochs_backup

    @property
    def partition_metadata_backup(self) -> BackedUpFile | None:
        """The copy of `partition.metadata`, if the log has an id of its topic."""
        return self._partition_metadata_backup

    def partition_metadata_written(self, backup: BackedUpFile | None) -> None:
        """Note the copy of `partition.metadata` as it is now, for the checkpoints that follow."""
        self._partition_metadata_backup = backup

    def require_checkpoint(self) -> None:
        """Require a checkpoint before the next flush: the log was truncated."""
        self.needs_checkpoint = True

    def checkpointed(self) -> None:
        """Note that the checkpoint files have the log's recovery point."""
        self.needs_checkpoint = False

    def add_sealed(self, segments: Iterable[Segment]) -> None:
        """Add segments that were sealed, and whose index entries may still be in memory."""
        self._sealed += tuple(segments)

    def add_files(self, *paths: PurePath) -> None:
        """Add files that were written and closed, and the directories they are in."""
        if not paths:
            return
        self._paths |= frozenset(paths)
        self._directories |= frozenset([path.parent for path in paths])

    def add_directories(self, *paths: PurePath) -> None:
        """Add directories whose entries changed."""
        self._directories |= frozenset(paths)

    def forget(self, segment: Segment) -> None:
        """Remove a deleted segment: none of its files needs a sync."""
        self._sealed = tuple([each for each in self._sealed if each is not segment])
        deleted = segment.path(TXN_INDEX_SUFFIX)
        self._aborted = tuple([(path, entry) for path, entry in self._aborted if path != deleted])

    @property
    def epochs_pending(self) -> bool:
        """Whether the leader-epoch file lags the cache."""
        return self._epochs_pending

    def has_written(self, epochs: LeaderEpochs) -> bool:
        """Return whether the leader-epoch file has all of the cache, and no more."""
        return self._epochs_written == epochs.entries

    def epoch_begun(self) -> None:
        """Mark the file as lagging: it gets the newest epoch with that epoch's first record.

        A start begins an epoch for each partition it leads; most get no record before the next start, and loading a log
        drops an epoch without records.
        """
        self._epochs_pending = True

    def write_epochs(self, directory: PurePath, epochs: LeaderEpochs) -> None:
        """Write the cache to its file. If that fails, `start_flush` retries and raises the error."""
        self._epochs_pending, self._epochs_written = True, None
        with contextlib.suppress(OSError):
            self._write_epochs(directory, epochs)

    def _write_epochs(self, directory: PurePath, epochs: LeaderEpochs) -> None:
        path = directory / FILE_NAME
        aside = path.with_name(path.name + ".tmp")
        self._files.remove(aside)
        file, text = self._files.open(aside, create=True), epochs.to_text().encode()
        try:
            file.append(text)
        finally:
            file.close()
        self._epochs_backup = BackedUpFile.of(text, self._files.modified_ns(aside)) if epochs.certain else None
        self._files.rename(aside, path)
        self._epochs_pending, self._epochs_written = False, epochs.entries
        self.add_files(path)

    def add_aborted(self, path: PurePath, entry: AbortedTransaction) -> None:
        """Add to a segment's index of aborted transactions. An abort marker is not flushed before its entry.

        If the write fails, `start_flush` retries and raises the error.
        """
        self._aborted += ((path, entry),)
        with contextlib.suppress(OSError):
            self._write_aborted()

    def aborted(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the entries within a range of offsets that are not in a file yet."""
        entries = (entry for _, entry in self._aborted)
        return [entry for entry in entries if entry.last_offset >= first_offset and entry.first_offset < end_offset]

    def forget_aborted(self, end_offset: int) -> None:
        """Drop the entries of abort markers that were truncated, which are those from `end_offset` on."""
        self._aborted = tuple([(path, entry) for path, entry in self._aborted if entry.last_offset < end_offset])

    def _write_aborted(self) -> None:
        while self._aborted:
            path, entry = self._aborted[0]
            append_aborted(self._files, path, entry)
            self._aborted = self._aborted[1:]
            self.add_files(path)

    def start_flush(
        self, directory: PurePath, active: Segment, epochs: LeaderEpochs, *, end_offset: int, truncation_count: int
    ) -> FlushJob:
        """Create the job that syncs everything pending. Raises OSError, and then everything stays pending."""
        if self._epochs_pending and not epochs.agree_below(end_offset, self._epochs_written):
            self._write_epochs(directory, epochs)
        if self._aborted:
            self._write_aborted()
        if not self._sealed and not self._paths and not self._directories:
            dirty = (active,) if active.is_dirty else ()
            job = FlushJob(self._files, active, dirty, end_offset=end_offset, truncation_count=truncation_count)
            active.mark_clean()
            return job
        return self._start_full_flush(active, end_offset, truncation_count)

    def _start_full_flush(self, active: Segment, end_offset: int, truncation_count: int) -> FlushJob:
        """Create the job where sealed segments, small files or directories are pending too."""
        for segment in self._sealed:
            segment.write_indexes()
            self.add_files(segment.path(INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX))
        dirty = [segment for segment in dict.fromkeys((*self._sealed, active)) if segment.is_dirty]
        job = FlushJob(
            self._files,
            active,
            dirty,
            sealed=self._sealed,
            paths=self._paths,
            directories=self._directories,
            end_offset=end_offset,
            truncation_count=truncation_count,
        )
        for segment in dirty:
            segment.mark_clean()
        self._sealed, self._paths, self._directories = (), _NO_PATHS, _NO_PATHS
        return job

    def restore(self, job: FlushJob, segments: Sequence[Segment]) -> None:
        """Make what a job could not sync pending again, except segments that are no longer in `segments`."""
        there = set(segments)
        for segment in there.intersection(job.dirty):
            segment.mark_dirty()
        self._sealed += tuple([segment for segment in job.sealed if segment in there])
        self._paths |= frozenset(job.paths)
        self._directories |= frozenset(job.directories)
