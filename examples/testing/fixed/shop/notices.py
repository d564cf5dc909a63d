"""Sends notices to customers."""

from confluent_kafka import KafkaException, Producer


def send(bootstrap: str, notice: bytes) -> None:
    """Produce a notice; returns when the brokers have it. Raises KafkaException if they do not take it."""
    producer = Producer({"bootstrap.servers": bootstrap, "retry.backoff.ms": 10, "delivery.timeout.ms": 10_000})
    failures: list[object] = []
    producer.produce("notices", notice, on_delivery=lambda error, _: failures.append(error) if error else None)
    producer.flush()
    if failures:
        raise KafkaException(failures[0])
