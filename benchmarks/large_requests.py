"""Measures what one large request does to other clients: their worst latency beside it, and the broker's memory.

    python -m benchmarks.large_requests [--elements 100000] [--only metadata] [--source src] [--versions newest oldest]

An innocent client asks for one topic's metadata and produces one record, again and again, on a connection of its own.
Prints a line for each API: the worst of all its large requests (tests/support/large_requests.py). Fails if a latency or
the memory is above its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ottla.broker.broker import DECODED_SHARE
from ottla.net.config import NetConfig
from ottla.wire.compiled_codec import ELEMENTS_MAX
from tests.support.batches import batch, numbered
from tests.support.large_requests import LargeRequest, exchange, large_requests, prepare
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import usage
from tests.support.wire_client import ConnectionEnded, Wire

LATENCY_MS_MAX = 50.0
MEMORY_BYTES_MAX = NetConfig().queued_request_bytes_max * (DECODED_SHARE + 1) // DECODED_SHARE
ANSWER_SECONDS_MAX = 120.0


class Innocent(threading.Thread):
    """A client that makes small requests and measures each."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.wire = Wire(port, timeout_s=ANSWER_SECONDS_MAX)
        self.over = threading.Event()
        self.worst_s = 0.0
        self.count = 0

    def run(self) -> None:
        """Until `over` is set."""
        part = {"index": 0, "records": batch(numbered(1))}
        data = [{"name": "innocent", "partition_data": [part]}]
        with self.wire as wire, contextlib.suppress(OSError, ConnectionEnded):
            while not self.over.is_set():
                began = time.perf_counter()
                wire.call("metadata", 12, topics=[{"topic_id": None, "name": "innocent"}])
                asked = time.perf_counter()
                wire.call("produce", 9, acks=-1, timeout=60_000, topic_data=data)
                self.worst_s = max(self.worst_s, asked - began, time.perf_counter() - asked)
                self.count += 1
                time.sleep(0.0005)


@dataclass(slots=True)
class Measured:
    """What one large request did."""

    request: LargeRequest
    worst_ms: float
    took_s: float
    answer_bytes: int  # -1: the connection was closed
    grown_bytes: int


def measure(server: OttlaProcess, request: LargeRequest) -> Measured:
    """Send one large request beside the innocent client."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the peak begins again
    before = usage(server.pid).rss_bytes
    innocent = Innocent(server.port)
    innocent.start()
    while innocent.count < 3:
        time.sleep(0.002)
    innocent.worst_s = 0.0
    began = time.perf_counter()
    answer_bytes = exchange(server.port, request.frame, timeout_s=ANSWER_SECONDS_MAX)
    took_s = time.perf_counter() - began
    innocent.over.set()
    innocent.join(ANSWER_SECONDS_MAX)
    return Measured(request, innocent.worst_s * 1000, took_s, answer_bytes, usage(server.pid).peak_rss_bytes - before)


def main() -> int:
    """Measure all; the exit code is 1 if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=ELEMENTS_MAX)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of requests")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--versions", nargs="+", default=["newest", "oldest"])
    parser.add_argument("--all-lines", action="store_true")
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)
    if options.source is not None:
        os.environ["PYTHONPATH"] = str(options.source.resolve())
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        server = OttlaProcess(Path(scratch), options=("-o", "auto.create.topics.enable=false")).start()
        try:
            names = prepare(server.port)
            worst: dict[str, list[Measured]] = {}
            for versions in options.versions:
                for request in large_requests(names, elements=options.elements, versions=versions):
                    if not any(part in str(request) for part in options.only):
                        continue
                    measured = measure(server, request)
                    if options.all_lines:
                        say(line(str(request), [measured]))
                    worst.setdefault(request.key.name.lower(), []).append(measured)
            say("\n| API | worst latency of another client | answered after | largest answer | memory |")
            say("| --- | ---: | ---: | ---: | ---: |")
            for name, found in worst.items():
                say(line(name, found))
                failed |= any(each.worst_ms > LATENCY_MS_MAX or each.grown_bytes > MEMORY_BYTES_MAX for each in found)
        finally:
            server.stop()
    return int(failed)


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def line(name: str, found: list[Measured]) -> str:
    """One row of the table: the worst of each column."""
    return (
        f"| {name} | {max(each.worst_ms for each in found):.0f} ms | {max(each.took_s for each in found):.2f} s "
        f"| {max(each.answer_bytes for each in found) / 1e6:.1f} MB "
        f"| {max(each.grown_bytes for each in found) / 1e6:.0f} MB |"
    )


if __name__ == "__main__":
    sys.exit(main())
