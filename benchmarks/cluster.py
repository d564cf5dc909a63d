"""`python -m benchmarks.cluster`: three brokers, replication factor 3, acks=all, beside three brokers of Apache Kafka.

Both clusters run at the same time and are measured in turns. Six topics of one partition; each bare socket
sends ready-made Produce requests to the leader of its topic, so that the brokers are measured and not the client.
Processor time and memory are those of the three brokers together. Kafka's controllers are in its brokers; the ZooKeeper
of Ottla's cluster is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from benchmarks import clients
from benchmarks.clients import Latencies
from benchmarks.progress import Progress
from benchmarks.report import CLUSTER_TITLE, machine, number, today, write_part
from tests.support.batches import Written, batch
from tests.support.kafka_jars import VERSION, kafka_jars
from tests.support.processes import free_ports, usage, wait_for_line
from tests.support.real_kafka import FULL_JVM, RealKafka
from tests.support.wire_client import Wire, answers

ROOT = Path(__file__).resolve().parent.parent
BROKERS, TOPICS, FACTOR = 3, 6, 3
MIB = 1 << 20
IN_FLIGHT = 5
BATCH_BYTES = 100_000
READY_S = 60.0
Figures = dict[str, dict[str, list[float]]]


class RunningCluster(Protocol):
    """Three brokers while they run."""

    ports: list[int]

    def pids(self) -> list[int]:
        """Return the process ids of the brokers."""
        ...

    def kill(self, index: int) -> None:
        """Kill one broker with -9."""
        ...

    def stop(self) -> None:
        """Stop all processes."""
        ...


class KafkaCluster:
    """Three Kafka brokers that are the controllers, too, with the options of its start script."""

    def __init__(self, directory: Path, *, is_fsync: bool) -> None:
        nodes = [
            RealKafka(kafka_jars(), directory / str(number), jvm_options=FULL_JVM, node_id=number)
            for number in range(1, BROKERS + 1)
        ]
        voters = ",".join(f"{node.node_id}@127.0.0.1:{node.controller_port}" for node in nodes)
        settings = {"controller.quorum.voters": voters, "min.insync.replicas": "2"}
        if is_fsync:
            settings["log.flush.interval.messages"] = "1"
        for node in nodes:
            with node.properties.open("a") as properties:
                properties.writelines(f"{name}={value}\n" for name, value in settings.items())
            node.format()
        for node in nodes:
            node.start(wait=False)
        self._nodes = nodes
        self.ports = [node.port for node in nodes]

    def pids(self) -> list[int]:
        """Return the process ids of the brokers."""
        return [node.pid for node in self._nodes]

    def kill(self, index: int) -> None:
        """Kill one broker with -9."""
        self._nodes[index].kill()

    def stop(self) -> None:
        """Kill all brokers."""
        for node in self._nodes:
            node.kill()


class OttlaCluster:
    """`ottla up -n 3`."""

    def __init__(self, directory: Path, *, is_fsync: bool) -> None:
        self._directory = directory
        port = free_ports(BROKERS)
        self._program = str(Path(sys.executable).with_name("ottla"))
        durability = "fsync" if is_fsync else "page-cache"
        with (directory.parent / f"{directory.name}.err").open("wb") as errors:
            self._process = subprocess.Popen(
                [
                    self._program,
                    "up",
                    "-n",
                    str(BROKERS),
                    "--data",
                    str(directory),
                    "--port",
                    str(port),
                    "-o",
                    f"durability={durability}",
                    "-o",
                    "min.insync.replicas=2",
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        wait_for_line(self._process, b"cluster ready", timeout_s=READY_S)
        self.ports = list(range(port, port + BROKERS))

    def pids(self) -> list[int]:
        """Return the process ids of the brokers."""
        shown = subprocess.run(
            [self._program, "up", "--data", str(self._directory), "--status", "--format", "json"],
            check=True,
            capture_output=True,
        ).stdout
        return [int(each["pid"]) for each in json.loads(shown)["processes"] if each["process"].startswith("broker")]

    def kill(self, index: int) -> None:
        """Kill one broker with -9."""
        subprocess.run(
            [self._program, "up", "--data", str(self._directory), "--kill", str(index + 1)],
            check=True,
            capture_output=True,
        )

    def stop(self) -> None:
        """Stop the command, which stops all processes."""
        self._process.terminate()
        self._process.wait(60)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A cluster that is compared."""

    name: str
    start: type[KafkaCluster | OttlaCluster]
    is_fsync: bool = False


