"""Tests the snapshot of the cluster: how it is read from the store, what it shares, and who is notified."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from ottla.core.ids import TopicPartition
from ottla.metadata_store import broker_registration, znodes
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterDelta, ClusterView, difference
from ottla.metadata_store.cluster_view_builder import ViewBuilder
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.store import NO_VERSION, Create, Delete, NodeChange, Op, Put, SessionLost

ID = uuid.UUID(int=5)


def topic(name: str, *, topic_id: uuid.UUID = ID) -> list[Op]:
    path = znodes.topic_path(name)
    return [
        Create(path, znodes.encode_assignment(znodes.Assignment(topic_id, {0: (1, 2)}))),
        Create(f"{path}/partitions"),
        Create(znodes.partition_path(name, 0)),
        Create(znodes.state_path(name, 0), znodes.encode_state(znodes.PartitionState(1, 4, (1,), 7))),
    ]


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedSession]:
    session = EmbeddedMetadataStore().session()
    await broker_registration.join_cluster(session, "c")
    yield session
    await session.close()


@pytest.fixture
async def cluster(store: EmbeddedSession) -> MetadataCache:
    return MetadataCache(store)


async def test_everything_in_the_store_is_in_the_snapshot(store: EmbeddedSession, cluster: MetadataCache) -> None:
    broker = znodes.BrokerRegistration(1, {"L": znodes.Endpoint("h", 1)}, {"L": "PLAINTEXT"}, rack="r")
    await store.commit([broker_registration.registration(broker), *topic("t")])
    await store.commit(
        [
            Create(znodes.topic_config_path("t"), znodes.encode_config({"a": "1"})),
            Create(znodes.config_path("brokers", "<default>"), znodes.encode_config({"b": "2"})),
            Create(znodes.config_path("groups", "x/y"), znodes.encode_config({"c": "3"})),
            Create(znodes.CONTROLLER, znodes.encode_controller(1, 0)),
            Create(znodes.CONTROLLER_EPOCH, b"9"),
        ]
    )

    view = await cluster.load()

    assert (view.cluster_id, view.controller_id, view.controller_epoch) == ("c", 1, 9)
    assert (view.brokers[1].endpoints["L"], view.brokers[1].rack) == (("h", 1), "r")
    assert view.broker_configs["<default>"].values == {"b": "2"}
    assert view.configs["groups"]["x/y"].values == {"c": "3"}
    found = view.topics["t"]
    assert view.topic_by_id[ID.bytes] is found
    assert (found.config, found.version, found.config_version) == ({"a": "1"}, 0, 0)
    (partition,) = found.partitions
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 4, (1,))
    assert view.offline_replicas(partition) == (2,)
    assert view.partition("t", 0) is partition
    assert view.partition("t", 1) is None
    assert view.partition("nope", 0) is None


async def test_the_state_of_replication_is_in_the_snapshot(store: EmbeddedSession, cluster: MetadataCache) -> None:
    report = znodes.ReplicaReport(is_clean=True, suspects=frozenset({TopicPartition("t", 0)}))
    broker = znodes.BrokerRegistration(1, {"L": znodes.Endpoint("h", 1)}, {"L": "PLAINTEXT"}, is_shutting_down=True)
    assignment = znodes.Assignment(ID, {0: (1, 2)}, adding={0: (2,)}, removing={0: (1,)}, unknown_keys='{"a":1}')
    state = znodes.PartitionState(1, 5, (1,), 7, True, (2,), (3,), 5, '{"b":2}')
    await store.commit(
        [
            *topic("t"),
            Put(znodes.topic_path("t"), znodes.encode_assignment(assignment)),
            Put(znodes.state_path("t", 0), znodes.encode_state(state)),
            broker_registration.registration(broker),
            Create(znodes.replica_report_path(1), znodes.encode_replica_report(report)),
        ]
    )

    view = await cluster.load()

    assert view.brokers[1].is_shutting_down
    assert view.replica_reports == {1: report}
    (partition,) = view.topics["t"].partitions
    assert (partition.adding, partition.removing) == ((2,), (1,))
    assert (partition.elr, partition.last_known_elr) == ((2,), (3,))
    assert (partition.is_recovering, partition.last_unclean_epoch) == (True, 5)
    assert (view.topics["t"].unknown_keys, partition.unknown_keys) == ('{"a":1}', '{"b":2}')
    await store.commit([Delete(znodes.replica_report_path(1))])
    assert (await cluster.refresh()).replica_reports == {}


async def test_an_unchanged_topic_is_the_same_object_and_notifies_no_subscriber(
    store: EmbeddedSession, cluster: MetadataCache
) -> None:
    await store.commit([*topic("t"), *topic("u", topic_id=uuid.UUID(int=6))])
    before = await cluster.load()
    notified: list[ClusterView] = []
    cluster.subscribe(lambda _old, new: notified.append(new))
    notified.clear()

    await store.commit([Put(znodes.BROKER_IDS, b"nothing of interest")])
    assert await cluster.refresh() is before
    assert notified == []

    await store.commit([Put(znodes.topic_path("u"), znodes.encode_assignment(znodes.Assignment(ID, {0: (1,)})))])
    after = await cluster.refresh()
    assert after.topics["t"] is before.topics["t"]
    assert after.topics["u"] is not before.topics["u"]
    assert notified == [after]
    assert set(after.topic_by_id) >= {ID.bytes}


async def test_a_late_subscriber_gets_the_current_topics_at_once(
    store: EmbeddedSession, cluster: MetadataCache
) -> None:
    await store.commit(topic("t"))
    early: list[tuple[set[str], set[str]]] = []
    cluster.subscribe(lambda old, new: early.append((set(old.topics), set(new.topics))))
    assert early == []
    await cluster.load()
    late: list[tuple[set[str], set[str]]] = []
    cluster.subscribe(lambda old, new: late.append((set(old.topics), set(new.topics))))
    assert early == late == [(set(), {"t"})]


async def test_following_sees_others_changes_even_those_before_the_watch(
    store: EmbeddedSession, cluster: MetadataCache
) -> None:
    await store.commit([*topic("gone"), Create(znodes.CONTROLLER, znodes.encode_controller(1, 0))])
    await cluster.load()
    changed = asyncio.Event()
    cluster.subscribe(lambda _old, _new: changed.set())
    path = znodes.topic_path("gone")
    below = [znodes.state_path("gone", 0), znodes.partition_path("gone", 0), f"{path}/partitions", path]
    await store.commit([*map(Delete, below), Delete(znodes.CONTROLLER)])
    following = asyncio.ensure_future(cluster.follow())
    while cluster.current.topics or cluster.current.controller_id != NO_LEADER:
        changed.clear()
        await changed.wait()
    await store.commit(topic("new"))
    while "new" not in cluster.current.topics:
        changed.clear()
        await changed.wait()
    await store.close()
    await following


async def test_the_error_of_a_subscriber_ends_neither_the_task_that_follows_nor_the_other_subscribers(
    store: EmbeddedSession, cluster: MetadataCache, caplog: pytest.LogCaptureFixture
) -> None:
    seen, changed = set[str](), asyncio.Event()

    def fail(_old: ClusterView, new: ClusterView) -> None:
        if "t" in new.topics:
            raise RuntimeError("a defect")

    def note(_old: ClusterView, new: ClusterView) -> None:
        seen.update(new.topics)
        changed.set()

    cluster.subscribe(fail)
    cluster.subscribe(note)
    await cluster.load()
    following = asyncio.ensure_future(cluster.follow())
    for name, number in (("t", 6), ("u", 7)):
        changed.clear()
        await store.commit(topic(name, topic_id=uuid.UUID(int=number)))
        await changed.wait()
    assert seen == {"t", "u"}
    assert "a defect" in caplog.text
    await store.close()
    await following


async def test_a_sync_in_a_renewed_session_fails_until_the_cluster_is_read_in_it(
    store: EmbeddedSession, cluster: MetadataCache
) -> None:
    await cluster.load()
    await store.commit(topic("t", topic_id=uuid.UUID(int=6)))
    await store.expire()
    with pytest.raises(SessionLost):
        await cluster.sync()
    await store.renew()
    with pytest.raises(SessionLost):
        await cluster.sync()
    await cluster.load()
    assert set((await cluster.sync()).topics) == {"t"}
    await store.close()


async def test_a_cancelled_caller_keeps_no_subscriber_from_a_snapshot(
    store: EmbeddedSession, cluster: MetadataCache
) -> None:
    seen, entered, proceed = set[str](), asyncio.Event(), asyncio.Event()

    async def slow(_old: ClusterView, new: ClusterView) -> None:
        if "t" in new.topics:
            entered.set()
            await proceed.wait()

    cluster.subscribe(slow)
    cluster.subscribe(lambda _old, new: seen.update(new.topics))
    await cluster.load()
    await store.commit(topic("t"))
    caller = asyncio.ensure_future(cluster.sync())
    await entered.wait()
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    proceed.set()
    await cluster.refresh()
    assert seen == {"t"}
    await cluster.close()


async def test_the_cluster_is_read_again_after_an_unexpected_error(
    store: EmbeddedSession, cluster: MetadataCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.metadata_store.metadata_cache.RETRY_S", 0.01)
    changed, failures = asyncio.Event(), [RuntimeError("a defect")]
    original = ViewBuilder.build

    async def build(
        self: ViewBuilder, view: ClusterView, changes: Sequence[NodeChange], **options: bool
    ) -> ClusterView:
        if failures:
            raise failures.pop()
        return await original(self, view, changes, **options)

    cluster.subscribe(lambda _old, _new: changed.set())
    await cluster.load()
    changed.clear()
    monkeypatch.setattr(ViewBuilder, "build", build)
    following = asyncio.ensure_future(cluster.follow())
    await store.commit(topic("t"))
    await changed.wait()
    assert "t" in cluster.current.topics
    assert "a defect" in caplog.text
    await store.close()
    await following


async def test_a_session_that_is_renewed_during_a_change_is_followed_by_one_task(store: EmbeddedSession) -> None:
    tree = EmbeddedMetadataStore()
    writer, follower = tree.session(), tree.session()
    await broker_registration.join_cluster(writer, "c")
    cluster = MetadataCache(follower)
    entered, proceed = asyncio.Event(), asyncio.Event()

    async def slow(_old: ClusterView, new: ClusterView) -> None:
        if "t" in new.topics and not proceed.is_set():
            entered.set()
            await proceed.wait()

    cluster.subscribe(slow)
    await cluster.load()
    first = asyncio.ensure_future(cluster.follow())
    await writer.commit(topic("t"))
    await entered.wait()
    await follower.expire()
    await follower.renew()
    await writer.commit(topic("u", topic_id=uuid.UUID(int=6)))
    loading = asyncio.ensure_future(cluster.load())
    await asyncio.sleep(0)
    proceed.set()
    assert {"t", "u"} <= (await loading).topics.keys()
    second = asyncio.ensure_future(cluster.follow())
    await first
    await writer.commit(topic("v", topic_id=uuid.UUID(int=7)))
    while "v" not in cluster.current.topics:  # noqa: ASYNC110 - `follow` reports to subscribers only
        await asyncio.sleep(0)
    await follower.close()
    await second


async def test_a_topic_without_a_state_has_no_leader_yet(store: EmbeddedSession, cluster: MetadataCache) -> None:
    await store.commit(topic("t")[:1])
    (partition,) = (await cluster.load()).topics["t"].partitions
    assert (partition.leader, partition.partition_epoch) == (NO_LEADER, NO_VERSION)


async def test_of_two_brokers_that_found_a_cluster_the_first_names_it(store: EmbeddedSession) -> None:
    tree = EmbeddedMetadataStore()
    ids = await asyncio.gather(*(broker_registration.join_cluster(tree.session(), name) for name in ("one", "two")))
    assert ids[0] == ids[1]
    for root in znodes.ROOTS:
        assert await tree.session().get(root) is not None


async def test_a_change_of_one_partition_is_all_that_a_new_snapshot_differs_in(
    store: EmbeddedSession, cluster: MetadataCache
) -> None:
    many = znodes.Assignment(ID, dict.fromkeys(range(50), (1, 2)))
    ops: list[Op] = [*topic("u", topic_id=uuid.UUID(int=6)), *topic("t")]
    ops.append(Put(znodes.topic_path("t"), znodes.encode_assignment(many)))
    for index in range(1, 50):
        state = znodes.encode_state(znodes.PartitionState(1, 0, (1, 2), 0))
        ops += [Create(znodes.partition_path("t", index)), Create(znodes.state_path("t", index), state)]
    await store.commit(ops)
    before = await cluster.load()
    shrunk = znodes.encode_state(znodes.PartitionState(1, 0, (1,), 0))
    await store.commit([Put(znodes.state_path("t", 7), shrunk)])

    after = await cluster.refresh()

    assert after.changes_since(before) == ClusterDelta({"t": (7,)}, ())
    assert after.topics["u"] is before.topics["u"]
    old, new = before.topics["t"].partitions, after.topics["t"].partitions
    assert [index for index in range(50) if old[index] is not new[index]] == [7]
    assert len({id(partition.replicas) for partition in new}) == 1
    assert len({id(partition.isr) for partition in new}) == 2, "equal tuples are shared"
    assert after.topic_by_metric_name is before.topic_by_metric_name


async def test_the_difference_of_two_snapshots_names_brokers_and_recreated_topics(
    store: EmbeddedSession, cluster: MetadataCache
) -> None:
    def broker(node_id: int, rack: str) -> bytes:
        return znodes.encode_broker(
            znodes.BrokerRegistration(node_id, {"L": znodes.Endpoint("h", 1)}, {"L": "PLAINTEXT"}, rack=rack)
        )

    await store.commit([*topic("t"), *topic("gone", topic_id=uuid.UUID(int=6))])
    await store.commit([Create(znodes.broker_path(node), broker(node, "r"), ephemeral=True) for node in (1, 2, 3)])
    first = await cluster.load()
    assert first.changes_since(ClusterView()) == ClusterDelta({"t": (0,), "gone": (0,)}, (1, 2, 3))

    await store.commit([Delete(znodes.broker_path(1)), Put(znodes.broker_path(2), broker(2, "s"))])
    await store.commit([Create(znodes.broker_path(1), broker(1, "r"), ephemeral=True)])  # another life
    await store.commit([*deletion("t"), *topic("t", topic_id=uuid.UUID(int=7)), *deletion("gone")])
    await store.commit([Create(znodes.topic_config_path("t"), znodes.encode_config({"a": "1"}))])
    second = await cluster.refresh()
    assert second.changes_since(first) == ClusterDelta({"t": (0,), "gone": (0,)}, (1, 2))

    await store.commit([Put(znodes.topic_config_path("t"), znodes.encode_config({"a": "2"}))])
    third = await cluster.refresh()
    assert third.changes_since(second) == ClusterDelta({"t": ()}, ())
    assert third.changes_since(first) == ClusterDelta({"t": (0,), "gone": (0,)}, (1, 2))


async def test_settings_that_are_older_than_their_topic_are_its_settings(
    store: EmbeddedSession, cluster: MetadataCache
) -> None:
    """Kafka's tools write them first."""
    await cluster.load()
    await store.commit([Create(znodes.topic_config_path("t"), znodes.encode_config({"a": "1"}))])
    assert (await cluster.refresh()).topics == {}
    await store.commit(topic("t"))
    assert (await cluster.refresh()).topics["t"].config == {"a": "1"}
    await store.commit(deletion("t"))
    assert (await cluster.refresh()).topics == {}
    await store.commit(topic("t", topic_id=uuid.UUID(int=7)))
    assert (await cluster.refresh()).topics["t"].config == {"a": "1"}


