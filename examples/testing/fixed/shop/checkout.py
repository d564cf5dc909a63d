"""Places orders."""

from confluent_kafka import Producer


def place(bootstrap: str, order: bytes) -> None:
    """Produce an order; returns when the brokers have it."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "retry.backoff.ms": 10})
    producer.produce("orders", order)
    if producer.flush(10):
        raise TimeoutError("the order was not placed")
