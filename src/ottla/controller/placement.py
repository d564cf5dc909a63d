"""Places replicas on brokers: spreads leaders evenly and the replicas of a partition over racks."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.coordination.view import BrokerInfo
from ottla.core.errors import InvalidReplicationFactor


def place(
    brokers: Iterable[BrokerInfo], *, first_partition: int, partitions: int, replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """Place the replicas of `partitions` new partitions, the preferred leader first.

    Leaders rotate over the brokers from `start`; the followers of a partition are the next brokers, shifted by one more
    in each full rotation, so that many brokers share the load of a dead leader. Raises
    `InvalidReplicationFactor` if there are too few brokers.
    """
    ring = _alternate_racks(brokers)
    if replication_factor > len(ring):
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(ring)} broker(s) are registered."
        )
    return [_replicas(ring, replication_factor, start + first_partition + index) for index in range(partitions)]


def _replicas(ring: list[int], replication_factor: int, turn: int) -> tuple[int, ...]:
    size = len(ring)
    leader, shift = turn % size, turn // size
    followers = [ring[(leader + 1 + (shift + step) % (size - 1)) % size] for step in range(replication_factor - 1)]
    return (ring[leader], *followers)


def _alternate_racks(brokers: Iterable[BrokerInfo]) -> list[int]:
    """Order the brokers so that neighbours are in different racks, as far as possible."""
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(brokers, key=lambda each: each.node_id):
        racks.setdefault(broker.rack, []).append(broker.node_id)
    ring: list[int] = []
    for turn in range(max(map(len, racks.values()), default=0)):
        ring += [rack[turn] for rack in racks.values() if turn < len(rack)]
    return ring
