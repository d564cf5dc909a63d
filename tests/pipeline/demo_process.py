"""Runs the demo in a process of its own, with the faults that a test asks for.

PySpark has one context per process, and the tests' process has the shared session's. The argument is a JSON object:
`run` with the arguments of `demo.run`, `topics` with the names of the log's and the aggregates' topic, `loses_a_line` and
`commits`, after which the process kills itself with -9, its files written.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ottla.core.clock import SystemClock
from ottla.pipeline import demo
from ottla.pipeline.lake.delta import DeltaLakeTable
from ottla.pipeline.lake.lake_table import Change
from ottla.pipeline.produce import Outgoing, Produced, produce

ROOT = Path(__file__).resolve().parents[2]
PATHS = ("input_file", "output")


def run_demo(
    *, topics: tuple[str, str] | None = None, loses_a_line: bool = False, commits: int | None = None, **run: Any
) -> subprocess.CompletedProcess[str]:
    """Run the demo in a process; returns its exit code and output."""
    settings = {"run": run, "topics": topics, "loses_a_line": loses_a_line, "commits": commits}
    command = [sys.executable, "-m", "tests.pipeline.demo_process", json.dumps(settings, default=str)]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=240)


def _lossy_produce(bootstrap: str, topic: str, records: Iterable[Outgoing], *rest: Any) -> Produced:
    """Leave out a line that was read, and report a record as acknowledged that is not in the log."""
    done = produce(bootstrap, topic, (record for n, record in enumerate(records) if n != 17), *rest)
    rest[-1].acknowledged(topic, 2, 3, SystemClock().wall_ms())
    return done


def _kill_after(commits: int) -> None:
    commit = DeltaLakeTable.commit
    left = [commits]

    def deadly_commit(self: DeltaLakeTable, change: Change) -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        commit(self, change)

    DeltaLakeTable.commit = deadly_commit  # type: ignore[method-assign]


def main(settings: dict[str, Any]) -> int:
    """Run the demo as the settings say."""
    if settings["topics"] is not None:
        demo.TOPIC, demo.TRAFFIC_TOPIC = settings["topics"]
    if settings["loses_a_line"]:
        demo.produce = _lossy_produce  # type: ignore[assignment, attr-defined]
    if settings["commits"] is not None:
        _kill_after(settings["commits"])
    run: dict[str, Any] = {name: Path(value) if name in PATHS else value for name, value in settings["run"].items()}
    return demo.run(**run)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
