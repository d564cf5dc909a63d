"""Finds in the brokers of one process what a test asks for: topics, the leader of a partition, a coordinator's shard.

The objects of the brokers are read, and no request is sent: nothing of it is seen by clients, or by the test's faults.
What is moving to another broker is waited for; what does not exist is an error that names what does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.broker.services import Services
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.replication.partition import Partition
from ottla.testing.cluster import TestCluster

if TYPE_CHECKING:  # imported with the first coordinator
    from ottla.internal_topics.led_partitions import LedPartitions
    from ottla.internal_topics.shard import CoordinatorShard

T = TypeVar("T")
S = TypeVar("S", bound="CoordinatorShard")

_MOVE_S = 10.0
_NAMED_MAX = 20


class NotFound(KeyError):
    """Reports that the brokers do not have what a test named."""

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownTopic(NotFound):
    """Reports a topic, or a partition of one, that does not exist."""


class UnknownGroup(NotFound):
    """Reports a group that no coordinator has, or one without anything to read."""


class NoLeader(NotFound):
    """Reports a partition that no broker leads which runs, or whose coordinator has not loaded it."""


def unknown(error: type[NotFound], kind: str, name: str, existing: Iterable[str]) -> NotFound:
    """Return the error for a name that does not exist; it names those that do."""
    from difflib import get_close_matches

    names = sorted(existing)
    if not names:
        return error(f"there is no {kind} {name!r}; there is no {kind} at all")
    close = get_close_matches(name, names, n=1)
    hint = f": did you mean {close[0]!r}?" if close else ""
    shown = ", ".join(names[:_NAMED_MAX]) + (", ..." if len(names) > _NAMED_MAX else "")
    return error(f"there is no {kind} {name!r}{hint}; there are: {shown}")


class LedPartition(NamedTuple):
    """A partition and the services of the broker that leads it."""

    services: Services
    partition: Partition


def running(cluster: TestCluster) -> list[Services]:
    """Return the services of the brokers that run. Raises RuntimeError if there is none."""
    services = [cluster.services(node_id) for node_id in cluster.brokers]
    if not services:
        raise RuntimeError("no broker runs: k.up() starts one")
    return services


def view_of(cluster: TestCluster) -> ClusterView:
    """Return the cluster as the controller sees it, or while there is none the broker that has seen most changes."""
    services = max(running(cluster), key=lambda each: (each.controller.is_active, each.cluster.current.number))
    return services.cluster.current


def topics_of(cluster: TestCluster) -> Mapping[str, TopicView]:
    """Return the topics by name, without Kafka's internal ones."""
    return {name: topic for name, topic in sorted(view_of(cluster).topics.items()) if not topic.internal}


def topic_of(cluster: TestCluster, name: str) -> TopicView:
    """Return a topic, which may be an internal one. Raises UnknownTopic."""
    topic = view_of(cluster).topics.get(name)
    if topic is None:
        raise unknown(UnknownTopic, "topic", name, topics_of(cluster))
    return topic


def partitions_of(topic: TopicView, partition: int | None) -> list[TopicPartition]:
    """Return one partition of a topic, or all. Raises UnknownTopic."""
    if partition is None:
        return [TopicPartition(topic.name, view.index) for view in topic.partitions]
    if not 0 <= partition < len(topic.partitions):
        raise UnknownTopic(f"topic {topic.name!r} has no partition {partition}; it has {len(topic.partitions)}")
    return [TopicPartition(topic.name, partition)]


async def leader_of(cluster: TestCluster, where: TopicPartition) -> LedPartition:
    """Return a partition where it is led; waits for an election. Raises NoLeader."""
    return await _found(cluster, lambda: _leader(cluster, where), f"{where} has no leader among the brokers that run")


def _leader(cluster: TestCluster, where: TopicPartition) -> LedPartition | None:
    """Return the partition at its leader: of two brokers that consider themselves so, that of the later term."""
    led = [
        LedPartition(services, partition)
        for services in running(cluster)
        if (partition := services.replicas.partitions.get(where)) is not None
        and partition.is_serving
        and _knows_what_is_committed(partition)
    ]
    return max(led, key=lambda each: each.partition.leader_epoch, default=None)


def _knows_what_is_committed(partition: Partition) -> bool:
    """Return whether a leader has learned of its followers what was committed before its term."""
    state = partition.leader_state
    return state is None or partition.high_watermark >= state.term_start


async def shards_of(
    cluster: TestCluster, topic: str, coordinator: Callable[[Services], LedPartitions[S]]
) -> list[tuple[Services, S]]:
    """Return the loaded shards of all partitions of an internal topic; none before its first use. Raises NoLeader."""
    view = view_of(cluster).topics.get(topic)
    if view is None:
        return []
    shards = []
    for where in partitions_of(view, None):

        def find(where: TopicPartition = where) -> tuple[Services, S] | None:
            led = _leader(cluster, where)
            shard = None if led is None else coordinator(led.services).shard(where.partition)
            return None if led is None or shard is None or not shard.is_ready else (led.services, shard)

        shards.append(await _found(cluster, find, f"{where} is not loaded by any broker that runs"))
    return shards


async def _found(cluster: TestCluster, find: Callable[[], T | None], why: str) -> T:
    """Wait until something is found. Raises NoLeader, and RuntimeError if no broker runs."""
    found: list[T] = []

    def holds() -> bool:
        result = find()
        if result is not None:
            found.append(result)
        return bool(found)

    try:
        await cluster.until(holds, seconds=_MOVE_S)
    except TimeoutError:
        raise NoLeader(f"{why}: {', '.join(map(str, cluster.brokers)) or 'none'}") from None
    return found[0]
