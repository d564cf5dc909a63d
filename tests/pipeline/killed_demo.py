"""A demo run that kills itself with -9 at its n-th commit, files written: the other half of test_demo.py.

Arguments: the broker's address, the output directory, the input file, and the number of commits to let pass.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ottla.pipeline.demo import run
from ottla.pipeline.lake.delta import DeltaLake
from ottla.pipeline.lake.port import Change


def main(bootstrap: str, output: Path, input_file: Path, commits: int) -> int:
    commit = DeltaLake.commit
    left = [commits]

    def deadly_commit(self: DeltaLake, change: Change) -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        commit(self, change)

    DeltaLake.commit = deadly_commit  # type: ignore[method-assign]
    return run(bootstrap=bootstrap, output=output, input_file=input_file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
