"""Measures what one large request does to other clients: their worst latency beside it, and the broker's memory.

    python -m benchmarks.limits [--elements 100000] [--only metadata] [--source another/src] [--versions newest oldest]

An innocent client asks for one topic's metadata and produces one record, again and again, on a connection of its own.
Prints a line for each API: the worst of all its large requests (tests/support/large_requests.py). Fails if a latency or
the memory is above its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ottla.broker.broker import DECODED_SHARE
from ottla.net.config import NetConfig
from ottla.wire.plan import ELEMENTS_MAX
from tests.support.batches import batch, numbered
from tests.support.large_requests import KNOWN_GROUP, KNOWN_TOPIC, LargeRequest, Names, large_requests, with_length
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import usage
from tests.support.wire_client import ConnectionEnded, Wire

LATENCY_MS_MAX = 50.0
MEMORY_BYTES_MAX = NetConfig().queued_request_bytes_max * (DECODED_SHARE + 1) // DECODED_SHARE
ANSWER_SECONDS_MAX = 120.0
WIDE_TOPIC, WIDE_PARTITIONS = "wide", 1000


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


def prepare(port: int) -> Names:
    """Create the topics and the group that large requests name."""
    with Wire(port, timeout_s=60) as wire:
        topics = [(KNOWN_TOPIC, 1), ("innocent", 1), (WIDE_TOPIC, WIDE_PARTITIONS), ("__consumer_offsets", 1)]
        wanted = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in topics]
        answer = wire.call("create_topics", 5, topics=wanted, timeout=60_000)
        assert not any(each["error_code"] for each in answer["topics"]), answer
        wire.call("find_coordinator", 4, coordinator_keys=[KNOWN_GROUP])
        known = wire.call("metadata", 12, topics=[{"topic_id": None, "name": KNOWN_TOPIC}])["topics"][0]["topic_id"]
        part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        deadline = time.perf_counter() + 20
        while time.perf_counter() < deadline:
            committed = wire.call(
                "offset_commit", 8, group_id=KNOWN_GROUP, generation_id_or_member_epoch=-1, member_id="",
                topics=[{"name": KNOWN_TOPIC, "partitions": [part]}],
            )  # fmt: skip
            if committed["topics"][0]["partitions"][0]["error_code"] == 0:
                return Names(known)
            time.sleep(0.1)
    raise TimeoutError("the group coordinator did not load")


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
    answer_bytes = ask(server.port, with_length(request.frame))
    took_s = time.perf_counter() - began
    innocent.over.set()
    innocent.join(ANSWER_SECONDS_MAX)
    return Measured(request, innocent.worst_s * 1000, took_s, answer_bytes, usage(server.pid).peak_rss_bytes - before)


def ask(port: int, framed: bytes) -> int:
    """Send the frame and read its answer; how many bytes that has, -1 if the connection is closed instead."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX) as sock:
        try:
            sock.sendall(framed)
            received, wanted = 0, 4
            head = b""
            while received < wanted:
                piece = sock.recv(1 << 18)
                if not piece:
                    return -1
                received += len(piece)
                if len(head) < 4:
                    head += piece
                    wanted = 4 + int.from_bytes(head[:4], "big") if len(head) >= 4 else 4
        except ConnectionError:
            return -1
        return received


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
