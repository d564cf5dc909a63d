"""Tests the snapshot of the cluster: how it is read from the store, what it shares, and who is notified."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

from ottla.coordination import layout, membership
from ottla.coordination.embedded import EmbeddedMetadataStore, Session
from ottla.coordination.store import NO_VERSION, Create, Delete, Op, Put
from ottla.coordination.view import NO_LEADER, Cluster, ClusterView
from ottla.core.ids import TopicPartition

ID = uuid.UUID(int=5)


def topic(name: str, *, topic_id: uuid.UUID = ID) -> list[Op]:
    path = layout.topic_path(name)
    return [
        Create(path, layout.encode_assignment(layout.Assignment(topic_id, {0: (1, 2)}))),
        Create(f"{path}/partitions"),
        Create(layout.partition_path(name, 0)),
        Create(layout.state_path(name, 0), layout.encode_state(layout.PartitionState(1, 4, (1,), 7))),
    ]


def run(scenario: Callable[[Session, Cluster], Awaitable[None]]) -> None:
    async def run_scenario() -> None:
        store = EmbeddedMetadataStore().session()
        await membership.join_cluster(store, "c")
        cluster = Cluster(store)
        await asyncio.wait_for(scenario(store, cluster), 10)
        await store.close()

    asyncio.run(run_scenario())


def test_everything_in_the_store_is_in_the_snapshot() -> None:
    async def scenario(store: Session, cluster: Cluster) -> None:
        broker = layout.BrokerRegistration(1, {"L": layout.Endpoint("h", 1)}, {"L": "PLAINTEXT"}, rack="r")
        await store.commit([membership.registration(broker), *topic("t")])
        await store.commit(
            [
                Create(layout.topic_config_path("t"), layout.encode_config({"a": "1"})),
                Create(layout.config_path("brokers", "<default>"), layout.encode_config({"b": "2"})),
                Create(layout.config_path("groups", "x/y"), layout.encode_config({"c": "3"})),
                Create(layout.CONTROLLER, layout.encode_controller(1, 0)),
                Create(layout.CONTROLLER_EPOCH, b"9"),
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

    run(scenario)


def test_the_state_of_replication_is_in_the_snapshot() -> None:
    async def scenario(store: Session, cluster: Cluster) -> None:
        report = layout.ReplicaReport(is_clean=True, suspects=frozenset({TopicPartition("t", 0)}))
        broker = layout.BrokerRegistration(1, {"L": layout.Endpoint("h", 1)}, {"L": "PLAINTEXT"}, is_shutting_down=True)
        assignment = layout.Assignment(ID, {0: (1, 2)}, adding={0: (2,)}, removing={0: (1,)}, unknown_keys='{"a":1}')
        state = layout.PartitionState(1, 5, (1,), 7, True, (2,), (3,), 5, '{"b":2}')
        await store.commit(
            [
                *topic("t"),
                Put(layout.topic_path("t"), layout.encode_assignment(assignment)),
                Put(layout.state_path("t", 0), layout.encode_state(state)),
                membership.registration(broker),
                Create(layout.replica_report_path(1), layout.encode_replica_report(report)),
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
        await store.commit([Delete(layout.replica_report_path(1))])
        assert (await cluster.refresh([layout.replica_report_path(1)])).replica_reports == {}

    run(scenario)


def test_an_unchanged_topic_is_the_same_object_and_notifies_no_subscriber() -> None:
    async def scenario(store: Session, cluster: Cluster) -> None:
        await store.commit([*topic("t"), *topic("u", topic_id=uuid.UUID(int=6))])
        before = await cluster.load()
        notified: list[ClusterView] = []
        cluster.subscribe(lambda _old, new: notified.append(new))
        notified.clear()

        assert await cluster.refresh([layout.topic_path("t"), layout.CONTROLLER]) is before
        assert notified == []

        await store.commit([Put(layout.topic_path("u"), layout.encode_assignment(layout.Assignment(ID, {0: (1,)})))])
        after = await cluster.refresh([layout.topic_path("u")])
        assert after.topics["t"] is before.topics["t"]
        assert after.topics["u"] is not before.topics["u"]
        assert notified == [after]
        assert set(after.topic_by_id) >= {ID.bytes}

    run(scenario)


def test_a_late_subscriber_gets_the_current_topics_at_once() -> None:
    async def scenario(store: Session, cluster: Cluster) -> None:
        await store.commit(topic("t"))
        early: list[tuple[set[str], set[str]]] = []
        cluster.subscribe(lambda old, new: early.append((set(old.topics), set(new.topics))))
        assert early == []
        await cluster.load()
        late: list[tuple[set[str], set[str]]] = []
        cluster.subscribe(lambda old, new: late.append((set(old.topics), set(new.topics))))
        assert early == late == [(set(), {"t"})]

    run(scenario)


def test_following_sees_others_changes_even_those_before_the_watch() -> None:
    async def scenario(store: Session, cluster: Cluster) -> None:
        await store.commit([*topic("gone"), Create(layout.CONTROLLER, layout.encode_controller(1, 0))])
        await cluster.load()
        changed = asyncio.Event()
        cluster.subscribe(lambda _old, _new: changed.set())
        path = layout.topic_path("gone")
        below = [layout.state_path("gone", 0), layout.partition_path("gone", 0), f"{path}/partitions", path]
        await store.commit([*map(Delete, below), Delete(layout.CONTROLLER)])
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

    run(scenario)


def test_a_topic_without_a_state_has_no_leader_yet() -> None:
    async def scenario(store: Session, cluster: Cluster) -> None:
        await store.commit(topic("t")[:1])
        (partition,) = (await cluster.load()).topics["t"].partitions
        assert (partition.leader, partition.partition_epoch) == (NO_LEADER, NO_VERSION)

    run(scenario)


def test_of_two_brokers_that_found_a_cluster_the_first_names_it() -> None:
    async def scenario(store: Session, cluster: Cluster) -> None:
        tree = EmbeddedMetadataStore()
        ids = await asyncio.gather(*(membership.join_cluster(tree.session(), name) for name in ("one", "two")))
        assert ids[0] == ids[1]
        for root in layout.ROOTS:
            assert await tree.session().get(root) is not None

    run(scenario)
