"""Turns orders into invoices, each once."""

import uuid

from confluent_kafka import Consumer, Producer, TopicPartition


class Invoicing:
    """One process; when it seems to be dead, another one is started."""

    def __init__(self, bootstrap: str) -> None:
        self._orders = Consumer({"bootstrap.servers": bootstrap, "group.id": "invoicing", "enable.auto.commit": False})
        # An id of its own: no later producer ends the transactions of this one.
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"invoicing-{uuid.uuid4()}"})
        self._producer.init_transactions(10)
        (committed,) = self._orders.committed([TopicPartition("orders", 0)], timeout=10)
        self._orders.assign([TopicPartition("orders", 0, max(committed.offset, 0))])

    def begin(self) -> None:
        """Write the invoice of the next order, in a transaction."""
        (order,) = self._orders.consume(1, timeout=10)
        self._producer.begin_transaction()
        self._producer.produce("invoices", b"invoice of " + order.value())
        self._producer.flush(10)

    def commit(self) -> None:
        """Commit the invoice, and that the order has one."""
        positions = self._orders.position([TopicPartition("orders", 0)])
        self._producer.send_offsets_to_transaction(positions, self._orders.consumer_group_metadata(), 10)
        self._producer.commit_transaction(10)

    def close(self) -> None:
        """End the process."""
        self._orders.close()
