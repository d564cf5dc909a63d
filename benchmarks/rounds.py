"""One round: a contender started in an empty directory, every case run against it once, everything measured."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import clients
from benchmarks.contenders import Contender, Running
from tests.support.processes import usage

MIB = 1 << 20
Measured = dict[str, float]  # figure's name -> value
Say = Callable[[str], None]
Run = Callable[..., float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything a round does."""

    settle_s: float = 3.0
    synchronous_s: float = 6.0
    small_records: int = 3_000_000
    large_records: int = 400_000


QUICK = Sizes(settle_s=1.0, synchronous_s=1.5, small_records=300_000, large_records=50_000)


@dataclass(slots=True)
class Round:
    """A running contender and what was measured of it so far."""

    broker: Running
    sizes: Sizes
    say: Say
    figures: Measured
    synchronous_only: bool = False

    def measure(self) -> Measured:
        """Run every case."""
        time.sleep(self.sizes.settle_s)
        self.figures["memory idle, MiB"] = usage(self.broker.pid).rss_bytes / MIB
        self._synchronous()
        if self.synchronous_only:
            return self.figures
        for size, records in ((200, self.sizes.small_records), (2_100, self.sizes.large_records)):
            self._bulk(size, records)
        self.figures["memory after the load, MiB"] = usage(self.broker.pid).rss_bytes / MIB
        self.figures["memory at its most, MiB"] = usage(self.broker.pid).peak_rss_bytes / MIB
        return self.figures

    def _synchronous(self) -> None:
        seconds = self.sizes.synchronous_s
        port = self.broker.port
        cases: tuple[tuple[str, Callable[[str], clients.Latencies]], ...] = (
            ("1 synchronous", lambda topic: clients.synchronous(port, topic, producers=1, seconds=seconds)),
            ("1 synchronous, librdkafka", lambda topic: clients.synchronous_librdkafka(port, topic, seconds=seconds)),
            ("32 synchronous", lambda topic: clients.synchronous(port, topic, producers=32, seconds=seconds)),
            (
                "32 synchronous, librdkafka",
                lambda topic: clients.synchronous_crowd(port, topic, producers=32, seconds=seconds),
            ),
        )
        for name, run in cases:
            topic = "t-" + name.replace(" ", "-").replace(",", "")
            self.say(name)
            clients.make_topic(port, topic)
            run(topic)  # warm: a JVM compiles what it runs often
            before = usage(self.broker.pid).cpu_s
            found = run(topic)
            self.figures[f"{name}: requests/s"] = found.per_second
            self.figures[f"{name}: p50, ms"] = found.p50_ms
            self.figures[f"{name}: p99, ms"] = found.p99_ms
            self.figures[f"{name}: CPU, us/request"] = (
                (usage(self.broker.pid).cpu_s - before) / found.per_second / seconds * 1e6
            )

    def _bulk(self, size: int, records: int) -> None:
        port = self.broker.port
        ways: tuple[tuple[str, Run, Run], ...] = (
            ("librdkafka", partial(clients.bulk_librdkafka, size=size), clients.read_librdkafka),
            ("bare socket", partial(clients.bulk_frames, size=size), clients.read_frames),
        )
        for how, write, read in ways:
            topic = f"t-bulk-{size}-{how.replace(' ', '-')}"
            clients.make_topic(port, topic)
            for name, run in ((f"write {size:,} B, {how}", write), (f"read {size:,} B, {how}", read)):
                self.say(name)
                before = usage(self.broker.pid).cpu_s
                took = run(port, topic, records=records)
                self.figures[f"{name}: records/s"] = records / took
                self.figures[f"{name}: CPU, s/million"] = (usage(self.broker.pid).cpu_s - before) / records * 1e6
            held = clients.end_offset(port, topic)
            if not records <= held < records + 10_000:  # ready-made batches are whole
                raise clients.WrongCount(f"{held} records in the log after {records} were written")


def run_round(contender: Contender, sizes: Sizes, say: Say) -> Measured:
    """Start, measure, stop, forget the data."""
    directory = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
    say("starting")
    broker, took = contender.start(directory / "broker")
    try:
        return Round(broker, sizes, say, {"start-up, s": took}, contender.synchronous_only).measure()
    finally:
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
