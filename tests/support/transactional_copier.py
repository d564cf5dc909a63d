"""Copies a topic to another one, exactly once: consume, produce and commit the offsets in one transaction.

Run as a process of its own, so that it can be killed: `python -m tests.support.transactional_copier BOOTSTRAP ID GROUP
FROM TO RECORDS`. It ends when it is killed, fenced or stuck.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

WAIT_S = 30.0
TRANSACTION_TIMEOUT_MS = 10_000
STUCK_S = 40
"""After so long without progress the process ends: send_offsets_to_transaction may wait for ever (librdkafka #5456)."""


class Copier:
    """One consumer and one transactional producer."""

    def __init__(self, bootstrap: str, name: str, group: str, source: str, target: str, records: int) -> None:
        self.target, self.records = target, records
        common: dict[str, Any] = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 500}
        self.producer = Producer(
            {**common, "transactional.id": name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "linger.ms": 5}
        )
        self.consumer = Consumer(
            {
                **common,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
            }
        )
        self._retried(self.producer.init_transactions)
        self.consumer.subscribe([source])

    def run(self) -> None:
        """Copy until the end of the process. Raises KafkaException if another producer has fenced this one."""
        while True:
            signal.alarm(STUCK_S)
            messages = [found for found in self.consumer.consume(self.records, 0.5) if found.error() is None]
            if not messages:
                continue
            self.producer.begin_transaction()
            try:
                self.copy(messages)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._retried(self.producer.abort_transaction)
                self.rewind()

    def copy(self, messages: list[Message]) -> None:
        """Copy records and their offsets in one transaction."""
        offsets: dict[tuple[str, int], int] = {}
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            self.produce(message.value() or b"", partition)
            offsets[topic, partition] = offset + 1
        positions = [TopicPartition(*where, offset) for where, offset in offsets.items()]
        group = self.consumer.consumer_group_metadata()
        self._retried(lambda wait_s: self.producer.send_offsets_to_transaction(positions, group, wait_s))
        self._retried(self.producer.commit_transaction)

    def produce(self, value: bytes, partition: int) -> None:
        """Produce one record; waits while the queue is full."""
        while True:
            try:
                self.producer.produce(self.target, value, partition=partition)
            except BufferError:
                self.producer.poll(0.1)
            else:
                return

    def rewind(self) -> None:
        """Go back to the committed offsets, for what was aborted is to be copied again."""
        assigned = self.consumer.assignment()
        while True:
            try:
                committed = self.consumer.committed(assigned, WAIT_S)
                break
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        for found in committed:
            offset = found.offset if found.offset >= 0 else OFFSET_BEGINNING
            self.consumer.seek(TopicPartition(found.topic, found.partition, offset))

    @staticmethod
    def _retried(call: Any) -> None:
        while True:
            try:
                call(WAIT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return


if __name__ == "__main__":
    _, bootstrap, name, group, source, target, records = sys.argv
    Copier(bootstrap, name, group, source, target, int(records)).run()
