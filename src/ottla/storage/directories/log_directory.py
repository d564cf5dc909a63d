"""Manages one log directory: its lock, its identity, and every partition's log in it.

    with LogDirectory.open(...)   takes .lock, checks meta.properties, takes away the clean marker, loads all logs
    create_log / delete_log       as the controller decides
    create_future_log             a copy of a log of another directory, to replace it (`log_replacement.py`)
    checkpoint                    notes recovery points, log starts and high watermarks, to shorten the next start
    close                         syncs everything, writes snapshots, checkpoints and the clean marker

A broker may have several (`log_manager.py`): each has its own health, and one that fails takes only its own logs
offline.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Self

from ottla.core.clock import Clock
from ottla.core.errors import StorageError, SyncFailed
from ottla.core.files import FileSystem, Lock, replace_file
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.core.runtime import new_uuid, run_in_threads
from ottla.core.slices import WorkSlice
from ottla.storage import small_files as names
from ottla.storage.config import LogConfig, topic_config
from ottla.storage.directories.checkpoint_job import CheckpointJob
from ottla.storage.directories.directory_identity import ForeignDirectory, cluster_id_of, identity, make_durably
from ottla.storage.directories.directory_scan import scan_directory
from ottla.storage.directories.index_copies import INDEX_SUFFIXES, IndexCopies
from ottla.storage.directories.log_removal import LogRemoval
from ottla.storage.directories.lost_logs import LostLog, ReplacedLog, find_lost_logs
from ottla.storage.directories.previous_run import PreviousRun
from ottla.storage.directory_health import DirectoryHealth
from ottla.storage.directory_names import future_directory_name, is_stray
from ottla.storage.integrity.metadata_backup import BackedUpFile, MetadataBackup, backup_of
from ottla.storage.loading.failed_sync import FailedSyncMark, Rewriter
from ottla.storage.loading.found_log import FoundLog
from ottla.storage.loading.load_job import Loaders, LoadJob
from ottla.storage.loading.loading_progress import LoadingProgress
from ottla.storage.loading.log_loader import create_empty_log
from ottla.storage.log.faulty_ranges import accept_lost_start, note_fault
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.future_log import truncate_copy
from ottla.storage.log.log_parts import LogLocation
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.small_files import PARTITION_METADATA, MetaProperties, text_or_none

if TYPE_CHECKING:  # needed after an unclean stop only
    from ottla.storage.loading.recovered_flush import RecoveredFlush

__all__ = ["DirectoryInUse", "ForeignDirectory", "LogDirectory", "cluster_id_of"]

logger = logging.getLogger(__name__)

NEARLY_FULL_SHARE, NEARLY_FULL_BYTES_MAX = 20, 1 << 30
"""A directory is nearly full if less than this share of its disk is free, and less than so many bytes."""

_LOGS_AT_ONCE = 256
"""The files of so many logs are synced together at a start and a stop: one is open of each."""


class DirectoryInUse(Exception):
    """Another process holds the directory's lock."""


