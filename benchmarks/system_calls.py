"""Counts the system calls of the broker for one request, by `strace -c`.

`python -m benchmarks.system_calls` starts a broker in a process of its own, sends the same requests to it and prints
averages per request. Busy polling is off, because it would count idle turns of the loop. The replicated path is counted
in a process with three brokers on one event loop, over one metadata store in memory, so its figures are those of the
leader and both followers together; what they do in one turn shares its system calls.

Frames, calls into C and allocations are counted by `tests/support/hot_path_counts.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ottla.testing.cluster import TestCluster
from ottla.testing.real_machine import RealMachines
from tests.support.batches import Written, batch
from tests.support.wire_client import Wire, encode

BROKERS = 3
READY_S = 20.0
WARM_UP, REQUESTS = 200, 400
PARTITIONS_POLLED = 100
VALUE = Written(bytes(200), None)

# ---- In the broker's process


def serve(data: Path, brokers: int) -> int:
    """Run brokers until the process is terminated."""
    from ottla.broker.process.server import run

    options = {"ottla.busy.poll.us": "0", "log.flush.interval.ms": "10000"}
    if brokers == 1:
        return run(options={**options, "log.dirs": str(data)}, port=0)
    import uvloop

    uvloop.run(_run_cluster(data, options, brokers))
    return 0


async def _run_cluster(data: Path, options: dict[str, str], brokers: int) -> None:
    cluster = TestCluster(RealMachines(data), options=options)
    await cluster.start(brokers)
    sys.stdout.write(f"serving at 127.0.0.1:{cluster.ports[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()  # until the process is terminated


# ---- In the client's process


class TracedBroker:
    """One broker or several in a process of their own."""

    def __init__(self, directory: Path, brokers: int) -> None:
        self._strace = directory / "strace"
        command = [sys.executable, __file__, "--serve", str(directory / str(brokers)), str(brokers)]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().split("127.0.0.1:")[1].split()[0].rstrip(","))

    def measure(self, requests: Callable[[], None]) -> dict[str, int]:
        """Return the system calls of the broker while `requests` ran."""
        tracer = subprocess.Popen(
            ["strace", "-f", "-c", "-o", self._strace, "-p", str(self._process.pid)], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        tracer.stderr.readline()  # "attached"
        requests()
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        calls = {}
        for line in self._strace.read_text(encoding="utf-8").splitlines()[2:]:
            fields = line.split()
            if len(fields) >= 5 and fields[-1] != "total" and fields[3].isdigit():
                calls[fields[-1]] = int(fields[3])
        return calls

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


def _make_topic(wire: Wire, name: str, partitions: int, *, factor: int = 1, durability: str = "fsync") -> Any:
    configs = [{"name": "durability", "value": durability}]
    new = {"name": name, "num_partitions": partitions, "replication_factor": factor, "configs": configs}
    made = wire.call("create_topics", 7, topics=[new], timeout=20_000)["topics"][0]
    assert not made["error_code"], made
    return made["topic_id"]


def _produce_frame(topic_id: Any, records: bytes, partition: int = 0) -> bytes:
    part = {"index": partition, "records": records}
    data = {"topic_id": topic_id, "partition_data": [part]}
    return encode("produce", 13, 1, {"acks": -1, "timeout": 30_000, "topic_data": [data]})


def _fetch_frame(session: tuple[int, int], topics: list[Any], *, max_wait_ms: int) -> bytes:
    values = {
        "max_wait": max_wait_ms,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": 0,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return encode("fetch", 17, 1, values)


def _fetch_partition(index: int, offset: int) -> dict[str, int]:
    return {
        "partition": index,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }


def _session_id(frame: bytes) -> int:
    found, error = struct.unpack_from(">i", frame, 4 + 1 + 4 + 2)[0], struct.unpack_from(">h", frame, 4 + 1 + 4)[0]
    assert not error, error
    return int(found)


class Scenario:
    """Requests of one kind, one after the other on one connection."""

    name = ""

    def __init__(self, port: int) -> None:
        self.wire = Wire(port)
        self.sent = 0

    def run(self, count: int) -> None:
        """Send `count` requests, each after the response to the last."""
        for _ in range(count):
            self.one()
            self.sent += 1

    def one(self) -> None:
        """One request and its response."""
        raise NotImplementedError


class Produce(Scenario):
    """acks=all, one partition, durability=fsync, one record of 200 bytes."""

    name = "produce"

    def __init__(self, port: int, *, topic: str = "produce") -> None:
        super().__init__(port)
        self.topic_id = _make_topic(self.wire, topic, 1)
        self.frame = _produce_frame(self.topic_id, batch([VALUE]))

    def one(self) -> None:
        """One request and its response."""
        self.wire.send_frame(self.frame)
        answer = self.wire.receive_frame()
        # correlation id, tags, one topic, its id, one partition, its index
        error = struct.unpack_from(">h", answer, 4 + 1 + 1 + 16 + 1 + 4)[0]
        assert not error, error


class ProduceIdempotent(Produce):
    """The same with a producer id and sequence numbers."""

    name = "produce, idempotent"

    def __init__(self, port: int) -> None:
        super().__init__(port, topic="idempotent")

    def one(self) -> None:
        """One request and its response."""
        records = batch([VALUE], producer_id=7, producer_epoch=0, base_sequence=self.sent)
        self.frame = _produce_frame(self.topic_id, records)
        super().one()


class ReplicatedProduce(Produce):
    """acks=all, one partition with three replicas: the request, and the fetches by which both followers confirm it."""

    name = "produce, three replicas, page-cache"
    durability = "page-cache"

    def __init__(self, port: int) -> None:
        Scenario.__init__(self, port)
        topic = f"replicated-{self.durability}"
        self.topic_id = _make_topic(self.wire, topic, 1, factor=BROKERS, durability=self.durability)
        self.wire = Wire(self._leader_port(topic))
        self.frame = _produce_frame(self.topic_id, batch([VALUE]))

    def _leader_port(self, topic: str) -> int:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            found = self.wire.call("metadata", 9, topics=[{"name": topic}])
            partitions = found["topics"][0]["partitions"]
            if partitions and len(partitions[0]["isr_nodes"]) == BROKERS and partitions[0]["leader_id"] >= 0:
                leader = partitions[0]["leader_id"]
                return next(int(each["port"]) for each in found["brokers"] if each["node_id"] == leader)
            time.sleep(0.02)
        raise AssertionError(f"{topic} has no leader, or not all its replicas, after {READY_S:g} s")


class ReplicatedProduceFsync(ReplicatedProduce):
    """The same with a group commit on each replica."""

    name = "produce, three replicas, fsync"
    durability = "fsync"


class Fetch(Scenario):
    """In a session with one partition that has one batch to read."""

    name = "fetch"

    def __init__(self, port: int) -> None:
        super().__init__(port)
        produce = Produce(port, topic="fetched")
        produce.run(1)
        self.topics = [{"topic_id": produce.topic_id, "partitions": [_fetch_partition(0, 0)]}]
        self.wire.send_frame(_fetch_frame((0, 0), self.topics, max_wait_ms=0))
        self.session = _session_id(self.wire.receive_frame())

    def one(self) -> None:
        """One request and its response."""
        self.wire.send_frame(_fetch_frame((self.session, self.sent + 1), self.topics, max_wait_ms=0))
        assert len(self.wire.receive_frame()) > 200, "there should be data"


class LongPoll(Scenario):
    """A fetch session with 100 partitions waits; one record is produced; the fetch is answered. Counts all three."""

    name = f"produce that wakes a long poll of {PARTITIONS_POLLED} partitions"

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.producer = Wire(port)
        self.topic_id = _make_topic(self.wire, "polled", PARTITIONS_POLLED)
        self.produce = _produce_frame(self.topic_id, batch([VALUE]), partition=PARTITIONS_POLLED // 2)
        every = [{"topic_id": self.topic_id, "partitions": [_fetch_partition(n, 0) for n in range(PARTITIONS_POLLED)]}]
        self.wire.send_frame(_fetch_frame((0, 0), every, max_wait_ms=0))
        self.session = _session_id(self.wire.receive_frame())

    def one(self) -> None:
        """One cycle."""
        moved = [{"topic_id": self.topic_id, "partitions": [_fetch_partition(PARTITIONS_POLLED // 2, self.sent)]}]
        self.wire.send_frame(_fetch_frame((self.session, self.sent + 1), moved, max_wait_ms=20_000))
        self.producer.send_frame(self.produce)
        self.producer.receive_frame()
        assert len(self.wire.receive_frame()) > 200, "there should be data"


SCENARIOS: dict[int, tuple[Callable[[int], Scenario], ...]] = {
    1: (Produce, ProduceIdempotent, Fetch, LongPoll),
    BROKERS: (ReplicatedProduce, ReplicatedProduceFsync),
}
"""By the number of brokers."""


@contextlib.contextmanager
def _broker(directory: Path, brokers: int) -> Iterator[TracedBroker]:
    broker = TracedBroker(directory, brokers)
    try:
        yield broker
    finally:
        broker.stop()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, choices=list(SCENARIOS), help="only with so many; default: both")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        data, brokers = options.serve
        os._exit(serve(Path(data), int(brokers)))
    if not shutil.which("strace"):
        sys.exit("strace is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        for number in [options.brokers] if options.brokers else list(SCENARIOS):
            with _broker(Path(scratch), number) as broker:
                for make in SCENARIOS[number]:
                    scenario = make(broker.port)
                    scenario.run(WARM_UP)
                    _print(scenario.name, broker.measure(lambda scenario=scenario: scenario.run(REQUESTS)))  # type: ignore[misc]


def _print(name: str, calls: dict[str, int]) -> None:
    ordered = sorted(calls.items(), key=lambda item: -item[1])
    parts = [f"{call} {number / REQUESTS:.2f}" for call, number in ordered if number >= REQUESTS // 50]
    sys.stdout.write(f"{name}: {', '.join(parts)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
