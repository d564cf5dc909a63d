"""`python -m tests.fuzz --seconds 60`: every parser in turn, for so long together, from a seed that it prints."""

from __future__ import annotations

import argparse
import random

from tests.fuzz.harnesses import HARNESSES
from tests.fuzz.run import fuzz_for


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, all parsers together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="to repeat a run")
    parser.add_argument("names", nargs="*", default=list(HARNESSES), help=f"which parsers ({', '.join(HARNESSES)})")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}")
    for name in chosen.names:
        tally = fuzz_for(name, seconds=chosen.seconds / len(chosen.names), seed=chosen.seed)
        print(
            f"{name}: {tally.inputs} inputs, {len(tally.accepted)} different ones accepted, {len(tally.refused)} refused"
        )


if __name__ == "__main__":
    main()