async def test_a_malformed_node_changes_nothing_else(
    store: EmbeddedSession, cluster: MetadataCache, caplog: pytest.LogCaptureFixture
) -> None:
    await store.commit(topic("t"))
    before = await cluster.load()
    grown = znodes.encode_assignment(znodes.Assignment(ID, {0: (1, 2, 3)}))
    await store.commit(
        [
            Put(znodes.state_path("t", 0), b"{"),
            Put(znodes.topic_path("t"), grown),
            Create(f"{znodes.BROKER_IDS}/none", b"{}"),
            *topic("u", topic_id=uuid.UUID(int=6)),
        ]
    )
    after = await cluster.refresh()
    assert "u" in after.topics
    (partition,) = after.topics["t"].partitions
    offline = replace(before.topics["t"].partitions[0], replicas=(1, 2, 3), leader=NO_LEADER, isr=(), partition_epoch=1)
    assert partition == offline
    assert "state" in caplog.text
    assert "/brokers/ids/none" in caplog.text
    assert caplog.text.count("t-0 is offline") == 1
    fresh = await MetadataCache(store).load()
    assert fresh.topics["t"].partitions[0] == replace(offline, leader_epoch=0)
    await store.commit(
        [Put(znodes.state_path("t", 0), znodes.encode_state(znodes.PartitionState(NO_LEADER, 5, (2,), 7)))]
    )
    restored = await cluster.refresh()
    assert restored.topics["t"].partitions[0].isr == (2,)


