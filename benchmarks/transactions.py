"""Measures transactions a second beside Apache Kafka, and how long a record takes to a reader of committed records.

One and 16 producers, 1 and 100 records each, two clients.

`librdkafka` begins, produces and commits in a loop (the first version of transactions, AddPartitionsToTxn included).
The hand-made client sends Produce 12 and EndTxn 5 (the second version) and costs almost nothing itself, so that it
measures the broker; where the broker answers CONCURRENT_TRANSACTIONS it tries again at once. The brokers run at the
same time and are measured in turns.
"""

from __future__ import annotations

import statistics
import struct
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from crc32c import crc32c

from benchmarks import clients
from benchmarks.brokers import KAFKA, OTTLA, OTTLA_FSYNC, Broker, Running
from benchmarks.progress import Progress
from benchmarks.report import TRANSACTIONS_TITLE, machine, number, today, write_part
from tests.support.batches import Written, batch
from tests.support.kafka_jars import VERSION
from tests.support.wire_client import Wire, encode

TRANSACTIONAL = 0x10
CONCURRENT_TRANSACTIONS = 51
TOPIC, LATENCY_TOPIC = "transactions", "transactions-latency"
WAIT_S = 60.0
VALUE = b"v" * 100
BROKERS = (KAFKA, OTTLA, OTTLA_FSYNC)
MARK = 0x7A7A7A7A7A7A7A7A
CRC_AT, CRC_FROM, PRODUCER_AT = 17, 21, 43  # in a batch
END_ERROR_AT = 9  # after the correlation id, the tagged fields of the header and the throttle time
PRODUCE_ERROR_AT = 5 + 1 + 1 + len(TOPIC) + 1 + 4
CASES = ((1, 1), (1, 100), (16, 1), (16, 100))


NOTE = (
    'A transaction of "Ottla, fsync" waits for about five fsyncs, one after the other: the added partition, the',
    "records, the outcome, the marker and the completion. Producers whose ids share a partition of",
    "`__transaction_state` share its fsyncs.",
)


class Case(NamedTuple):
    """One row of the table."""

    client: str
    producers: int
    records: int


def run(seconds: float, rounds: int, page: Path | None, progress: Progress) -> bool:
    """Measure all cases on all brokers in turns, and write the page's part."""
    rates: dict[Case, dict[Broker, list[float]]] = defaultdict(lambda: defaultdict(list))
    latencies: dict[Broker, list[clients.Latencies]] = defaultdict(list)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="ottla-transactions-") as directory:
        running: dict[Broker, Running] = {}
        for broker in BROKERS:
            progress.status(f"starting {broker.name}")
            running[broker], _ = broker.start(Path(directory, broker.name.replace(", ", "-")))
            stack.callback(running[broker].stop)
            for topic in (TOPIC, LATENCY_TOPIC):
                clients.make_topic(running[broker].port, topic)
        for turn in range(rounds + 1):  # the first one warms up
            for name, client in CLIENTS.items():
                for producers, records in CASES:
                    case = Case(name, producers, records)
                    for broker in BROKERS:
                        progress.status(f"round {turn}: {broker.name}, {case}")
                        for_s = seconds if turn else min(seconds, 2.0)
                        rate = measure(client, running[broker].port, producers, records, for_s)
                        if turn:
                            rates[case][broker].append(rate)
            for broker in BROKERS:
                progress.status(f"round {turn}: {broker.name}, latency")
                latency = produce_to_committed_read(running[broker].port, seconds=seconds)
                if turn:
                    latencies[broker].append(latency)
    lines = table(rates, latencies, seconds, rounds)
    for line in lines:
        progress.line(line)
    if page is not None:
        write_part(page, TRANSACTIONS_TITLE, lines)
    return True


