"""The controller's shell on the embedded store: what is answered has happened."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.controller.config import ControllerConfig
from ottla.controller.config_changes import AlterConfig, ConfigChange
from ottla.controller.controller import RETRY_S, Controller
from ottla.controller.isr import ProposedIsr
from ottla.controller.topics import CreatePartitions, CreateTopic
from ottla.core import errors
from ottla.core.clock import SystemClock
from ottla.core.settings import AlterConfigOpType
from ottla.metadata_store import broker_registration, znodes
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.producer_ids import ProducerIdManager
from ottla.metadata_store.sqlite_file import FILE_NAME
from ottla.metadata_store.store import Create, Delete, Put
from ottla.storage.config import LogConfig


class Node:
    """One broker's share of coordination."""

    def __init__(self, tree: EmbeddedMetadataStore, node_id: int = 1) -> None:
        self.tree, self.node_id = tree, node_id
        self.store: EmbeddedSession = tree.session()
        self.cluster = MetadataCache(self.store)
        self.controller = Controller(
            store=self.store,
            cluster=self.cluster,
            config=ControllerConfig(),
            log_defaults=LogConfig(),
            clock=SystemClock(),
            rng=random.Random(node_id),
            node_id=node_id,
        )
        self.following: asyncio.Task[None] | None = None

    async def start(self) -> str:
        cluster_id = await broker_registration.join_cluster(self.store, f"proposed by {self.node_id}")
        endpoints = {"PLAINTEXT": znodes.Endpoint("localhost", 9000 + self.node_id)}
        await self.controller.start(znodes.BrokerRegistration(self.node_id, endpoints, {"PLAINTEXT": "PLAINTEXT"}))
        self.following = asyncio.ensure_future(self.cluster.follow())
        return cluster_id

    async def stop(self) -> None:
        await self.controller.close()
        await self.store.close()
        if self.following is not None:
            await self.following

    async def until(self, condition: Callable[[ClusterView], bool]) -> ClusterView:
        changed = asyncio.Event()
        self.cluster.subscribe(lambda _old, _new: changed.set())
        while not condition(self.cluster.current):
            await changed.wait()
            changed.clear()
        return self.cluster.current


class Any_:  # noqa: N801
    """Equal to every error of a class."""

    def __init__(self, cls: type[errors.KafkaError]) -> None:
        self.cls = cls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, self.cls)

    def __hash__(self) -> int:
        return hash(self.cls)


async def test_the_first_broker_of_a_cluster_names_it_registers_and_is_controller() -> None:
    node = Node(EmbeddedMetadataStore())
    assert await node.start() == "proposed by 1"
    view = node.cluster.current
    assert (view.cluster_id, view.controller_id, view.controller_epoch) == ("proposed by 1", 1, 1)
    assert view.brokers[1].endpoints == {"PLAINTEXT": ("localhost", 9001)}
    await node.stop()


async def test_a_created_topic_is_in_the_snapshot_and_subscribers_have_acted_when_the_call_returns() -> None:
    node = Node(EmbeddedMetadataStore())
    acted: list[str] = []

    async def act(old: ClusterView, new: ClusterView) -> None:
        names = new.topics.keys() - old.topics.keys()
        await asyncio.sleep(0)
        acted.extend(names)

    node.cluster.subscribe(act)
    await node.start()
    topic = await node.controller.create_topic("t", partitions=2)

    assert acted == ["t"]
    assert [each.leader for each in topic.partitions] == [1, 1]
    assert node.cluster.current.topics["t"] == topic
    assert node.cluster.current.topic_by_id[topic.topic_id.bytes].name == "t"
    await node.stop()


