"""DescribeProducers (key 61), version 0.

What it does
  For each partition of which this broker has a replica: the producers that the replica remembers, with epoch, last
  sequence, time of the last write and the start of an open transaction.

What it does not do
  Nothing is left out.

Versions
  v0   flexible encoding
"""

from __future__ import annotations

from functools import partial

from ottla.broker.handler_parts.admin_requests import check_topic_name, error_fields
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import InvalidTopic, KafkaError, UnknownTopicOrPartition
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.storage.state.producer_state_manager import ProducerInfo
from ottla.wire.generated.describe_producers import (
    MESSAGES,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)

WORK = 3
"""Units of work of one partition."""

READ = Access(AclOperation.READ, ResourceType.TOPIC, "each topic")


def answer(_request: Request, body: DescribeProducersRequest, _view: ClusterView) -> InParts[DescribeProducersResponse]:
    """Describe each partition separately, once."""
    response = DescribeProducersResponse()
    return InParts(response, Each(body.topics, _topic, into=response.topics))


def _topic(request: Request, topic: TopicRequest, view: ClusterView) -> InParts[TopicResponse]:
    result = TopicResponse(name=topic.name)
    one = partial(_partition, topic.name, _why_not(request, topic.name, view))
    return InParts(result, Each(topic.partition_indexes, one, into=result.partitions, key=_index, work=WORK))


def _why_not(request: Request, topic: str, view: ClusterView) -> KafkaError | None:
    """Return the error of all partitions of a topic."""
    try:
        check_topic_name(topic)
    except InvalidTopic as error:
        return error
    if READ.denies(request, topic):
        return READ.error
    return None if topic in view.topics else UnknownTopicOrPartition()


def _index(index: int) -> int:
    return index


def _partition(
    topic: str, refusal: KafkaError | None, request: Request, index: int, _view: ClusterView
) -> InParts[PartitionResponse]:
    response = PartitionResponse(partition_index=index)
    try:
        if refusal is not None:
            raise refusal
        partition = request.services.replicas.partition(TopicPartition(topic, index))
    except KafkaError as error:
        response.error_code, response.error_message = error_fields(error)
        return InParts(response)
    return InParts(response, Each(partition.log.producers.describe(), _producer, into=response.active_producers))


def _producer(_request: Request, producer: ProducerInfo, _view: ClusterView) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.current_txn_start_offset,
    )


HANDLER = ElementWise(MESSAGES, answer, access=(READ,))
