"""Sends the ISR changes of this broker's leaders to the controller, which may be this broker (KIP-497)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.client.errors import CannotConnect, error_or_none
from ottla.controller.isr import ProposedIsr
from ottla.core.error_codes import ErrorCode
from ottla.core.errors import KafkaError, NetworkException, StaleBrokerEpoch, error_for
from ottla.replication.isr_proposal_queue import AlteredPartition, IsrChange, Outcome
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.remote.controller_channel import ControllerChannel
    from ottla.controller.controller import Controller
    from ottla.metadata_store.metadata_cache import MetadataCache
    from ottla.wire.generated.alter_partition import AlterPartitionRequest, AlterPartitionResponse

REQUEST_TIMEOUT_S = 5.0


class AlterPartitionChannel:
    """Sends AlterPartition requests; implements the port `replication.isr_changes.AlterPartitionSender`."""

    def __init__(
        self, controller: Controller, channel: ControllerChannel, cluster: MetadataCache, *, node_id: int
    ) -> None:
        self._controller, self._channel, self._cluster = controller, channel, cluster
        self._node_id = node_id

    async def send(self, changes: Sequence[IsrChange]) -> Sequence[Outcome]:
        """Return an outcome for each change. Raises KafkaError or StoreError if the request has to be sent again."""
        broker = self._cluster.current.brokers.get(self._node_id)
        if broker is None:
            raise StaleBrokerEpoch("this broker is not registered")
        if self._controller.is_active:
            return await self._decide_here(broker.epoch, changes)
        request = _request(self._node_id, broker.epoch, changes)
        try:
            answer = await self._channel.send_to_controller(
                ApiKey.ALTER_PARTITION, request, timeout_s=REQUEST_TIMEOUT_S
            )
        except CannotConnect as error:
            raise NetworkException(str(error)) from error
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code)
        return _outcomes(answer, changes)

    async def _decide_here(self, broker_epoch: int, changes: Sequence[IsrChange]) -> list[Outcome]:
        proposals = [
            ProposedIsr(
                each.topic_id, each.partition, each.leader_epoch, each.partition_epoch, each.new_isr, each.is_recovering
            )
            for each in changes
        ]
        decided = await self._controller.alter_partitions(self._node_id, broker_epoch, proposals)
        return [
            each
            if isinstance(each, KafkaError)
            else AlteredPartition(each.leader, each.leader_epoch, each.isr, each.is_recovering, each.partition_epoch)
            for each in decided
        ]


def _request(node_id: int, broker_epoch: int, changes: Sequence[IsrChange]) -> AlterPartitionRequest:
    from ottla.wire.generated import alter_partition as wire

    topics: dict[UUID, wire.AlterPartitionRequestTopicData] = {}
    for each in changes:
        topic = topics.get(each.topic_id)
        if topic is None:
            topic = topics[each.topic_id] = wire.AlterPartitionRequestTopicData(topic_id=each.topic_id)
        topic.partitions.append(
            wire.AlterPartitionRequestPartitionData(
                partition_index=each.partition,
                leader_epoch=each.leader_epoch,
                new_isr_with_epochs=[
                    wire.BrokerState(broker_id=member, broker_epoch=epoch) for member, epoch in each.new_isr
                ],
                leader_recovery_state=int(each.is_recovering),
                partition_epoch=each.partition_epoch,
            )
        )
    return wire.AlterPartitionRequest(broker_id=node_id, broker_epoch=broker_epoch, topics=list(topics.values()))


def _outcomes(answer: AlterPartitionResponse, changes: Sequence[IsrChange]) -> list[Outcome]:
    """Match the response with the changes; one that is missing in it is to be sent again."""
    found: dict[tuple[UUID, int], Outcome] = {}
    for topic in answer.topics:
        for each in topic.partitions:
            found[topic.topic_id, each.partition_index] = error_or_none(each.error_code) or AlteredPartition(
                each.leader_id,
                each.leader_epoch,
                tuple(each.isr),
                bool(each.leader_recovery_state),
                each.partition_epoch,
            )
    missing = NetworkException("the controller's response lacks the partition")
    return [found.get((each.topic_id, each.partition), missing) for each in changes]
