"""AlterPartition (key 56), versions 2 to 3.

What it does
  Changes the in-sync replicas of partitions as their leader, another broker, proposes, and answers the new state of
  each. The active controller alone does so.

What it does not do
  Serve versions 0 and 1, which name topics by name.

Versions
  v2   topic ids; INELIGIBLE_REPLICA and NEW_LEADER_ELECTED (KIP-841)
  v3   the broker epoch of each replica (KIP-903)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from uuid import UUID

from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.controller.isr import AlterPartitionResult, ProposedIsr
from ottla.core.acls import AclOperation
from ottla.core.errors import KafkaError
from ottla.core.ids import UNKNOWN_BROKER_EPOCH
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.alter_partition import (
    MESSAGES,
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)


async def alter(request: Request, body: AlterPartitionRequest) -> list[AlterPartitionResult | KafkaError] | KafkaError:
    """Commit the proposed changes; return the new state of each partition, or its error."""
    proposals: list[ProposedIsr] = []
    await collect(request, Each[AlterPartitionRequestTopicData, None](body.topics, partial(_proposals, proposals)))
    try:
        return await request.services.controller.alter_partitions(body.broker_id, body.broker_epoch, proposals)
    except KafkaError as error:
        return error


def _proposals(
    proposals: list[ProposedIsr], _request: Request, topic: AlterPartitionRequestTopicData, _view: ClusterView
) -> InParts[None]:
    return InParts(None, Each(topic.partitions, partial(_proposal, topic.topic_id), into=proposals))


def _proposal(
    topic_id: UUID, _request: Request, partition: AlterPartitionRequestPartitionData, _view: ClusterView
) -> ProposedIsr:
    with_epochs = [(replica.broker_id, replica.broker_epoch) for replica in partition.new_isr_with_epochs]
    return ProposedIsr(
        topic_id,
        partition.partition_index,
        partition.leader_epoch,
        partition.partition_epoch,
        with_epochs or [(node, UNKNOWN_BROKER_EPOCH) for node in partition.new_isr],
        partition.leader_recovery_state == 1,
    )


def answer(
    _request: Request,
    body: AlterPartitionRequest,
    outcomes: list[AlterPartitionResult | KafkaError] | KafkaError,
    _view: ClusterView,
) -> AlterPartitionResponse | InParts[AlterPartitionResponse]:
    """Return the new states in the order of the request."""
    if isinstance(outcomes, KafkaError):
        return AlterPartitionResponse(error_code=outcomes.code)
    response = AlterPartitionResponse()
    return InParts(response, Each(body.topics, partial(_topic, iter(outcomes)), into=response.topics))


def _topic(
    outcomes: Iterator[AlterPartitionResult | KafkaError],
    _request: Request,
    topic: AlterPartitionRequestTopicData,
    _view: ClusterView,
) -> InParts[AlterPartitionResponseTopicData]:
    result = AlterPartitionResponseTopicData(topic_id=topic.topic_id)
    return InParts(result, Each(topic.partitions, partial(_partition, outcomes), into=result.partitions))


def _partition(
    outcomes: Iterator[AlterPartitionResult | KafkaError],
    _request: Request,
    partition: AlterPartitionRequestPartitionData,
    _view: ClusterView,
) -> AlterPartitionResponsePartitionData:
    index, outcome = partition.partition_index, next(outcomes)
    if isinstance(outcome, KafkaError):
        return AlterPartitionResponsePartitionData(partition_index=index, error_code=outcome.code)
    return AlterPartitionResponsePartitionData(
        partition_index=index,
        leader_id=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        isr=list(outcome.isr),
        leader_recovery_state=int(outcome.is_recovering),
        partition_epoch=outcome.partition_epoch,
    )


HANDLER = ElementWiseAfter(MESSAGES, first=alter, answer=answer, access=(on_cluster(AclOperation.CLUSTER_ACTION),))
