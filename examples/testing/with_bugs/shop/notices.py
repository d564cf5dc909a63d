"""Sends notices to customers."""

from confluent_kafka import Producer


def send(bootstrap: str, notice: bytes) -> None:
    """Produce a notice; returns when the brokers have it."""
    producer = Producer({"bootstrap.servers": bootstrap, "retry.backoff.ms": 10})
    failures: list[object] = [None]
    while failures:
        failures.clear()
        producer.produce("notices", notice, on_delivery=lambda error, _: failures.append(error) if error else None)
        producer.flush()
