"""Copies a topic exactly once while the broker and the copiers are killed with -9 and started again.

The output must equal the input, in a reader that reads along and in one that reads at the end. `make exactly-once` copies
200,000 records, 750 a transaction, under ten kills of the broker: OTTLA_EXACTLY_ONCE=200000, OTTLA_SEED for another
schedule.
"""

# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type"
# confluent-kafka ships types for its core only.

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until

RECORDS = int(os.environ.get("OTTLA_EXACTLY_ONCE", "6000"))
SEED = int(os.environ.get("OTTLA_SEED", "1"))
IS_LONG = RECORDS >= 100_000
BROKER_KILLS = 10 if IS_LONG else 2
PER_TRANSACTION = 750 if IS_LONG else 150
PARTITIONS = 4
COPIERS = 2
SOURCE, TARGET, GROUP = "source", "target", "copiers"
PATIENCE_S = 600 if IS_LONG else 150

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(1800 if IS_LONG else 290)]


class Copiers:
    """The copying processes; one that was killed or fenced is started again."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap, self.directory = bootstrap, directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.starts: Counter[str] = Counter()
        for index in range(COPIERS):
            self.start(f"copier-{index}")

    def start(self, name: str) -> None:
        self.starts[name] += 1
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.transactional_copier",
                    self.bootstrap,
                    name,
                    GROUP,
                    SOURCE,
                    TARGET,
                    str(PER_TRANSACTION),
                ],
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
            )

    def revive(self) -> None:
        for name, process in self.running.items():
            if process.poll() is not None:
                self.start(name)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait()

    def stop(self) -> None:
        for name in self.running:
            self.kill(name)


class ReaderAlong:
    """Reads the committed output while it is written."""

    def __init__(self, bootstrap: str) -> None:
        self.found: list[bytes] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "along",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._consumer.subscribe([TARGET])
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            for message in self._consumer.consume(1_000, 0.2):
                if message.error() is None:
                    self.found.append(message.value())

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()
        self._consumer.close()


def write_source(bootstrap: str) -> list[bytes]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(SOURCE, PARTITIONS, 1), NewTopic(TARGET, PARTITIONS, 1)]).values():
        created.result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": RECORDS + 1,
        }
    )
    values = [b"%d" % number for number in range(RECORDS)]
    for number, value in enumerate(values):
        producer.produce(SOURCE, value, partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return values


def read_at_the_end(bootstrap: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "end",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([TARGET])
    found: list[bytes] = []
    ends: set[int] = set()
    deadline = time.monotonic() + 120
    while len(ends) < PARTITIONS and time.monotonic() < deadline:
        for message in consumer.consume(1_000, 0.5):
            error = message.error()
            if error is None:
                found.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
    consumer.close()
    return found


def test_a_copy_is_exact_under_kills_of_the_broker_and_of_the_copiers(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    options = ["-o", "group.initial.rebalance.delay.ms=0", "-o", "transaction.state.log.num.partitions=8"]
    broker = OttlaProcess(tmp_path / "broker", options=options).start()
    copiers: Copiers | None = None
    reader: ReaderAlong | None = None
    try:
        values = write_source(broker.bootstrap)
        reader = ReaderAlong(broker.bootstrap)
        copiers = Copiers(broker.bootstrap, tmp_path)
        for kill in range(BROKER_KILLS):
            seen, wanted = len(reader.found), (kill + 1) * RECORDS // (2 * BROKER_KILLS)
            assert seen <= RECORDS
            until(lambda: progresses(reader, copiers, wanted), timeout_s=PATIENCE_S, what="copied records")  # noqa: B023
            if rng.random() < 0.5:
                copiers.kill(rng.choice(list(copiers.running)))
            time.sleep(rng.random() * 0.3)
            broker.kill()
            broker.start()
        until(lambda: progresses(reader, copiers, RECORDS), timeout_s=PATIENCE_S, what="the whole copy")
        until(lambda: is_all_committed(broker.bootstrap), timeout_s=PATIENCE_S, what="the commit of the last offsets")
    finally:
        if copiers is not None:
            copiers.stop()
        if reader is not None:
            reader.stop()
        if broker.process is not None and broker.process.poll() is None:
            found = read_at_the_end(broker.bootstrap)
            broker.stop()
    assert counts(found) == counts(values)
    assert counts(reader.found) == counts(values)
    assert sum(copiers.starts.values()) > COPIERS


def is_all_committed(bootstrap: str) -> bool:
    """Return whether the group has committed the end of the source: then a copier that continues copies nothing."""
    wanted = [TopicPartition(SOURCE, partition) for partition in range(PARTITIONS)]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        committed = {found.partition: found.offset for found in consumer.committed(wanted, 30)}
        return committed == {tp.partition: consumer.get_watermark_offsets(tp, 30)[1] for tp in wanted}
    finally:
        consumer.close()


def progresses(reader: ReaderAlong | None, copiers: Copiers | None, wanted: int) -> bool:
    assert reader is not None
    assert copiers is not None
    copiers.revive()
    return len(reader.found) >= wanted


def counts(values: list[bytes]) -> tuple[int, int]:
    """How many there are, and how many different ones: the input has each once."""
    return len(values), len(set(values))
