"""The controller's terms: one broker at a time, whatever happens to sessions, answers and other controllers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from ottla.controller.broker_changes import broker_events, handled_after
from ottla.controller.config import ControllerConfig
from ottla.controller.election_events import BrokersGone, BrokerShutsDown, BrokerStarted
from ottla.controller.elections import Election
from ottla.controller.isr import ProposedIsr
from ottla.controller.overlay import OPS_PER_COMMIT, PartitionIndex
from ottla.controller.reassignments import RequestedReassignment
from ottla.controller.terms import become_controller, write_in_term
from ottla.controller.topics import CreateTopic
from ottla.core import errors
from ottla.core.ids import TopicPartition
from ottla.metadata_store import broker_registration, znodes
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView, PartitionView
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.store import Create, Delete, Op, OutcomeUnknown, Put, SessionLost
from ottla.metadata_store.store import Node as StoreNode
from tests.unit.controller.cluster_views import TOPIC_ID, a_partition, brokers, view_of
from tests.unit.controller.test_controller import Node


class ForgetfulSession(EmbeddedSession):
    """Loses the answers to some commits, before or after they were made."""

    outcomes: list[str]  # of the next commits: "made", "lost", "" for an answer
    commits: list[Sequence[Op]]

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        outcome = self.outcomes.pop(0) if self.outcomes else ""
        self.commits.append(ops)
        if outcome == "lost":
            raise OutcomeUnknown(ops[0].path)
        results = await super().commit(ops)
        if outcome == "made":
            raise OutcomeUnknown(ops[0].path)
        return results


class ForgetfulStore(EmbeddedMetadataStore):
    """Opens such sessions."""

    def session(self) -> ForgetfulSession:
        found = super().session()
        found.__class__ = ForgetfulSession
        assert isinstance(found, ForgetfulSession)
        found.outcomes, found.commits = [], []
        return found


async def cluster_of(tree: EmbeddedMetadataStore, *nodes: int) -> dict[int, Node]:
    """Start brokers; returns when each knows all."""
    made = {node: Node(tree, node) for node in nodes}
    for node in made.values():
        await node.start()
    for node in made.values():
        await node.until(lambda view: len(view.brokers) == len(nodes))
    return made


async def stop(nodes: dict[int, Node]) -> None:
    for node in nodes.values():
        await node.stop()


def states(view: ClusterView, topic: str = "t") -> list[tuple[int, int, tuple[int, ...]]]:
    return [(each.leader, each.leader_epoch, each.isr) for each in view.topics[topic].partitions]


# ---- Becoming controller


async def test_of_many_that_compete_one_is_elected_and_each_that_dies_is_replaced_in_a_higher_epoch() -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), *range(1, 6))
    await nodes[1].controller.create_topic("t", assignments=[(0, [1, 2, 3, 4, 5])])
    epochs = []
    while nodes:
        active = [node for node in nodes.values() if node.controller.is_active]
        assert len(active) == 1
        view = active[0].cluster.current
        assert view.controller_id == active[0].node_id
        epochs.append(view.controller_epoch)
        del nodes[active[0].node_id]
        await active[0].stop()
        for node in nodes.values():
            await node.until(
                lambda view: view.controller_id in nodes and view.topics["t"].partitions[0].leader in nodes
            )
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("outcome", ["made", "lost"])
async def test_an_election_with_an_unknown_outcome_is_resolved_by_reading(outcome: str) -> None:
    store = ForgetfulStore()
    session = store.session()
    await broker_registration.join_cluster(session, "c")
    session.outcomes = [outcome]
    term = await become_controller(session, 1, 77)
    assert term is not None
    node = await session.get(znodes.CONTROLLER_EPOCH)
    assert node is not None
    assert (term.epoch, term.version, node.version) == (1, 0, 0)
    other = store.session()
    assert await become_controller(other, 2, 78) is None
    await other.close()
    await session.close()


class RenewedSession(EmbeddedSession):
    """Is lost, and renewed, when the epoch of the controller is read."""

    async def get(self, path: str) -> StoreNode | None:
        found = await super().get(path)
        if path == znodes.CONTROLLER_EPOCH and self.state.ordinal == 1:
            await self.expire()
            await self.renew()
        return found


async def test_an_election_in_a_session_that_was_renewed_meanwhile_leaves_no_controller_without_term() -> None:
    session = EmbeddedMetadataStore().session()
    session.__class__ = RenewedSession
    await broker_registration.join_cluster(session, "c")
    with pytest.raises(SessionLost):
        await become_controller(session, 1, 77)
    assert await session.get(znodes.CONTROLLER) is None
    term = await become_controller(session, 1, 78)
    assert term is not None
    await write_in_term(session, term, [[Create("/written")]])
    await session.close()


async def test_a_broker_that_is_controller_without_knowing_its_term_begins_another() -> None:
    """As where the answer to its election was lost: its session would hold the controller's node for ever."""
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    epoch = await nodes[1].store.get(znodes.CONTROLLER_EPOCH)
    assert epoch is not None
    await nodes[1].store.commit(
        [
            Delete(znodes.CONTROLLER),
            Create(znodes.CONTROLLER, znodes.encode_controller(1, 77), ephemeral=True),
            Put(znodes.CONTROLLER_EPOCH, znodes.encode_epoch(2), epoch.version),
        ]
    )
    await nodes[2].until(lambda view: view.controller_epoch > 2)
    assert [node.controller.is_active for node in nodes.values()].count(True) == 1
    await stop(nodes)


