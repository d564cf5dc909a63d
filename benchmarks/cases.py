"""Runs the cases of the comparison with Kafka: every broker warm and running, in turn, in short alternating runs."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import clients, memory
from benchmarks.brokers import BROKERS, Broker, Running
from tests.support.processes import usage

MIB = 1 << 20
Figures = dict[str, dict[str, list[float]]]
"""Figure -> broker's name -> one value per round."""
Status = Callable[[str], None]
SIZES = (200, 2_100)
IN_MEMORY = "in memory, "  # figures of brokers whose logs are on a file system in memory
BULK_TOUCHED_BYTES = 3 * memory.GIB  # what the client queues, the broker writes and a JVM's heap grows by
START_TOUCHED_BYTES = memory.GIB


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of everything is done."""

    rounds: int = 5
    bulk_rounds: int = 5
    seconds: float = 3.0
    warm_seconds: float = 20.0
    settle_seconds: float = 3.0
    records: tuple[int, int] = (2_000_000, 300_000)  # of each size


QUICK = Effort(1, 1, 0.7, 0.7, 0.5, (200_000, 30_000))


class Cases:
    """The running brokers and the figures so far."""

    def __init__(self, running: dict[Broker, Running], effort: Effort, status: Status, prefix: str = "") -> None:
        self.running, self.effort, self.status = running, effort, status
        self.prefix = prefix  # of the figures' names
        self.figures: Figures = {}

    def note(self, figure: str, broker: Broker, value: float) -> None:
        """Keep one value."""
        self.figures.setdefault(figure, {}).setdefault(broker.name, []).append(value)

    def turns(self, brokers: Sequence[Broker], rounds: int) -> Iterator[tuple[int, Broker]]:
        """Yield the brokers round by round; the order turns each time."""
        for number in range(rounds):
            for broker in brokers if number % 2 == 0 else reversed(brokers):
                yield number, broker

    def warm(self) -> None:
        """Load every broker as the cases do, so that a JVM has compiled its path and every file exists."""
        for broker, running in self.running.items():
            self.status(f"warming {broker.name}")
            for producers in (1, 32):
                topic = f"warm-{producers}"
                clients.make_topic(running.port, topic)
                clients.synchronous(running.port, topic, producers=producers, seconds=self.effort.warm_seconds / 2)
            clients.make_topic(running.port, "warm-bulk")
            records = self.effort.records[1]
            clients.bulk_frames(running.port, "warm-bulk", records=records, size=200)
            clients.read_frames(running.port, "warm-bulk", records=records)
            clients.delete_topic(running.port, "warm-bulk")

    def synchronous(self) -> None:
        """One and 32 producers with one request in flight each."""
        for producers in (1, 32):
            name, topic = f"{self.prefix}{producers} synchronous", f"t-sync-{producers}"
            for running in self.running.values():
                clients.make_topic(running.port, topic)
            for number, broker in self.turns(tuple(self.running), self.effort.rounds):
                self.status(f"{name}, {broker.name}, round {number + 1}")
                running = self.running[broker]
                before = usage(running.pid).cpu_s
                found = clients.synchronous(running.port, topic, producers=producers, seconds=self.effort.seconds)
                spent = usage(running.pid).cpu_s - before
                self.note(f"{name}: requests/s", broker, found.per_second)
                self.note(f"{name}: p50, ms", broker, found.p50_ms)
                self.note(f"{name}: p99, ms", broker, found.p99_ms)
                self.note(f"{name}: CPU, us/request", broker, spent / found.per_second / self.effort.seconds * 1e6)

    def latency(self) -> None:
        """From a producer's send to the arrival of the record at a consumer that waits for it."""
        for running in self.running.values():
            clients.make_topic(running.port, "t-latency")
        for number, broker in self.turns(tuple(self.running), self.effort.rounds):
            self.status(f"produce to consume, {broker.name}, round {number + 1}")
            found = clients.produce_to_consume(self.running[broker].port, "t-latency", seconds=self.effort.seconds)
            self.note("produce to consume: p50, ms", broker, found.p50_ms)
            self.note("produce to consume: p99, ms", broker, found.p99_ms)

    def bulk(self) -> None:
        """Write and read back at full speed, and what memory the brokers have afterwards."""
        brokers = [broker for broker in self.running if not broker.synchronous_only]
        for size, records in zip(SIZES, self.effort.records, strict=True):
            for number, broker in self.turns(brokers, self.effort.bulk_rounds):
                self._bulk_turn(broker, number, size, records)
        for broker in brokers:
            self.note("memory after the load, MiB", broker, usage(self.running[broker].pid).rss_bytes / MIB)

    def _bulk_turn(self, broker: Broker, number: int, size: int, records: int) -> None:
        running = self.running[broker]
        ways: tuple[tuple[str, Callable[..., float], Callable[..., float]], ...] = (
            ("librdkafka", partial(clients.bulk_librdkafka, size=size), clients.read_librdkafka),
            ("bare socket", partial(clients.bulk_frames, size=size), clients.read_frames),
        )
        for client, write, read in ways:
            topic = f"t-bulk-{size}-{client.replace(' ', '-')}-{number}"
            clients.make_topic(running.port, topic)
            for verb, run in (("write", write), ("read", read)):
                self.status(f"{verb} {size:,} B, {client}, {broker.name}, round {number + 1}")
                memory.touch(BULK_TOUCHED_BYTES)
                before = usage(running.pid).cpu_s
                took = run(running.port, topic, records=records)
                spent = usage(running.pid).cpu_s - before
                self.note(f"{verb} {size:,} B, {client}: records/s", broker, records / took)
                self.note(f"{verb} {size:,} B, {client}: CPU, us/record", broker, spent / records * 1e6)
            held = clients.end_offset(running.port, topic)
            if not records <= held < records + 10_000:  # ready-made batches are whole
                raise clients.WrongCount(f"{held} records in the log after {records} were written")
            clients.delete_topic(running.port, topic)
            os.sync()  # the next run does not pay for the pages of this one


def starts(effort: Effort, status: Status) -> Figures:
    """Start the brokers in turn in empty directories; returns start-up time and idle memory."""
    figures: Figures = {"start-up, s": {}, "memory idle, MiB": {}}
    for number in range(effort.rounds):
        for broker in BROKERS:
            if broker.synchronous_only:
                continue
            status(f"start of {broker.name}, round {number + 1}")
            memory.touch(START_TOUCHED_BYTES)
            directory = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
            running, took = broker.start(directory / "broker")
            try:
                figures["start-up, s"].setdefault(broker.name, []).append(took)
                if number == 0:
                    time.sleep(effort.settle_seconds)
                    idle = usage(running.pid).rss_bytes / MIB
                    figures["memory idle, MiB"].setdefault(broker.name, []).append(idle)
            finally:
                running.stop()
                shutil.rmtree(directory, ignore_errors=True)
    return figures


@contextmanager
def all_running(status: Status, parent: Path | None = None) -> Iterator[dict[Broker, Running]]:
    """Start every broker in a directory of its own, in `parent` or with other temporary files; stop them at the end."""
    directory = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir=parent))
    running: dict[Broker, Running] = {}
    try:
        for number, broker in enumerate(BROKERS):
            status(f"starting {broker.name}")
            running[broker] = broker.start(directory / str(number))[0]
        yield running
    finally:
        for each in running.values():
            each.stop()
        shutil.rmtree(directory, ignore_errors=True)
