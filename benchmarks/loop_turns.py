"""`python -m benchmarks.loop_turns DIRECTORY`: starts a broker in this process, prints the longest turns of its loop.

The loop is asyncio's own, whose callbacks can be timed; a server uses uvloop where there is one. Besides the time of a
turn its processor time is printed: on a busy machine a turn takes longer than the work in it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from ottla.broker import config
from ottla.broker.broker import Broker
from ottla.core import garbage_collection
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles

SHOWN = 5


class TimedLoop(asyncio.SelectorEventLoop):
    """Times each callback."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[tuple[float, float]] = []  # seconds, and those of the processor

    def _run_once(self) -> None:
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        selector: Any = self._selector  # type: ignore[attr-defined]
        select, waited = selector.select, [0.0]

        def timed_select(timeout: float | None = None) -> Any:
            since_s = time.perf_counter()
            try:
                return select(timeout)
            finally:
                waited[0] += time.perf_counter() - since_s

        selector.select = timed_select
        try:
            super()._run_once()  # type: ignore[misc]
        finally:
            selector.select = select
            took_s = time.perf_counter() - began_s - waited[0]
            self.turns.append((took_s, time.thread_time() - cpu_s))


async def start_and_stop(loop: TimedLoop, directory: Path) -> dict[str, list[float]]:
    """Start a broker on the directory, and stop it; returns the longest turns of the start, in milliseconds."""
    options = {"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"}
    given, _ = config.read(file=None, environment={}, options=options)
    broker = Broker(config.of_directories(given, [directory]), [directory], clock=SystemClock(), files=SystemFiles())
    await asyncio.sleep(0)
    loop.turns.clear()
    with garbage_collection.paused():
        await broker.start()
    await asyncio.sleep(0)
    turns = list(loop.turns)
    await broker.stop()
    by_time = sorted((took for took, _ in turns), reverse=True)
    by_cpu = sorted((cpu for _, cpu in turns), reverse=True)
    return {
        "turns, ms": [round(each * 1e3, 1) for each in by_time[:SHOWN]],
        "processor time, ms": [round(each * 1e3, 1) for each in by_cpu[:SHOWN]],
    }


def main() -> int:
    """Print the turns as JSON."""
    loop = TimedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        sys.stdout.write(json.dumps(runner.run(start_and_stop(loop, Path(sys.argv[1]).absolute()))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
