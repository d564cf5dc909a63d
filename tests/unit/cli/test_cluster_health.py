"""The order and the wording of the problems that `ottla cluster health` prints."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from ottla.cli.cluster_health import problems_of, topic_lines
from ottla.client.admin import ClusterDescription, LogDir
from ottla.client.cluster_health import ClusterHealth, missing_brokers
from ottla.client.metadata import BrokerNode, PartitionInfo, TopicInfo
from ottla.client.partition_health import Moves, judge_partitions
from ottla.client.replica_admin import Reassignment
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition

NODES = tuple(BrokerNode(node, "host", 9092) for node in (1, 2))


def topic(name: str, isrs: Sequence[tuple[int, ...]], *, internal: bool = False) -> TopicInfo:
    """A topic with three replicas of each partition; one without an ISR has no leader."""
    parts = [PartitionInfo(at, isr[0] if isr else -1, 0, (1, 2, 3), isr or (3,)) for at, isr in enumerate(isrs)]
    return TopicInfo(name, uuid.UUID(int=1), internal, tuple(parts))


def lines(*topics: TopicInfo, min_isr: int = 1) -> list[str]:
    return topic_lines(topics, judge_partitions(topics, {each.name: min_isr for each in topics}, ()))


def health(*topics: TopicInfo, **more: object) -> ClusterHealth:
    found = ClusterHealth(
        described=ClusterDescription("id", 1, NODES),
        topics=topics,
        missing=(),
        unreachable={},
        log_dirs=[LogDir(1, "/a", ErrorCode.NONE, 1, 1, 100, 50)],
        store_troubles=(),
        moves=Moves(()),
        partitions=judge_partitions(topics, {}, ()),
    )
    return replace(found, **more)  # type: ignore[arg-type]


def test_a_topic_has_one_line_with_its_worst_partitions_first() -> None:
    assert lines(topic("orders", [(1,)] * 6)) == ["orders: 6 of 6 partitions have 1 of 3 in sync"]
    assert lines(topic("web", [(1, 2), (), (1, 2), (2,), (1, 2, 3)]), min_isr=2) == [
        "web: 1 of 5 partitions has no leader; 1 has 1 of 3 in sync, too few for acks=all; 2 have 2 of 3 in sync"
    ]


def test_internal_topics_have_one_line_together_the_last() -> None:
    found = lines(
        topic("__consumer_offsets", [()] * 50, internal=True),
        topic("__transaction_state", [()] * 50, internal=True),
        topic("orders", [(1, 2)]),
    )
    assert found == [
        "orders: 1 of 1 partitions has 2 of 3 in sync",
        "internal topics (__consumer_offsets, __transaction_state): 100 of 100 partitions have no leader",
    ]


def test_topics_without_leaders_come_first_and_many_topics_are_counted() -> None:
    found = lines(*(topic(f"t{number:02}", [(1, 2)]) for number in range(30)), topic("z", [()]))
    assert found[0] == "z: 1 of 1 partitions has no leader"
    assert found[1] == "t00: 1 of 1 partitions has 2 of 3 in sync"
    assert found[-1] == "11 other topics have partitions like these (--verbose lists all)"


def test_the_problems_are_in_the_order_of_their_weight() -> None:
    dirs = [
        LogDir(1, "/a", ErrorCode.NONE, 1, 1, 100, 0),
        LogDir(1, "/b", ErrorCode.KAFKA_STORAGE_ERROR, 0, 0, -1, -1),
        LogDir(1, "/c", ErrorCode.NONE, 1, 1, 100, 1),
    ]
    found = health(
        topic("orders", [(1,)]),
        missing=(3, 4),
        unreachable={2: "Connection refused"},
        log_dirs=dirs,
        store_troubles=["broker 1: no connection to ZooKeeper at zk:2181 for 9 s"],
        moves=Moves((), "no session with the metadata store"),
    )
    assert problems_of(found) == [
        "missing: 3, 4 (replicas name them)",
        "broker 2 does not answer: Connection refused",
        "/b of broker 1 is offline until a restart",
        "/a of broker 1 is full: writes are refused",
        "broker 1: no connection to ZooKeeper at zk:2181 for 9 s",
        "the controller, broker 1, does not answer: no session with the metadata store",
        "orders: 1 of 1 partitions has 1 of 3 in sync",
    ]
    assert problems_of(found, verbose=True)[-1] == "orders-0 has 1 of 3 in sync"
    assert not problems_of(health(topic("orders", [(1, 2, 3)])))


def test_without_a_controller_that_answers_this_is_said() -> None:
    assert problems_of(health(described=ClusterDescription("id", -1, NODES))) == ["the cluster has no controller"]
    shown = problems_of(health(unreachable={1: "refused"}))
    assert shown == ["broker 1 does not answer: refused", "the cluster has no controller"]


def test_brokers_that_replicas_name_are_missing_unless_a_move_adds_them() -> None:
    described, topics = ClusterDescription("id", 1, NODES), [topic("t", [(1, 2, 3)])]
    assert missing_brokers(described, topics, Moves(())) == [3]
    move = Reassignment(TopicPartition("t", 0), (1, 2, 3), adding=(3,), removing=())
    assert missing_brokers(described, topics, Moves([move])) == []
