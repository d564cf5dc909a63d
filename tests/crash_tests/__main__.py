"""`python -m tests.crash_tests --states 100000`: stop scripted workloads everywhere, lose what may be lost, recover, compare.

Prints its seed, and for a violation the command that repeats that one state.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.crash_tests.campaign import campaign, quiet, rows
from tests.crash_tests.run import Stop, broken_by, named_state, stopped
from tests.crash_tests.workloads import SAFE_WHEN_POWER_IS_CUT, WORKLOADS


def replay(name: str, *, seed: int, lies: bool) -> int:
    """One state again; says what is wrong with it."""
    workload, change, state = name.split("/")
    stop = Stop(workload, int(change))
    disk, expected_state = stopped(stop, lies=lies)
    error = broken_by(named_state(stop, state, disk, seed=seed), stop, expected_state, seed=seed, seen=set())
    print(f"{type(error).__name__}: {error}" if error else "nothing is broken")
    return 1 if error else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash_tests", description=__doc__)
    parser.add_argument("--states", type=int, default=100_000, help="how many different states at least (100000)")
    parser.add_argument("--seed", type=int, default=1, help="of the dice, where a stop has too many states (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each core)")
    parser.add_argument("--lies", action="store_true", help="the disk does nothing at a sync: losses must be found")
    parser.add_argument("--replay", metavar="WORKLOAD/CHANGE/STATE", help="one state, as a failure has printed it")
    parser.add_argument(
        "workloads", nargs="*", default=list(SAFE_WHEN_POWER_IS_CUT), help=f"of {', '.join(WORKLOADS)} (all)"
    )
    chosen = parser.parse_args()
    quiet()
    if chosen.replay:
        return replay(chosen.replay, seed=chosen.seed, lies=chosen.lies)
    print(f"seed {chosen.seed}")
    began = time.perf_counter()
    tally = campaign(
        chosen.workloads, seed=chosen.seed, states=chosen.states, jobs=chosen.jobs, lies=chosen.lies, broken_enough=5
    )
    took_s = time.perf_counter() - began
    for name, stops, states in rows(tally):
        print(f"{name:<14} {stops:>5} stops {states:>8} states")
    print(
        f"{sum(tally.stops.values())} stops, of {tally.whole_stops} every state; {len(tally.states)} different states "
        f"recovered in {took_s:.0f} s on {chosen.jobs} processes; {len(tally.broken)} violations"
    )
    for broken in tally.broken:
        print(broken)
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
