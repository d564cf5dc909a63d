"""`python -m tests.mutation_tests`: plant each bug, run the suite that must find it, and print what it took."""

from __future__ import annotations

import argparse
import sys
import time

from tests.crash_tests.campaign import quiet
from tests.mutation_tests.bugs import BUGS
from tests.mutation_tests.patching import applied
from tests.mutation_tests.suites import SUITES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation_tests", description=__doc__)
    parser.add_argument("names", nargs="*", help="which bugs (all)")
    chosen = parser.parse_args()
    quiet()
    missed = 0
    print(
        "| Bug | What it does | Found by | Seed | States or examples | Seconds |\n| --- | --- | --- | ---: | ---: | ---: |"
    )
    for bug in BUGS:
        if chosen.names and bug.name not in chosen.names:
            continue
        began = time.perf_counter()
        with applied(bug) as effect:
            finding = SUITES[bug.suite](bug.seed, bug.within)
        took_s = time.perf_counter() - began
        unmet = [name for name, calls in effect.calls.items() if not calls]
        found = "NOT FOUND" if finding is None else f"{finding.after}"
        missed += finding is None or bool(unmet)
        print(f"| {bug.name} | {bug.what} | {bug.suite} | {bug.seed} | {found} | {took_s:.1f} |", flush=True)
        if unmet:
            print(f"nothing calls {unmet}")
        if chosen.names and finding is not None:
            print(finding.what)
    print(f"{missed} of {len(BUGS)} bugs were missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
