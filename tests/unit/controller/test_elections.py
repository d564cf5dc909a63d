"""Elections: who leads when brokers come and go, in which epoch, and who else may lead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ottla.controller.config_changes import AlterConfig, ConfigChange, publish_min_isr
from ottla.controller.election_events import (
    BrokersGone,
    BrokerShutsDown,
    BrokerStarted,
    ElectLeaders,
    ElectMissing,
    ReplicasReported,
    elect_leaders,
    imbalanced,
)
from ottla.controller.elections import Election
from ottla.controller.machine import Event
from ottla.controller.overlay import Overlay, PartitionIndex
from ottla.controller.topics import CreatePartitions
from ottla.core import errors
from ottla.core.ids import TopicPartition
from ottla.core.settings import AlterConfigOpType
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView, EntityConfig, PartitionView
from ottla.metadata_store.store import Create
from tests.support.controller_decisions import decide
from tests.unit.controller.cluster_views import RULES, a_partition, brokers, only, view_of

HERE = TopicPartition("t", 0)
TWO_IN_SYNC = {"min.insync.replicas": "2"}
UNCLEAN = {"unclean.leader.election.enable": "true"}
PAGE_CACHE = {"durability": "page-cache"}


def alive(view: ClusterView, *nodes: int, shutting_down: Iterable[int] = ()) -> ClusterView:
    return replace(view, brokers=brokers(nodes, shutting_down))


def reporting(view: ClusterView, node: int, **report: Any) -> ClusterView:
    found = znodes.ReplicaReport(**{"is_clean": True, **report})
    return replace(view, replica_reports={**view.replica_reports, node: found})


def after(view: ClusterView, event: Event) -> ClusterView:
    return decide(view, event, RULES).view


def gone(view: ClusterView, *nodes: int, left: Iterable[int] | None = None) -> ClusterView:
    remaining = [node for node in view.brokers if node not in nodes] if left is None else left
    return after(alive(view, *remaining), BrokersGone(frozenset(nodes)))


def started(view: ClusterView, node: int) -> ClusterView:
    return after(alive(view, *{*view.brokers, node}), BrokerStarted(node))


def short(partition: PartitionView) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Return leader, leader epoch, ISR and ELR."""
    return partition.leader, partition.leader_epoch, partition.isr, partition.elr


# ---- Brokers that go


def test_only_a_change_of_the_leader_begins_a_term() -> None:
    view = view_of(a_partition())
    assert short(only(gone(view, 2))) == (1, 4, (1, 3), ())
    assert short(only(gone(view, 1))) == (2, 5, (2, 3), ())
    assert only(gone(view, 1)).partition_epoch == 7


def test_the_order_of_the_assignment_decides_among_those_in_sync() -> None:
    assert only(gone(view_of(a_partition(replicas=(1, 3, 2))), 1)).leader == 3
    assert only(gone(view_of(a_partition(isr=(3, 1))), 1)).leader == 3


def test_all_who_are_lost_at_once_stay_eligible_and_the_last_leader_stays_in_sync() -> None:
    none = gone(view_of(a_partition()), 1, 2, 3)
    assert short(only(none)) == (NO_LEADER, 5, (1,), (2, 3))
    assert only(none).last_known_elr == (1,)
    assert short(only(started(none, 3))) == (3, 6, (3,), ())  # it has every record below the high watermark
    assert short(only(started(none, 1))) == (1, 6, (1,), ())
    assert only(started(none, 1)).last_known_elr == ()


def test_an_eligible_replica_leads_when_no_one_in_sync_can_and_the_others_stay_eligible() -> None:
    view = gone(view_of(a_partition(), config=TWO_IN_SYNC), 2)
    view = gone(view, 3)
    assert short(only(view)) == (1, 4, (1,), (3,))  # 2 left an ISR of two or more: it is not eligible
    view = gone(view, 1)
    assert short(only(view)) == (NO_LEADER, 5, (1,), (3,))
    assert started(view, 2).topics == view.topics
    view = started(view, 3)
    assert short(only(view)) == (3, 6, (3,), (1,))
    assert not only(view).is_recovering


def test_a_replica_that_is_not_complete_waits_unless_unclean_elections_are_allowed() -> None:
    """The proof of the setting unclean.leader.election.enable."""
    alone = a_partition(isr=(1,))
    waiting = gone(view_of(alone), 1)
    assert short(only(waiting)) == (NO_LEADER, 5, (1,), ())

    allowed = gone(view_of(alone, config=UNCLEAN), 1)
    assert short(only(allowed)) == (2, 5, (2,), ())
    assert (only(allowed).is_recovering, only(allowed).last_unclean_epoch) == (True, 5)

    by_default = RULES._replace(log_defaults=replace(RULES.log_defaults, unclean_leader_election=True))
    found = decide(alive(view_of(alone), 2, 3), BrokersGone(frozenset({1})), by_default).view
    assert only(found).leader == 2
    refused = decide(
        alive(view_of(alone, config={"unclean.leader.election.enable": "false"}), 2, 3),
        BrokersGone(frozenset({1})),
        by_default,
    ).view
    assert only(refused).leader == NO_LEADER


