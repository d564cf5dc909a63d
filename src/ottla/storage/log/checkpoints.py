"""Defines the port through which a log reaches the checkpoint files of its directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.storage.log.partition_log import PartitionLog


class LogCheckpoints(Protocol):
    """Port: the directory that keeps the checkpoints of a log."""

    def checkpoint(self) -> None:
        """Write the checkpoint files: the log was truncated, and its recovery point went back. Raises StorageError."""
        ...

    def note_gaps(self, log: PartitionLog) -> None:
        """Note durably that batches may be missing inside this log, before they are. Raises StorageError."""
        ...