@pytest.mark.parametrize("outcome", ["made", "lost"])
@pytest.mark.parametrize("which", [0, 1])
async def test_a_change_with_an_unknown_outcome_is_made_once(outcome: str, which: int) -> None:
    node = Node(ForgetfulStore())
    await node.start()
    assert isinstance(node.store, ForgetfulSession)
    node.store.outcomes = [*([""] * which), outcome]
    first = await node.controller.create_topic("t", configs={"retention.ms": "5"})
    assert node.cluster.current.topics["t"] == first
    await node.controller.delete_topics(["t"])
    assert node.cluster.current.topics == {}
    await node.stop()


async def test_nothing_is_written_in_another_session_than_that_of_the_term() -> None:
    session = EmbeddedMetadataStore().session()
    await broker_registration.join_cluster(session, "c")
    term = await become_controller(session, 1, 77)
    assert term is not None
    await write_in_term(session, term, [[Create("/before")]])
    await session.expire()
    await session.renew()
    with pytest.raises(errors.NotController):
        await write_in_term(session, term, [[Create("/after")]])
    assert await session.get("/after") is None
    await session.close()


async def test_an_old_controller_changes_nothing_after_another_was_elected() -> None:
    store = EmbeddedMetadataStore()
    old, new = store.session(), store.session()
    await broker_registration.join_cluster(old, "c")
    first = await become_controller(old, 1, 77)
    assert first is not None
    await old.commit([Delete(znodes.CONTROLLER)])
    assert await become_controller(new, 2, 78) is not None
    with pytest.raises(errors.NotController):
        await write_in_term(old, first, [[Create("/late")]])
    assert await new.get("/late") is None
    await old.close()
    await new.close()


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("configs", [None, {"retention.ms": "1"}])  # one node more: the commits are cut elsewhere
async def test_the_partitions_of_a_topic_have_leaders_though_its_creation_is_cut_short(
    monkeypatch: pytest.MonkeyPatch, configs: dict[str, str | None] | None, dies: bool
) -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    store, is_cut, proceed = nodes[1].store, asyncio.Event(), asyncio.Event()
    original, commits = store.commit, list[int]()

    async def stop_after_the_first(ops: Sequence[Op]) -> list[int]:
        if any(each.path.startswith(znodes.TOPICS) for each in ops):
            commits.append(len(ops))
        if len(commits) == 2 and not is_cut.is_set():
            is_cut.set()
            await proceed.wait()
        return await original(ops)

    monkeypatch.setattr(store, "commit", stop_after_the_first)
    creating = asyncio.ensure_future(nodes[1].controller.create_topic("t", partitions=OPS_PER_COMMIT, configs=configs))
    await is_cut.wait()
    if dies:
        await nodes[1].store.expire()
    creating.cancel()  # its client is gone
    await asyncio.wait([creating])
    proceed.set()
    view = await nodes[2].until(
        lambda view: "t" in view.topics and all(each.leader in {1, 2} for each in view.topics["t"].partitions)
    )
    assert len(view.topics["t"].partitions) == OPS_PER_COMMIT
    assert OPS_PER_COMMIT - 1 <= commits[0] <= OPS_PER_COMMIT
    await asyncio.gather(creating, return_exceptions=True)
    await stop(nodes)


