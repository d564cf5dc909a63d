"""Places replicas on brokers: spreads leaders evenly and the replicas of a partition over racks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ottla.core.errors import InvalidReplicationFactor
from ottla.metadata_store.cluster_view import BrokerInfo


def place(
    brokers: Iterable[BrokerInfo], *, first_partition: int, partitions: int, replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """Place the replicas of `partitions` new partitions, the preferred leader first.

    Leaders rotate over the brokers from `start`; the followers of a partition are the next brokers, shifted by one more
    in each full rotation, so that many brokers share the load of a dead leader. Those in a rack that has a replica of
    the partition are passed over while there is a rack with fewer. Raises `InvalidReplicationFactor` if there are too
    few brokers.
    """
    racks = {broker.node_id: broker.rack for broker in brokers}
    ring = _alternate_racks(racks)
    if replication_factor > len(ring):
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(ring)} broker(s) are registered."
        )
    if 1 < len(set(racks.values())) < len(ring):
        return [
            _in_racks(ring, racks, replication_factor, start + first_partition + index) for index in range(partitions)
        ]
    return [_replicas(ring, replication_factor, start + first_partition + index) for index in range(partitions)]


def _replicas(ring: list[int], replication_factor: int, turn: int) -> tuple[int, ...]:
    size = len(ring)
    leader, shift = turn % size, turn // size
    followers = [ring[(leader + 1 + (shift + step) % (size - 1)) % size] for step in range(replication_factor - 1)]
    return (ring[leader], *followers)


def _in_racks(ring: list[int], racks: Mapping[int, str | None], replication_factor: int, turn: int) -> tuple[int, ...]:
    """Choose replicas in the order of `_replicas`, but of the racks that have the fewest replicas of the partition."""
    leader, *left = _replicas(ring, len(ring), turn)
    replicas = [leader]
    while len(replicas) < replication_factor:
        used = Counter(racks[replica] for replica in replicas)
        follower = min(left, key=lambda broker: used[racks[broker]])  # the first one of those
        left.remove(follower)
        replicas.append(follower)
    return tuple(replicas)


def _alternate_racks(racks: Mapping[int, str | None]) -> list[int]:
    """Order the brokers so that neighbours are in different racks, as far as possible."""
    by_rack: dict[str | None, list[int]] = {}
    for node_id, rack in sorted(racks.items()):
        by_rack.setdefault(rack, []).append(node_id)
    ring: list[int] = []
    for turn in range(max(map(len, by_rack.values()), default=0)):
        ring += [nodes[turn] for nodes in by_rack.values() if turn < len(nodes)]
    return ring