def measure(
    client: Callable[[int, str, int, float], tuple[int, float]], port: int, producers: int, records: int, seconds: float
) -> float:
    """Run so many producers at the same time; returns the transactions a second of all together."""
    done: list[tuple[int, float]] = []
    threads = [
        threading.Thread(target=lambda name=f"bench-{index}": done.append(client(port, name, records, seconds)))
        for index in range(producers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == producers, "a producer failed"
    return sum(count / took_s for count, took_s in done)


def librdkafka(port: int, name: str, records: int, seconds: float) -> tuple[int, float]:
    """Commit transactions one after the other; returns how many, and the seconds that took."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(TOPIC, VALUE, partition=0)
        producer.commit_transaction(WAIT_S)
        count += 1
    return count, time.perf_counter() - began


def produce_to_committed_read(port: int, *, seconds: float) -> clients.Latencies:
    """Commit one record at a time; measures from `produce` until a reader of committed records has it."""
    servers = {"bootstrap.servers": f"127.0.0.1:{port}"}
    producer = Producer({**servers, "transactional.id": "bench-latency", "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    reader = Consumer({**servers, "group.id": "bench", "isolation.level": "read_committed", "fetch.wait.max.ms": 500})
    reader.assign([TopicPartition(LATENCY_TOPIC, 0, clients.end_offset(port, LATENCY_TOPIC))])
    times: list[float] = []
    try:
        began = now = time.perf_counter()
        while now < began + seconds:
            before = time.perf_counter()
            producer.begin_transaction()
            producer.produce(LATENCY_TOPIC, VALUE, partition=0)
            producer.commit_transaction(WAIT_S)
            message = reader.poll(WAIT_S)
            now = time.perf_counter()
            assert message is not None, "a committed record did not arrive"
            assert message.error() is None, message.error()
            times.append(now - before)
    finally:
        reader.close()
    return clients.summary(times[1:], now - began)  # without the reader's first connection


def second_version(port: int, name: str, records: int, seconds: float) -> tuple[int, float]:
    """The same with hand-made requests: Produce adds the partition, and EndTxn gives the next epoch."""
    with Wire(port, timeout_s=WAIT_S) as wire:
        producer = initialized(wire, name)
        current = struct.pack(">qh", producer["producer_id"], producer["producer_epoch"])
        requests = Requests(name, records)
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            produce = requests.produce(current)
            while True:
                wire.send_frame(produce)
                (error,) = struct.unpack_from(">h", wire.receive_frame(), PRODUCE_ERROR_AT)
                if error != CONCURRENT_TRANSACTIONS:
                    break
            assert error == 0, error
            wire.send_frame(requests.end(current))
            answer = wire.receive_frame()
            (error,) = struct.unpack_from(">h", answer, END_ERROR_AT)
            assert error == 0, error
            current = answer[END_ERROR_AT + 2 : END_ERROR_AT + 12]
            count += 1
        return count, time.perf_counter() - began


class Requests:
    """Encodes the requests of one producer once, and puts its current id and epoch into them."""

    def __init__(self, name: str, records: int) -> None:
        data = batch(
            [Written(VALUE)] * records, attributes=TRANSACTIONAL, base_sequence=0, producer_id=MARK, producer_epoch=0
        )
        part = {"partition_data": [{"index": 0, "records": data}], "name": TOPIC}
        self._produce = bytearray(
            encode(
                "produce", 12, 1, {"transactional_id": name, "acks": -1, "timeout": 30_000, "topic_data": [part]}, "b"
            )
        )
        self._batch = self._produce.index(data)
        self._batch_end = self._batch + len(data)
        ids = {"producer_id": MARK, "producer_epoch": 0}
        self._end = bytearray(encode("end_txn", 5, 2, {"transactional_id": name, "committed": True, **ids}, "b"))
        self._end_at = self._end.index(struct.pack(">qh", MARK, 0))

    def produce(self, producer: bytes) -> bytes:
        """Return Produce with the batch of this producer."""
        frame, at = self._produce, self._batch
        frame[at + PRODUCER_AT : at + PRODUCER_AT + 10] = producer
        checked = bytes(frame[at + CRC_FROM : self._batch_end])
        frame[at + CRC_AT : at + CRC_FROM] = crc32c(checked).to_bytes(4, "big")
        return bytes(frame)

    def end(self, producer: bytes) -> bytes:
        """Return EndTxn of this producer."""
        self._end[self._end_at : self._end_at + 10] = producer
        return bytes(self._end)


def initialized(wire: Wire, name: str) -> dict[str, Any]:
    """Find the coordinator and get a producer id; retried while the coordinator loads."""
    deadline = time.perf_counter() + WAIT_S
    while time.perf_counter() < deadline:
        wire.call("find_coordinator", 4, key_type=1, coordinator_keys=[name])
        answer: dict[str, Any] = wire.call(
            "init_producer_id", 4, transactional_id=name, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        if answer["error_code"] == 0:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"no producer id for {name}: {answer}")


CLIENTS = {"librdkafka": librdkafka, "hand-made, second version": second_version}


def table(
    rates: dict[Case, dict[Broker, list[float]]],
    latencies: dict[Broker, list[clients.Latencies]],
    seconds: float,
    rounds: int,
) -> list[str]:
    """The page's part."""
    lines = [
        f"Measured {today()} on {machine()}, beside Apache Kafka {VERSION}: transactions a second of all producers.",
        f"Median of {rounds} rounds of {seconds:g} s, in turns; records of {len(VALUE)} bytes to one partition.",
        "",
        "| Client | Producers | Records each | " + " | ".join(broker.name for broker in BROKERS) + " |",
        "| --- | ---: | ---: | " + " | ".join("---:" for _ in BROKERS) + " |",
    ]
    for case, found in rates.items():
        medians = " | ".join(number(statistics.median(found[broker])) for broker in BROKERS)
        lines.append(f"| {case.client} | {case.producers} | {case.records} | {medians} |")
    shown = [
        f"{number(statistics.median(each.p50_ms for each in latencies[broker]))} / "
        f"{number(statistics.median(each.p99_ms for each in latencies[broker]))} ms"
        for broker in BROKERS
    ]
    lines.append(f"| produce to read_committed, p50 / p99 | 1 | 1 | {' | '.join(shown)} |")
    return [*lines, "", *NOTE]