async def test_a_topic_with_a_malformed_assignment_is_not_deleted_by_a_full_load(
    store: EmbeddedSession, cluster: MetadataCache
) -> None:
    await store.commit(topic("t"))
    before = await cluster.load()
    await store.commit([Put(znodes.topic_path("t"), b"{")])
    await cluster.refresh()
    after = await cluster.load()  # as after a lost session
    assert after.topics["t"] == before.topics["t"]
    await store.commit([Create(f"{znodes.TOPIC_DELETIONS}/t")])
    assert "t" not in (await cluster.load()).topics


@pytest.mark.parametrize("kind", ["assignment", "settings"])
async def test_a_topic_that_was_malformed_from_the_start_is_left_out_until_its_nodes_are_restored(
    store: EmbeddedSession, cluster: MetadataCache, kind: str
) -> None:
    await store.commit([*topic("t"), Create(znodes.topic_config_path("t"), znodes.encode_config({"a": "1"}))])
    complete = await MetadataCache(store).load()
    path = znodes.topic_path("t") if kind == "assignment" else znodes.topic_config_path("t")
    node = await store.get(path)
    assert node is not None
    await store.commit([Put(path, b"{"), *topic("u", topic_id=uuid.UUID(int=6))])
    view = await cluster.load()
    assert set(view.topics) == {"u"}
    assert view.unreadable_topics == {"t"}
    state = znodes.encode_state(znodes.PartitionState(2, 5, (1, 2), 7))
    await store.commit([Put(znodes.state_path("t", 0), state)])
    assert (await cluster.refresh()).unreadable_topics == {"t"}
    await store.commit([Put(path, node.value)])
    view = await cluster.refresh()
    assert view.unreadable_topics == frozenset()
    assert view.topics["t"].config == complete.topics["t"].config == {"a": "1"}
    assert view.topics["t"].partitions[0].leader == 2
    assert view.topics == (await MetadataCache(store).load()).topics


