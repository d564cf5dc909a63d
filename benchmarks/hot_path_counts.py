"""Counts what the broker does for one request: Python frames, calls into C, allocations, system calls.

Counts do not depend on how busy the machine is, so they can be compared between two commits and between two days.
`python -m benchmarks.hot_path_counts` starts a broker in a process of its own for each kind of count, sends the same
requests to each and prints averages per request. Busy polling is off, because it would count idle turns of the loop.

- frames, C calls: `sys.setprofile` in every thread of the broker (the loop and the group commit alike);
- allocations: requests for memory in CPython's object domain, by a small C library (left out without a C compiler).
  Objects that come from a free list (short tuples, floats, lists) are not among them;
- system calls: `strace -c` (left out where it is missing).

The replicated path is counted in a process with three brokers on one event loop, over one metadata store in memory, so
its figures are those of the leader and both followers together; what they do in one turn shares its system calls.

A compiled module has no Python frames: compare the plain form with the plain form.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.batches import Written, batch
from tests.support.cluster import InProcessCluster
from tests.support.wire_client import Wire, encode

BROKERS = 3
READY_S = 20.0
WARM_UP, REQUESTS = 200, 400
PARTITIONS_POLLED = 100
VALUE = Written(bytes(200), None)

_ALLOCATION_COUNTER = r"""
#include <Python.h>
static PyMemAllocatorEx below;
static volatile long count, enabled;
static void *counting_malloc(void *c, size_t n) { count += enabled; return below.malloc(below.ctx, n); }
static void *counting_calloc(void *c, size_t m, size_t n) { count += enabled; return below.calloc(below.ctx, m, n); }
static void *counting_realloc(void *c, void *p, size_t n) { return below.realloc(below.ctx, p, n); }
static void counting_free(void *c, void *p) { below.free(below.ctx, p); }
void install(void) {
    PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &below);
    PyMemAllocatorEx ours = {0, counting_malloc, counting_calloc, counting_realloc, counting_free};
    PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &ours);
}
void enable(int on) { enabled = on; }
long total(void) { return count; }
"""


# ---- In the broker's process


class Frames:
    """Counts 'call' and 'c_call' events of all threads that start after `install`, and of the calling one."""

    def __init__(self) -> None:
        self.enabled = False
        self.frames = self.c_calls = 0
        self.by_function: dict[str, int] = {}

    def install(self) -> None:
        """Begin to listen."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if not self.enabled:
            return
        if event == "call":
            self.frames += 1
            name = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"
            self.by_function[name] = self.by_function.get(name, 0) + 1
        elif event == "c_call":
            self.c_calls += 1

    def enable(self, *, on: bool) -> None:
        """Count from now on, or no longer."""
        self.enabled = on

    def report(self) -> dict[str, Any]:
        """Everything counted so far."""
        return {"frames": self.frames, "c_calls": self.c_calls, "by_function": self.by_function}


