"""Reads and writes the states of share partitions with the share coordinator on whichever broker it is.

Implements the port `Persister`. The coordinator of a share partition leads its partition of `__share_group_state`;
other brokers ask it by the APIs 83 to 87. Requests to one broker share a connection and are served in order, so that
the writes of a share partition are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.broker.remote.node_channels import NodeChannels
from ottla.core.errors import CoordinatorNotAvailable, ErrorCode, KafkaError
from ottla.core.ids import SHARE_STATE_TOPIC
from ottla.internal_topics.partitioning import partition_of
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.share_coordinator.coordinator import ShareCoordinator
from ottla.share_coordinator.machine import StateResult, StateWrite
from ottla.share_coordinator.records import SharePartitionKey, Snapshot
from ottla.share_coordinator.states import RecordState, StateBatch
from ottla.wire.apis import ApiKey
from ottla.wire.generated import delete_share_group_state as deleting
from ottla.wire.generated import initialize_share_group_state as initializing
from ottla.wire.generated import read_share_group_state as reading
from ottla.wire.generated import read_share_group_state_summary as summarizing
from ottla.wire.generated import write_share_group_state as writing

RETRY_S_MIN, RETRY_S_MAX = 0.01, 0.5
"""Between the attempts of an initialization."""

INITIALIZE_TIMEOUT_S = 5.0
"""The topic may have been created just now; its leaders follow, and load."""

_MOVING = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Errors of a coordinator that is being moved, after which another attempt may succeed."""

if TYPE_CHECKING:  # imported with the first connection: one broker alone has none
    from ottla.client.connection import ConnectTo


class ShareStatePersister:
    """Asks the share coordinator of each share partition. Call `follow` and `close`."""

    def __init__(
        self, local: Callable[[], ShareCoordinator], cluster: MetadataCache, *, node_id: int, connect_to: ConnectTo
    ) -> None:
        self._local, self._cluster, self._node_id = local, cluster, node_id
        self._channels = NodeChannels(connect_to)

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Give up the requests to brokers that are gone."""
        self._channels.follow(old, new)

    async def close(self) -> None:
        """Close the connections."""
        await self._channels.close()

    # ---- Requests

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> StateResult:
        """Begin or reset the state of a share partition; waits for a coordinator that is being moved."""
        deadline = asyncio.get_running_loop().time() + INITIALIZE_TIMEOUT_S
        delay_s = RETRY_S_MIN
        while True:
            try:
                result = await self._initialize(key, state_epoch, start_offset)
            except KafkaError as error:
                if error.code not in _MOVING or asyncio.get_running_loop().time() + delay_s > deadline:
                    raise
            else:
                if result.error not in _MOVING or asyncio.get_running_loop().time() + delay_s > deadline:
                    return result
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_S_MAX)

    async def _initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> StateResult:
        coordinator = self._coordinator_of(key)
        if coordinator == self._node_id:
            return await self._local().initialize(key, state_epoch, start_offset)
        asked = initializing.PartitionData(partition=key.partition, state_epoch=state_epoch, start_offset=start_offset)
        topic = initializing.InitializeStateData(topic_id=key.topic_id, partitions=[asked])
        request = initializing.InitializeShareGroupStateRequest(group_id=key.group_id, topics=[topic])
        return _result(await self._ask(coordinator, ApiKey.INITIALIZE_SHARE_GROUP_STATE, request))

    async def write(self, key: SharePartitionKey, write: StateWrite) -> StateResult:
        """Change the state of a share partition. It is sent once: a second attempt might overtake a later write."""
        coordinator = self._coordinator_of(key)
        if coordinator == self._node_id:
            return await self._local().write(key, write)
        asked = writing.PartitionData(
            partition=key.partition,
            state_epoch=write.state_epoch,
            leader_epoch=write.leader_epoch,
            start_offset=write.start_offset,
            delivery_complete_count=write.delivery_complete_count,
            state_batches=[
                writing.StateBatch(
                    first_offset=batch.first,
                    last_offset=batch.last,
                    delivery_state=batch.state,
                    delivery_count=batch.delivery_count,
                )
                for batch in write.batches
            ],
        )
        topic = writing.WriteStateData(topic_id=key.topic_id, partitions=[asked])
        request = writing.WriteShareGroupStateRequest(group_id=key.group_id, topics=[topic])
        return _result(await self._ask(coordinator, ApiKey.WRITE_SHARE_GROUP_STATE, request))

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> StateResult:
        """Read the state for a new leader of the partition, whose epoch fences earlier leaders."""
        coordinator = self._coordinator_of(key)
        if coordinator == self._node_id:
            return await self._local().read(key, leader_epoch)
        asked = reading.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
        topic = reading.ReadStateData(topic_id=key.topic_id, partitions=[asked])
        request = reading.ReadShareGroupStateRequest(group_id=key.group_id, topics=[topic])
        found: reading.PartitionResult = await self._ask(coordinator, ApiKey.READ_SHARE_GROUP_STATE, request)
        batches = tuple(
            StateBatch(batch.first_offset, batch.last_offset, RecordState(batch.delivery_state), batch.delivery_count)
            for batch in found.state_batches
        )
        state = Snapshot(0, found.state_epoch, leader_epoch, found.start_offset, batches=batches)
        return _result(found, state)

    async def summary(self, key: SharePartitionKey) -> StateResult:
        """Read the state without its batches."""
        coordinator = self._coordinator_of(key)
        if coordinator == self._node_id:
            return self._local().summary(key)
        asked = summarizing.PartitionData(partition=key.partition, leader_epoch=-1)
        topic = summarizing.ReadStateSummaryData(topic_id=key.topic_id, partitions=[asked])
        request = summarizing.ReadShareGroupStateSummaryRequest(group_id=key.group_id, topics=[topic])
        found: summarizing.PartitionResult = await self._ask(
            coordinator, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, request
        )
        state = Snapshot(0, found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count)
        return _result(found, state)

    async def delete(self, key: SharePartitionKey) -> StateResult:
        """Delete the state of a share partition."""
        coordinator = self._coordinator_of(key)
        if coordinator == self._node_id:
            return await self._local().delete(key)
        asked = deleting.PartitionData(partition=key.partition)
        topic = deleting.DeleteStateData(topic_id=key.topic_id, partitions=[asked])
        request = deleting.DeleteShareGroupStateRequest(group_id=key.group_id, topics=[topic])
        return _result(await self._ask(coordinator, ApiKey.DELETE_SHARE_GROUP_STATE, request))

    # ---- Internals

    def _coordinator_of(self, key: SharePartitionKey) -> int:
        """Return the leader of the key's partition; this broker itself before the topic exists."""
        topic = self._cluster.current.topics.get(SHARE_STATE_TOPIC)
        if topic is None:
            return self._node_id
        leader = topic.partitions[partition_of(key.text, len(topic.partitions))].leader
        if leader == NO_LEADER:
            raise CoordinatorNotAvailable(f"{SHARE_STATE_TOPIC} has no leader for {key.text}")
        return leader

    async def _ask(self, node_id: int, api: ApiKey, request: Any) -> Any:
        """Send a request for one partition and return its result."""
        response = await self._channels.request(node_id, api, request)
        ((result,),) = [topic.partitions for topic in response.results]
        return result


def _result(answer: Any, state: Snapshot | None = None) -> StateResult:
    """Return what the coordinator answered for one partition."""
    if answer.error_code != ErrorCode.NONE:
        return StateResult(ErrorCode(answer.error_code), answer.error_message or "")
    return StateResult(state=state)
