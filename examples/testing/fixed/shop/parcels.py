"""Packs orders into parcels of three."""

from confluent_kafka import Consumer


class Packer:
    """A member of the group that packs."""

    def __init__(self, bootstrap: str, parcels: list[list[bytes]]) -> None:
        self.parcels = parcels
        self.orders: list[bytes] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "packing",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 100,
            }
        )
        self._consumer.subscribe(["orders"], on_revoke=lambda *_: self.pack())

    def poll(self) -> bool:
        """Take an order, if there is one; return whether this member has partitions."""
        order = self._consumer.poll(0.05)
        if order is not None and order.error() is None:
            self.orders.append(order.value())
            if len(self.orders) == 3:
                self.pack()
        return bool(self._consumer.assignment())

    def pack(self) -> None:
        """Pack what was taken, and commit it."""
        if self.orders:
            self.parcels.append(self.orders)
            self.orders = []
            self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        """Pack the rest and leave the group."""
        self.pack()
        self._consumer.close()
