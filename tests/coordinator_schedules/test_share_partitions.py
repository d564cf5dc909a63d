"""Share partitions under random schedules: each record is accepted once, none is lost, none past its limit."""

from __future__ import annotations

import pytest

from tests.coordinator_schedules.schedules import seeds
from tests.support.share_driver import run_schedule


@pytest.mark.parametrize("block", range(10))
def test_each_record_is_accepted_once_in_random_schedules(block: int) -> None:
    """A failure names its seed: `run_schedule(seed)` replays it."""
    for seed in list(seeds(300))[block::10]:
        try:
            run_schedule(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
