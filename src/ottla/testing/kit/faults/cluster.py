"""Lets the cluster change under its clients: leaders move, members lose their sessions, producers are fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, cast

from ottla.controller.elections import Election
from ottla.controller.reassignments import RequestedReassignment
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition
from ottla.groups.machine import SessionTimer, TimerFired
from ottla.metadata_store.cluster_view import PartitionView
from ottla.testing.cluster import TestCluster

if TYPE_CHECKING:
    from ottla.groups.coordinator import GroupCoordinator
    from ottla.groups.group_runtime import GroupRuntime
    from ottla.transactions.coordinator import TransactionCoordinator

_SECONDS = 10.0
_POLL_S = 0.01
_TRANSACTION_TIMEOUT_MS = 60_000


async def move_leader(cluster: TestCluster, topic: str, partition: int, to: int) -> None:
    """Make a replica the leader, by naming it first and electing the preferred replica. Raises ValueError."""
    view = cluster.services(cluster.controller).cluster.current.topics.get(topic)
    if view is None or not 0 <= partition < len(view.partitions):
        raise ValueError(f"there is no partition {partition} of topic {topic!r}")
    replicas = view.partitions[partition].replicas
    if to not in replicas:
        raise ValueError(f"broker {to} has no replica of {topic}-{partition}: its replicas are {list(replicas)}")
    moved = TopicPartition(topic, partition)
    others = [replica for replica in replicas if replica != to]
    controller = cluster.services(cluster.controller).controller
    for error in await controller.reassign([RequestedReassignment(moved, [to, *others])]):
        if error is not None:
            raise ValueError(f"the replicas of {moved} cannot be reordered: {error.message}")
    try:
        await cluster.until(lambda: to in _partition(cluster, cluster.controller, moved).isr, seconds=_SECONDS)
    except TimeoutError:
        raise ValueError(f"broker {to} cannot lead {moved}: it is not in sync") from None
    for error in await controller.elect_leaders(Election.PREFERRED, [moved]):
        if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED:
            raise ValueError(f"broker {to} cannot lead {moved}: {error.message}")
    await cluster.until(lambda: all(_partition(cluster, broker, moved).leader == to for broker in cluster.brokers))


def _partition(cluster: TestCluster, broker: int, partition: TopicPartition) -> PartitionView:
    """Return a partition as a broker sees it."""
    return cluster.services(broker).cluster.current.topics[partition.topic].partitions[partition.partition]


async def expire(cluster: TestCluster, group: str, member: str | None) -> int:
    """End the sessions of a group's members, or of one, as if they had sent no heartbeat; returns how many.

    `member` is a member id, or a client id. Raises ValueError if the group has no such member.
    """
    for broker in cluster.brokers:
        coordinator: GroupCoordinator | None = _existing(cluster, broker, "groups")
        for shard in () if coordinator is None else coordinator.led.ready_shards():
            runtime = shard.find(group)
            if runtime is not None:
                expired: int = cluster.machine(broker).run(_expire, runtime, member)
                if not expired:
                    raise ValueError(f"group {group!r} has no {'members' if member is None else f'member {member!r}'}")
                return expired
    raise ValueError(f"there is no group {group!r}, or its coordinator does not run")


def _existing(cluster: TestCluster, broker: int, name: str) -> Any:
    """Return a coordinator of a broker, if some request has needed it."""
    return vars(cluster.services(broker).coordinators).get(name)


def _expire(runtime: GroupRuntime, member: str | None) -> int:
    expired = 0
    timers: dict[Hashable, int] = cast("Any", runtime.group).timers  # of all types of groups
    for timer in list(timers):
        due_ms = timers.get(timer)  # one that expires may end others
        if not isinstance(timer, SessionTimer) or due_ms is None:
            continue
        if member in (None, timer.member_id, _client_id(runtime, timer.member_id)):
            runtime._step_or_fail(runtime.machine, TimerFired(timer), at_least_ms=due_ms)  # noqa: SLF001
            expired += 1
    return expired


def _client_id(runtime: GroupRuntime, member_id: str) -> str | None:
    members = cast("Any", runtime.group).members
    member = getattr(members, "by_id", members).get(member_id)
    return getattr(member, "client_id", None)


async def fence(cluster: TestCluster, transactional_id: str) -> None:
    """Initialize another producer of a transactional id, which fences those before it. Raises ValueError.

    A transaction that one of them left open is aborted first, as in Kafka.
    """
    for broker in cluster.brokers:
        coordinator: TransactionCoordinator | None = _existing(cluster, broker, "transactions")
        if coordinator is not None and _knows(coordinator, transactional_id):
            await cluster.create_task(broker, _initialize(coordinator, transactional_id))
            return
    raise ValueError(f"no producer has been initialized with transactional id {transactional_id!r}")


def _knows(coordinator: TransactionCoordinator, transactional_id: str) -> bool:
    try:
        coordinator.describe(transactional_id)
    except KafkaError:
        return False
    return True


async def _initialize(coordinator: TransactionCoordinator, transactional_id: str) -> None:
    async with asyncio.timeout(_SECONDS):
        while True:
            answer = await coordinator.init_producer_id(transactional_id, _TRANSACTION_TIMEOUT_MS, None)
            if answer.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            await asyncio.sleep(_POLL_S)
    if answer.error is not ErrorCode.NONE:
        raise ValueError(f"{transactional_id!r} cannot be fenced: {answer.error.name}")
