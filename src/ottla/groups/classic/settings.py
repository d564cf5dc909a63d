"""Holds the settings that the state machine of a classic group depends on."""

from __future__ import annotations

from typing import NamedTuple


class ClassicSettings(NamedTuple):
    """Holds the settings of one group."""

    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