# ---- Sessions


async def test_a_broker_whose_session_is_lost_resigns_and_registers_again_in_another_epoch() -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    await nodes[1].controller.create_topic("t", assignments=[(0, [1, 2])])
    before = nodes[1].cluster.current.brokers[1].epoch
    await nodes[1].store.expire()
    view = await nodes[2].until(
        lambda view: (
            1 in view.brokers
            and view.brokers[1].epoch != before
            and view.topics["t"].partitions[0].leader == 2
            and view.controller_id != NO_LEADER
        )
    )
    assert view.controller_epoch == 2
    await nodes[1].until(lambda view: view.controller_epoch == 2)
    (active,) = (node for node in nodes.values() if node.controller.is_active)
    await active.controller.create_topic("u")
    await nodes[1].until(lambda view: "u" in view.topics)
    await stop(nodes)


@pytest.mark.parametrize("failing", ["renew", "commit"])
async def test_a_broker_registers_again_whatever_fails_first(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    monkeypatch.setattr("ottla.controller.controller.RETRY_S", 0.01)
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    store, before = nodes[1].store, nodes[2].cluster.current.brokers[1].epoch
    original, failures = getattr(store, failing), [RuntimeError("a defect")]

    async def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await original(*arguments)

    monkeypatch.setattr(store, failing, fail_once)
    await store.expire()
    await nodes[2].until(lambda view: 1 in view.brokers and view.brokers[1].epoch != before)
    assert not failures
    await stop(nodes)


async def test_a_broker_registers_again_whose_next_session_is_lost_before_it_looks() -> None:
    """Else it would wait for the loss that has happened: alive, and not in the cluster, for as long as it runs."""

    class LostAtOnce(EmbeddedSession):
        """Its second session ends in the turn in which it begins."""

        async def renew(self) -> None:
            await super().renew()
            if self.state.ordinal == 2:
                await self.expire()

    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    before = nodes[2].cluster.current.brokers[1].epoch
    nodes[1].store.__class__ = LostAtOnce
    await nodes[1].store.expire()
    await nodes[2].until(lambda view: 1 in view.brokers and view.brokers[1].epoch != before)
    assert nodes[1].store.state.ordinal == 3
    await stop(nodes)


@pytest.mark.parametrize("error", [OutcomeUnknown(znodes.HANDLED_BROKERS), RuntimeError("a defect")])
async def test_a_take_over_that_fails_is_begun_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr("ottla.controller.controller.RETRY_S", 0.01)
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    await nodes[1].controller.create_topic("t", assignments=[(0, [1, 2])])
    await nodes[2].until(lambda view: "t" in view.topics)
    original, failures = nodes[2].store.get, [znodes.HANDLED_BROKERS] * 2

    async def failing(path: str) -> Any:
        if path in failures:
            failures.remove(path)
            raise error
        return await original(path)

    nodes[2].store.get = failing  # type: ignore[method-assign]
    await nodes[1].stop()
    view = await nodes[2].until(lambda view: view.topics["t"].partitions[0].leader == 2)
    assert (failures, view.controller_id) == ([], 2)
    await nodes[2].stop()


async def test_a_change_that_waits_when_the_term_ends_is_refused() -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    async with nodes[1].controller._one_at_a_time:
        waiting = asyncio.ensure_future(nodes[1].controller.create_topic("t"))
        await asyncio.sleep(0)
        await nodes[1].store.expire()
        await nodes[1].until(lambda view: view.controller_epoch == 2)
    with pytest.raises(errors.NotController):
        await waiting
    assert nodes[1].cluster.current.topics == {}
    await stop(nodes)


# ---- Brokers that bounce


async def test_a_broker_that_bounced_while_there_was_no_controller_has_lost_its_leadership() -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2, 3)
    await nodes[1].controller.create_topic("t", assignments=[(0, [2, 3])])
    await nodes[1].controller.create_topic("alone", assignments=[(0, [2])])
    await nodes[3].until(lambda view: "alone" in view.topics)
    nodes[2].controller._takes_part = nodes[3].controller._takes_part = False  # they are slow to react
    await nodes[1].stop()
    await nodes[2].stop()
    again = Node(nodes[3].tree, 2)
    nodes[3].controller._takes_part = True
    await again.start()
    view = await again.until(lambda view: states(view)[0][0] == 3 and states(view, "alone")[0][1] > 0)
    assert states(view) == [(3, 1, (3,))]
    assert states(view, "alone") == [(2, 2, (2,))]
    await again.stop()
    await nodes[3].stop()


