"""Runs a broker whose event loop measures the processor time of each of its turns.

    python -m tests.support.measured_server DIRECTORY [NAME=VALUE ...]

Prints the port, then answers each line on standard input with the longest turn since the last answer, in ms of the
loop's own thread (other processes of the machine do not count), and the error that was logged last, if any.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import Any

from ottla.broker import config
from ottla.broker.broker import Broker
from ottla.core import garbage_collection
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles


class MeasuredLoop(asyncio.SelectorEventLoop):
    """Remembers the processor time of its longest turn."""

    worst_s = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.worst_s = max(self.worst_s, time.thread_time() - began)


class LastError(logging.Handler):
    """Remembers the last logged error: a handler that fails at once would hold the loop for no time."""

    message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = self.format(record).replace("\n", " | ")


async def main(directory: Path, options: dict[str, str]) -> None:
    """Serve until standard input ends."""
    given, _ = config.read(
        file=None, environment={}, options={"listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "1", **options}
    )
    broker = Broker(given, [directory], clock=SystemClock(), files=SystemFiles())
    loop: Any = asyncio.get_running_loop()
    over = asyncio.Event()
    errors = LastError(logging.ERROR)
    logging.getLogger().addHandler(errors)

    def on_line() -> None:
        if not sys.stdin.readline():
            loop.remove_reader(sys.stdin.fileno())
            over.set()
            return
        say(f"{loop.worst_s * 1000:.3f} {errors.message}")
        loop.worst_s = 0.0

    try:
        (endpoint,) = await broker.start()
        garbage_collection.take_over()
        say(str(endpoint.port))
        loop.add_reader(sys.stdin.fileno(), on_line)
        await over.wait()
    finally:
        await broker.stop()


def say(line: str) -> None:
    """Write a line to the parent process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(main(Path(sys.argv[1]), dict(option.split("=", 1) for option in sys.argv[2:])))
