"""Measures what a fresh broker costs a test: `ottla.testing.kafka` beside what else is used for tests.

Each test has a topic of its own, writes one record, and reads it as a group, with confluent-kafka as it is. The brokers
take turns, test by test: Ottla's kit, the mock in librdkafka, kfake (Go, in a process that is warm), a Kafka that
runs all the time and has a fresh topic for each test, and a Kafka process that is started for the test.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks import client_waits
from benchmarks.progress import Progress
from benchmarks.report import TESTING_TITLE, machine, today, write_part
from ottla.pipeline.jars import JarsNotFound
from ottla.testing import Kafka, kafka
from tests.support.kafka_jars import VERSION, kafka_jars
from tests.support.real_kafka import RealKafka
from tests.support.restarted_clients import NoGo, build_go

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
QUIET: dict[str, Any] = {"log_level": 0}
PATIENCE_S = 60.0
MOCK_EVERY, PROCESS_EVERY = 10, 50
"""The mock, whose groups wait three seconds for more members, and a process have one test of so many."""


class Broker(Protocol):
    """A broker that has a topic from `start` to `stop`, for one test of `every`."""

    every: int
    settings: Mapping[str, Any]  # of its consumers

    def start(self, topic: str) -> str:
        """Start it, or make the topic; returns the address."""
        ...

    def stop(self) -> None:
        """Stop it."""
        ...


class Kit:
    """Ottla's, in this process."""

    every = 1
    settings: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self._kafka: Kafka | None = None

    def start(self, topic: str) -> str:
        """Start a broker."""
        self._kafka = kafka(topics=[topic]).start()
        return self._kafka.bootstrap

    def stop(self) -> None:
        """Stop it."""
        assert self._kafka is not None
        self._kafka.stop()


class KitForTests(Kit):
    """The same, with what docs/testing.md advises so that clients of librdkafka do not wait by themselves."""

    settings: Mapping[str, Any] = {"reconnect.backoff.ms": 0}

    def start(self, topic: str) -> str:
        """Start a broker, where the group begins at offset 0."""
        bootstrap = super().start(topic)
        assert self._kafka is not None
        self._kafka.group(topic).commit({(topic, 0): 0})
        return bootstrap


class Mock:
    """The mock in librdkafka: it lives as long as a producer, in this process, and creates topics on first use."""

    every = MOCK_EVERY
    settings: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self._owner: Producer | None = None

    def start(self, topic: str) -> str:
        """Start a broker; its address is in its metadata."""
        del topic
        owner = self._owner = Producer({**QUIET, "bootstrap.servers": "", "test.mock.num.brokers": 1})
        (broker,) = owner.list_topics(timeout=PATIENCE_S).brokers.values()
        return f"{broker.host}:{broker.port}"

    def stop(self) -> None:
        """Stop it."""
        self._owner = None


class Kfake:
    """franz-go's fake, in a process of its own that starts and stops clusters on demand."""

    every = 1
    settings: Mapping[str, Any] = {}

    def __init__(self, program: Path, stack: ExitStack) -> None:
        self._process = stack.enter_context(
            subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self._process.terminate)

    def start(self, topic: str) -> str:
        """Start a cluster of one broker."""
        return self._answer(topic)

    def stop(self) -> None:
        """Stop it."""
        self._answer("")

    def _answer(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


class WarmKafka:
    """A Kafka that runs all the time: a test has a topic of its own."""

    every = 1
    settings: Mapping[str, Any] = {}

    def __init__(self, broker: RealKafka) -> None:
        self._bootstrap = broker.bootstrap
        self._admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap})

    def start(self, topic: str) -> str:
        """Create the topic."""
        self._admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
        return self._bootstrap

    def stop(self) -> None:
        """Leave the topic, as such tests do."""


class KafkaProcess:
    """A Kafka that is started for a test, as containers for tests do, without the container."""

    every = PROCESS_EVERY
    settings: Mapping[str, Any] = {}

    def __init__(self, jars: Path, scratch: Path) -> None:
        self._jars, self._scratch, self._numbers = jars, scratch, itertools.count()
        self._broker: RealKafka | None = None

    def start(self, topic: str) -> str:
        """Start a process with an empty directory, and create the topic."""
        settings = {"group.initial.rebalance.delay.ms": "0"}
        self._broker = RealKafka(self._jars, self._scratch / f"kafka-{next(self._numbers)}", settings=settings).start()
        return WarmKafka(self._broker).start(topic)

    def stop(self) -> None:
        """End the process."""
        assert self._broker is not None
        self._broker.kill()


class Times(NamedTuple):
    """The milliseconds of one test, and of this process's processor time for the broker."""

    start: float
    write: float
    read: float
    stop: float
    whole: float
    processor: float