def test_gone_started_and_bounced_brokers_are_found_by_their_epochs() -> None:
    view = view_of(a_partition(), alive=(1, 2, 3))
    index = PartitionIndex(view.topics.values())
    handled = handled_after(view)
    assert broker_events(view, handled, index) == []
    here = [TopicPartition("t", 0)]
    bounced = ClusterView(brokers={**brokers((1, 3)), 2: brokers((2,))[2]._replace(epoch=999)}, topics=view.topics)
    assert broker_events(bounced, handled, index) == [BrokersGone(frozenset({2}), here), BrokerStarted(2, here)]
    left = ClusterView(brokers=brokers((1, 3)), topics=view.topics)
    assert broker_events(left, handled, index) == [BrokersGone(frozenset({2}), here)]
    assert broker_events(left, handled_after(left), index, gone=[1, 2]) == [BrokersGone(frozenset({2}), here)]


def test_partitions_that_wait_for_a_leader_come_before_those_that_lose_an_in_sync_replica() -> None:
    view = view_of(*(a_partition(index=index, leader=1 + index % 3) for index in range(6)), alive=(1, 2, 3))
    index = PartitionIndex(view.topics.values())
    handled = handled_after(view)
    names = [TopicPartition("t", each) for each in (1, 4, 0, 2, 3, 5)]
    left = ClusterView(brokers=brokers((1, 3)), topics=view.topics)
    assert broker_events(left, handled, index) == [BrokersGone(frozenset({2}), names)]
    stopping = ClusterView(
        brokers={**view.brokers, 2: view.brokers[2]._replace(is_shutting_down=True)}, topics=view.topics
    )
    assert broker_events(stopping, handled, index) == [BrokerShutsDown(2, names)]


# ---- Large changes


async def test_a_large_change_is_cut_into_commits_and_all_partitions_have_a_leader() -> None:
    node = Node(ForgetfulStore())
    await node.start()
    assert isinstance(node.store, ForgetfulSession)
    node.store.commits.clear()
    await node.controller.create_topic("t", partitions=600)
    assert [len(ops) for ops in node.store.commits] == [499, 499, 207]  # no partition is cut from its state
    assert all(state == (1, 0, (1,)) for state in states(node.cluster.current))
    assert OPS_PER_COMMIT == 500
    await node.stop()


async def test_changes_committed_before_a_conflict_are_not_decided_again() -> None:
    node = Node(ForgetfulStore())
    await node.start()
    session = node.store
    assert isinstance(session, ForgetfulSession)
    session.commits.clear()
    original = ForgetfulSession.commit
    raced = False

    async def racing(ops: Sequence[Op]) -> list[int]:
        nonlocal raced
        if not raced and any(op.path == "/brokers/topics/late" for op in ops):
            raced = True
            await original(session, [Create("/brokers/topics/late", b'{"version":3,"partitions":{}}')])
        return await original(session, ops)

    session.commit = racing  # type: ignore[method-assign]
    events = [CreateTopic(f"t{number}", 1) for number in range(120)] + [CreateTopic("late", 1)]
    outcomes = await node.controller.create_topics(events)
    assert [type(each).__name__ for each in outcomes] == ["TopicView"] * 120 + ["TopicAlreadyExists"]
    assert len(node.cluster.current.topics) == 121
    await node.stop()