PAIRS = {
    "page-cache": (Contestant("Kafka", KafkaCluster), Contestant("Ottla", OttlaCluster)),
    "fsync": (Contestant("Kafka", KafkaCluster, is_fsync=True), Contestant("Ottla", OttlaCluster, is_fsync=True)),
}


class Target(NamedTuple):
    """A topic and the port of its partition's leader."""

    topic: str
    port: int


def make_topics(ports: Sequence[int]) -> list[Target]:
    """Create the topics, and wait until each partition has a leader and all replicas."""
    names = [f"bench-{number}" for number in range(TOPICS)]
    deadline = time.perf_counter() + READY_S
    with Wire(ports[0]) as wire:
        new = [{"name": name, "num_partitions": 1, "replication_factor": FACTOR} for name in names]
        for each in wire.call("create_topics", 5, topics=new, timeout=20_000)["topics"]:
            if each["error_code"]:
                raise clients.WrongCount(f"creating {each['name']} gave error {each['error_code']}")
        while time.perf_counter() < deadline:
            answer = wire.call("metadata", 9, topics=[{"name": name} for name in names])
            port_of = {broker["node_id"]: broker["port"] for broker in answer["brokers"]}
            parts = {topic["name"]: topic["partitions"] for topic in answer["topics"]}
            if all(found and len(found[0]["isr_nodes"]) == FACTOR for found in parts.values()):
                return [Target(name, port_of[parts[name][0]["leader_id"]]) for name in names]
            time.sleep(0.02)
    raise clients.WrongCount(f"the topics have not all their replicas after {READY_S:g} s")


@dataclass(slots=True)
class _Sender:
    """One connection and its requests in flight."""

    connection: socket.socket
    frame: bytes
    error_at: int
    sent_at: list[float] = field(default_factory=list)
    received: bytes = b""


def produce(
    targets: Sequence[Target], *, senders: int, in_flight: int, record_bytes: int, records: int, seconds: float
) -> Latencies:
    """Send Produce requests on so many connections for a time; returns requests a second and latencies."""
    clock = time.perf_counter
    times: list[float] = []
    with selectors.EpollSelector() as selector:
        opened = []
        for index in range(senders):
            target = targets[index % len(targets)]
            data = batch([Written(os.urandom(record_bytes), None) for _ in range(records)])
            frame = clients.produce_frame(target.topic, data)
            sender = _Sender(clients.connect(target.port), frame, clients.error_at(target.topic))
            selector.register(sender.connection, selectors.EVENT_READ, sender)
            opened.append(sender)
        began = clock()
        for sender in opened:
            for _ in range(in_flight):
                sender.sent_at.append(clock())
                sender.connection.sendall(sender.frame)
        end = began + seconds
        while (now := clock()) < end:
            for key, _ in selector.select(5):
                _receive(cast("_Sender", key.data), times, clock)
    for sender in opened:
        sender.connection.close()
    return clients.summary(times, now - began)


def _receive(sender: _Sender, times: list[float], clock: Any) -> None:
    said = sender.received + sender.connection.recv(65536)
    while len(said) >= 4 and len(said) >= (size := 4 + struct.unpack_from(">i", said)[0]):
        clients.check(said, sender.error_at)
        said = said[size:]
        now = clock()
        times.append(now - sender.sent_at.pop(0))
        sender.sent_at.append(now)
        sender.connection.sendall(sender.frame)
    sender.received = said


class Case(NamedTuple):
    """A load: connections, requests in flight on each, records in a request and their size."""

    name: str
    senders: int
    in_flight: int
    records: int
    record_bytes: int


