"""`python -m benchmarks.many_partitions`: three brokers with 10,000 partitions while brokers and topics come and go.

An innocent client of each broker asks for the metadata of a topic with one partition, again and again on a kept
connection, in a process of its own. It also measures how late its own sleeps end: what the machine adds to a latency.
`python -m benchmarks.many_partitions --probe PORT...` is these clients alone, until it is stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from benchmarks import clients
from benchmarks.progress import Progress
from benchmarks.report import PARTITIONS_TITLE, machine, number, today, write_part
from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode_response
from tests.support.processes import usage
from tests.support.up_process import UpProcess
from tests.support.wire_client import ConnectionEnded, Wire, encode

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS, TOPICS, BROKERS, FACTOR = 10_000, 10, 3, 3
INNOCENT = "innocent"
PAUSE_S, POLL_S, DONE_S = 0.005, 0.1, 600.0
IDLE_S, SETTLE_S, AFTERWARDS_S, SESSION_S = 20.0, 2.0, 5.0, 4.0
ANSWER_MS = 200_000
METADATA = 9
SAMPLED = 60  # partitions whose leaderless time is measured
MIB = 1 << 20


# ---- The innocent clients


class Innocent(threading.Thread):
    """A client that makes small requests to one broker and prints how long each took."""

    def __init__(self, port: int, out: TextIO) -> None:
        super().__init__(daemon=True)
        self._port, self._out = port, out

    def run(self) -> None:
        """Connect again whenever the broker has gone."""
        clock = time.perf_counter
        frame = encode("metadata", METADATA, 1, {"topics": [{"name": INNOCENT}]})
        while True:
            with contextlib.suppress(OSError, ConnectionEnded), Wire(self._port, timeout_s=60) as wire:
                while True:
                    began = clock()
                    wire.send_frame(frame)
                    wire.receive_frame()
                    asked = clock()
                    time.sleep(PAUSE_S)
                    self._out.write(f"{self._port} {began} {asked - began} {clock() - asked - PAUSE_S}\n")
            time.sleep(PAUSE_S)


def probe(ports: Sequence[int]) -> None:
    """Run the clients until the process is ended."""
    innocents = [Innocent(port, sys.stdout) for port in ports]
    for each in innocents:
        each.start()
    for each in innocents:
        each.join()


@dataclass(slots=True)
class Phase:
    """A part of the run: what the innocent clients saw, and what the brokers used."""

    name: str
    began: float
    ended: float = 0.0
    cpu_s: dict[int, float] = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)
    latencies: dict[int, list[float]] = field(default_factory=dict)
    lateness: list[float] = field(default_factory=list)


# ---- The cluster


class Run:
    """One cluster, its phases, and what is asked of it."""

    def __init__(self, directory: Path, partitions: int, progress: Progress) -> None:
        self.up = UpProcess(directory / "cluster", brokers=BROKERS)
        self.up.start()
        self.names = [f"many-{index}" for index in range(TOPICS)]
        self.each = partitions // TOPICS
        self._progress = progress
        self.phases: list[Phase] = []
        self._samples = directory / "samples"
        self._probe: subprocess.Popen[bytes] | None = None

    def start_probe(self) -> None:
        """Start the innocent clients."""
        ports = [str(self.port(node)) for node in self.up.nodes]
        with self._samples.open("wb") as out:
            self._probe = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.many_partitions", "--probe", *ports], stdout=out
            )

    def stop(self) -> None:
        """End everything."""
        if self._probe is not None:
            self._probe.terminate()
            self._probe.wait()
        self.up.stop()

    def port(self, node: int) -> int:
        """Return the port of a broker."""
        return self.up.port + node - 1

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Measure what happens inside."""
        self._progress.status(f"{len(self.names) * self.each:,} partitions, {name}")
        pids = self._pids()
        before = {node: usage(pid).cpu_s for node, pid in pids.items()}
        phase = Phase(name, time.perf_counter())
        yield phase
        phase.ended = time.perf_counter()
        phase.notes["in all"] = phase.ended - phase.began
        after = self._pids()
        for node, pid in after.items():
            used = usage(pid)
            phase.memory[node] = used.rss_bytes
            phase.cpu_s[node] = used.cpu_s - (before[node] if pids.get(node) == pid else 0.0)
        self.phases.append(phase)
        self._read_samples(phase)
        self._progress.line(row(phase))

    def _pids(self) -> dict[int, int]:
        rows = self.up.rows()
        return {node: row["pid"] for node in self.up.nodes if (row := rows[f"broker {node}"])["pid"]}

    def _read_samples(self, phase: Phase) -> None:
        """Give a phase what the clients saw in it."""
        time.sleep(PAUSE_S * 40)  # until its last sample is written
        with self._samples.open() as lines:
            for line in lines:
                values = line.split()
                if len(values) < 4 or not line.endswith("\n"):
                    continue
                began, took = float(values[1]), float(values[2])
                if phase.began <= began + took and began < phase.ended:
                    node = int(values[0]) - self.up.port + 1
                    phase.latencies.setdefault(node, []).append(took)
                    phase.lateness.append(float(values[3]))

    def metadata(self, node: int, names: Sequence[str]) -> Any:
        """Ask one broker for topics."""
        with Wire(self.port(node), timeout_s=60) as wire:
            wire.send_frame(encode("metadata", METADATA, 1, {"topics": [{"name": name} for name in names]}))
            return decode_response(ApiKey.METADATA, METADATA, wire.receive_frame(), 5)

    def create(self, name: str, partitions: int) -> None:
        """Create a topic."""
        new = {"name": name, "num_partitions": partitions, "replication_factor": FACTOR}
        with Wire(self.port(1), timeout_s=DONE_S) as wire:
            (made,) = wire.call("create_topics", 5, topics=[new], timeout=ANSWER_MS)["topics"]
        if made["error_code"]:
            raise clients.WrongCount(f"creating {name} gave error {made['error_code']}")

    def controller(self, node: int) -> int:
        """Return the controller that a broker knows."""
        return int(self.metadata(node, []).controller_id)

    def all_partitions(self, node: int, holds: Callable[[Any], bool]) -> None:
        """Wait until a condition holds for all partitions, topic by topic, as one broker knows them."""
        deadline = time.perf_counter() + DONE_S
        for name in self.names:
            while True:
                (topic,) = self.metadata(node, [name]).topics
                if len(topic.partitions) == self.each and all(holds(each) for each in topic.partitions):
                    break
                if time.perf_counter() > deadline:
                    left = [each for each in topic.partitions if not holds(each)]
                    raise clients.WrongCount(
                        f"{name}: {len(left)} of {len(topic.partitions)} after {DONE_S:g} s: {left[:3]}"
                    )
                time.sleep(POLL_S)

    def in_sync(self) -> None:
        """Wait until all brokers know that all replicas are in sync."""
        for node in self.up.nodes:
            self.all_partitions(node, lambda each: each.leader_id > 0 and len(each.isr_nodes) == FACTOR)

    def led_by(self, node: int) -> list[tuple[str, int]]:
        """Return the partitions of a leader."""
        found = self.metadata(node, self.names).topics
        return [
            (topic.name, each.partition_index) for topic in found for each in topic.partitions if each.leader_id == node
        ]


