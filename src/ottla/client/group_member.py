"""Implements a member of a classic consumer group: join, sync, heartbeat, commit, leave.

    joining --JoinGroup--> syncing --SyncGroup--> stable --heartbeat gets REBALANCE_IN_PROGRESS--> joining

The leader of the group assigns partitions with the range assignor, the only one that is offered; Kafka's own consumers
offer it by default. The caller reads while `stable`; when `on_rebalance` is called it commits and joins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.consumer_protocol import (
    CONSUMER,
    RANGE,
    assign_range,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from ottla.client.errors import CannotConnect, raise_for
from ottla.client.groups import commit_offsets
from ottla.core.errors import (
    ErrorCode,
    FencedInstanceId,
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from ottla.core.ids import TopicPartition
from ottla.wire.apis import ApiKey

_JOIN_AGAIN = (RebalanceInProgress, IllegalGeneration, UnknownMemberId)
# The response of JoinGroup comes when the rebalance ends: the coordinator may exceed the rebalance timeout by this.
_GRACE_S = 5.0


class GroupMember:
    """A group member. Call `join` once and after each `on_rebalance`; call `leave` at the end."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        topics: Iterable[str],
        *,
        on_rebalance: Callable[[], None],
        session_timeout_s: float = 45.0,
        rebalance_timeout_s: float = 60.0,
        heartbeat_s: float = 3.0,
    ) -> None:
        self.group_id = group_id
        self.member_id = ""
        self.generation_id = -1
        self._cluster = cluster
        self._topics = tuple(topics)
        self._on_rebalance = on_rebalance
        self._session_timeout_s = session_timeout_s
        self._rebalance_timeout_s = rebalance_timeout_s
        self._heartbeat_s = heartbeat_s
        self._heartbeats: asyncio.Task[None] | None = None

    async def join(self) -> list[TopicPartition]:
        """Join the next generation; returns the partitions assigned to this member."""
        await self._stop_heartbeats()
        while True:
            try:
                joined = await self._cluster.retrying(self._join_once)
                assignment = await self._cluster.retrying(functools.partial(self._sync_once, joined))
            except RebalanceInProgress:
                continue  # another member joined meanwhile
            except (UnknownMemberId, IllegalGeneration):
                self._reset()
                continue
            self._heartbeats = asyncio.ensure_future(self._send_heartbeats())
            return assignment

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit as this member; False if the generation has ended (the records will be read again)."""
        try:
            await commit_offsets(
                self._cluster, self.group_id, offsets, generation_id=self.generation_id, member_id=self.member_id
            )
        except _JOIN_AGAIN:
            return False
        return True

    async def leave(self) -> None:
        """Leave now, so that the other members need not wait for the session timeout."""
        from ottla.wire.generated.leave_group import LeaveGroupRequest, MemberIdentity

        await self._stop_heartbeats()
        if not self.member_id:
            return
        ask = LeaveGroupRequest(
            group_id=self.group_id, member_id=self.member_id, members=[MemberIdentity(member_id=self.member_id)]
        )
        with contextlib.suppress(KafkaError, CannotConnect):  # the session timeout has the same effect, only later
            node_id = await self._cluster.coordinator(self.group_id)
            await self._cluster.request(node_id, ApiKey.LEAVE_GROUP, ask)
        self._reset()

    def _reset(self) -> None:
        self.member_id, self.generation_id = "", -1

    async def _join_once(self) -> Any:
        from ottla.wire.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol

        node_id = await self._cluster.coordinator(self.group_id)
        ask = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=int(self._session_timeout_s * 1000),
            rebalance_timeout_ms=int(self._rebalance_timeout_s * 1000),
            member_id=self.member_id,
            protocol_type=CONSUMER,
            protocols=[JoinGroupRequestProtocol(name=RANGE, metadata=write_subscription(self._topics))],
        )
        timeout_s = self._rebalance_timeout_s + _GRACE_S
        answer = await self._cluster.request(node_id, ApiKey.JOIN_GROUP, ask, timeout_s=timeout_s)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:  # KIP-394: join again with this id
            ask.member_id = self.member_id = answer.member_id
            answer = await self._cluster.request(node_id, ApiKey.JOIN_GROUP, ask, timeout_s=timeout_s)
        raise_for(answer.error_code, about=f"joining group {self.group_id}")
        self.member_id, self.generation_id = answer.member_id, answer.generation_id
        return answer

    async def _sync_once(self, joined: Any) -> list[TopicPartition]:
        from ottla.wire.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

        assigned: dict[str, list[TopicPartition]] = {}
        if joined.leader == self.member_id and not joined.skip_assignment:
            assigned = await self._assign({m.member_id: read_subscription(m.metadata) for m in joined.members})
        ask = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            protocol_type=CONSUMER,
            protocol_name=joined.protocol_name or RANGE,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=write_assignment(partitions))
                for member, partitions in assigned.items()
            ],
        )
        node_id = await self._cluster.coordinator(self.group_id)
        timeout_s = self._rebalance_timeout_s + _GRACE_S
        answer = await self._cluster.request(node_id, ApiKey.SYNC_GROUP, ask, timeout_s=timeout_s)
        raise_for(answer.error_code, about=f"joining group {self.group_id}")
        return read_assignment(answer.assignment)

    async def _assign(self, subscriptions: Mapping[str, list[str]]) -> dict[str, list[TopicPartition]]:
        counts = {}
        for topic in {topic for topics in subscriptions.values() for topic in topics}:
            with contextlib.suppress(UnknownTopicOrPartition):  # another member's topic may be deleted
                counts[topic] = len((await self._cluster.topic(topic, fresh=True)).partitions)
        return assign_range(subscriptions, counts)

    async def _send_heartbeats(self) -> None:
        """Send heartbeats until the coordinator reports a rebalance or that this is no longer a member."""
        from ottla.wire.generated.heartbeat import HeartbeatRequest

        ask = HeartbeatRequest(group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id)
        while True:
            await asyncio.sleep(self._heartbeat_s)
            try:
                node_id = await self._cluster.coordinator(self.group_id)
                answer = await self._cluster.request(node_id, ApiKey.HEARTBEAT, ask)
                raise_for(answer.error_code)
            except (*_JOIN_AGAIN, FencedInstanceId):
                self._on_rebalance()
                return
            except (KafkaError, CannotConnect):
                continue  # the coordinator moves; the session timeout is longer than a few heartbeats

    async def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
            self._heartbeats = None
