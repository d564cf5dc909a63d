"""Corrupts files of log directories and checks the reads: `python -m tests.corruption_tests --count 10000`.

Prints its seed, and for whatever goes unnoticed the command that shows that one case again.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.corruption_tests.campaign import KINDS, Tally, campaign, case_of, run_case
from tests.corruption_tests.outcomes import Outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corruption_tests", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="cases (10000)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (1)")
    parser.add_argument("--kind", choices=KINDS, default=None, help="one kind of corruption (most are flipped bits)")
    parser.add_argument(
        "--replay", type=int, metavar="NUMBER", help="one case of the seed, as a failure has printed it"
    )
    chosen = parser.parse_args()
    if chosen.replay is not None:
        case = case_of(chosen.seed, chosen.replay, chosen.kind)
        verdict = run_case(case)
        print(f"{case}\n{verdict.outcome.value}: {verdict.why}")
        return verdict.outcome in {Outcome.SILENT, Outcome.WRONG, Outcome.CRASHED}
    print(f"seed {chosen.seed}")
    began = time.perf_counter()

    def show_progress(done: int, tally: Tally) -> None:
        if done % 500 == 0:
            print(f"{done:>7} cases, {len(tally.bad)} of them silent", file=sys.stderr, flush=True)

    tally = campaign(chosen.count, seed=chosen.seed, kind=chosen.kind, progress=show_progress)
    for outcome in Outcome:
        print(f"{tally.counts[outcome]:>7} {outcome.value}")
    for number, case, verdict in tally.bad[:20]:
        print(f"{case}\n    {verdict.outcome.value}: {verdict.why}")
        kind = f" --kind {chosen.kind}" if chosen.kind else ""
        print(f"    again: python -m tests.corruption_tests --seed {chosen.seed} --replay {number}{kind}")
    print(f"{chosen.count} cases, {len(tally.bad)} of them silent, in {time.perf_counter() - began:.0f} s")
    return 1 if tally.bad else 0


if __name__ == "__main__":
    sys.exit(main())
