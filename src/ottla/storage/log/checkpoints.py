"""Defines the port through which a log reaches the checkpoint files of its directory."""

from __future__ import annotations

from typing import Protocol

from ottla.core.ids import TopicPartition


class LogCheckpoints(Protocol):
    """Port: the directory that keeps the checkpoints of a log."""

    def checkpoint(self) -> None:
        """Write the checkpoint files: the log was truncated, and its recovery point went back. Raises StorageError."""
        ...

    def note_gaps(self, topic_partition: TopicPartition, log_start_offset: int) -> None:
        """Note durably that batches may be missing inside a log, before they are. Raises StorageError."""
        ...