CASES = (
    Case("1 synchronous", 1, 1, 1, 200),
    Case("32 synchronous", 32, 1, 1, 200),
    Case("bulk of 200 B", TOPICS, IN_FLIGHT, BATCH_BYTES // 210, 200),
    Case("bulk of 2,100 B", TOPICS, IN_FLIGHT, BATCH_BYTES // 2_110, 2_100),
)


def measure(running: RunningCluster, targets: Sequence[Target], case: Case, seconds: float) -> dict[str, float]:
    """Run one case; returns its figures."""
    pids = running.pids()
    before = sum(usage(pid).cpu_s for pid in pids)
    found = produce(
        targets,
        senders=case.senders,
        in_flight=case.in_flight,
        record_bytes=case.record_bytes,
        records=case.records,
        seconds=seconds,
    )
    spent = sum(usage(pid).cpu_s for pid in pids) - before
    requests = found.per_second * seconds
    if case.records == 1:
        return {
            f"{case.name}: requests/s": found.per_second,
            f"{case.name}: p50, ms": found.p50_ms,
            f"{case.name}: p99, ms": found.p99_ms,
            f"{case.name}: CPU of all brokers, us/request": spent / requests * 1e6,
        }
    return {
        f"{case.name}: records/s": found.per_second * case.records,
        f"{case.name}: p99, ms": found.p99_ms,
        f"{case.name}: CPU of all brokers, s/million records": spent / (requests * case.records) * 1e6,
    }


@contextmanager
def started(contestant: Contestant, directory: Path, figures: Figures) -> Iterator[tuple[RunningCluster, list[Target]]]:
    """Start a cluster and create its topics; notes the time until they have all replicas, and the idle memory."""
    began = time.perf_counter()
    running = contestant.start(directory, is_fsync=contestant.is_fsync)
    try:
        for port in running.ports:
            while not answers("127.0.0.1", port):
                time.sleep(0.01)
        targets = make_topics(running.ports)
        _note(figures, "start to the first replicated topics, s", contestant, time.perf_counter() - began)
        time.sleep(3)
        _note(figures, "memory idle of all brokers, MiB", contestant, _memory(running))
        yield running, targets
    finally:
        running.stop()


def _memory(running: RunningCluster) -> float:
    return sum(usage(pid).rss_bytes for pid in running.pids()) / MIB


def _note(figures: Figures, figure: str, contestant: Contestant, value: float) -> None:
    figures.setdefault(figure, {}).setdefault(contestant.name, []).append(value)


def warm(targets: Sequence[Target], seconds: float) -> None:
    """Load a cluster as the cases do, so that a JVM has compiled its path."""
    for case in CASES[:3]:
        produce(
            targets,
            senders=case.senders,
            in_flight=case.in_flight,
            record_bytes=case.record_bytes,
            records=case.records,
            seconds=seconds / 3,
        )


def compare(mode: str, seconds: float, rounds: int, warm_seconds: float, progress: Progress) -> Figures:
    """Measure both clusters in turns."""
    one, other = PAIRS[mode]
    figures: Figures = defaultdict(dict)
    directory = Path(tempfile.mkdtemp(prefix="ottla-bench-cluster-"))
    try:
        with started(one, directory / "one", figures) as first, started(other, directory / "other", figures) as second:
            for contestant, (_, targets) in ((one, first), (other, second)):
                progress.status(f"warming {contestant.name}")
                warm(targets, warm_seconds)
            order = [(one, first), (other, second)]
            for turn in range(rounds):
                for case in CASES:
                    for contestant, (running, targets) in order:
                        progress.status(f"{mode}, {case.name}, {contestant.name}, round {turn + 1}")
                        for figure, value in measure(running, targets, case, seconds).items():
                            _note(figures, figure, contestant, value)
                        os.sync()  # the next turn does not write back the gigabytes of this one
                order.reverse()
            for contestant, (running, _) in ((one, first), (other, second)):
                _note(figures, "memory after the load of all brokers, MiB", contestant, _memory(running))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return figures


def table(found: dict[str, Figures], seconds: float, rounds: int, warm_seconds: float) -> list[str]:
    """The page's part."""
    lines = [
        f"Measured {today()} on {machine()}, beside Apache Kafka {VERSION}: three brokers, {TOPICS} partitions,",
        f"replication factor {FACTOR}, acks=all, min.insync.replicas=2. Median of {rounds} rounds of {seconds:g} s,",
        f"in turns, after {warm_seconds:g} s of the same load on each.",
    ]
    for mode, figures in found.items():
        lines += ["", f"| {mode} | Kafka | Ottla | Ottla / Kafka |", "| --- | ---: | ---: | ---: |"]
        for figure, values in figures.items():
            kafka, ottla = statistics.median(values["Kafka"]), statistics.median(values["Ottla"])
            lines.append(f"| {figure} | {number(kafka)} | {number(ottla)} | {ottla / kafka:.2f} |")
    return lines


def main() -> int:
    """Measure, print the table and write it into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("modes", nargs="*", default=[], choices=(*PAIRS, []), help="Default: both.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of load on each cluster before the rounds")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--no-page", action="store_true")
    asked = parser.parse_args()
    progress = Progress()
    found = {
        mode: compare(mode, asked.seconds, asked.rounds, asked.warm, progress) for mode in asked.modes or list(PAIRS)
    }
    lines = table(found, asked.seconds, asked.rounds, asked.warm)
    for line in lines:
        progress.line(line)
    if not asked.no_page:
        write_part(asked.page, CLUSTER_TITLE, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