async def test_partitions_without_a_state_get_one_from_the_next_controller() -> None:
    tree = EmbeddedMetadataStore()
    nodes = await cluster_of(tree, 1, 2)
    assignment = znodes.encode_assignment(znodes.Assignment(TOPIC_ID, {0: (1, 2), 1: (2, 1)}))
    await nodes[2].store.commit([Create("/brokers/topics/t", assignment), Create("/brokers/topics/t/partitions")])
    await nodes[1].stop()
    view = await nodes[2].until(lambda view: "t" in view.topics and view.topics["t"].partitions[1].leader == 2)
    assert states(view) == [(2, 1, (2,)), (2, 1, (2,))]
    await nodes[2].stop()


# ---- Operations


async def test_leaders_go_back_to_their_preferred_replicas_on_request_and_from_time_to_time() -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    controller = nodes[1].controller
    await controller.create_topic("t", assignments=[(0, [2, 1]), (1, [2, 1])])
    await nodes[2].stop()
    view = await nodes[1].until(lambda view: [each[0] for each in states(view)] == [1, 1])
    again = Node(nodes[1].tree, 2)
    await again.start()
    await nodes[1].until(lambda view: 2 in view.brokers)
    here = [TopicPartition("t", index) for index in (0, 1)]
    assert [type(each) for each in await controller.elect_leaders(Election.PREFERRED, here)] == [
        errors.PreferredLeaderNotAvailable
    ] * 2
    await expand(nodes[1], view.topics["t"].partitions[0])
    assert await controller.elect_leaders(Election.PREFERRED, here[:1]) == [None]
    assert states(nodes[1].cluster.current)[0] == (2, 2, (2, 1))
    await stop({1: nodes[1], 2: again})


async def test_leaders_are_balanced_from_time_to_time() -> None:
    tree = EmbeddedMetadataStore()
    first, second = Node(tree, 1), Node(tree, 2)
    first.controller.config = ControllerConfig(leader_imbalance_check_s=1)
    await first.start()
    await second.start()
    await first.until(lambda view: 2 in view.brokers)
    await first.controller.create_topic("t", assignments=[(0, [2, 1])])
    await second.stop()
    await first.until(lambda view: states(view)[0][0] == 1)
    again = Node(tree, 2)
    await again.start()
    await first.until(lambda view: 2 in view.brokers)
    await expand(first, first.cluster.current.topics["t"].partitions[0])
    view = await first.until(lambda view: states(view)[0][0] == 2)
    assert states(view) == [(2, 2, (2, 1))]
    await stop({1: first, 2: again})


async def expand(node: Node, partition: PartitionView) -> None:
    """Bring all replicas into the ISR, as the leader does once they have caught up."""
    view = node.cluster.current
    current = view.partition("t", partition.index)
    assert current is not None
    proposal = ProposedIsr(
        view.topics["t"].topic_id,
        partition.index,
        current.leader_epoch,
        current.partition_epoch,
        [(replica, view.brokers[replica].epoch) for replica in current.replicas],
    )
    outcomes = await node.controller.alter_partitions(current.leader, view.brokers[current.leader].epoch, [proposal])
    assert not any(isinstance(each, errors.KafkaError) for each in outcomes) or isinstance(
        outcomes[0], errors.NewLeaderElected
    )