@pytest.mark.parametrize("partitions", ['{"0":[]}', '{"1":[1]}', '{"0":[1,1]}', '{"0":["x"]}'])
async def test_an_assignment_without_a_place_for_each_partition_changes_nothing(
    store: EmbeddedSession, cluster: MetadataCache, partitions: str
) -> None:
    await store.commit(topic("t"))
    before = await cluster.load()
    text = f'{{"version":3,"topic_id":"AAAAAAAAAAAAAAAAAAAABQ","partitions":{partitions}}}'
    await store.commit([Put(znodes.topic_path("t"), text.encode())])
    assert (await cluster.refresh()).topics == before.topics


async def test_the_notes_of_deleted_topics_are_in_the_snapshot(store: EmbeddedSession, cluster: MetadataCache) -> None:
    note = znodes.deleted_topic_path(ID)
    await store.commit([*topic("t")])
    await cluster.load()
    await store.commit(
        [
            *deletion("t"),
            Create(note, znodes.encode_deleted_topic(znodes.DeletedTopic("t", (1,)))),
            Create(f"{znodes.DELETED_TOPICS}/none"),
        ]
    )
    assert (await cluster.refresh()).deleted_topics == {ID}
    assert (await cluster.load()).deleted_topics == {ID}
    await store.commit([Delete(note)])
    assert (await cluster.refresh()).deleted_topics == frozenset()