class Leaderless(threading.Thread):
    """Asks all brokers for the offsets of some partitions, again and again: how long each had no serving leader."""

    def __init__(self, ports: Sequence[int], partitions: Sequence[tuple[str, int]]) -> None:
        super().__init__(daemon=True)
        self._ports, self._partitions = ports, partitions
        self.over = threading.Event()
        self.gaps = dict.fromkeys(partitions, 0.0)
        self._last = dict.fromkeys(partitions, 0.0)
        self._lock = threading.Lock()

    def run(self) -> None:
        """One thread for each broker."""
        threads = [threading.Thread(target=self._ask, args=(port,), daemon=True) for port in self._ports]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _ask(self, port: int) -> None:
        topics: dict[str, list[dict[str, int]]] = {}
        for name, index in self._partitions:
            topics.setdefault(name, []).append({"partition_index": index, "timestamp": -1, "current_leader_epoch": -1})
        asked = [{"name": name, "partitions": each} for name, each in topics.items()]
        frame = encode("list_offsets", 5, 1, {"replica_id": -1, "isolation_level": 0, "topics": asked})
        while not self.over.is_set():
            with contextlib.suppress(OSError, ConnectionEnded), Wire(port, timeout_s=5) as wire:
                while not self.over.is_set():
                    sent = time.perf_counter()
                    wire.send_frame(frame)
                    answer = decode_response(ApiKey.LIST_OFFSETS, 5, wire.receive_frame(), 4)
                    self._note(answer, sent)
                    time.sleep(0.02)
            time.sleep(0.02)

    def _note(self, answer: Any, sent: float) -> None:
        now = time.perf_counter()
        with self._lock:
            for topic in answer.topics:
                for each in topic.partitions:
                    if each.error_code == 0:
                        key = (topic.name, each.partition_index)
                        if self._last[key]:
                            self.gaps[key] = max(self.gaps[key], sent - self._last[key])
                        self._last[key] = now


