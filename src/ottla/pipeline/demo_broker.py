"""Runs the demo's own broker: a process, on port 9092 if that is free, with its data in the demo's output."""

from __future__ import annotations

import contextlib
import queue
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_READY = re.compile(r"^ottla ready: (\S+:\d+) ")
_USUAL_PORT = 9092
_READY_WITHIN_S = 30.0
_STOPPED_WITHIN_S = 15.0


class BrokerNotStarted(RuntimeError):
    """The broker did not start. The message has its last words and where the rest is."""


@dataclass(frozen=True, slots=True)
class DemoBroker:
    """Runs a broker for the demo."""

    bootstrap: str
    ready_line: str


@contextlib.contextmanager
def start_demo_broker(data: Path, log: Path, *, usual_port: int = _USUAL_PORT) -> Iterator[DemoBroker]:
    """Start `ottla server` on the usual port if it is free, and stop it at the end cleanly. Raises BrokerNotStarted.

    The job file of the demo names the port, so that the job runs again when a broker is started there.

    It ends with this process too, however that ends: its standard input is a pipe that the system then closes.
    """
    command = [sys.executable, "-m", "ottla", "server", "--port", str(free_port(usual_port)), "--data", str(data)]
    command += ["--dev", "--while-stdin-open"]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace"
        )
    try:
        yield _wait_until_ready(process, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def free_port(usual: int) -> int:
    """Return the usual port if it is free on this machine, else 0: any free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", usual))
        except OSError:
            return 0
    return usual


def _wait_until_ready(process: subprocess.Popen[str], log: Path) -> DemoBroker:
    assert process.stdout is not None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(process.stdout, lines), daemon=True).start()  # noqa: TID251  # of a command, never simulated
    try:
        while (line := lines.get(timeout=_READY_WITHIN_S)) is not None:
            if match := _READY.match(line):
                return DemoBroker(match[1], line.strip())
    except queue.Empty:
        raise BrokerNotStarted(f"the broker was not ready within {_READY_WITHIN_S:g} s (its log: {log})") from None
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
    raise BrokerNotStarted(f"the broker did not start: {last[0]} (its log: {log})")


def _listen(stdout: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Read to the end, for a full pipe would stop the broker; None says that it is gone."""
    with stdout:
        for line in stdout:
            lines.put(line)
    lines.put(None)
