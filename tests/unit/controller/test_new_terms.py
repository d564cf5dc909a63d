"""The beginning of a term and of a session: what came before is known before anything is decided."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from ottla.controller.isr import AlterPartitionResult, ProposedIsr
from ottla.controller.topics import CreatePartitions
from ottla.core import errors
from ottla.metadata_store import broker_registration, znodes
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.store import Create, Op
from tests.support.waiting import until
from tests.unit.controller.test_controller import Node
from tests.unit.controller.test_terms import cluster_of, stop

pytestmark = pytest.mark.simulated_time
"""Everything is in memory: a sleep ends when nothing is left to do before it."""


async def until_active(node: Node) -> None:
    """Wait until the broker is the controller, which it may be before its snapshot says so."""
    await until(lambda: node.controller.is_active)  # no snapshot comes


async def test_a_new_controller_decides_nothing_before_it_knows_what_was_created_without_it() -> None:
    """A leader gives up a proposal for a topic that the controller does not know: the topic is deleted, it thinks."""

    tree = EmbeddedMetadataStore()
    nodes = await cluster_of(tree, 1, 2)
    leader = tree.session()
    endpoints = {"PLAINTEXT": znodes.Endpoint("localhost", 9003)}
    registered = znodes.BrokerRegistration(3, endpoints, {"PLAINTEXT": "PLAINTEXT"})
    await broker_registration.register(leader, [broker_registration.registration(registered)])
    for node in nodes.values():
        await node.until(lambda view: 3 in view.brokers)
    epoch, controller = nodes[2].cluster.current.brokers[3].epoch, nodes[2].controller
    async with nodes[2].cluster._updating:  # it applies a large snapshot
        created = await nodes[1].controller.create_topic("t", assignments=[(0, [3, 2])])
        await nodes[1].stop()
        await nodes[2].store.expire()
        await until_active(nodes[2])
        proposed = ProposedIsr(created.topic_id, 0, 0, 0, [(3, epoch)])
        deciding = asyncio.ensure_future(controller.alter_partitions(3, epoch, [proposed]))
        await asyncio.sleep(0.01)
    (outcome,) = await deciding
    assert isinstance(outcome, AlterPartitionResult)
    assert outcome.isr == (3,)
    await nodes[2].stop()
    await leader.close()


async def test_a_new_controller_adds_no_partitions_to_a_topic_that_was_deleted_and_created_again_without_it() -> None:
    """The nodes of the new topic have the versions of the old one: the write would not fail."""

    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    await nodes[1].controller.create_topic("t", assignments=[(0, [2])])
    await nodes[2].until(lambda view: "t" in view.topics)
    async with nodes[2].cluster._updating:
        await nodes[1].controller.delete_topics(["t"])
        created = await nodes[1].controller.create_topic("t", assignments=[(0, [2])])
        await nodes[1].stop()
        await nodes[2].store.expire()
        await until_active(nodes[2])
        adding = asyncio.ensure_future(nodes[2].controller.create_partitions([CreatePartitions("t", 2)]))
        await asyncio.sleep(0.01)
    assert await adding == [None]
    topic = nodes[2].cluster.current.topics["t"]
    assert (topic.topic_id, len(topic.partitions)) == (created.topic_id, 2)
    await nodes[2].stop()


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_change_that_waits_for_the_snapshot_ends_with_the_term(*, is_stopped: bool) -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    async with nodes[2].cluster._updating:
        await nodes[1].stop()
        await nodes[2].store.expire()
        await until_active(nodes[2])
        waiting = asyncio.ensure_future(nodes[2].controller.create_topic("t"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        if is_stopped:
            await nodes[2].controller.close()
            await nodes[2].store.close()
        else:
            await nodes[2].store.expire()
    with pytest.raises(errors.NotController):
        await waiting
    await nodes[2].stop()


async def test_after_a_session_that_was_lost_while_a_snapshot_was_applied_one_task_follows_the_cluster(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    before = nodes[2].cluster.current.brokers[2].epoch
    async with nodes[2].cluster._updating:
        await nodes[1].controller.create_topic("t")
        await asyncio.sleep(0.01)
        await nodes[2].store.expire()
        await nodes[1].until(lambda view: 2 in view.brokers and view.brokers[2].epoch != before)
    for name in ("u", "v"):
        await nodes[1].controller.create_topic(name)
        await nodes[2].until(lambda view, name=name: name in view.topics)  # type: ignore[misc]
    await stop(nodes)
    assert "unexpected" not in caplog.text


async def test_a_reassignment_of_an_older_tool_that_the_store_refuses_at_first_is_begun_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ottla.controller.controller.RETRY_S", 0.01)
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    controller, store = nodes[1].controller, nodes[1].store
    await controller.create_topic("t", assignments=[(0, [1])])
    original, failures = store.commit, [errors.StorageError("the disk is full")]

    async def refuse_once(ops: Sequence[Op]) -> list[int]:
        if failures and any(op.path == znodes.topic_path("t") for op in ops):
            raise failures.pop()
        return await original(ops)

    monkeypatch.setattr(store, "commit", refuse_once)
    wanted = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}
    await nodes[2].store.commit([Create(znodes.REASSIGN_PARTITIONS, json.dumps(wanted).encode())])
    await nodes[1].until(lambda view: view.topics["t"].partitions[0].adding == (2,))
    assert not failures
    await stop(nodes)