async def test_one_topics_failure_fails_no_neighbour_and_validation_writes_nothing() -> None:
    node = Node(EmbeddedMetadataStore())
    await node.start()
    wanted = [
        CreateTopic("a"),
        CreateTopic("a"),
        CreateTopic("b", replication_factor=2),
        CreateTopic("c_d"),
        CreateTopic("c.d"),
    ]
    for validate_only in (True, False):
        outcomes = await node.controller.create_topics(wanted, validate_only=validate_only)
        assert [type(outcome).__name__ for outcome in outcomes] == [
            "TopicView",
            "TopicAlreadyExists",
            "InvalidReplicationFactor",
            "TopicView",
            "InvalidTopic",
        ]
        assert set(node.cluster.current.topics) == (set() if validate_only else {"a", "c_d"})
    with pytest.raises(errors.TopicAlreadyExists):
        await node.controller.create_topic("a", validate_only=True)
    await node.stop()


async def test_topics_survive_a_restart_with_their_ids_and_get_a_new_leader_epoch(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME

    async def first_life() -> Any:
        node = Node(EmbeddedMetadataStore.open(path))
        await node.start()
        topic = await node.controller.create_topic("t", configs={"retention.ms": "77"})
        await node.stop()
        return topic, node.cluster.current

    async def second_life() -> Any:
        node = Node(EmbeddedMetadataStore.open(path))
        assert await node.start() == "proposed by 1"
        view = node.cluster.current
        await node.stop()
        return view.topics["t"], view

    before, first = await first_life()
    after, second = await second_life()

    assert (after.topic_id, after.config) == (before.topic_id, {"retention.ms": "77"})
    assert [each.leader_epoch for each in after.partitions] == [1]
    assert second.controller_epoch == first.controller_epoch + 1
    assert second.brokers[1].epoch > first.brokers[1].epoch


async def test_many_at_once_lose_nothing_and_a_name_is_given_once() -> None:
    node = Node(EmbeddedMetadataStore())
    await node.start()
    names = [f"t{number % 10}" for number in range(30)]
    outcomes = await asyncio.gather(*(node.controller.create_topic(name) for name in names), return_exceptions=True)
    assert sum(isinstance(outcome, errors.TopicAlreadyExists) for outcome in outcomes) == 20
    assert len(node.cluster.current.topics) == 10
    await node.stop()


async def test_partitions_settings_and_deletion_arrive_in_the_snapshot() -> None:
    node = Node(EmbeddedMetadataStore())
    await node.start()
    await node.controller.create_topic("t")
    more = [CreatePartitions("t", 3), CreatePartitions("u", 3)]
    assert await node.controller.create_partitions(more) == [None, Any_(errors.UnknownTopicOrPartition)]
    assert len(node.cluster.current.topics["t"].partitions) == 3

    change = AlterConfig(
        znodes.BROKERS_KIND, "<default>", [ConfigChange(AlterConfigOpType.SET, "k", "v")], {}, lambda _: None
    )
    assert await node.controller.alter_configs([change]) == [None]
    assert node.cluster.current.broker_configs["<default>"].values == {"k": "v"}

    assert await node.controller.delete_topics(["t", "u"]) == [None, Any_(errors.UnknownTopicOrPartition)]
    assert node.cluster.current.topics == {}
    assert await node.store.children(znodes.TOPICS) == frozenset()
    await node.stop()


async def test_a_deletion_that_a_node_of_another_program_prevents_names_the_node() -> None:
    node = Node(EmbeddedMetadataStore())
    await node.start()
    await node.controller.create_topic("t", partitions=2)
    foreign = f"{znodes.partition_path('t', 1)}/foreign"
    await node.store.commit([Create(foreign)])
    with pytest.raises(errors.RequestTimedOut, match=znodes.partition_path("t", 1)):
        await node.controller.delete_topics(["t"])
    await node.store.commit([Delete(foreign)])
    assert await node.controller.delete_topics(["t"]) == [None]
    assert not node.cluster.current.topics
    await node.stop()


async def test_a_second_broker_with_the_same_id_is_turned_away() -> None:
    tree = EmbeddedMetadataStore()
    node, twin = Node(tree), Node(tree)
    await node.start()
    with pytest.raises(broker_registration.BrokerIdInUse):
        await twin.start()
    await twin.store.close()
    await node.stop()


async def test_when_the_controller_dies_another_broker_takes_over_and_elects_leaders() -> None:
    tree = EmbeddedMetadataStore()
    first, second = Node(tree, 1), Node(tree, 2)
    await first.start()
    await second.start()
    await first.until(lambda view: 2 in view.brokers)
    await first.controller.create_topic("t", assignments=[(0, [1, 2]), (1, [2, 1])])
    await first.controller.create_topic("alone", assignments=[(0, [1])])
    await second.until(lambda view: "alone" in view.topics)
    with pytest.raises(errors.NotController):
        await second.controller.create_topic("u")

    await first.stop()
    view = await second.until(lambda view: view.controller_id == 2 and view.topics["alone"].partitions[0].leader == -1)

    assert [(each.leader, each.isr) for each in view.topics["t"].partitions] == [(2, (2,)), (2, (2,))]
    await second.controller.create_topic("u")
    again = Node(tree, 1)
    await again.start()
    await second.until(lambda view: view.topics["alone"].partitions[0].leader == 1)
    await again.stop()
    await second.stop()


@pytest.mark.parametrize("bad", ["malformed", "empty", "elsewhere"])
async def test_a_partition_with_a_bad_state_keeps_no_other_from_an_election(
    bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    tree = EmbeddedMetadataStore()
    first, second, third = (Node(tree, number) for number in (1, 2, 3))
    for each in (first, second, third):
        await each.start()
    for name in ("a", "t", "u"):
        await first.controller.create_topic(name, assignments=[(0, [3, 1])])
    path = znodes.state_path("t", 0)
    isr = {"malformed": b"{", "empty": b"[]", "elsewhere": b"[7]"}[bad]
    text = (
        isr
        if bad == "malformed"
        else b'{"version":1,"controller_epoch":1,"leader":3,"leader_epoch":0,"isr":' + isr + b"}"
    )
    await second.store.commit([Put(path, text)])
    await third.stop()
    view = await first.until(
        lambda view: 3 not in view.brokers and all(view.topics[name].partitions[0].leader == 1 for name in ("a", "u"))
    )
    node = await second.store.get(path)
    assert node is not None
    assert node.value == text
    again = Node(tree, 3)
    await again.start()
    await first.until(lambda view: 3 in view.brokers)
    assert caplog.text.count("is offline, because the node" if bad != "elsewhere" else "no leader can be elected") >= 1
    restored = znodes.PartitionState(NO_LEADER, view.topics["t"].partitions[0].leader_epoch + 1, (1,), 1)
    await second.store.commit([Put(path, znodes.encode_state(restored))])
    view = await first.until(lambda view: view.topics["t"].partitions[0].leader == 1)
    for each in (again, second, first):
        await each.stop()


@pytest.mark.parametrize("path", [znodes.HANDLED_BROKERS, znodes.topic_path("gone")])
async def test_a_malformed_node_keeps_no_controller_from_its_term(path: str) -> None:
    tree = EmbeddedMetadataStore()
    first, second = Node(tree, 1), Node(tree, 2)
    await first.start()
    await second.start()
    await first.controller.create_topic("t", assignments=[(0, [1, 2])])
    await first.until(lambda view: len(view.brokers) == 2)
    if path == znodes.HANDLED_BROKERS:
        while await second.store.get(path) is None:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)
        await second.store.commit([Put(path, b"[]")])
    else:
        await second.store.commit([Create(path, b"{"), Create(f"{znodes.TOPIC_DELETIONS}/gone")])
    await first.stop()
    await second.until(lambda view: view.topics["t"].partitions[0].leader == 2 and second.controller.is_active)
    while path != znodes.HANDLED_BROKERS and await second.store.get(path) is not None:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)
    await second.controller.create_topic("u")
    await second.stop()


