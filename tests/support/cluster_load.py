"""Idempotent producers with acks=all against a cluster, a record of what was acknowledged, and its verification."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.signed_in import PLAINTEXT, ClientSecurity

MESSAGE_TIMEOUT_MS = 180_000


@dataclass
class Acknowledged:
    """What was answered to one producer."""

    values: dict[tuple[int, int], bytes] = field(default_factory=dict)  # by partition and offset
    duplicates: list[bytes] = field(default_factory=list)  # without an offset
    failed: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    sent: int = 0


class ClusterLoad:
    """Producers in threads of this process. Lifecycle: `start`, `stop`, then `verify`."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        producers: int = 2,
        rate: float = 800,
        first: int = 0,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._pause_s = 1 / rate
        self._security = security.properties
        self._first = first  # number of the first producer: the values of another load on the topic differ
        self._stopping = threading.Event()
        self.results = [Acknowledged() for _ in range(producers)]
        self._threads = [threading.Thread(target=self._produce, args=(n,)) for n in range(producers)]

    def start(self) -> ClusterLoad:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Send no more, and wait until everything is acknowledged or failed."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    @property
    def acknowledged(self) -> int:
        return sum(len(result.times) for result in self.results)

    @property
    def sent(self) -> list[int]:
        """The number of records that each producer has sent."""
        return [result.sent for result in self.results]

    def acknowledged_of(self, partitions: Collection[int], *, sent_after: Sequence[int]) -> list[bytes]:
        """Return the acknowledged values of some partitions that were sent after a moment, given as its `sent`."""
        found = []
        for result, sent in zip(self.results, sent_after, strict=True):
            for value in (*tuple(result.values.values()), *tuple(result.duplicates)):
                counter = int(value.partition(b":")[2])
                if counter > sent and counter % self._partitions in partitions:
                    found.append(value)
        return found

    def until_acknowledged(self, more: int, *, seconds: float = 60) -> None:
        """Wait until `more` records are acknowledged from now on."""
        wanted = self.acknowledged + more
        deadline = time.monotonic() + seconds
        while self.acknowledged < wanted:
            assert time.monotonic() < deadline, f"{self.acknowledged} of {wanted} records acknowledged in {seconds} s"
            time.sleep(0.02)

    def longest_pause_s(self, since: float) -> float:
        """Return the longest time without an acknowledgement after a moment (time.monotonic), of any producer."""
        longest = 0.0
        for result in self.results:
            times = [since, *(at for at in result.times if at >= since)]
            longest = max([longest, *(after - before for before, after in pairwise(times))])
        return longest

    def _produce(self, number: int) -> None:
        result = self.results[number]
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                **self._security,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": MESSAGE_TIMEOUT_MS,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "queue.buffering.max.messages": 20_000,
                "log_level": 0,
                "error_cb": lambda error: result.failed.append(str(error)) if error.fatal() else None,
            }
        )

        def acknowledge(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                result.failed.append(str(error))
                return
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert isinstance(value, bytes)
            if offset is None:  # a duplicate of a batch whose offset the broker does not remember
                result.duplicates.append(value)
            else:
                result.values[partition, offset] = value
            result.times.append(time.monotonic())

        while not self._stopping.is_set() and not result.failed:
            value = b"%d:%d" % (self._first + number, result.sent)
            try:
                producer.produce(self._topic, value, partition=result.sent % self._partitions, on_delivery=acknowledge)
                result.sent += 1
            except BufferError:
                producer.poll(0.05)
            except KafkaException as error:
                result.failed.append(str(error))
            producer.poll(0)
            time.sleep(self._pause_s)
        producer.flush(MESSAGE_TIMEOUT_MS / 1000)

    def verify(self) -> int:
        """Read everything back: none lost, none twice, none out of order. Returns the number of records."""
        found = self._read_all()
        for number, result in enumerate(self.results):
            assert result.failed == [], f"producer {number}: {len(result.failed)} records failed: {result.failed[:3]}"
            assert len(result.values) + len(result.duplicates) == result.sent
            for place, value in result.values.items():
                assert found.get(place) == value, f"acknowledged {value!r} at {place}, found {found.get(place)!r}"
        seen: set[bytes] = set()
        last: dict[tuple[int, bytes], int] = defaultdict(lambda: -1)
        for (partition, offset), value in sorted(found.items()):
            assert value not in seen, f"{value!r} is there twice, again at {partition}, {offset}"
            seen.add(value)
            producer, _, counter = value.partition(b":")
            assert int(counter) > last[partition, producer], f"{value!r} is out of order at {partition}, {offset}"
            last[partition, producer] = int(counter)
        for result in self.results:
            assert seen.issuperset(result.duplicates), f"lost: {set(result.duplicates) - seen}"
        return len(found)

    def _read_all(self) -> dict[tuple[int, int], bytes]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                **self._security,
                "group.id": "verify",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        ends: dict[int, int] = {}
        for partition in range(self._partitions):
            _, end = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=30)
            if end:
                ends[partition] = end
        consumer.assign([TopicPartition(self._topic, partition, OFFSET_BEGINNING) for partition in ends])
        found: dict[tuple[int, int], bytes] = {}
        deadline = time.monotonic() + 120
        while len(found) < sum(ends.values()):
            assert time.monotonic() < deadline, f"{len(found)} of {sum(ends.values())} records read"
            messages: list[Any] = consumer.consume(1000, timeout=1.0)
            for message in messages:
                assert message.error() is None, message.error()
                found[message.partition(), message.offset()] = message.value()
        consumer.close()
        return found
