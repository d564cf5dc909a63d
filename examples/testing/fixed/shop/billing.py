"""Charges each order once."""

from collections.abc import Callable

from confluent_kafka import Consumer


def bill_next(bootstrap: str, charge: Callable[[bytes], None], *, timeout: float = 10) -> None:
    """Charge the next order of the group, if one comes in time."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    try:
        for order in consumer.consume(1, timeout=timeout):
            charge(order.value())
            consumer.commit(order, asynchronous=False)
    finally:
        consumer.close()
