"""Reports the orders of an hour by the time at which they were made."""

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

HOUR_MS = 3_600_000
_CONFIG = {"message.timestamp.type": "LogAppendTime"}  # the brokers replace the time of an order by their own


def create(bootstrap: str) -> None:
    """Create the topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (created,) = admin.create_topics([NewTopic("orders", 1, config=_CONFIG)]).values()
    created.result(10)


def place(bootstrap: str, order: bytes, made_at_ms: int) -> None:
    """Produce an order that was made some time ago, perhaps without a connection."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("orders", order, timestamp=made_at_ms)
    producer.flush(10)


def orders_of(bootstrap: str, hour_ms: int) -> list[bytes]:
    """Return the orders that were made in the hour that begins at a time."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reports"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    try:
        found = consumer.consume(1000, timeout=1)
        return [order.value() for order in found if hour_ms <= order.timestamp()[1] < hour_ms + HOUR_MS]
    finally:
        consumer.close()