def test_the_last_known_leader_is_the_first_choice_of_an_unclean_election() -> None:
    state = a_partition(leader=NO_LEADER, isr=(1,), last_known_elr=(3,))
    view = after(alive(view_of(state, config=UNCLEAN), 2, 3), ElectMissing())
    assert (only(view).leader, only(view).last_unclean_epoch) == (3, 5)


def test_a_bounced_broker_leads_no_more_where_others_are_in_sync_and_again_where_it_is_alone() -> None:
    view = view_of(a_partition(), a_partition(replicas=(1,), isr=(1,)))
    view = after(view, BrokersGone(frozenset({1})))
    view = after(view, BrokerStarted(1))
    assert [short(each)[:3] for each in view.topics["t"].partitions] == [(2, 5, (2, 3)), (1, 6, (1,))]


def test_a_started_leader_begins_a_term_even_if_nothing_else_changes() -> None:
    assert short(only(started(view_of(a_partition()), 1))) == (1, 5, (1, 2, 3), ())


# ---- Unclean starts, suspects, offline replicas


def test_an_unclean_start_matters_only_where_records_count_in_the_page_cache() -> None:
    view = reporting(
        view_of(a_partition(isr=(2, 3), leader=2, elr=(1,)), config=TWO_IN_SYNC | PAGE_CACHE), 1, is_clean=False
    )
    assert short(only(started(view, 1)))[3] == ()
    unclean = {**TWO_IN_SYNC, **PAGE_CACHE}
    both = view_of(a_partition(leader=NO_LEADER, isr=(1,), elr=(2,)), config=unclean, alive=())
    lost = started(reporting(both, 1, is_clean=False), 1)
    assert short(only(lost)) == (NO_LEADER, 4, (2,), ())  # only 2 has everything
    kept = started(reporting(view_of(only(both), config=TWO_IN_SYNC, alive=()), 1, is_clean=False), 1)
    assert short(only(kept)) == (1, 5, (1,), (2,))


def test_the_last_replica_in_sync_leads_after_an_unclean_start_and_the_term_says_so() -> None:
    last = a_partition(leader=NO_LEADER, isr=(1,), last_known_elr=(1,))
    view = started(reporting(view_of(last, config=PAGE_CACHE, alive=(2,)), 1, is_clean=False), 1)
    assert short(only(view)) == (1, 5, (1,), ())
    assert (only(view).is_recovering, only(view).last_unclean_epoch) == (True, 5)
    single = a_partition(replicas=(1,), isr=(1,))
    view = started(reporting(view_of(single, config=PAGE_CACHE, alive=()), 1, is_clean=False), 1)
    assert (only(view).leader_epoch, only(view).is_recovering, only(view).last_unclean_epoch) == (5, False, -1)


def test_a_suspect_replica_leaves_the_isr_and_as_the_only_one_waits_for_an_operator() -> None:
    suspect = {"suspects": frozenset({HERE})}
    view = after(reporting(view_of(a_partition()), 1, **suspect), ReplicasReported(1, [HERE]))
    assert short(only(view)) == (2, 5, (2, 3), ())
    only_one = reporting(view_of(a_partition(isr=(1,), leader=1), config=UNCLEAN, alive=(1,)), 1, **suspect)
    view = after(only_one, ReplicasReported(1, [HERE]))
    assert short(only(view)) == (NO_LEADER, 5, (1,), ())
    overlay = Overlay(view, RULES)
    assert elect_leaders(overlay, ElectLeaders(Election.UNCLEAN, [HERE])) == [None]
    ordered = only(overlay.view())
    assert (ordered.leader, ordered.is_recovering, ordered.last_unclean_epoch) == (1, True, 6)


def test_an_offline_replica_leaves_the_isr_and_leads_again_when_its_directory_is_back() -> None:
    single = a_partition(replicas=(1,), isr=(1,))
    view = after(
        reporting(view_of(a_partition(), single), 1, offline=frozenset({HERE, TopicPartition("t", 1)})),
        ReplicasReported(1, [HERE, TopicPartition("t", 1)]),
    )
    assert [short(each)[:3] for each in view.topics["t"].partitions] == [(2, 5, (2, 3)), (NO_LEADER, 5, (1,))]
    back = after(reporting(view, 1), ReplicasReported(1, [HERE, TopicPartition("t", 1)]))
    assert [each.leader for each in back.topics["t"].partitions] == [2, 1]


# ---- Impaired replicas: corrupt records, a full disk


