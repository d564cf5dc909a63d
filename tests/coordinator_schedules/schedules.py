"""Chooses which random schedules a simulation runs: hundreds in the ordinary tests, SCHEDULES in `make coordinator-tests`.

A campaign may be run in pieces: FIRST_SEED=5000 begins each simulation 5,000 seeds later.
"""

from __future__ import annotations

import os

ORDINARY = 300
"""Schedules of one coordinator in the ordinary tests."""

SCHEDULES = int(os.environ.get("SCHEDULES", ORDINARY))
FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))


def seeds(share: int, *, first: int = 0) -> range:
    """The seeds of a test that runs `share` of the ordinary schedules; a failure is replayed by its seed."""
    first += FIRST_SEED
    return range(first, first + max(share * SCHEDULES // ORDINARY, 1))
