"""Chooses how many random schedules a simulation plays: hundreds in the ordinary tests, SCHEDULES in `make coordinator-tests`."""

from __future__ import annotations

import os

ORDINARY = 300
"""Schedules of one coordinator in the ordinary tests."""

SCHEDULES = int(os.environ.get("SCHEDULES", ORDINARY))


def seeds(share: int, *, first: int = 0) -> range:
    """The seeds of a test that plays `share` of the ordinary schedules; a failure is replayed by its seed."""
    return range(first, first + max(share * SCHEDULES // ORDINARY, 1))
