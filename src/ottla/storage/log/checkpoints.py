"""Defines the port through which a log reaches the checkpoint files of its directory."""

from __future__ import annotations

from typing import Protocol


class LogCheckpoints(Protocol):
    """Port: the directory that keeps the checkpoints of a log."""

    def checkpoint(self) -> None:
        """Write the checkpoint files: the log was truncated, and its recovery point went back. Raises StorageError."""
        ...
