"""Share partitions under random schedules: each record is accepted once, none is lost, none past its limit."""

from __future__ import annotations

import os

import pytest

from tests.support.share_driver import run_schedule

SCHEDULES = int(os.environ.get("SCHEDULES", "300"))


@pytest.mark.parametrize("block", range(10))
def test_random_schedules(block: int) -> None:
    """A failure names its seed: `run_schedule(seed)` replays it."""
    for seed in range(block, SCHEDULES, 10):
        try:
            run_schedule(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