async def test_a_partition_moves_to_other_brokers_and_the_old_ones_leave() -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2, 3)
    controller = nodes[1].controller
    await controller.create_topic("t", assignments=[(0, [1, 2])])
    here = TopicPartition("t", 0)
    assert await controller.reassign([RequestedReassignment(here, [3, 2])]) == [None]
    (running,) = controller.list_reassignments()
    assert running == (here, (3, 2, 1), (3,), (1,))
    await expand(nodes[1], nodes[1].cluster.current.topics["t"].partitions[0])
    assert controller.list_reassignments() == []
    partition = nodes[1].cluster.current.topics["t"].partitions[0]
    assert (partition.replicas, partition.isr, partition.leader, partition.leader_epoch) == ((3, 2), (3, 2), 3, 1)
    await stop(nodes)


async def test_a_broker_that_shuts_down_waits_until_others_lead() -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    await nodes[1].controller.create_topic("t", assignments=[(0, [1, 2]), (1, [2, 1])])
    await nodes[1].controller.create_topic("alone", assignments=[(0, [1])])
    await nodes[2].until(lambda view: "alone" in view.topics)
    before = nodes[1].cluster.current.brokers[1].epoch
    assert await nodes[1].controller.shut_down(within_s=5.0) == 0
    view = nodes[1].cluster.current
    assert [(leader, isr) for leader, _, isr in states(view)] == [(2, (2,)), (2, (2,))]
    assert states(view, "alone") == [(1, 0, (1,))]
    assert (view.brokers[1].is_shutting_down, view.brokers[1].epoch) == (True, before)
    assert await nodes[2].controller.shut_down(within_s=0.1) == 0  # nothing is left that could take over
    await stop(nodes)


async def test_a_broker_alone_shuts_down_at_once_and_writes_nothing() -> None:
    node = Node(ForgetfulStore())
    await node.start()
    await node.controller.create_topic("t")
    assert isinstance(node.store, ForgetfulSession)
    node.store.commits.clear()
    assert await node.controller.shut_down(within_s=5.0) == 0
    assert node.store.commits == []
    await node.stop()


# ---- Deletions


async def test_a_large_topic_is_deleted_in_two_phases_and_its_brokers_are_noted() -> None:
    node = Node(ForgetfulStore())
    await node.start()
    assert isinstance(node.store, ForgetfulSession)
    created = await node.controller.create_topic("t", partitions=600, configs={"retention.ms": "5"})
    node.store.commits.clear()
    assert await node.controller.delete_topics(["t"]) == [None]
    sizes = [len(ops) for ops in node.store.commits]
    assert (sizes[0], max(sizes), sum(sizes)) == (4, 500, 4 + 1200 + 4 + len(sizes) - 1)
    assert await node.store.list_nodes(znodes.TOPICS + "/t") == {}
    assert await node.store.children(znodes.TOPIC_DELETIONS) == frozenset()
    assert await node.store.get(znodes.topic_config_path("t")) is None
    path = znodes.deleted_topic_path(created.topic_id)
    note = await node.store.get(path)
    assert note is not None
    assert znodes.decode_deleted_topic(path, note.value) == znodes.DeletedTopic("t", (1,))
    assert (await node.controller.create_topic("t")).topic_id != created.topic_id
    await node.stop()


@pytest.mark.parametrize("commits", [1, 2, 3])
async def test_a_deletion_that_a_controller_left_unfinished_is_finished_by_the_next(commits: int) -> None:
    tree = EmbeddedMetadataStore()
    nodes = await cluster_of(tree, 1, 2)
    await nodes[1].controller.create_topic("t", partitions=600)
    await nodes[2].until(lambda view: "t" in view.topics)
    made = 0

    original = nodes[1].store.commit

    async def dying(ops: Sequence[Op]) -> list[int]:
        nonlocal made
        if made == commits:
            await nodes[1].store.close()
        made += 1
        return await original(ops)

    nodes[1].store.commit = dying  # type: ignore[method-assign]
    assert await nodes[1].controller.delete_topics(["t"]) == [None]
    view = await nodes[2].until(lambda view: view.controller_id == 2)
    assert view.topics == {}
    watch = nodes[2].store.watch(znodes.TOPICS)
    while await nodes[2].store.children(znodes.TOPICS) | await nodes[2].store.children(znodes.TOPIC_DELETIONS):
        await watch.wait()
        watch.take()
    await nodes[2].controller.create_topic("t")
    await nodes[1].controller.close()
    await nodes[2].stop()


