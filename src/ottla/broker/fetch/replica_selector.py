"""Chooses the replica that a consumer reads from: the leader, or one in the consumer's rack (KIP-392)."""

from __future__ import annotations

from typing import Final

from ottla.broker.services import Services
from ottla.replication.partition import Partition

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def closer_replica(
    services: Services, partition: Partition, *, rack: str, fetch_offset: int, listener: str
) -> int | None:
    """Return the node id of the replica that a consumer of a rack is to read from; None if it is to read here."""
    if services.config.server.replica_selector != RACK_AWARE_SELECTOR:
        return None
    node_id = _replica_in_rack(services, partition, rack, fetch_offset, listener)
    return None if node_id == services.node_id else node_id


def _replica_in_rack(services: Services, partition: Partition, rack: str, fetch_offset: int, listener: str) -> int:
    """Return the in-sync replica that a consumer of a rack reads from, as Kafka's rack-aware selector chooses it."""
    brokers, state = services.cluster.current.brokers, partition.leader_state
    this = brokers.get(services.node_id)
    if state is None or (this is not None and this.rack == rack):
        return services.node_id
    chosen, best = services.node_id, (-1, 0.0)
    for node_id, follower in state.followers.items():
        broker = brokers.get(node_id)
        if (
            broker is not None
            and broker.rack == rack
            and listener in broker.endpoints
            and node_id in partition.isr
            and follower.end_offset >= fetch_offset
            and follower.log_start_offset <= fetch_offset
            and (follower.end_offset, follower.last_caught_up_s) > best
        ):
            chosen, best = node_id, (follower.end_offset, follower.last_caught_up_s)
    return chosen
