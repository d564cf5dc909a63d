"""Adds up all payments."""

from confluent_kafka import Consumer, TopicPartition


def total(bootstrap: str, *, timeout: float = 10) -> int:
    """Read the payments that are there now, and return their sum."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "totals", "isolation.level": "read_committed"})
    payments = TopicPartition("payments", 0)
    first, end = consumer.get_watermark_offsets(payments, timeout=timeout)
    consumer.assign([TopicPartition("payments", 0, first)])
    try:
        # Not every offset has a record: those of transactions' markers and of compacted records have none.
        found = consumer.consume(end - first, timeout=timeout)
        if len(found) < end - first:
            raise TimeoutError(f"{len(found)} of {end - first} payments")
        return sum(int(payment.value()) for payment in found)
    finally:
        consumer.close()
