"""Groups of librdkafka's consumers that commit synchronously, and a record of what they were given and acknowledged."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.support.signed_in import PLAINTEXT, ClientSecurity, SignInRefused
from tests.support.wire_client import ConnectionEnded

MEMBERS = 3
BATCH = 200
POLL_S = 0.25
OBSERVE_S = 0.5
TIMEOUT_S = 5.0


class Kind(Enum):
    """Lists what is seen of an offset."""

    ACKNOWLEDGED = "an acknowledged commit"
    ASSIGNED = "the committed offset that a member fetched for its assignment"
    STARTED = "the first offset that a member was given after its assignment"
    OBSERVED = "the committed offset that another client fetched"


class Event(NamedTuple):
    """Something that was seen. A time is that of the answer for a commit, and that before the request for the rest."""

    ns: int
    kind: Kind
    partition: int
    offset: int


@dataclass
class Seen:
    """What all members of one group have seen; lists are appended to by several threads."""

    acknowledged: list[Event] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)  # all others
    delivered: list[tuple[int, int]] = field(default_factory=list)  # partition and offset of each delivery
    failed_commits: list[str] = field(default_factory=list)  # the errors
    assignments: int = 0

    @property
    def redelivered(self) -> int:
        """Return how many deliveries were not the first of their record."""
        return len(self.delivered) - len(set(self.delivered))

    def count(self, kind: Kind) -> int:
        return sum(event.kind is kind for event in self.events)

    def offsets_below_an_acknowledged_commit(self) -> list[str]:
        """Return what was below a commit that had been acknowledged before."""
        committed: defaultdict[int, int] = defaultdict(int)
        found = []
        for event in sorted([*self.acknowledged, *self.events], key=lambda event: event.ns):
            highest = committed[event.partition]
            if event.kind is Kind.ACKNOWLEDGED:
                committed[event.partition] = max(highest, event.offset)
            elif event.offset < highest:
                found.append(
                    f"partition {event.partition}: {event.kind.value} is {event.offset}, {highest} was acknowledged"
                )
        return found


class Group:
    """One group of three members, each in a thread. Lifecycle: `start`, `stop`, then `seen` is complete."""

    def __init__(
        self,
        ports: list[int],
        topic: str,
        partitions: int,
        name: str,
        protocol: str,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self.name, self.protocol, self._security = name, protocol, security
        self.seen = Seen()
        self._ports, self._topic, self._partitions = ports, topic, partitions
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(MEMBERS)]
        self._threads.append(threading.Thread(target=self._observe))

    def start(self) -> Group:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Let the members leave."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in self._ports),
            **self._security.properties,
            "group.id": self.name,
            "client.id": f"{self.name}-{number}",
            "group.protocol": self.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        if self.protocol == "classic":
            settings |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 1_000}
        fresh: dict[int, int] = {}  # assigned partitions that gave nothing yet, and since when

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            began = time.monotonic_ns()
            self.seen.assignments += 1
            for each in partitions:
                fresh[each.partition] = began
            try:
                for found in consumer.committed(partitions, timeout=30):
                    if found.error is None and found.offset >= 0:
                        self.seen.events.append(Event(began, Kind.ASSIGNED, found.partition, found.offset))
            except KafkaException:
                pass  # no coordinator for as long as that

        def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
            for each in partitions:
                fresh.pop(each.partition, None)

        consumer = Consumer(settings)
        consumer.subscribe([self._topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        while not self._stopping.is_set():
            self._take(consumer, fresh)
        consumer.close()

    def _take(self, consumer: Consumer, fresh: dict[int, int]) -> None:
        """Take a batch, and commit it."""
        try:
            messages = consumer.consume(BATCH, POLL_S)
        except KafkaException:
            return
        ends: dict[int, int] = {}
        for message in messages:
            partition, offset = message.partition(), message.offset()
            if message.error() is not None or partition is None or offset is None:
                continue
            if partition in fresh:
                self.seen.events.append(Event(fresh.pop(partition), Kind.STARTED, partition, offset))
            self.seen.delivered.append((partition, offset))
            ends[partition] = offset + 1
        if not ends:
            return
        try:
            committed = consumer.commit(
                offsets=[TopicPartition(self._topic, *each) for each in ends.items()], asynchronous=False
            )
        except KafkaException as error:
            self.seen.failed_commits.append(str(error.args[0]))
            return
        now = time.monotonic_ns()
        for each in committed or ():
            if each.error is None:
                self.seen.acknowledged.append(Event(now, Kind.ACKNOWLEDGED, each.partition, each.offset))
            else:
                self.seen.failed_commits.append(str(each.error))

    def _observe(self) -> None:
        """Fetch the committed offsets again and again, as a client that is no member."""
        while not self._stopping.wait(OBSERVE_S):
            for port in self._ports:
                with contextlib.suppress(OSError, ConnectionEnded, SignInRefused):
                    if self._fetch_offsets(port):
                        break

    def _fetch_offsets(self, port: int) -> bool:
        """Ask the coordinator that a broker names; returns whether it answered."""
        began = time.monotonic_ns()
        with self._security.wire(port, timeout_s=TIMEOUT_S) as wire:
            named = wire.call("find_coordinator", 2, key=self.name, key_type=0)
        if named["error_code"]:
            return False
        topics = [{"name": self._topic, "partition_indexes": list(range(self._partitions))}]
        with self._security.wire(named["port"], timeout_s=TIMEOUT_S) as wire:
            answer = wire.call("offset_fetch", 7, group_id=self.name, topics=topics)
        if answer["error_code"]:
            return False
        for found in answer["topics"][0]["partitions"]:
            if not found["error_code"] and found["committed_offset"] >= 0:
                place = found["partition_index"], found["committed_offset"]
                self.seen.events.append(Event(began, Kind.OBSERVED, *place))
        return True

    def committed(self) -> dict[int, int]:
        """Return the highest acknowledged commit of each partition."""
        ends: defaultdict[int, int] = defaultdict(int)
        for event in tuple(self.seen.acknowledged):
            ends[event.partition] = max(ends[event.partition], event.offset)
        return dict(ends)
