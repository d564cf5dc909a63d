"""Declares the result of an append and the origin of its records, as Kafka's `LogAppendInfo` and `AppendOrigin`."""

from __future__ import annotations

from enum import Enum
from typing import Final

from ottla.storage.config import LogConfig
from ottla.storage.state.producer_state_manager import BatchMetadata


class AppendOrigin(Enum):
    """Names the creator of the records."""

    CLIENT = "client"
    COORDINATOR = "coordinator"  # this broker: group offsets, transaction state and markers


CLIENT: Final = AppendOrigin.CLIENT  # itself: a look-up of an attribute of an enumeration costs each append


class AppendInfo:
    """The offsets an append was given."""

    __slots__ = ("append_time_ms", "begins_segment", "duplicate", "first_offset", "last_offset", "log_start_offset")

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        append_time_ms: int,
        log_start_offset: int,
        *,
        begins_segment: bool = False,
        duplicate: bool = False,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.append_time_ms = append_time_ms  # -1 unless the topic uses log append time
        self.log_start_offset = log_start_offset
        self.begins_segment = begins_segment  # what it wrote is at the begin of the active segment
        self.duplicate = duplicate


def duplicate_of(written: BatchMetadata, log_start_offset: int, config: LogConfig) -> AppendInfo:
    """Return the answer to a batch that was sent again: where it was written the first time."""
    append_time_ms = written.timestamp if config.uses_log_append_time else -1
    return AppendInfo(written.first_offset, written.last_offset, append_time_ms, log_start_offset, duplicate=True)