@pytest.mark.simulated_time
async def test_a_malformed_controller_epoch_is_logged_once_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    tree = EmbeddedMetadataStore()
    first, second = Node(tree, 1), Node(tree, 2)
    await first.start()
    await second.start()
    await second.store.commit([Put(znodes.CONTROLLER_EPOCH, b"x")])
    await first.stop()
    await asyncio.sleep(10 * RETRY_S)
    assert not second.controller.is_active
    await second.store.commit([Put(znodes.CONTROLLER_EPOCH, b"7")])
    await second.until(lambda view: view.controller_epoch == 8)
    assert caplog.text.count("there is no controller before this node has its value again") == 1
    await second.stop()


async def test_a_controller_that_was_replaced_changes_nothing() -> None:
    tree = EmbeddedMetadataStore()
    old, new = Node(tree, 1), Node(tree, 2)
    await old.start()
    assert old.following is not None
    old.following.cancel()  # it hears nothing any more: cut off, but its session lives
    await asyncio.gather(old.following, return_exceptions=True)
    old.following = None
    await new.start()
    await new.store.commit([Delete(znodes.CONTROLLER)])
    await new.until(lambda view: view.controller_id == 2)

    with pytest.raises(errors.NotController):
        await old.controller.create_topic("t")

    assert await new.store.children(znodes.TOPICS) == frozenset()
    assert not old.controller.is_active
    await old.stop()
    await new.stop()


