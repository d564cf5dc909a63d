"""Holds the settings that the state machine of a share group depends on."""

from __future__ import annotations

from typing import NamedTuple


class ShareSettings(NamedTuple):
    """Holds the settings of one group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 200
