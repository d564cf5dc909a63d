"""Joins a cluster: creates the root nodes and the cluster id, and registers a broker."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from ottla.metadata_store import znodes
from ottla.metadata_store.store import Create, MetadataStore, NodeExists, Op, OutcomeUnknown, Put


class BrokerIdInUse(Exception):
    """Reports that another live broker has this id."""


async def join_cluster(store: MetadataStore, proposed_id: str) -> str:
    """Create the root nodes that are missing and return the cluster id: the first proposed id wins."""
    while (node := await store.get(znodes.CLUSTER_ID)) is None or await _missing_roots(store):
        ops: list[Op] = [Create(root) for root in await _missing_roots(store)]
        if node is None:
            ops.append(Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(proposed_id)))
        try:
            await store.commit(ops)
        except (NodeExists, OutcomeUnknown):
            await store.sync()  # another broker is joining too, or the answer was lost: read again
    return znodes.decode_cluster_id(node.value)


async def _missing_roots(store: MetadataStore) -> list[str]:
    return [root for root in znodes.ROOTS if await store.get(root) is None]


def registration(broker: znodes.BrokerRegistration) -> Create:
    """Return the operation that registers a broker; its node is deleted when the broker's session ends."""
    return Create(znodes.broker_path(broker.node_id), znodes.encode_broker(broker), ephemeral=True)


async def registration_with_report(
    store: MetadataStore, broker: znodes.BrokerRegistration, report: znodes.ReplicaReport | None
) -> list[Op]:
    """Return the operations that register a broker and replace its last report on its replicas."""
    ops: list[Op] = [registration(broker)]
    if report is not None:
        path, text = znodes.replica_report_path(broker.node_id), znodes.encode_replica_report(report)
        node = await store.get(path)
        ops.append(Create(path, text) if node is None else Put(path, text, node.version))
    return ops


async def register(store: MetadataStore, ops: Sequence[Op]) -> None:
    """Commit a registration. Raises the `StoreError`."""
    try:
        await store.commit(ops)
    except OutcomeUnknown:
        await store.sync()
        node, created = await store.get(ops[0].path), ops[0]
        assert isinstance(created, Create), "the registration comes first"
        if node is None or node.value != created.value:
            await register(store, ops)


async def has_same_address(store: MetadataStore, broker: znodes.BrokerRegistration) -> bool:
    """Return whether the registration under a broker's id is gone, or has an endpoint of it: that of an earlier run.

    One is enough: this run has its port now. Other listeners may have got another port from the system.
    """
    node = await store.get(znodes.broker_path(broker.node_id))
    if node is None:
        return True
    try:
        earlier = znodes.decode_broker(broker.node_id, node.value).endpoints
    except znodes.MalformedNode:
        return False
    return bool(earlier.items() & broker.endpoints.items())


async def absent_nodes(store: MetadataStore, present: Collection[int]) -> list[int]:
    """List the nodes with replicas that are not in `present`, by id. Costs a look-up where all were ever present."""
    if all(int(node) in present for node in await store.children(znodes.LOG_DIRS)):
        return []
    found: set[int] = set()
    for path, node in (await store.list_nodes(znodes.TOPICS)).items():
        topic = znodes.parse_topic_path(path)
        if topic is not None and path == znodes.topic_path(topic):
            with contextlib.suppress(znodes.MalformedNode):  # the snapshot logs it
                for replicas in znodes.decode_assignment(topic, node.value).replicas.values():
                    found.update(replicas)
    return sorted(found.difference(present))