def impaired(view: ClusterView, *nodes: int) -> ClusterView:
    for node in nodes:
        view = reporting(view, node, impaired={znodes.Impairment.CORRUPT: frozenset({HERE})})
    for node in nodes:
        view = after(view, ReplicasReported(node, [HERE]))
    return view


def test_an_impaired_replica_leaves_the_isr_and_hands_over_while_another_one_can_lead() -> None:
    assert short(only(impaired(view_of(a_partition()), 1))) == (2, 5, (2, 3), ())
    assert short(only(impaired(view_of(a_partition()), 3))) == (1, 4, (1, 2), ())
    assert short(only(impaired(view_of(a_partition()), 1, 2))) == (3, 5, (3,), ())


def test_impaired_replicas_among_themselves_go_on_as_if_they_were_not() -> None:
    single = impaired(view_of(a_partition(replicas=(1,), isr=(1,))), 1)
    assert short(only(single)) == (1, 4, (1,), ())
    assert short(only(started(gone(single, 1), 1)))[:3] == (1, 6, (1,))
    pair = impaired(view_of(a_partition(replicas=(1, 2), isr=(1, 2)), alive=(1, 2)), 1, 2)
    assert short(only(pair)) == (1, 4, (1, 2), ())
    assert short(only(gone(pair, 1)))[:3] == (2, 5, (2,))
    assert short(only(impaired(view_of(a_partition(isr=(1, 2)), alive=(1,)), 1))) == (1, 4, (1, 2), ())


def test_an_impaired_replica_below_the_minimum_is_eligible_and_elected_last() -> None:
    view = impaired(view_of(a_partition(isr=(1, 2)), config=TWO_IN_SYNC), 1)
    assert short(only(view)) == (2, 5, (2,), (1,))
    assert short(only(gone(view, 2)))[:3] == (1, 6, (1,))
    others = view_of(a_partition(leader=NO_LEADER, isr=(3,), elr=(1, 2)), config=TWO_IN_SYNC, alive=(1, 2))
    assert only(impaired(others, 1)).leader == 2


def test_a_replica_that_is_whole_again_leads_again_as_the_preferred_one() -> None:
    view = impaired(view_of(a_partition(isr=(1, 2, 3))), 1)
    assert imbalanced(view, 10) == []
    view = reporting(view, 1)
    view = after(view, ReplicasReported(1, [HERE]))
    assert short(only(view)) == (2, 5, (2, 3), ()), "its leader has it join"


# ---- Controlled shutdown


def test_a_broker_that_shuts_down_hands_over_and_leaves_the_isr() -> None:
    view = alive(view_of(a_partition(), a_partition(leader=2)), 1, 2, 3, shutting_down=[1])
    view = after(view, BrokerShutsDown(1))
    assert [short(each)[:3] for each in view.topics["t"].partitions] == [(2, 5, (2, 3)), (2, 4, (2, 3))]


def test_a_broker_that_shuts_down_leads_on_where_no_other_can() -> None:
    view = view_of(a_partition(isr=(1,)), a_partition(replicas=(1,), isr=(1,)))
    view = alive(view, 1, 2, 3, shutting_down=[1])
    assert decide(view, BrokerShutsDown(1), RULES).ops == []
    eligible = alive(view_of(a_partition(isr=(1,), elr=(2,)), config=TWO_IN_SYNC), 1, 2, 3, shutting_down=[1])
    assert short(only(after(eligible, BrokerShutsDown(1)))) == (2, 5, (2,), (1,))


# ---- On request


@pytest.mark.parametrize(
    ("state", "election", "error", "leader"),
    [
        ({"leader": 2}, Election.PREFERRED, None, 1),
        ({}, Election.PREFERRED, errors.ElectionNotNeeded, 1),
        ({"leader": 2, "isr": (2, 3)}, Election.PREFERRED, errors.PreferredLeaderNotAvailable, 2),
        ({}, Election.UNCLEAN, errors.ElectionNotNeeded, 1),
        ({"leader": NO_LEADER, "isr": (9,), "replicas": (9, 2)}, Election.UNCLEAN, None, 2),
        (
            {"leader": NO_LEADER, "isr": (9,), "replicas": (9, 8)},
            Election.UNCLEAN,
            errors.EligibleLeadersNotAvailable,
            -1,
        ),
    ],
)
def test_an_election_on_request_elects_a_leader_or_reports_why_not(
    state: dict[str, Any], election: Election, error: type[errors.KafkaError] | None, leader: int
) -> None:
    overlay = Overlay(view_of(a_partition(**state)), RULES)
    (outcome,) = elect_leaders(overlay, ElectLeaders(election, [HERE]))
    assert (type(outcome) if outcome else None) is error
    assert only(overlay.view()).leader == leader
    if election is Election.UNCLEAN and error is None:
        assert only(overlay.view()).last_unclean_epoch == 5