@pytest.mark.parametrize("seed", range(20))
async def test_following_changes_gives_the_same_snapshot_as_reading_everything(
    store: EmbeddedSession, seed: int
) -> None:
    rng = random.Random(seed)
    tree = EmbeddedMetadataStore()
    store, follower = tree.session(), tree.session()
    await broker_registration.join_cluster(store, "c")
    cluster = MetadataCache(follower)
    view = await cluster.load()
    for step in range(150):
        await store.commit(random_change(rng, tree, step))
        if rng.random() < 0.1:
            await follower.expire()
            await follower.renew()
            old, view = view, await cluster.load()
        elif rng.random() < 0.4:
            old, view = view, await cluster.refresh()
        else:
            continue
        assert view == await MetadataCache(store).load()
        delta = view.changes_since(old)
        assert {name: sorted(found) for name, found in delta.topics.items()} == {
            name: sorted(found) for name, found in difference(old, view).topics.items()
        }
        assert sorted(delta.brokers) == sorted(difference(old, view).brokers)


def deletion(name: str) -> list[Op]:
    path = znodes.topic_path(name)
    below = [znodes.state_path(name, 0), znodes.partition_path(name, 0), f"{path}/partitions", path]
    return [*map(Delete, below)]


def random_change(rng: random.Random, tree: EmbeddedMetadataStore, step: int) -> list[Op]:
    """Change anything: topics, partitions, settings, brokers."""
    name = rng.choice(("t", "u", "v"))
    exists = tree.nodes.keys()
    state = znodes.encode_state(
        znodes.PartitionState(rng.randrange(3), step, tuple(rng.sample(range(3), rng.randint(1, 3))), 1)
    )
    config, broker = znodes.topic_config_path(name), znodes.broker_path(rng.randrange(3))
    match rng.randrange(5):
        case 0 if znodes.topic_path(name) in exists:
            indexes = [int(index) for index in tree.child_names.get(f"{znodes.topic_path(name)}/partitions", ())]
            below = [path for index in indexes for path in (f"{znodes.partition_path(name, index)}",)]
            gone = [op for path in below for op in (Delete(f"{path}/state"), Delete(path))]
            ops: list[Op] = [*gone, Delete(f"{znodes.topic_path(name)}/partitions"), Delete(znodes.topic_path(name))]
            return [*ops, *topic(name, topic_id=uuid.UUID(int=step))] if rng.random() < 0.5 else ops
        case 0 | 1 if znodes.topic_path(name) not in exists:
            return topic(name, topic_id=uuid.UUID(int=step))
        case 1:
            index = len(tree.child_names[f"{znodes.topic_path(name)}/partitions"])
            topic_id = znodes.decode_assignment(name, tree.nodes[znodes.topic_path(name)].node.value).topic_id
            replicas = {each: tuple(rng.sample(range(3), 2)) for each in range(index + 1)}
            assignment = znodes.Assignment(topic_id, replicas, {0: (replicas[0][0],)} if step % 2 else {})
            grown: list[Op] = [Put(znodes.topic_path(name), znodes.encode_assignment(assignment))]
            grown.append(Create(znodes.partition_path(name, index)))
            return [*grown, Create(znodes.state_path(name, index), state)] if step % 3 else grown[:1]
        case 2 if config in exists:
            return [Delete(config)] if rng.random() < 0.5 else [Put(config, znodes.encode_config({"a": str(step)}))]
        case 2:
            return [Create(config, znodes.encode_config({"b": str(step)}))]
        case 3 if broker in exists:
            return [Delete(broker)]
        case 3:
            registration = znodes.BrokerRegistration(1, {"L": znodes.Endpoint("h", 1)}, {"L": "PLAINTEXT"})
            return [Create(broker, znodes.encode_broker(registration))]
        case _:
            path = znodes.state_path(name, 0)
            return [Put(path, state)] if path in exists else []
