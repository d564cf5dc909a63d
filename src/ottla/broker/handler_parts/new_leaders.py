"""Finds what a response names with the error that this broker does not lead: the leader and its endpoint (KIP-951)."""

from __future__ import annotations

from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.wire.generated.fetch import LeaderIdAndEpoch, NodeEndpoint
from ottla.wire.hot.fetch import NO_LEADER


def current_leader(topic: TopicView | None, index: int) -> LeaderIdAndEpoch:
    """Return the leader of a partition and its epoch, as this broker's snapshot has them."""
    if topic is None or index >= len(topic.partitions):
        return NO_LEADER
    partition = topic.partitions[index]
    return LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)


def endpoint_of(view: ClusterView, node_id: int, listener: str) -> NodeEndpoint | None:
    """Return where clients of a listener reach a broker; None if they do not. Produce responses have the same shape."""
    broker = view.brokers.get(node_id)
    endpoint = broker.endpoints.get(listener) if broker is not None else None
    if broker is None or endpoint is None:
        return None
    return NodeEndpoint(node_id=node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
