"""The suites that must find planted bugs. Each gives what it found and how many states or examples that took."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as with_seed
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from ottla.testing.sim_disk import SimDisk
from ottla.testing.sim_loop import simulate
from tests.coordinator_schedules.test_delayed_batches import schedule
from tests.crash_tests.acks import Acknowledgements, broken_after, failed_syncs, stops
from tests.crash_tests.campaign import campaign
from tests.crash_tests.workloads import WORKLOADS
from tests.mutation_tests.consumer_group_bugs import CONSUMER_GROUP_SUITES
from tests.mutation_tests.group_bugs import GROUP_SUITES
from tests.mutation_tests.moving_bugs import MOVING_SUITES
from tests.mutation_tests.share_bugs import SHARE_SUITES
from tests.mutation_tests.transaction_bugs import TRANSACTION_SUITES
from tests.properties.test_cleaner_against_dict import CleanerAgainstDict
from tests.properties.test_epochs_against_oracle import EpochsAgainstOracle
from tests.properties.test_indexes_against_scan import IndexesAgainstScan
from tests.properties.test_log_against_list import LogAgainstList
from tests.properties.test_producers_against_oracle import ProducersAgainstOracle
from tests.properties.test_verification_against_reference import VerificationAgainstReference


class Finding(NamedTuple):
    """A suite has found something wrong."""

    after: int  # states or examples
    what: str


Suite = Callable[[int, int], Finding | None]
"""Given a seed and how many states or examples it may take."""


def crash_tests(name: str, seed: int, within: int) -> Finding | None:
    """The crash tests over one workload."""
    try:
        tally = campaign([name], seed=seed, states=within)
    except Exception as error:  # noqa: BLE001 - the workload itself met the bug
        return Finding(0, f"without a crash: {type(error).__name__}: {error}")
    return Finding(len(tally.states), tally.broken[0]) if tally.broken else None


def acks(
    scenarios: Callable[[], Iterator[tuple[str, SimDisk, Acknowledgements]]], seed: int, within: int
) -> Finding | None:
    """Check acknowledged and fetched records; deterministic."""
    del seed, within
    for count, (what, disk, context) in enumerate(scenarios(), start=1):
        if (broken := broken_after(disk, context)) is not None:
            return Finding(count, f"{what}: {broken}")
    return None


def machine(of: type[RuleBasedStateMachine], seed: int, within: int) -> Finding | None:
    """A property test of Hypothesis, from a seed, without its database of earlier failures."""
    examples = 0

    def counted() -> RuleBasedStateMachine:
        nonlocal examples
        examples += 1
        return of()

    chosen = settings(
        max_examples=within, stateful_step_count=25, deadline=None, database=None, phases=(Phase.generate,),
        verbosity=Verbosity.quiet, suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    factory: Any = with_seed(seed)(counted)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run_state_machine_as_test(factory, settings=chosen)
    except Exception as error:  # noqa: BLE001 - whatever the bug led to
        return Finding(examples, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return None


def schedules(suite: Callable[[int, int], tuple[int, str] | None], seed: int, within: int) -> Finding | None:
    """Play random schedules of a coordinator."""
    found = suite(seed, within)
    return None if found is None else Finding(*found)


def delayed_batches(seed: int, within: int) -> Finding | None:
    """Random schedules of a transactional producer whose batches are delayed and repeated, in both versions."""
    for count in range(within):
        try:
            simulate(partial(schedule, 1 + count % 2), seed=seed + count)
        except Exception as error:  # noqa: BLE001 - whatever the bug led to
            return Finding(count + 1, f"{type(error).__name__}: {error}")
    return None


SUITES: dict[str, Suite] = {
    **{f"crash tests of {name}": partial(crash_tests, name) for name in WORKLOADS},
    "acks at stops": partial(acks, stops),
    "acks at failed syncs": partial(acks, failed_syncs),
    "cleaner against dict": partial(machine, CleanerAgainstDict),
    "log against list": partial(machine, LogAgainstList),
    "indexes against scan": partial(machine, IndexesAgainstScan),
    "producers against oracle": partial(machine, ProducersAgainstOracle),
    "epochs against oracle": partial(machine, EpochsAgainstOracle),
    **{
        name: partial(schedules, suite)
        for name, suite in (
            GROUP_SUITES | MOVING_SUITES | SHARE_SUITES | CONSUMER_GROUP_SUITES | TRANSACTION_SUITES
        ).items()
    },
    "verification against reference": partial(machine, VerificationAgainstReference),
    "delayed batches": delayed_batches,
}
