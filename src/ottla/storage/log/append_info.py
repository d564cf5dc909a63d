"""The result of an append and where its records came from, as in Kafka's `LogAppendInfo` and `AppendOrigin`."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class AppendOrigin(Enum):
    """Who created the records."""

    CLIENT = "client"
    COORDINATOR = "coordinator"  # this broker: group offsets, transaction state and markers


class AppendInfo(NamedTuple):
    """The offsets an append was given."""

    first_offset: int
    last_offset: int
    append_time_ms: int  # -1 unless the topic uses log append time
    log_start_offset: int
    duplicate: bool = False
