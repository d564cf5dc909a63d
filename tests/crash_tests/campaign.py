"""Runs many stops on several processes, until a number of different states has been recovered."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tests.crash_tests.run import Result, Stop, check_stop, stops_of
from tests.crash_tests.workloads import SAFE_WHEN_POWER_IS_CUT, WORKLOADS

_FIRST_DICE = 12  # states for each stop in the first round; the rounds that follow throw as many as are missing
_ROUNDS_MAX = 40


class Task(NamedTuple):
    """Some states of one stop."""

    stop: Stop
    first: int
    states: int


@dataclass
class Tally:
    """What a campaign has seen."""

    states: set[int] = field(default_factory=set)
    by_workload: dict[str, set[int]] = field(default_factory=dict)
    stops: dict[str, int] = field(default_factory=dict)
    whole_stops: int = 0  # of which every state was gone through
    broken: list[str] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """A result came in."""
        self.states |= result.seen
        self.by_workload.setdefault(result.stop.workload, set()).update(result.seen)
        if result.broken is not None:
            self.broken.append(result.broken)


def campaign(
    names: Sequence[str] = SAFE_WHEN_POWER_IS_CUT,
    *,
    seed: int,
    states: int,
    jobs: int = 1,
    lies: bool = False,
    broken_enough: int = 1,
    every: int = 1,
) -> Tally:
    """Go through stops (`every` so many) in rounds until there were so many different states, or invariants violated.

    What is swept depends on `names`, `seed` and `states` alone: the number of jobs changes nothing but the time.
    """
    tally = Tally()
    stops = [stop for name in names for stop in stops_of(WORKLOADS[name], lies=lies)[::every]]
    for stop in stops:
        tally.stops[stop.workload] = tally.stops.get(stop.workload, 0) + 1
    first, count = 0, min(_FIRST_DICE, max(states // (2 * len(stops)), 1))
    open_stops = stops
    for _ in range(_ROUNDS_MAX):
        tasks = [Task(stop, first, count) for stop in open_stops]
        whole = set()
        for result in _results(tasks, seed=seed, jobs=jobs, lies=lies):
            tally.add(result)
            if result.all_there_are:
                whole.add(result.stop)
            if len(tally.broken) >= broken_enough:
                return tally
        tally.whole_stops += len(whole) if first == 0 else 0
        open_stops = [stop for stop in open_stops if stop not in whole]
        if len(tally.states) >= states or not open_stops:
            return tally
        first += count
        count = max((states - len(tally.states)) * 3 // (5 * len(open_stops)), 4)
    return tally


def _results(tasks: Sequence[Task], *, seed: int, jobs: int, lies: bool) -> Iterator[Result]:
    work = partial(_do, seed=seed, lies=lies)
    if jobs == 1:
        yield from map(work, tasks)
        return
    with multiprocessing.get_context("fork").Pool(jobs, initializer=quiet) as pool:
        yield from pool.imap(work, tasks, chunksize=8)


def _do(task: Task, *, seed: int, lies: bool) -> Result:
    return check_stop(task.stop, seed=seed, first=task.first, count=task.states, lies=lies)


def quiet() -> None:
    """For a process that does nothing else: a recovery logs every tail it cuts, and this cuts a hundred thousand."""
    logging.getLogger("ottla").setLevel(logging.CRITICAL)


def rows(tally: Tally) -> Iterable[tuple[str, int, int]]:
    """Workload, stops and states, for a table."""
    for name, stops in tally.stops.items():
        yield name, stops, len(tally.by_workload.get(name, ()))