def one_test(broker: Broker, topic: str) -> Times:
    """Run one test: a broker, a topic, a record that is written, and read by a group."""
    before, began = time.process_time(), time.perf_counter()
    bootstrap = broker.start(topic)
    processor, started = time.process_time() - before, time.perf_counter()
    producer = Producer({**QUIET, "bootstrap.servers": bootstrap})
    producer.produce(topic, b"x")
    assert producer.flush(PATIENCE_S) == 0
    written = time.perf_counter()
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**QUIET, **settings, **broker.settings})
    consumer.subscribe([topic])
    message = consumer.poll(PATIENCE_S)
    assert message is not None, topic
    assert message.value() == b"x", message.error()
    consumer.close()
    del producer
    read, before = time.perf_counter(), time.process_time()
    broker.stop()
    ended = time.perf_counter()
    processor += time.process_time() - before
    seconds = (started - began, written - started, read - written, ended - read, ended - began, processor)
    return Times(*(1000 * each for each in seconds))


def brokers(
    asked: argparse.Namespace, scratch: Path, stack: ExitStack, say: Callable[[str], None]
) -> dict[str, Broker]:
    """Return what this machine has."""
    found: dict[str, Broker] = {"Ottla": Kit(), "Ottla, with the advice": KitForTests(), "librdkafka's mock": Mock()}
    try:
        program = build_go(ROOT / "benchmarks" / "kfake", ROOT / "build" / "kfake" / "kfake")
        found["kfake"] = Kfake(program, stack)
    except (NoGo, subprocess.SubprocessError) as error:
        say(f"without kfake: {error}")
    if asked.without_kafka:
        return found
    try:
        jars = kafka_jars()
    except JarsNotFound as error:
        say(f"without Kafka: {error}")
        return found
    warm = RealKafka(jars, scratch / "warm", settings={"group.initial.rebalance.delay.ms": "0"}).start()
    stack.callback(warm.stop)
    found[f"a warm Kafka {VERSION}"] = WarmKafka(warm)
    found[f"a Kafka {VERSION} process a test"] = KafkaProcess(jars, scratch)
    return found


def measure(count: int, running: dict[str, Broker], show: Callable[[int], None]) -> dict[str, list[Times]]:
    """Run so many tests on each broker, in turn; those that start a process less often."""
    found: dict[str, list[Times]] = {name: [] for name in running}
    names = list(running)
    for number in range(-1, count):  # the first test of each is not counted: imports, the first group of a Kafka
        for name in names if number % 2 else reversed(names):
            if max(number, 0) % running[name].every or (number < 0 and running[name].every == PROCESS_EVERY):
                continue
            times = one_test(running[name], f"test-{number}-{time.perf_counter_ns()}")
            if number >= 0:
                found[name].append(times)
        show(number)
    return found


def quantile(values: list[float], share: float) -> float:
    """Return the value that this share of all does not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def table(found: dict[str, list[Times]]) -> list[str]:
    """Return the lines of the table: median and 99th percentile of each part, and the processor time of Ottla's."""
    lines = ["| ms, median / p99 | tests | start | write | read | stop | whole |", "| --- |" + " ---: |" * 6]
    for name, times in found.items():
        cells = []
        for part in ("start", "write", "read", "stop", "whole"):
            values = [getattr(each, part) for each in times]
            cells.append(f"{statistics.median(values):,.1f} / {quantile(values, 0.99):,.1f}")
        lines.append(f"| {name} | {len(times)} | {' | '.join(cells)} |")
    processor = [each.processor for each in found["Ottla"]]
    lines += ["", f"Start and stop of Ottla take {statistics.median(processor):.1f} ms of processor time (median)."]
    return lines


def main() -> None:
    """Measure, print, and write the section of the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.testing_kit", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="tests on each")
    parser.add_argument("--without-kafka", action="store_true", help="start no Kafka")
    parser.add_argument("--no-page", action="store_true", help="print only")
    asked = parser.parse_args()
    progress = Progress()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        running = brokers(asked, Path(scratch), stack, progress.line)
        waits = client_waits.measure(5)
        found = measure(asked.count, running, progress.counter("run", asked.count, of="tests"))
    lines = [
        f"Measured {today()} on {machine()}. A fresh broker or topic for each test, in turn.",
        f"Of a read, librdkafka waits by itself, whatever the broker: {waits.connection:.0f} ms before it connects to",
        f"the broker that it has learned, and {waits.offset:.0f} ms before it asks where a partition begins of which",
        f"nothing is committed; all responses of the broker take {waits.responses:.0f} ms (by the client's own log:",
        "`benchmarks/client_waits.py`). [The advice](testing.md#speed) ends both. The mock waits for more members.",
        "",
        *table(found),
    ]
    for line in lines:
        progress.line(line)
    if not asked.no_page:
        write_part(PAGE, TESTING_TITLE, lines)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
