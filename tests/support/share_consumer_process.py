"""Consumes from a share group in a process of its own, which a test kills. Every line is flushed before the next step.

Lines: `D partition offset count` for a delivery, `S partition offset` before an acknowledgement is sent, and
`A partition offset` when it is durable.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer, TopicPartition

RECORDS_AT_ONCE = 50
WORK_S = 0.1
"""How long it works on these records before it acknowledges them."""


def main(bootstrap: str, group: str, topic: str) -> None:
    """Consume until the process is killed or its standard input ends."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": RECORDS_AT_ONCE,
        }
    )
    consumer.subscribe([topic])
    while True:
        messages = [message for message in consumer.poll(0.5) if message.error() is None]
        if not messages:
            continue
        places = [(message.partition() or 0, message.offset() or 0) for message in messages]
        for message in messages:
            print("D", message.partition(), message.offset(), message.delivery_count())
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        sys.stdout.flush()
        time.sleep(WORK_S)
        print("\n".join(f"S {partition} {offset}" for partition, offset in places), flush=True)
        try:
            results = consumer.commit_sync(30.0)
        except KafkaException as error:
            print("E", error, flush=True)
            continue
        done = [place for place in places if results.get(TopicPartition(topic, place[0]), None) is None]
        print("\n".join(f"A {partition} {offset}" for partition, offset in done), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
