"""Consumer groups of the new protocol (KIP-848) under random schedules: one owner of a partition, and convergence."""

from __future__ import annotations

import pytest

from tests.coordinator_schedules.schedules import seeds
from tests.support.consumer_group_sim import play

BLOCKS = 10


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_partition_has_one_owner_and_groups_converge_in_random_schedules(block: int) -> None:
    """A failure names its seed: `play(seed)` replays it."""
    for seed in seeds(300)[block::BLOCKS]:
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_schedules_reach_what_they_are_for() -> None:
    """Commits, failed writes, many members and many epochs happen in a few schedules."""
    schedules = [play(seed) for seed in range(30)]
    assert sum(schedule.commits for schedule in schedules) > 20
    assert any(schedule.writes_fail for schedule in schedules)
    assert max(schedule.group.epoch for schedule in schedules) > 15
    assert max(len(schedule.clients) for schedule in schedules) > 10
