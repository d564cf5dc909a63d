"""The crash tests, as far as it fits into every run of the tests; `make crash-tests` goes further."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.crash_tests.campaign import campaign, quiet
from tests.crash_tests.run import broken_by, check_stop, named_state, stopped, stops_of
from tests.crash_tests.workloads import SAFE_WHEN_POWER_IS_CUT, WORKLOADS
from tests.support.examples import examples

SEED = 1


@pytest.fixture(autouse=True)
def without_logging() -> Iterator[None]:
    logger = logging.getLogger("ottla")
    before = logger.level
    quiet()
    yield
    logger.setLevel(before)  # later suites of this process hear again what they must


@pytest.mark.parametrize("name", SAFE_WHEN_POWER_IS_CUT)
def test_recovery_after_a_stop_at_any_change_keeps_the_invariants(name: str) -> None:
    every = max(len(stops_of(WORKLOADS[name])) // examples(60), 1)
    tally = campaign([name], seed=SEED, states=examples(200), every=every)
    assert not tally.broken, tally.broken[0]
    assert len(tally.states) >= examples(200)


@pytest.mark.parametrize("name", SAFE_WHEN_POWER_IS_CUT)
def test_on_a_disk_that_ignores_syncs_data_loss_is_found(name: str) -> None:
    """The test of the test: without fsync acknowledged records must be seen to go."""
    end = stops_of(WORKLOADS[name], lies=True)[-1]
    result = check_stop(end, seed=SEED, count=4, lies=True)
    assert result.is_loss, result.broken


def test_records_only_in_the_page_cache_survive_the_death_of_the_process_and_not_a_power_cut() -> None:
    losses = 0
    for stop in stops_of(WORKLOADS["page-cache"]):
        disk, expected_state = stopped(stop)
        for at in range(len(disk.killed())):
            state = named_state(stop, f"killed:{at}", disk, seed=SEED)
            assert broken_by(state, stop, expected_state, seed=SEED, seen=set(), twice=False) is None, (stop, at)
        losses += check_stop(stop, seed=SEED, count=4).is_loss
    assert losses > 10


def test_a_stop_with_few_states_is_gone_through_as_a_whole_and_any_seed_gives_the_same() -> None:
    whole = [stop for stop in stops_of(WORKLOADS["checkpoints"]) if stopped(stop)[0].states() <= 30]
    assert len(whole) > 50
    for stop in whole[::10]:
        one, other = check_stop(stop, seed=1, count=30), check_stop(stop, seed=2, count=30)
        assert one.all_there_are and other.all_there_are
        assert one.broken is None and other.broken is None


def test_a_seed_gives_the_same_states_again() -> None:
    def images() -> list[int]:
        found = []
        for stop in stops_of(WORKLOADS["transactions"])[::20]:
            disk, _ = stopped(stop)
            found += [hash(named_state(stop, f"dice:{at}", disk, seed=7).disk.image()) for at in range(4)]
        return found

    assert images() == images()
