"""The controller's rules, one call each."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ottla.controller.config import ControllerConfig
from ottla.controller.config_changes import AlterConfig, ConfigChange, ConfigSpec
from ottla.controller.election_events import BrokersGone, BrokerStarted
from ottla.controller.overlay import Rules
from ottla.controller.topics import PARTITIONS_PER_REQUEST_MAX, CreatePartitions, CreateTopic, DeleteTopic
from ottla.core import errors
from ottla.core.settings import AlterConfigOpType, default_of, text_of
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import NO_LEADER, BrokerInfo, ClusterView, PartitionView, TopicView
from ottla.metadata_store.store import Create, Delete, Put
from ottla.storage.config import LogConfig, topic_config, topic_settings
from tests.support.controller_decisions import Decision, decide

ID = uuid.UUID(int=7)
RULES = Rules(ControllerConfig(num_partitions=3, default_replication_factor=2), LogConfig(), controller_epoch=5)


def brokers(*nodes: int, racks: Mapping[int, str] | None = None) -> dict[int, BrokerInfo]:
    return {node: BrokerInfo(node, {}, (racks or {}).get(node), node, {}) for node in nodes}


def cluster(*nodes: int) -> ClusterView:
    return ClusterView(brokers=brokers(*nodes))


def with_topic(view: ClusterView, name: str = "t", **wanted: Any) -> ClusterView:
    return decide(view, CreateTopic(name, topic_id=uuid.uuid5(ID, name), **wanted), RULES).view


def leaders(view: ClusterView, topic: str = "t") -> list[tuple[int, int, tuple[int, ...]]]:
    return [(each.leader, each.leader_epoch, each.isr) for each in view.topics[topic].partitions]


# ---- Creating


def test_a_topic_without_numbers_gets_the_settings_numbers() -> None:
    topic = with_topic(cluster(1, 2, 3)).topics["t"]

    assert [len(each.replicas) for each in topic.partitions] == [2, 2, 2]
    assert {each.leader for each in topic.partitions} == {1, 2, 3}
    assert all(each.isr == each.replicas and each.leader_epoch == 0 for each in topic.partitions)


def test_everything_of_a_topic_is_written_in_one_go_and_parents_first() -> None:
    decision = decide(cluster(1), CreateTopic("t", 1, 1, configs={"retention.ms": "5"}, topic_id=ID), RULES)

    assert [(type(op), op.path) for op in decision.ops] == [
        (Create, "/brokers/topics/t"),
        (Create, "/brokers/topics/t/partitions"),
        (Create, "/config/topics/t"),
        (Create, "/brokers/topics/t/partitions/0"),
        (Create, "/brokers/topics/t/partitions/0/state"),
    ]
    state = decision.ops[-1]
    assert isinstance(state, Create)
    assert znodes.decode_state("t", 0, state.value) == znodes.PartitionState(1, 0, (1,), 5)


@pytest.mark.parametrize(
    ("name", "wanted", "error"),
    [
        ("", {}, errors.InvalidTopic),
        ("..", {}, errors.InvalidTopic),
        ("a b", {}, errors.InvalidTopic),
        ("x" * 250, {}, errors.InvalidTopic),
        ("is.there", {}, errors.TopicAlreadyExists),
        ("is_there", {}, errors.InvalidTopic),
        ("n", {"partitions": 0}, errors.InvalidPartitions),
        ("n", {"partitions": -2}, errors.InvalidPartitions),
        ("n", {"partitions": PARTITIONS_PER_REQUEST_MAX + 1}, errors.PolicyViolation),
        ("n", {"replication_factor": 0}, errors.InvalidReplicationFactor),
        ("n", {"replication_factor": -2}, errors.InvalidReplicationFactor),
        ("n", {"replication_factor": 4}, errors.InvalidReplicationFactor),
        ("n", {"assignments": [(0, [1])], "partitions": 1}, errors.InvalidRequest),
        ("n", {"assignments": [(0, [1])], "replication_factor": 1}, errors.InvalidRequest),
        ("n", {"assignments": [(0, [])]}, errors.InvalidReplicaAssignment),
        ("n", {"assignments": [(0, [9])]}, errors.InvalidReplicaAssignment),
        ("n", {"assignments": [(0, [1, 1])]}, errors.InvalidReplicaAssignment),
        ("n", {"assignments": [(0, [1]), (0, [2])]}, errors.InvalidReplicaAssignment),
        ("n", {"assignments": [(0, [1]), (2, [2])]}, errors.InvalidReplicaAssignment),
        ("n", {"assignments": [(0, [1]), (1, [2, 3])]}, errors.InvalidReplicaAssignment),
        ("n", {"configs": {"no.such.setting": "1"}}, errors.InvalidConfig),
        ("n", {"configs": {"retention.ms": "soon"}}, errors.InvalidConfig),
        ("n", {"configs": {"retention.ms": None}}, errors.InvalidConfig),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_kafkas_error(
    name: str, wanted: dict[str, Any], error: type[errors.KafkaError]
) -> None:
    view = with_topic(cluster(1, 2, 3), "is.there")

    with pytest.raises(error):
        decide(view, CreateTopic(name, **wanted), RULES)


def test_a_manual_assignment_is_taken_as_it_is() -> None:
    view = with_topic(cluster(1, 2, 3), assignments=[(1, [2, 3]), (0, [3, 1])])

    assert [each.replicas for each in view.topics["t"].partitions] == [(3, 1), (2, 3)]
    assert [each.leader for each in view.topics["t"].partitions] == [3, 2]


def test_too_few_brokers_are_counted_in_the_message() -> None:
    with pytest.raises(errors.InvalidReplicationFactor, match=r"replication factor of 2 .* only 1 broker"):
        decide(cluster(1), CreateTopic("t"), RULES)


@pytest.mark.parametrize("start", range(7))
def test_leaders_spread_evenly_and_replicas_over_racks(start: int) -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    view = ClusterView(brokers=brokers(*racks, racks=racks))

    topic = with_topic(view, partitions=12, replication_factor=3, start=start).topics["t"]

    by_leader = [each.leader for each in topic.partitions]
    assert {node: by_leader.count(node) for node in racks} == dict.fromkeys(racks, 2)
    assert all(len({racks[node] for node in each.replicas}) == 3 for each in topic.partitions)


@pytest.mark.parametrize("layout", ["aabbcc", "abca", "aaabbbccc", "aabb", "aaaab", "abcd", "aaa", "aab"])
@pytest.mark.parametrize("factor", [2, 3])
def test_no_rack_has_two_replicas_more_than_another_one_that_could_have_one_more(layout: str, factor: int) -> None:
    racks = dict(enumerate(layout, 1))
    view = ClusterView(brokers=brokers(*racks, racks=racks))

    topic = with_topic(view, partitions=5 * len(layout), replication_factor=factor, start=1).topics["t"]

    for partition in topic.partitions:
        assert len(set(partition.replicas)) == factor
        used = {rack: sum(racks[node] == rack for node in partition.replicas) for rack in layout}
        assert all(
            used[more] - used[less] < 2 or used[less] == layout.count(less) for more in layout for less in layout
        ), partition
    held = [sum(node in partition.replicas for partition in topic.partitions) for node in racks]
    assert min(held) > 0


# ---- More partitions, fewer topics


def test_new_partitions_come_after_the_old_which_stay_as_they_are() -> None:
    view = with_topic(cluster(1, 2))
    decision = decide(view, CreatePartitions("t", 5), RULES)

    topic = decision.view.topics["t"]
    assert topic.partitions[:3] == view.topics["t"].partitions
    assert [each.index for each in topic.partitions] == [0, 1, 2, 3, 4]
    assert isinstance(decision.ops[0], Put)
    assert decision.ops[0].expected_version == view.topics["t"].version
    assert znodes.decode_assignment("t", decision.ops[0].value).topic_id == topic.topic_id


def test_more_partitions_and_elections_keep_a_running_reassignment_and_unknown_keys() -> None:
    view = with_topic(cluster(1, 2))
    topic = view.topics["t"]._replace(unknown_keys='{"later":1}')
    moving = replace(
        topic.partitions[0],
        replicas=(1, 2),
        adding=(2,),
        removing=(1,),
        leader=1,
        isr=(1,),
        last_unclean_epoch=3,
        unknown_keys='{"later":2}',
    )
    view = view.with_topics({"t": topic._replace(partitions=(moving, *topic.partitions[1:]))})

    written = decide(view, CreatePartitions("t", 5), RULES).ops[0]
    assert isinstance(written, Put)
    assignment = znodes.decode_assignment("t", written.value)
    assert (assignment.adding, assignment.removing) == ({0: (2,)}, {0: (1,)})
    assert assignment.unknown_keys == '{"later":1}'

    (state,) = [op for op in decide(view, BrokerStarted(1), RULES).ops if op.path == znodes.state_path("t", 0)]
    assert isinstance(state, Put)
    decoded = znodes.decode_state("t", 0, state.value)
    assert (decoded.last_unclean_epoch, decoded.unknown_keys) == (3, '{"later":2}')


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (CreatePartitions("nope", 5), errors.UnknownTopicOrPartition),
        (CreatePartitions("t", 3), errors.InvalidPartitions),
        (CreatePartitions("t", 2), errors.InvalidPartitions),
        (CreatePartitions("t", 0), errors.InvalidPartitions),
        (CreatePartitions("t", 4, []), errors.InvalidReplicaAssignment),
        (CreatePartitions("t", 4, [[1, 2], [2, 1]]), errors.InvalidReplicaAssignment),
        (CreatePartitions("t", 4, [[1]]), errors.InvalidReplicaAssignment),
        (CreatePartitions("t", 4, [[1, 9]]), errors.InvalidReplicaAssignment),
        (CreatePartitions("t", PARTITIONS_PER_REQUEST_MAX + 4), errors.PolicyViolation),
    ],
)
def test_partitions_that_cannot_be_are_refused(event: CreatePartitions, error: type[errors.KafkaError]) -> None:
    with pytest.raises(error):
        decide(with_topic(cluster(1, 2)), event, RULES)


def test_a_deleted_topic_leaves_no_node_but_the_note_for_its_logs() -> None:
    created = decide(cluster(1, 2), CreateTopic("t", configs={"retention.ms": "5"}, topic_id=ID), RULES)
    deleted = decide(created.view, DeleteTopic("t"), RULES)

    *removed, noted = deleted.ops
    assert noted == Create(znodes.deleted_topic_path(ID), znodes.encode_deleted_topic(znodes.DeletedTopic("t", (1, 2))))
    assert sorted(op.path for op in removed) == sorted(op.path for op in created.ops)
    assert all(isinstance(op, Delete) for op in removed)
    for op in removed:  # children first
        assert not any(later.path.startswith(op.path + "/") for later in removed[removed.index(op) + 1 :])
    assert deleted.view.topics == {}
    assert deleted.view.topic_by_id == {}


def test_deleting_needs_a_topic_and_the_permission() -> None:
    with pytest.raises(errors.UnknownTopicOrPartition):
        decide(cluster(1), DeleteTopic("t"), RULES)
    rules = RULES._replace(config=ControllerConfig(delete_topics=False))
    with pytest.raises(errors.TopicDeletionDisabled):
        decide(with_topic(cluster(1, 2)), DeleteTopic("t"), rules)


# ---- Settings


def alter(view: ClusterView, changes: Sequence[tuple[Any, ...]], *, replaces_all: bool = False) -> Decision:
    known = {
        key: ConfigSpec(found.spec.kind, text_of(default_of(found.section, found.field_name)))
        for key, found in topic_settings().items()
    }
    event = AlterConfig(
        znodes.TOPICS_KIND,
        "t",
        [ConfigChange(*change) for change in changes],
        known,
        lambda values: topic_config(LogConfig(), values),
        replaces_all,
    )
    return decide(view, event, RULES)


def test_a_list_that_was_never_set_is_appended_to_its_default() -> None:
    view = with_topic(cluster(1, 2))
    after = alter(view, [(AlterConfigOpType.APPEND, "cleanup.policy", "compact")]).view
    assert after.topics["t"].config == {"cleanup.policy": "delete,compact"}


def test_appending_what_is_there_and_taking_what_is_not_change_nothing() -> None:
    view = with_topic(cluster(1, 2), configs={"cleanup.policy": "compact"})
    assert alter(view, [(AlterConfigOpType.APPEND, "cleanup.policy", "compact")]).ops == []
    assert alter(view, [(AlterConfigOpType.SUBTRACT, "cleanup.policy", "delete")]).ops == []


def test_several_items_are_taken_from_a_list_at_once() -> None:
    view = with_topic(cluster(1, 2), configs={"leader.replication.throttled.replicas": "0:1,1:2,2:1"})
    after = alter(view, [(AlterConfigOpType.SUBTRACT, "leader.replication.throttled.replicas", "0:1,2:1")]).view
    assert after.topics["t"].config == {"leader.replication.throttled.replicas": "1:2"}


@pytest.mark.parametrize("op", [AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT])
@pytest.mark.parametrize("key", ["retention.ms", "no.such.setting"])
def test_only_lists_can_be_appended_to(op: AlterConfigOpType, key: str) -> None:
    with pytest.raises(errors.InvalidConfig, match=f"Can't {op.name} to key {key}"):
        alter(with_topic(cluster(1, 2)), [(op, key, "1")])


def test_the_old_way_forgets_what_is_not_named_and_the_new_way_does_not() -> None:
    view = with_topic(cluster(1, 2), configs={"retention.ms": "5", "flush.ms": "7"})
    changes = [(AlterConfigOpType.SET, "retention.ms", "6")]
    assert alter(view, changes).view.topics["t"].config == {"retention.ms": "6", "flush.ms": "7"}
    assert alter(view, changes, replaces_all=True).view.topics["t"].config == {"retention.ms": "6"}


def test_a_change_is_conditional_on_the_settings_it_was_decided_on() -> None:
    view = with_topic(cluster(1, 2))
    first = alter(view, [(AlterConfigOpType.SET, "retention.ms", "6")])
    second = alter(first.view, [(AlterConfigOpType.DELETE, "retention.ms")])

    assert isinstance(first.ops[0], Create)
    assert isinstance(second.ops[0], Put)
    assert second.ops[0].expected_version == 0
    assert second.view.topics["t"].config == {}


def test_settings_that_fail_together_are_refused_together() -> None:
    with pytest.raises(errors.InvalidConfig):
        alter(
            with_topic(cluster(1, 2)),
            [(AlterConfigOpType.SET, "retention.ms", "6"), (AlterConfigOpType.SET, "max.message.bytes", "-7")],
        )


# ---- Elections


def test_a_started_broker_leads_again_what_it_led_under_a_new_epoch() -> None:
    view = with_topic(cluster(1, 2), assignments=[(0, [1, 2]), (1, [2, 1])])

    decision = decide(view, BrokerStarted(1), RULES)

    assert leaders(decision.view) == [(1, 1, (1, 2)), (2, 0, (2, 1))]
    (op,) = decision.ops
    assert isinstance(op, Put)
    assert (op.path, op.expected_version) == (znodes.state_path("t", 0), 0)


def test_the_first_live_in_sync_replica_of_the_assignment_takes_over() -> None:
    view = with_topic(cluster(1, 2, 3), assignments=[(0, [1, 2, 3])])
    left = ClusterView(brokers=brokers(3), topics=view.topics, topic_by_id=view.topic_by_id)

    assert leaders(decide(left, BrokersGone(frozenset({1, 2})), RULES).view) == [(3, 1, (3,))]


def test_a_follower_that_is_gone_leaves_the_isr_and_the_leader_stays() -> None:
    view = with_topic(cluster(1, 2), assignments=[(0, [1, 2])])
    left = ClusterView(brokers=brokers(1), topics=view.topics, topic_by_id=view.topic_by_id)

    assert leaders(decide(left, BrokersGone(frozenset({2})), RULES).view) == [(1, 0, (1,))]


def test_the_last_in_sync_replica_stays_in_sync_without_a_leader_and_alone_may_lead_again() -> None:
    view = with_topic(cluster(1, 2), assignments=[(0, [1, 2])])
    one = ClusterView(brokers=brokers(1), topics=view.topics, topic_by_id=view.topic_by_id)
    after_first = decide(one, BrokersGone(frozenset({2})), RULES).view
    none = ClusterView(topics=after_first.topics, topic_by_id=after_first.topic_by_id)
    after_both = decide(none, BrokersGone(frozenset({1})), RULES).view
    assert leaders(after_both) == [(NO_LEADER, 1, (1,))]

    stale = ClusterView(brokers=brokers(2), topics=after_both.topics, topic_by_id=after_both.topic_by_id)
    assert decide(stale, BrokerStarted(2), RULES).ops == []
    back = ClusterView(brokers=brokers(1), topics=after_both.topics, topic_by_id=after_both.topic_by_id)
    assert leaders(decide(back, BrokerStarted(1), RULES).view) == [(1, 2, (1,))]


def test_a_loss_reported_twice_changes_nothing_the_second_time() -> None:
    view = with_topic(cluster(1, 2), assignments=[(0, [1, 2])])
    left = ClusterView(brokers=brokers(2), topics=view.topics, topic_by_id=view.topic_by_id)
    gone = BrokersGone(frozenset({1}))
    assert decide(decide(left, gone, RULES).view, gone, RULES).ops == []


def test_a_partition_without_an_elected_leader_gets_its_first_leader() -> None:
    """A topic that an admin tool wrote into the store while no controller was there."""
    partition = PartitionView(0, NO_LEADER, 0, (1, 2), (), -1)
    topic = TopicView("t", ID, (partition,), {}, 0, -1)
    view = ClusterView(brokers=brokers(1, 2), topics={"t": topic}, topic_by_id={ID.bytes: topic})

    decision = decide(view, BrokerStarted(2), RULES)

    assert leaders(decision.view) == [(1, 1, (1, 2))]
    assert all(isinstance(op, Create) for op in decision.ops)