def measure(directory: Path, partitions: int, progress: Progress) -> list[Phase]:
    """Run all phases; returns them."""
    run = Run(directory, partitions, progress)
    try:
        run.create(INNOCENT, 1)
        time.sleep(SETTLE_S)
        run.start_probe()
        time.sleep(SETTLE_S)
        with run.phase("idle, no other topic"):
            time.sleep(IDLE_S)
        with run.phase("creation") as phase:
            for name in run.names:
                run.create(name, run.each)
            phase.notes["answered"] = time.perf_counter() - phase.began
            run.in_sync()
        time.sleep(SETTLE_S)
        with run.phase("idle"):
            time.sleep(IDLE_S)
        _kill(run)
        _stop(run)
        _kill_controller(run)
        _delete(run)
        return run.phases
    finally:
        run.stop()


def _others(run: Run, node: int) -> list[int]:
    return [other for other in run.up.nodes if other != node]


def _kill(run: Run) -> None:
    controller = run.controller(1)
    lost = next(node for node in run.up.nodes if node != controller)
    asked = next(node for node in run.up.nodes if node not in {lost, controller})
    with run.phase("kill -9 of a leader of a third") as phase:
        run.up.kill(lost)
        killed = time.perf_counter()
        time.sleep(SESSION_S)
        run.all_partitions(asked, lambda each: each.leader_id not in {lost, -1})
        phase.notes["all have leaders"] = time.perf_counter() - killed
        time.sleep(AFTERWARDS_S)
    _return(run, lost, "killed leader")


def _return(run: Run, lost: int, what: str) -> None:
    with run.phase(f"return of the {what}") as phase:
        run.up.start_broker(lost)
        started = time.perf_counter()
        phase.notes["serves"] = started - phase.began
        run.in_sync()
        phase.notes["full ISR"] = time.perf_counter() - phase.began
        time.sleep(SETTLE_S)
    with run.phase("election of preferred leaders") as phase:
        with Wire(run.port(run.controller(1)), timeout_s=120) as wire:
            answer = wire.call("elect_leaders", 2, election_type=0, topic_partitions=None, timeout=60_000)
            phase.notes["error"] = answer["error_code"]
        phase.notes["answered"] = time.perf_counter() - phase.began
        run.in_sync()
        time.sleep(AFTERWARDS_S)