async def test_a_deletion_requested_in_the_store_by_kafkas_tools_is_made() -> None:
    nodes = await cluster_of(EmbeddedMetadataStore(), 1, 2)
    created = await nodes[1].controller.create_topic("t", assignments=[(0, [2, 1])])
    await nodes[2].store.commit([Create(znodes.topic_deletion_path("t"))])
    path = znodes.deleted_topic_path(created.topic_id)
    watch = nodes[2].store.watch(znodes.DELETED_TOPICS)
    while await nodes[2].store.get(path) is None or await nodes[2].store.children(znodes.TOPICS):
        await watch.wait()
        watch.take()
    note = await nodes[2].store.get(path)
    assert note is not None
    assert znodes.decode_deleted_topic(path, note.value).brokers == (1, 2)
    assert nodes[2].cluster.current.topics == {}
    await stop(nodes)


async def test_each_deletion_of_many_is_in_one_commit() -> None:
    node = Node(ForgetfulStore())
    await node.start()
    assert isinstance(node.store, ForgetfulSession)
    names = [f"t{number}" for number in range(7)]
    await node.controller.create_topics([CreateTopic(name, 100) for name in names])
    node.store.commits.clear()
    await node.controller.delete_topics(names)
    assert [len(ops) for ops in node.store.commits] == [1 + 2 * 203, 1 + 2 * 203, 1 + 2 * 203, 1 + 203]
    await node.stop()


async def until_gone(store: EmbeddedSession, path: str) -> None:
    """Wait until the controller has deleted a request, in the eyes of the tool that made it."""
    while await store.get(path) is not None:  # noqa: ASYNC110 - as a tool does
        await asyncio.sleep(0.01)


async def test_requests_of_older_tools_to_reassign_and_to_elect_are_served() -> None:
    tree = EmbeddedMetadataStore()
    first, second = Node(tree, 1), Node(tree, 2)
    await first.start()
    await second.start()
    await first.until(lambda view: 2 in view.brokers)
    await first.controller.create_topic("t", assignments=[(0, [1, 2])])
    await first.controller.create_topic("u", assignments=[(0, [1])])
    tool = tree.session()
    moves = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2, 1]}]}
    await tool.commit([Create(znodes.REASSIGN_PARTITIONS, json.dumps(moves).encode())])
    view = await first.until(lambda view: view.topics["t"].partitions[0].replicas == (2, 1))
    assert view.topics["t"].partitions[0].leader == 1
    await until_gone(tool, znodes.REASSIGN_PARTITIONS)

    elections = {"version": 1, "partitions": [{"topic": "t", "partition": 0}, {"topic": "no", "partition": 1}]}
    await tool.commit([Create(znodes.PREFERRED_REPLICA_ELECTION, json.dumps(elections).encode())])
    await first.until(lambda view: view.topics["t"].partitions[0].leader == 2)
    await until_gone(tool, znodes.PREFERRED_REPLICA_ELECTION)

    for path in (znodes.REASSIGN_PARTITIONS, znodes.PREFERRED_REPLICA_ELECTION):
        await tool.commit([Create(path, b"{}")])
        await until_gone(tool, path)

    growing = {"version": 1, "partitions": [{"topic": "u", "partition": 0, "replicas": [1, 2]}]}
    await tool.commit([Create(znodes.REASSIGN_PARTITIONS, json.dumps(growing).encode())])
    await first.until(lambda view: view.topics["u"].partitions[0].adding == (2,))
    assert await tool.get(znodes.REASSIGN_PARTITIONS) is not None  # until the new replica is in sync
    await first.controller.reassign([RequestedReassignment(TopicPartition("u", 0), None)])
    await until_gone(tool, znodes.REASSIGN_PARTITIONS)
    assert first.cluster.current.topics["u"].partitions[0].replicas == (1,)
    await tool.close()
    for node in (first, second):
        await node.stop()
