"""Writes the checkpoint files of a log directory, in any thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import PurePath

from ottla.core.files import FileSystem
from ottla.core.ids import TopicPartition
from ottla.storage import small_files as names
from ottla.storage.directories.lost_logs import LostLog
from ottla.storage.directory_health import DirectoryHealth, has_no_space
from ottla.storage.integrity.metadata_backup import BackedUpFile, replace_files
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.state.leader_epochs import FILE_NAME as EPOCHS_FILE


class CheckpointJob:
    """The checkpoint files as they shall be; `run` may be called in a worker thread.

    A job that was overtaken by a newer one does nothing: offsets noted before a truncation must not come after it.
    """

    __slots__ = (
        "_backups",
        "_contents",
        "_files",
        "_health",
        "_lock",
        "_logs",
        "_newest",
        "_number",
        "_root",
        "_starts",
    )

    def __init__(
        self,
        files: FileSystem,
        root: PurePath,
        backup: Mapping[str, BackedUpFile],
        *,
        lock: threading.Lock,
        newest: list[int],
        health: DirectoryHealth,
    ) -> None:
        self._health = health
        self._files = files
        self._root = root
        # encoded by `run`: with thousands of logs it takes as long as the rest
        self._contents: dict[str, dict[TopicPartition, int]] = {
            names.RECOVERY_POINTS: {},
            names.LOG_STARTS: {},
            names.HIGH_WATERMARKS: {},
            names.CLEANER_OFFSETS: {},
        }
        self._backups = dict(backup)  # of other small files, to be noted beside these
        # directory of a log, its leader-epoch file and partition.metadata
        self._logs: list[tuple[PurePath, BackedUpFile | None, BackedUpFile | None]] = []
        self._starts: list[tuple[PartitionLog, int]] = []
        self._lock = lock
        self._newest = newest
        newest[0] += 1
        self._number = newest[0]

    def note(self, topic_partition: TopicPartition, log: PartitionLog) -> None:
        """Note the offsets of a log and its small files as they are now."""
        contents, flush = self._contents, log.pending_flush
        contents[names.RECOVERY_POINTS][topic_partition] = log.recovery_point
        contents[names.HIGH_WATERMARKS][topic_partition] = log.high_watermark
        # Kafka leaves out those that begin with a file. But a power cut may bring back files that retention removed.
        lost_start = log.faults.lost_start
        start = log.log_start_offset if lost_start is None else lost_start
        if start:
            contents[names.LOG_STARTS][topic_partition] = start
        self._starts.append((log, start))
        self.note_cleaned(topic_partition, log)
        if flush.epochs_backup is not None or flush.partition_metadata_backup is not None:
            self._logs.append((log.directory, flush.epochs_backup, flush.partition_metadata_backup))

    def note_cleaned(self, topic_partition: TopicPartition, log: PartitionLog) -> None:
        """Note how far compaction of a log came; a log and a future log of one name have one line."""
        cleaned_offset = log.cleaner_line.cleaned_offset
        if cleaned_offset is not None:
            cleaned = self._contents[names.CLEANER_OFFSETS]
            cleaned[topic_partition] = min(cleaned_offset, cleaned.get(topic_partition, cleaned_offset))

    def note_lost(self, topic_partition: TopicPartition, lost: LostLog) -> None:
        """Keep what is known of a log whose files are missing, for the next start."""
        contents = self._contents
        contents[names.RECOVERY_POINTS][topic_partition] = lost.recovery_point
        contents[names.HIGH_WATERMARKS][topic_partition] = lost.high_watermark
        if lost.log_start_offset:
            contents[names.LOG_STARTS][topic_partition] = lost.log_start_offset
        if lost.cleaned_offset is not None:
            contents[names.CLEANER_OFFSETS][topic_partition] = lost.cleaned_offset
        if lost.metadata is not None:
            self._backups[f"{topic_partition}/{names.PARTITION_METADATA}"] = lost.metadata

    def run(self) -> bool:
        """Replace each file atomically; False if a newer job does, now or later. Raises OSError."""
        with self._lock:
            if self._number != self._newest[0]:
                return False
            texts = {name: names.offsets_text(offsets).encode() for name, offsets in self._contents.items()}
            backups = self._all_backups()
            try:
                replace_files(self._files, self._root, texts, backups)
            except OSError as error:
                if not has_no_space(error) or not self._health.make_space():
                    raise
                replace_files(self._files, self._root, texts, backups)
            for log, start in self._starts:
                log.checkpointed_start = start
            return True

    def _all_backups(self) -> dict[str, BackedUpFile]:
        copies: dict[str, BackedUpFile] = {}
        for directory, epochs, metadata in self._logs:
            if epochs is not None:
                copies[f"{directory.name}/{EPOCHS_FILE}"] = epochs
            if metadata is not None:
                copies[f"{directory.name}/{names.PARTITION_METADATA}"] = metadata
        return {**copies, **self._backups}