def _stop(run: Run) -> None:
    controller = run.controller(1)
    stopped = next(node for node in reversed(run.up.nodes) if node != controller)
    with run.phase("controlled shutdown") as phase:
        mine = run.led_by(stopped)
        sampled = mine[:: max(1, len(mine) // SAMPLED)]
        watch = Leaderless([run.port(node) for node in run.up.nodes], sampled)
        watch.start()
        time.sleep(SETTLE_S)
        began = time.perf_counter()
        run.up.stop_broker(stopped)
        phase.notes["stopped"] = time.perf_counter() - began
        run.all_partitions(controller, lambda each: each.leader_id not in {stopped, -1})
        time.sleep(SETTLE_S)
        watch.over.set()
        watch.join(10)
        gaps = sorted(watch.gaps.values())
        phase.notes |= {
            "led": len(mine),
            "leaderless p50": statistics.median(gaps),
            "leaderless p99": gaps[int(len(gaps) * 0.99)],
            "leaderless max": gaps[-1],
        }
    _return(run, stopped, "stopped broker")


def _kill_controller(run: Run) -> None:
    controller = run.controller(1)
    asked = _others(run, controller)[0]
    with run.phase("kill -9 of the controller") as phase:
        run.up.kill(controller)
        killed = time.perf_counter()
        while run.controller(asked) in {controller, -1}:
            time.sleep(POLL_S)
        phase.notes["another controller"] = time.perf_counter() - killed
        run.all_partitions(asked, lambda each: each.leader_id not in {controller, -1})
        phase.notes["all have leaders"] = time.perf_counter() - killed
        time.sleep(AFTERWARDS_S)
    _return(run, controller, "killed controller")


def _delete(run: Run) -> None:
    with run.phase("deletion of all topics") as phase:
        with Wire(run.port(run.controller(1)), timeout_s=300) as wire:
            answer = wire.call("delete_topics", 3, topic_names=run.names, timeout_ms=ANSWER_MS, timeout=ANSWER_MS)
            phase.notes["errors"] = sum(bool(each["error_code"]) for each in answer["responses"])
        phase.notes["answered"] = time.perf_counter() - phase.began
        logs = [run.up.directory / f"broker-{node}" for node in run.up.nodes]
        while any(next(each.glob("**/many-*"), None) for each in logs):
            time.sleep(0.5)
        phase.notes["directories gone"] = time.perf_counter() - phase.began
        time.sleep(AFTERWARDS_S)


def table(phases: Sequence[Phase], partitions: int) -> list[str]:
    """The part of the page."""
    lines = [
        f"Measured {today()} on {machine()}: three brokers and ZooKeeper on one machine, {TOPICS} topics with {FACTOR}",
        f"replicas and together {partitions:,} partitions, `durability=fsync`. In each phase a client of each broker",
        "asks for one topic's metadata every 5 ms; the slowest is shown, and how late the client's own sleeps ended.",
        "",
        "| phase | s | p99, ms | longest, ms | sleeps: p99, ms | longest, ms | CPU of a broker, s | memory, MiB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    return [*lines, *map(row, phases)]


def row(phase: Phase) -> str:
    """A line of the table."""
    notes = ", ".join(f"{name} {number(value)}" for name, value in phase.notes.items())
    p99 = max((quantile(each, 0.99) for each in phase.latencies.values()), default=0.0)
    longest = max((quantile(each, 1) for each in phase.latencies.values()), default=0.0)
    figures = [
        p99 * 1e3,
        longest * 1e3,
        quantile(phase.lateness, 0.99) * 1e3,
        quantile(phase.lateness, 1) * 1e3,
        max(phase.cpu_s.values()),
        max(phase.memory.values()) / MIB,
    ]
    return f"| {phase.name} | {notes} | {' | '.join(map(number, figures))} |"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that so many are not above."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


def main() -> int:
    """Measure, print the table and write it into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_partitions", description=__doc__)
    parser.add_argument("--probe", nargs="*", type=int, default=[], metavar="PORT")
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--no-page", action="store_true")
    asked = parser.parse_args()
    if asked.probe:
        probe(asked.probe)
        return 0
    progress = Progress()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-many-") as directory:
        lines = table(measure(Path(directory), asked.partitions, progress), asked.partitions)
    for line in lines:
        progress.line(line)
    if not asked.no_page:
        write_part(asked.page, PARTITIONS_TITLE, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