class LogDirectory:
    """Every log below one path. Made by `open`; all but `FlushJob.run` and `CheckpointJob.run` is for one thread."""

    def __init__(
        self,
        *,
        files: FileSystem,
        path: PurePath,
        clock: Clock,
        config: LogConfig,
        lock: Lock,
        meta: MetaProperties,
        backup: MetadataBackup,
        new_id: Callable[[], uuid.UUID],
        threads: int,
        other_paths: Sequence[PurePath] = (),
    ) -> None:
        self._threads = threads
        self.files = files
        self._clock = clock
        self.lock = lock
        self._new_id = new_id
        self.path = path
        self.config = config
        self.meta = meta
        self.backup = backup
        self._failed_sync = FailedSyncMark(files, path, other_paths, meta.directory_id)
        self.health = DirectoryHealth(str(path), now=clock.monotonic, on_failed_sync=self._failed_sync.write)
        self._removal = LogRemoval(files, path, clock, self.health, new_id)
        self.is_short_of_space = False  # as of the last `look_at_space`
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.future_logs: dict[TopicPartition, PartitionLog] = {}  # copies that will replace logs of other directories
        self.replaced: list[ReplacedLog] = []  # found at the start; they are lost logs until their copies are found
        self.lost_logs: dict[TopicPartition, LostLog] = {}  # in the checkpoint files, but not on the disk
        self._index_copies = IndexCopies({}, ())
        self.checkpoint_lock = threading.Lock()
        self._newest_checkpoint = [0]
        self._checkpointed: set[TopicPartition] = set()  # who may have an offset in the checkpoint files
        self.clean_broker_epoch: int | None = None  # of the run before, if it ended cleanly
        self.shortened: set[TopicPartition] = set()  # loaded logs that end below their checkpointed high watermark
        # Loaded logs that were truncated before valid batches, or lost all: from where they are to be fetched again.
        self.corrupt: dict[TopicPartition, int] = {}
        self.corrupt_future_logs: set[TopicPartition] = set()
        # Where future logs may lack batches that a crash has taken, which looks as if compaction had: from there on.
        self.uncertain_from: dict[TopicPartition, int] = {}

    @classmethod
    def open(
        cls,
        files: FileSystem,
        path: PurePath,
        clock: Clock,
        config: LogConfig,
        *,
        node_id: int,
        cluster_id: str,
        topic_overrides: Mapping[str, Mapping[str, str]] | None = None,
        new_id: Callable[[], uuid.UUID] = new_uuid,
        threads: int = 1,
        other_paths: Sequence[PurePath] = (),
    ) -> Self:
        """Open or make a log directory and load its logs, recovering those that need it.

        With several `threads` a start loads many logs at once, and a start and a stop sync the files of many at once.

        Raises DirectoryInUse, ForeignDirectory, and OSError where the system refuses (no permission, disk full).
        """
        make_durably(files, path)
        try:
            lock = files.lock(path / names.LOCK)
        except BlockingIOError:
            raise DirectoryInUse(f"{path} is in use by another process (it holds {path / names.LOCK})") from None
        try:
            backup = MetadataBackup.read(files, path)
            meta = identity(
                backup, path, files, now_ms=clock.wall_ms(), node_id=node_id, cluster_id=cluster_id, new_id=new_id
            )
            self = cls(
                files=files,
                path=path,
                clock=clock,
                config=config,
                lock=lock,
                meta=meta,
                backup=backup,
                new_id=new_id,
                threads=threads,
                other_paths=other_paths,
            )
            try:
                self._load(topic_overrides or {})
            except SyncFailed as error:
                self.health.note_failed_sync(f"start: {error.strerror}")
                raise
        except BaseException:
            lock.release()
            raise
        return self

    # ---- Loading

    def _load(self, overrides: Mapping[str, Mapping[str, str]]) -> None:
        previous = PreviousRun(self.files, self.path, self.backup)
        self.clean_broker_epoch = previous.broker_epoch
        rewriter = self._failed_sync.rewriter()
        if previous.is_clean:  # from the first write on the marker would be wrong
            self.files.remove(self.path / names.CLEAN_SHUTDOWN)
            self.files.sync_directory(self.path)
        self._checkpointed = {*previous.recovery_points, *previous.log_starts, *previous.cleaned}
        scan = scan_directory(self.files, self.path)
        self.replaced += scan.replaced
        for deleted in scan.deleted:
            self._removal.remove_directory(deleted)
        progress = LoadingProgress(self._clock, self.path, len(scan.logs))
        recovered: list[PartitionLog] = []
        loaders = Loaders(self._threads)
        for jobs in self._loads(scan.logs, previous, overrides, progress):
            flushes = self._begin_recovered(recovered)
            begun = [(flush.log, flush.job) for flush in flushes if flush.job is not None]
            self._run(begun, loaders.split(jobs))
            self._complete_recovered(flushes)
            for job in jobs:
                self._adopt_loaded(job, previous, rewriter)
            recovered = [job.log for job in jobs if not job.is_synced or rewriter is not None]
            progress.loaded(len(jobs))
        flushes = self._begin_recovered(recovered)
        self._run([(flush.log, flush.job) for flush in flushes if flush.job is not None])
        self._complete_recovered(flushes)
        progress.ended()
        self.lost_logs = find_lost_logs({**self.logs, **self.future_logs}, self.replaced, self.backup, previous)
        self._forget_last_run(is_clean=previous.is_clean)
        self._checkpoint_recovered(is_clean=previous.is_clean)
        self._failed_sync.remove_if_complete(rewriter, is_complete=not self.lost_logs)

    def _loads(
        self,
        found: Sequence[FoundLog],
        previous: PreviousRun,
        overrides: Mapping[str, Mapping[str, str]],
        progress: LoadingProgress,
    ) -> Iterator[list[LoadJob]]:
        """Yield the jobs that load these logs, as many at once as files may be open."""
        configs: dict[str, LogConfig] = {}
        for first in range(0, len(found), _LOGS_AT_ONCE):
            jobs: list[LoadJob] = []
            for each in found[first : first + _LOGS_AT_ONCE]:
                topic = each.topic_partition.topic
                if topic not in configs:
                    configs[topic] = topic_config(self.config, overrides.get(topic, {}))
                config = without_retention(configs[topic]) if each.is_future else configs[topic]
                checkpoint = previous.checkpoint_of(each.topic_partition)
                location = self._location_of(each.path)
                jobs.append(LoadJob(each, location, config, checkpoint, progress.scanned))
            yield jobs

    def _adopt_loaded(self, job: LoadJob, previous: PreviousRun, rewriter: Rewriter | None) -> None:
        """Add a log that was loaded, or raise why it was not: OSError, StorageError."""
        log, found, checkpoint, topic_partition = job.log, job.found, job.checkpoint, job.found.topic_partition
        if rewriter is not None:
            rewriter.rewrite(log, checkpoint.recovery_point)
        if log.topic_id.int and any(
            corruption.file == found.path / PARTITION_METADATA for corruption in self.backup.findings
        ):
            self._write_restored_topic_id(log)
        noted = previous.high_watermarks.get(topic_partition, log.log_start_offset)
        if found.is_future:
            self.future_logs[topic_partition] = log
            accept_lost_start(log)
            if job.reports:
                self.corrupt_future_logs.add(topic_partition)
            if not previous.is_clean and log.cleaner_line.is_written:
                self.uncertain_from[topic_partition] = checkpoint.recovery_point
        else:
            self.logs[topic_partition] = log
            if noted > log.end_offset:
                self.shortened.add(topic_partition)
            if not note_fault(log, job.reports):
                self.corrupt[topic_partition] = checkpoint.recovery_point if checkpoint.is_verified else 0
            if log.faults.lost_start is not None and not log.faults.is_start_uncertain and not log.size_bytes:
                self.corrupt[topic_partition] = 0
        log.update_high_watermark(min(max(noted, log.log_start_offset), log.end_offset))

    def _forget_last_run(self, *, is_clean: bool) -> None:
        """Forget what the loaded logs have taken over, or no log has any more, of the last run's small files."""
        names = {name: name for name in (*self.logs, *self.future_logs)}
        self._checkpointed = {names.get(name, name) for name in self._checkpointed}  # one object for each name
        if is_clean:
            self._index_copies = IndexCopies(self.backup.entries, self.all_logs())
        self.backup.entries = {name: copy for name, copy in self.backup.entries.items() if "/" not in name}

    def _checkpoint_recovered(self, *, is_clean: bool) -> None:
        if not is_clean and (self.logs or self.future_logs):
            # Recovery may have ended below a recovery point of the last run; it must not outlive the next append.
            try:
                self.checkpoint()
            except StorageError:
                if self.health.failure is not None:
                    raise
                for log in self.all_logs():
                    log.pending_flush.require_checkpoint()

    def _begin_recovered(self, logs: Sequence[PartitionLog]) -> list[RecoveredFlush]:
        """Begin to sync what recovery kept of some logs. Raises OSError, and StorageError if the directory is lost."""
        if not logs:
            return []
        from ottla.storage.loading.recovered_flush import RecoveredFlush

        return [RecoveredFlush(log) for log in logs]

    def _complete_recovered(self, flushes: Sequence[RecoveredFlush]) -> None:
        """Complete these flushes, which have run. Raises as `_begin_recovered` does."""
        for flush in flushes:
            flush.complete()
            flush.log.close_files()

    def _run(self, begun: Sequence[tuple[PartitionLog, FlushJob]], beside: Sequence[Callable[[], None]] = ()) -> None:
        """Run flushes in several threads, and other work `beside` them; sync the root once for all. Raises OSError."""
        needs_root = False
        for _, job in begun:
            needs_root |= job.leave_out(self.path)
        run_in_threads([*(job.run_without_raising for _, job in begun), *beside], threads=self._threads)
        if needs_root:
            self.files.sync_directory(self.path)

    def all_logs(self) -> list[PartitionLog]:
        """Return the logs and the future logs."""
        return [*self.logs.values(), *self.future_logs.values()]

    def _location_of(self, directory: PurePath) -> LogLocation:
        return LogLocation(
            self.files, self._clock, directory, self.health, self._removal.deleted_files, self, self.backup
        )

    # ---- Creation and deletion

    def create_log(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID = NO_TOPIC_ID, config: LogConfig | None = None
    ) -> PartitionLog:
        """Create an empty log; return the one that is there, if it is of the same topic id. Raises StorageError.

        Nothing is synced here: the log's first flush makes its directory durable together with its first records.
        """
        self.health.check()
        existing = self.logs.get(topic_partition)
        if existing is not None:
            if existing.topic_id == NO_TOPIC_ID:
                self.replace_topic_id(existing, topic_id)
            if topic_id in {NO_TOPIC_ID, existing.topic_id}:
                return existing
            raise StorageError(f"{topic_partition} is there with another topic id")
        directory = self.path / str(topic_partition)
        self.health.check_append()
        self.lost_logs.pop(topic_partition, None)
        try:
            if topic_partition in self._checkpointed:  # of an earlier log of this name, with its recovery point
                self.checkpoint()
            self.files.make_directory(directory)
            log = create_empty_log(self._location_of(directory), topic_partition, NO_TOPIC_ID, config or self.config)
            self._adopt(log, topic_id)
        except OSError as error:
            with contextlib.suppress(OSError):  # what is left is taken over by the next try
                self.files.remove_tree(directory)
            raise self.health.refused(f"creating {topic_partition}", error) from error
        self.logs[topic_partition] = log
        return log

    def create_future_log(self, current: PartitionLog) -> PartitionLog:
        """Create an empty log that will be a copy of `current` and replace it. Raises StorageError.

        Only what `current` has deleted is deleted in it, and what is compacted there is compacted in it.
        """
        topic_partition = current.topic_partition
        self.health.check_append()
        if topic_partition in self.logs or topic_partition in self.future_logs:
            raise StorageError(f"{self.path} has a log of {topic_partition} already")
        self.lost_logs.pop(topic_partition, None)
        directory = self.path / future_directory_name(topic_partition, self._new_id())
        config = without_retention(current.config)
        try:
            if topic_partition in self._checkpointed:  # of an earlier log of this name
                self.checkpoint()
            self.files.make_directory(directory)
            log = create_empty_log(self._location_of(directory), topic_partition, NO_TOPIC_ID, config)
            self._adopt(log, current.topic_id)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.files.remove_tree(directory)
            raise self.health.refused(f"creating a copy of {topic_partition}", error) from error
        self.future_logs[topic_partition] = log
        if current.cleaner_line.is_written and current.cleaner_line.cleaned_offset is not None:
            log.cleaner_line.begin(current.cleaner_line.cleaned_offset)
            log.note_gaps()
        return log

    def _adopt(self, log: PartitionLog, topic_id: uuid.UUID) -> None:
        """Write the topic's id into the partition's directory."""
        if topic_id != NO_TOPIC_ID:
            self.write_topic_id(log, topic_id)
            log.set_topic_id(topic_id)
        else:
            log.mark_created()

    def replace_topic_id(self, log: PartitionLog, topic_id: uuid.UUID) -> None:
        """Write the topic's id where it is missing or corrupt. Raises StorageError."""
        self.health.check()
        try:
            self._adopt(log, topic_id)
        except OSError as error:
            raise self.health.refused(f"naming the topic of {log.topic_partition}", error) from error

    def write_topic_id(self, log: PartitionLog, topic_id: uuid.UUID) -> None:
        """Write `partition.metadata`. Raises OSError.

        A new file is synced by the log's first flush, a file that is there is replaced durably: a start would believe
        what a power cut left of it, since it has another modification time than its copy.
        """
        path, data = log.directory / PARTITION_METADATA, names.partition_metadata_text(topic_id).encode()
        if self.files.exists(path):
            replace_file(self.files, path, data)
        else:
            file = self.files.open(path, create=True)
            try:
                file.append(data)
            finally:
                file.close()
        log.pending_flush.partition_metadata_written(backup_of(self.files, path))
        log.mark_created(path)

    def _write_restored_topic_id(self, log: PartitionLog) -> None:
        """Write the id that was read from the copy; without space the copy counts until the next start."""
        try:
            self.write_topic_id(log, log.topic_id)
        except SyncFailed:
            raise
        except OSError as error:
            logger.warning("%s is not written again: %s", log.directory / PARTITION_METADATA, error.strerror or error)

    def repair_topic_id(self, log: PartitionLog, topic_id: uuid.UUID) -> None:
        """Write `partition.metadata` where a power cut has left none: its copy has the name of the directory.

        Raises OSError.
        """
        if text_or_none(self.files, log.directory / PARTITION_METADATA) != names.partition_metadata_text(topic_id):
            self._adopt(log, topic_id)

    def rewrite_small_files(self) -> None:
        """Write all small files in the root, because some were found corrupt. Raises OSError or StorageError."""
        meta = self.backup.entries.get(names.META_PROPERTIES)
        if meta is not None and meta.text is not None:
            path = self.path / names.META_PROPERTIES
            replace_file(self.files, path, meta.text.encode())
            self.backup.entries[names.META_PROPERTIES] = meta._replace(modified_ns=self.files.modified_ns(path))
        self.checkpoint()

    def delete_log(self, topic_partition: TopicPartition) -> None:
        """Delete a log: its directory is renamed at once, its files go later. A log that is not there is no error.

        Raises StorageError; then the log is as it was, or the directory is offline.
        """
        log = self.logs.get(topic_partition)
        if log is not None:
            self._removal.delete(log, self.logs)

    def delete_future_log(self, topic_partition: TopicPartition) -> None:
        """Delete a future log, if there is one: its move is cancelled, or its topic deleted. Raises StorageError."""
        log = self.future_logs.get(topic_partition)
        if log is not None:
            self.corrupt_future_logs.discard(topic_partition)
            self.uncertain_from.pop(topic_partition, None)
            self._removal.delete(log, self.future_logs)

    def truncate_to_certain(self, topic_partition: TopicPartition) -> None:
        """Truncate a future log to what is certainly whole after a crash. Raises StorageError."""
        future = self.future_logs[topic_partition]
        if topic_partition in self.corrupt_future_logs:
            future.truncate_fully_and_start_at(future.log_start_offset)
            self.corrupt_future_logs.discard(topic_partition)
        offset = self.uncertain_from.pop(topic_partition, None)
        if offset is not None:
            truncate_copy(future, max(offset, future.log_start_offset))

    def delete(self, log: PartitionLog) -> None:
        """Delete this log or future log, unless it is none of them any more. Raises StorageError."""
        if self.logs.get(log.topic_partition) is log:
            self._removal.delete(log, self.logs)
        elif self.future_logs.get(log.topic_partition) is log:
            self._removal.delete(log, self.future_logs)

    def promote_future_log(self, topic_partition: TopicPartition) -> None:
        """Give a future log the name of a log, durably. Raises StorageError.

        The log that it replaces must have no name of a log any more. If the future log is one still after an error, it
        was not renamed.
        """
        log = self.future_logs[topic_partition]
        what, directory = f"replacing {topic_partition}", self.path / str(topic_partition)
        try:
            self.files.rename(log.directory, directory)
        except OSError as error:
            raise self.health.refused(what, error) from error
        self.logs[topic_partition] = self.future_logs.pop(topic_partition)
        log.moved(directory)
        try:
            self.files.sync_directory(self.path)
        except OSError as error:
            raise self.health.fail(what, error) from error

    def delete_replaced_log(
        self, topic_partition: TopicPartition, directory: PurePath, log: PartitionLog | None = None
    ) -> None:
        """Delete the directory of a log that was replaced; if the disk refuses, the next start does it."""
        self._removal.delete_replaced(topic_partition, directory, log)

    def missing_logs(self) -> list[TopicPartition]:
        """List the logs with a removed directory or open file. May be called in a worker thread. Raises OSError."""
        logs, there = list(self.logs.values()), set(self.files.names_in(self.path))
        is_there = [log.directory.name in there and not log.segment_list.has_removed for log in logs]
        return [log.topic_partition for log, found in zip(logs, is_there, strict=True) if not found]

    def is_missing(self, topic_partition: TopicPartition) -> bool:
        """Return whether the directory of a log is not there."""
        log = self.logs.get(topic_partition)
        return log is not None and not self.files.is_directory(log.directory)

    def lose_log(self, topic_partition: TopicPartition) -> None:
        """Stop using a log whose files are missing. The checkpoint files keep it, for the next start."""
        log = self.logs.pop(topic_partition)
        self.lost_logs[topic_partition] = LostLog(
            log.topic_id,
            log.recovery_point,
            log.log_start_offset,
            log.high_watermark,
            log.cleaner_line.cleaned_offset,
            log.pending_flush.partition_metadata_backup,
        )
        log.close_files()

    def forget_lost(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Forget lost logs whose topics were deleted."""
        for topic_partition in topic_partitions:
            self.lost_logs.pop(topic_partition, None)

    def set_aside_log(self, topic_partition: TopicPartition) -> PurePath:
        """Rename the directory of a log of an unknown topic to `*-stray`, as Kafka does; returns its new path.

        No start loads it. Raises StorageError.
        """
        return self._removal.set_aside(self.logs[topic_partition], self.logs)

    def stray_directories(self) -> list[PurePath]:
        """List the directories that `set_aside_log` or Kafka has renamed. Raises OSError."""
        return [self.path / name for name in self.files.names_in(self.path) if is_stray(name)]

    def bytes_below(self, directory: PurePath) -> int:
        """Return the size of a partition's files. Raises OSError."""
        return sum(self.files.size_of(directory / name) for name in self.files.names_in(directory))

    def check_present(self) -> None:
        """Raise OSError if the directory is no longer at its path: deleted, moved away or replaced.

        May be called in a worker thread.
        """
        self.lock.check_present()

    def disk_bytes(self) -> tuple[int, int]:
        """Return the size of the disk below, and what is free for an ordinary user. Raises OSError."""
        return self.files.total_bytes(self.path), self.files.free_bytes(self.path)

    def look_at_space(self) -> None:
        """Find out, in any thread, whether the directory is full or nearly full: then space is freed at once."""
        try:
            total, free = self.disk_bytes()
        except OSError:  # the disk does not report its size
            total = free = 0
        self.is_short_of_space = self.health.is_full or free < min(total // NEARLY_FULL_SHARE, NEARLY_FULL_BYTES_MAX)

    # ---- Background work

    def begin_retention(self, now_ms: int) -> bool:
        """Begin the logs after what may go; return whether a checkpoint must be written before it is deleted.

        What cannot be done is done, or raised, by `run_retention`.
        """
        is_moved = False
        for log in self.all_logs():
            with contextlib.suppress(StorageError, OSError):
                is_moved |= (
                    log.advance_start_by_retention(now_ms) > 0 and log.checkpointed_start != log.log_start_offset
                )
        return is_moved

    def run_retention(self, now_ms: int) -> int:
        """Delete what may go in every log; how many segments went. One log's trouble keeps no other from its turn.

        Raises the first StorageError.
        """
        count, first = 0, None
        for log in self.all_logs():
            try:
                count += log.delete_old_segments(now_ms)
            except StorageError as error:
                first = first or error
            except OSError as error:  # it could not even look
                first = first or log.refused(f"retention of {log.topic_partition}", error)
        if first is not None:
            raise first
        return count

    def expire_producers(self, now_ms: int) -> int:
        """Forget silent producers in every log; how many."""
        return sum(log.expire_producers(now_ms) for log in self.logs.values())

    def purge_deleted(self, now_ms: int) -> int:
        """Remove, in any thread, files and directories whose delay is over; how many. Raises StorageError.

        A directory that is full, or nearly, waits for no delay.
        """
        return self._removal.purge(now_ms, is_urgent=self.is_short_of_space)

    def begin_checkpoint(self, closing: Mapping[str, BackedUpFile] | None = None) -> CheckpointJob:
        """Return a job for a worker thread: write the checkpoint files of now; `closing`: more copies to note."""
        job = self._new_checkpoint(closing or {})
        for tp, log in {**self.future_logs, **self.logs}.items():
            self._note(job, tp, log)
        return job

    def begin_checkpoint_slices(self, slices: WorkSlice) -> Generator[None, None, CheckpointJob]:
        """Begin a checkpoint in slices. A cut or truncation meanwhile begins a newer one, which is written instead."""
        job = self._new_checkpoint({})
        for tp, log in {**self.future_logs, **self.logs}.items():
            self._note(job, tp, log)
            if slices.spend():
                yield
        return job

    def _note(self, job: CheckpointJob, tp: TopicPartition, log: PartitionLog) -> None:
        future = self.future_logs.get(tp)
        if future is None:
            log.cleaner_line.limit(log.end_offset)
        elif future is not log:
            job.note_cleaned(tp, future)
        job.note(tp, log)

    def _new_checkpoint(self, closing: Mapping[str, BackedUpFile]) -> CheckpointJob:
        """Create a checkpoint without the logs. From now on it is the newest."""
        self._checkpointed.update(self.logs, self.future_logs)
        meta = self.backup.entries.get(names.META_PROPERTIES)
        backup = {names.META_PROPERTIES: meta} if meta is not None else {}
        job = CheckpointJob(
            self.files,
            self.path,
            {**backup, **closing},
            lock=self.checkpoint_lock,
            newest=self._newest_checkpoint,
            health=self.health,
        )
        for tp, lost in self.lost_logs.items():
            job.note_lost(tp, lost)
        return job

    def checkpoint(self, closing: Mapping[str, BackedUpFile] | None = None) -> None:
        """Write the checkpoint files here and now. Raises StorageError."""
        self.health.check()
        try:
            self.begin_checkpoint(closing).run()
            self._checkpointed = {*self.logs, *self.future_logs}
        except OSError as error:
            raise self.health.refused("checkpoint", error) from error

    def close(self, *, broker_epoch: int = -1) -> None:
        """Stop. On a healthy disk all is synced and the clean marker records it; otherwise the next start scans."""
        try:
            if self.health.failure is None:
                self.health.run_with_reserve(lambda: self._close_cleanly(broker_epoch))
        except (StorageError, OSError) as error:
            logger.warning("the stop of %s is not clean, the next start will scan: %s", self.path, error)
        finally:
            for log in self.all_logs():
                log.close_files()
            self._removal.deleted_files.close()
            self.lock.release()

    def _close_cleanly(self, broker_epoch: int) -> None:
        closing: dict[str, BackedUpFile] = {}
        logs = self.all_logs()
        for first in range(0, len(logs), _LOGS_AT_ONCE):
            begun: list[tuple[PartitionLog, FlushJob]] = []
            for log in logs[first : first + _LOGS_AT_ONCE]:
                job = log.begin_clean_shutdown()
                if job is not None:
                    begun.append((log, job))
                else:
                    closing |= self._index_copies.of(log) or _index_copies(self.files, log)
            self._run(begun)
            for log, job in begun:
                log.complete_flush(job)
                log.close_files()
            for log, _ in begun:
                closing |= _index_copies(self.files, log)
        self.checkpoint(closing)
        replace_file(self.files, self.path / names.CLEAN_SHUTDOWN, names.clean_shutdown_text(broker_epoch).encode())


def without_retention(config: LogConfig) -> LogConfig:
    """Return the settings of a future log: it deletes what the log that it copies has deleted, and no more."""
    return replace(config, retention_ms=-1, retention_bytes=-1)


def _index_copies(files: FileSystem, log: PartitionLog) -> dict[str, BackedUpFile]:
    """Read the indexes of a log that was closed, for the copies of small files. Raises OSError."""
    paths = [log.active.path(suffix) for suffix in INDEX_SUFFIXES]
    copies = {f"{log.directory.name}/{path.name}": backup_of(files, path, keep_text=False) for path in paths}
    return {name: copy for name, copy in copies.items() if copy is not None}