async def test_producer_ids_are_never_given_twice_across_restarts_and_brokers(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME

    async def one_life() -> list[int]:
        tree = EmbeddedMetadataStore.open(path)
        node = Node(tree)
        await node.start()
        mine, other = ProducerIdManager(node.store, node_id=1), ProducerIdManager(node.store, node_id=2)
        taken = await asyncio.gather(*(ids.allocate() for _ in range(1300) for ids in (mine, other)))
        await node.stop()
        return taken

    ids = await one_life() + await one_life()

    assert len(set(ids)) == len(ids) == 5200
    assert min(ids) == 0


async def calls_to_create(node: Node, name: str) -> int:
    """Count the calls, of C functions too, of one topic creation."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        await node.controller.create_topic(name)
        await asyncio.sleep(0)
    finally:
        sys.setprofile(None)
    return calls


async def test_the_cost_of_creating_a_topic_does_not_grow_with_the_number_of_topics() -> None:
    node = Node(EmbeddedMetadataStore())
    await node.start()
    few = await calls_to_create(node, "few.topics")
    for first in range(0, 2_000, 100):
        events = [CreateTopic(f"t_{number}") for number in range(first, first + 100)]
        assert not any(isinstance(each, errors.KafkaError) for each in await node.controller.create_topics(events))
    await asyncio.sleep(0)
    assert await calls_to_create(node, "many.topics") < few + 100
    await node.stop()


async def calls_to_alter_an_isr(node: Node, topic: str) -> int:
    """Count the calls, of C functions too, of one change of an ISR."""
    view = node.cluster.current
    partition = view.topics[topic].partitions[0]
    proposal = ProposedIsr(
        view.topics[topic].topic_id,
        0,
        partition.leader_epoch,
        partition.partition_epoch,
        [(1, view.brokers[1].epoch)],
        is_recovering=False,
    )
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        (outcome,) = await node.controller.alter_partitions(1, view.brokers[1].epoch, [proposal])
        await asyncio.sleep(0)
    finally:
        sys.setprofile(None)
    assert not isinstance(outcome, errors.KafkaError)
    return calls


async def test_the_cost_of_an_isr_change_does_not_grow_with_the_number_of_partitions() -> None:
    tree = EmbeddedMetadataStore()
    node, other = Node(tree, 1), Node(tree, 2)
    await node.start()
    await other.start()
    await node.until(lambda view: 2 in view.brokers)
    both = [(0, [1, 2])]
    await node.controller.create_topic("first", assignments=both)
    await node.controller.create_topic("second", assignments=both)
    few = await calls_to_alter_an_isr(node, "first")
    for first in range(0, 2_000, 100):
        events = [CreateTopic(f"t_{number}") for number in range(first, first + 100)]
        assert not any(isinstance(each, errors.KafkaError) for each in await node.controller.create_topics(events))
    await asyncio.sleep(0)
    assert await calls_to_alter_an_isr(node, "second") < few + 100
    assert node.cluster.current.topics["second"].partitions[0].isr == (1,)
    await other.stop()
    await node.stop()
