"""Joining a cluster: the tree's roots, the cluster's id, and a broker's sign of life."""

from __future__ import annotations

from . import layout
from .store import Create, MetadataStore, NodeExists, Op


class BrokerIdInUse(Exception):
    """Another broker with this id is alive."""


async def join_cluster(store: MetadataStore, proposed_id: str) -> str:
    """Make what every cluster has, unless it is there, and return the cluster's id: the first to propose one wins."""
    while (node := await store.get(layout.CLUSTER_ID)) is None or await _missing_roots(store):
        ops: list[Op] = [Create(root) for root in await _missing_roots(store)]
        if node is None:
            ops.append(Create(layout.CLUSTER_ID, layout.encode_cluster_id(proposed_id)))
        try:
            await store.commit(ops)
        except NodeExists:
            continue  # another broker is joining too: see what is there now
    return layout.decode_cluster_id(node.value)


async def _missing_roots(store: MetadataStore) -> list[str]:
    return [root for root in layout.ROOTS if await store.get(root) is None]


def sign_of_life(broker: layout.BrokerRegistration) -> Create:
    """The operation that makes a broker known; its node goes when the broker's session does."""
    return Create(layout.broker_path(broker.node_id), layout.encode_broker(broker), ephemeral=True)


async def register(store: MetadataStore, broker: layout.BrokerRegistration) -> int:
    """Make the broker known and return its epoch. Raises `BrokerIdInUse`."""
    operation = sign_of_life(broker)
    try:
        await store.commit([operation])
    except NodeExists:
        raise BrokerIdInUse(f"a broker with id {broker.node_id} is alive already") from None
    node = await store.get(operation.path)
    assert node is not None, "who committed sees it"
    return node.created
