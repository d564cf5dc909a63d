"""Joins a cluster: creates the root nodes and the cluster id, and registers a broker."""

from __future__ import annotations

from ottla.coordination import layout
from ottla.coordination.store import Create, MetadataStore, NodeExists, Op


class BrokerIdInUse(Exception):
    """Reports that another live broker has this id."""


async def join_cluster(store: MetadataStore, proposed_id: str) -> str:
    """Create the root nodes that are missing and return the cluster id: the first proposed id wins."""
    while (node := await store.get(layout.CLUSTER_ID)) is None or await _missing_roots(store):
        ops: list[Op] = [Create(root) for root in await _missing_roots(store)]
        if node is None:
            ops.append(Create(layout.CLUSTER_ID, layout.encode_cluster_id(proposed_id)))
        try:
            await store.commit(ops)
        except NodeExists:
            continue  # another broker is joining too: read again
    return layout.decode_cluster_id(node.value)


async def _missing_roots(store: MetadataStore) -> list[str]:
    return [root for root in layout.ROOTS if await store.get(root) is None]


def registration(broker: layout.BrokerRegistration) -> Create:
    """Return the operation that registers a broker; its node is deleted when the broker's session ends."""
    return Create(layout.broker_path(broker.node_id), layout.encode_broker(broker), ephemeral=True)


async def register(store: MetadataStore, broker: layout.BrokerRegistration) -> int:
    """Register the broker and return its epoch. Raises `BrokerIdInUse`."""
    operation = registration(broker)
    try:
        await store.commit([operation])
    except NodeExists:
        raise BrokerIdInUse(f"a live broker already has the id {broker.node_id}") from None
    node = await store.get(operation.path)
    assert node is not None, "a session reads its own commit"
    return node.created
