"""Divides brokers and clients into sides that do not reach one another, and closes connections.

A request to the other side waits until the network is healed, as TCP sends again what was lost; connections between the
sides are closed, so that no response passes either. The metadata store is reached from all sides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from ottla.broker.requests.request import Request
from ottla.net.connection import ServerConnection
from ottla.testing.kit.faults.fault import Fault, sender_of

Sides = tuple[frozenset[int | str], ...]


class NetworkPartition(Fault):
    """A division of the network. `count` is how many requests had to wait."""

    def __init__(self, sides: Collection[Collection[int | str]], *, end: Callable[[Fault], None]) -> None:
        self.sides: Sides = tuple(frozenset(side) for side in sides)
        names = [" ".join(sorted(map(str, side))) for side in self.sides]
        super().__init__(f"network partition {' | '.join(names)}", end=end)
        if len(self.sides) < 2:
            raise ValueError("a network has two sides at least: partition_network({1}, {2, 3})")
        members = [member for side in self.sides for member in side]
        if len(members) > len(set(members)):
            raise ValueError(f"the sides have members in common: {self.what}")

    def separates(self, sender: int | str, broker: int) -> bool:
        """Return whether a request of this broker or client does not reach the broker."""
        there = [side for side in self.sides if broker in side]
        here = [side for side in self.sides if sender in side]
        return bool(there and here) and there != here


class Network:
    """The connections of clients and brokers, and the partitions of the network."""

    def __init__(self) -> None:
        self.partitions: tuple[NetworkPartition, ...] = ()
        self._connections: dict[ServerConnection, tuple[int | str, int]] = {}  # who is connected to which broker
        self._healed: set[asyncio.Future[None]] = set()

    def note(self, request: Request) -> None:
        """Remember a connection."""
        connection = request.connection
        if connection not in self._connections:
            self._connections[connection] = sender_of(request), request.services.node_id
            connection.call_when_lost("network", partial(self._connections.__delitem__, connection))

    def separating(self, sender: int | str, broker: int) -> NetworkPartition | None:
        """Return the partition that a request does not pass."""
        for partition in self.partitions:
            if partition.separates(sender, broker):
                return partition
        return None

    async def wait_until_reached(self, request: Request, sender: int | str) -> bool:
        """Return once no partition separates the sender from the broker; False if the connection is closed by then."""
        while self.separating(sender, request.services.node_id) is not None:
            healed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._healed.add(healed)
            try:
                await healed
            finally:
                self._healed.discard(healed)
        return request.connection in self._connections

    def divide(self, partition: NetworkPartition) -> None:
        """Begin a partition. Runs on the brokers' loop."""
        self.partitions = (*self.partitions, partition)
        self.close(partition.separates)

    def heal(self, partition: Fault) -> None:
        """End a partition. Runs on the brokers' loop."""
        self.partitions = tuple(other for other in self.partitions if other is not partition)
        for healed in self._healed:
            if not healed.done():
                healed.set_result(None)

    def close(self, is_hit: Callable[[int | str, int], bool]) -> int:
        """Close connections, by who is connected to which broker; returns how many that were."""
        connections = [connection for connection, ends in self._connections.items() if is_hit(*ends)]
        for connection in connections:
            connection.close()
        return len(connections)
