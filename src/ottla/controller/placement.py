"""Which brokers hold which partition: leaders spread evenly, the replicas of one partition on different racks."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.coordination.view import BrokerInfo
from ottla.core.errors import InvalidReplicationFactor


def place(
    brokers: Iterable[BrokerInfo], *, first_partition: int, partitions: int, replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """The replicas of `partitions` new partitions, the preferred leader first.

    Leaders go round the brokers from `start`; the followers of a partition are the next brokers on the round, and each
    full round they stand one further apart, so that the load of a dead leader falls on many. Raises
    `InvalidReplicationFactor` if there are too few brokers.
    """
    ring = _by_turns(brokers)
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


def _by_turns(brokers: Iterable[BrokerInfo]) -> list[int]:
    """Brokers so that neighbours stand on different racks as long as racks differ."""
    racks: dict[str | None, list[int]] = {}
    for broker in sorted(brokers, key=lambda each: each.node_id):
        racks.setdefault(broker.rack, []).append(broker.node_id)
    ring: list[int] = []
    for turn in range(max(map(len, racks.values()), default=0)):
        ring += [rack[turn] for rack in racks.values() if turn < len(rack)]
    return ring