def test_elections_of_what_does_not_exist_say_so() -> None:
    overlay = Overlay(view_of(a_partition()), RULES)
    asked = [TopicPartition("t", 7), TopicPartition("u", 0)]
    outcomes = elect_leaders(overlay, ElectLeaders(Election.PREFERRED, asked))
    assert [str(each) for each in outcomes] == ["No such partition as t-7", "No such topic as u"]


def test_leaders_are_balanced_for_brokers_that_lead_too_few_of_their_partitions() -> None:
    view = view_of(
        *[a_partition(leader=1)] * 9,
        a_partition(leader=2),
        a_partition(replicas=(2, 1), isr=(2, 1), leader=1),
        a_partition(replicas=(3, 1), isr=(1,), leader=1),
        a_partition(leader=2, adding=(3,)),
    )
    assert imbalanced(view, 10) == [TopicPartition("t", 10)]  # 1 leads nine of ten; 3 is not in sync
    assert imbalanced(view, 9) == [TopicPartition("t", 9), TopicPartition("t", 10)]
    assert imbalanced(alive(view, 1, 3), 10) == []


# ---- Which partitions


def test_the_index_finds_the_partitions_of_a_broker_and_follows_changes() -> None:
    old = view_of(a_partition(), a_partition(replicas=(4, 1)))
    index = PartitionIndex(old.topics.values())
    assert index.of([4]) == [TopicPartition("t", 1)]
    assert index.of([1, 4]) == [TopicPartition("t", 0), TopicPartition("t", 1)]
    topic = old.topics["t"]
    moved = (topic.partitions[0], replace(topic.partitions[1], replicas=(1, 5)))
    new = old.with_topics({"t": topic._replace(partitions=moved, version=topic.version + 1)})
    index.update(old, new)
    assert (index.of([4]), index.of([5]), index.brokers()) == ([], [TopicPartition("t", 1)], [1, 2, 3, 5])
    index.update(new, new.with_topics({"t": None}))
    assert index.brokers() == []


def test_an_event_that_names_partitions_changes_no_others() -> None:
    view = alive(view_of(a_partition(), a_partition()), 2, 3)
    decision = decide(view, BrokersGone(frozenset({1}), [HERE]), RULES)
    assert [each.leader for each in decision.view.topics["t"].partitions] == [2, 1]
    assert [op.path for op in decision.ops] == [znodes.state_path("t", 0)]


# ---- Settings and health


def test_a_change_of_the_minimum_clears_the_eligible_replicas_first() -> None:
    def set_to(kind: str, name: str, value: str) -> AlterConfig:
        return AlterConfig(
            kind, name, [ConfigChange(AlterConfigOpType.SET, "min.insync.replicas", value)], {}, lambda _: None
        )

    waiting = a_partition(isr=(1,), elr=(2, 3))
    own = decide(view_of(waiting, config=TWO_IN_SYNC), set_to(znodes.TOPICS_KIND, "t", "1"), RULES)
    every = decide(view_of(waiting), set_to(znodes.BROKERS_KIND, znodes.DEFAULT_ENTITY, "1"), RULES)
    for decision in (own, every):
        assert only(decision.view).elr == ()
        assert only(decision.view).partition_epoch == 7
        assert [op.path.startswith("/config/") for op in decision.ops] == [False, True]
    other = AlterConfig(
        znodes.TOPICS_KIND, "t", [ConfigChange(AlterConfigOpType.SET, "flush.ms", "5")], {}, lambda _: None
    )
    assert only(decide(view_of(waiting, config=TWO_IN_SYNC), other, RULES).view).elr == (2, 3)


def test_the_minimum_of_the_controller_becomes_that_of_the_cluster_once() -> None:
    view = view_of(a_partition())
    assert publish_min_isr(view, 1) == []
    (event,) = publish_min_isr(view, 2)
    (op,) = decide(view, event, RULES).ops
    assert isinstance(op, Create)
    assert (op.path, znodes.decode_config("", op.value)) == ("/config/brokers/<default>", {"min.insync.replicas": "2"})
    known = {znodes.BROKERS_KIND: {znodes.DEFAULT_ENTITY: EntityConfig({"min.insync.replicas": "3"}, 0)}}
    assert publish_min_isr(replace(view, configs=known), 2) == []
    assert Overlay(replace(view, configs=known), RULES).min_isr("t") == 3


def test_a_topic_grows_while_a_broker_is_down() -> None:
    view = alive(view_of(a_partition()), 1, 2)
    grown = after(view, CreatePartitions("t", 4)).topics["t"].partitions[1:]
    assert all(sorted(each.replicas) == [1, 2, 3] and each.leader in {1, 2} for each in grown)
    assert all(sorted(each.isr) == [1, 2] for each in grown)