class Allocations:
    """Counts allocations by a C library, because no Python code can count them without allocating."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.PyDLL(str(library))
        self._library.total.restype = ctypes.c_long

    def install(self) -> None:
        """Wrap the allocator."""
        self._library.install()

    def enable(self, *, on: bool) -> None:
        """Count from now on, or no longer."""
        self._library.enable(int(on))

    def report(self) -> dict[str, Any]:
        """Everything counted so far."""
        return {"allocations": int(self._library.total())}


class Nothing:
    """Counts nothing: strace does, from outside."""

    def install(self) -> None:
        """Nothing to install."""

    def enable(self, *, on: bool) -> None:
        """Nothing to enable."""

    def report(self) -> dict[str, Any]:
        """Nothing to report."""
        return {}


def serve(data: Path, kind: str, library: Path, brokers: int) -> int:
    """Run brokers that count between the lines `on` and `off` on the standard input."""
    from ottla.broker.process.server import run

    counter: Frames | Allocations | Nothing
    match kind:
        case "frames":
            counter = Frames()
        case "allocations":
            counter = Allocations(library)
        case _:
            counter = Nothing()

    def control() -> None:
        for line in sys.stdin:
            counter.enable(on=line.strip() == "on")
            sys.stdout.write(json.dumps(counter.report()) + "\n")
            sys.stdout.flush()

    threading.Thread(target=control, daemon=True).start()  # before `install`: this thread is not counted
    counter.install()
    options = {"ottla.busy.poll.us": "0", "log.flush.interval.ms": "10000"}
    if brokers == 1:
        return run(options={**options, "log.dirs": str(data)}, port=0)
    import uvloop

    uvloop.run(_run_cluster(data, options, brokers))
    return 0


async def _run_cluster(data: Path, options: dict[str, str], brokers: int) -> None:
    cluster = InProcessCluster(data, options=options)
    await cluster.start(brokers)
    sys.stdout.write(f"serving at 127.0.0.1:{cluster.ports[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()  # until the process is terminated


def build_library(directory: Path) -> Path | None:
    """The compiled allocation counter; None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = directory / "allocations.c", directory / "allocations.so"
    source.write_text(_ALLOCATION_COUNTER, encoding="ascii")
    include = sysconfig.get_path("include")
    built = subprocess.run([compiler, "-shared", "-fPIC", "-O1", f"-I{include}", source, "-o", library], check=False)
    return library if built.returncode == 0 else None


# ---- In the client's process


class CountedBroker:
    """One broker or several in a process of their own, with one kind of counter."""

    def __init__(self, directory: Path, kind: str, library: Path | None, brokers: int) -> None:
        self.kind, self._strace = kind, directory / f"strace-{kind}"
        data = directory / f"{kind}-{brokers}"
        command = [sys.executable, __file__, "--serve", str(data), kind, str(library or ""), str(brokers)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )
        self.port = int(self._line().split("127.0.0.1:")[1].split()[0].rstrip(","))

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _control(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def measure(self, requests: Callable[[], None]) -> dict[str, Any]:
        """What the broker did while `requests` ran."""
        if self.kind == "calls":
            return self._traced(requests)
        before = self._control("on")
        requests()
        after = self._control("off")
        return {
            name: after[name] - count if isinstance(count, int) else _difference(count, after[name])
            for name, count in before.items()
        }

    def _traced(self, requests: Callable[[], None]) -> dict[str, Any]:
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
        return {"calls": calls}

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}


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
def _broker(directory: Path, kind: str, library: Path | None, brokers: int) -> Iterator[CountedBroker]:
    broker = CountedBroker(directory, kind, library, brokers)
    try:
        yield broker
    finally:
        broker.stop()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", action="store_true", help="list the functions entered, too")
    parser.add_argument("--brokers", type=int, choices=list(SCENARIOS), help="only with so many; default: both")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        data, kind, library, brokers = options.serve
        os._exit(serve(Path(data), kind, Path(library), int(brokers)))
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        library_path = build_library(directory)
        kinds = ["frames", *(["allocations"] if library_path else []), *(["calls"] if shutil.which("strace") else [])]
        wanted = [options.brokers] if options.brokers else list(SCENARIOS)
        for kind, brokers in itertools.product(kinds, wanted):
            with _broker(directory, kind, library_path, brokers) as broker:
                for make in SCENARIOS[brokers]:
                    scenario = make(broker.port)
                    scenario.run(WARM_UP)
                    found = broker.measure(lambda scenario=scenario: scenario.run(REQUESTS))  # type: ignore[misc]
                    _print(scenario.name, found, functions=options.functions)


def _print(name: str, found: dict[str, Any], *, functions: bool) -> None:
    for what, count in found.items():
        if isinstance(count, int):
            sys.stdout.write(f"{name}: {what} {count / REQUESTS:.1f}\n")
        elif what == "calls" or functions:
            ordered = sorted(count.items(), key=lambda item: -item[1])
            parts = [f"{each} {number / REQUESTS:.2f}" for each, number in ordered if number >= REQUESTS // 50]
            sys.stdout.write(f"{name}: {what}: {', '.join(parts)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
