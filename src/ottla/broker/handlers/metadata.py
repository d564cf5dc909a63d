"""Metadata (key 3), versions 0 to 13.

What it does
  Returns the brokers with their addresses on the listener of the request, the controller, and the requested topics, by
  name or id: their partitions, leaders, leader epochs and replicas. A topic that is requested by name, does not exist
  and may be created (`auto.create.topics.enable` and the request's own flag) is created. As in Kafka the response to
  the call that creates it is UNKNOWN_TOPIC_OR_PARTITION, and the client's next call finds the topic: a topic that was
  deleted is not in the response to the call that asks whether it is gone.

What it does not do
  Authorized operations: all are reported, because there is no authorization yet.

Versions
  v0   no topics means all; v1 null means all, none means none
  v4   the request's own flag on creating topics
  v5   offline replicas; v6 LISTENER_NOT_FOUND; v7 leader epochs
  v8   authorized operations (of the cluster until v10: from then on DescribeCluster has them, KIP-700)
  v9   flexible encoding
  v10  topic ids; v12 topics asked for by id
  v13  an error code for the whole answer
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.broker.handler_parts.admin_requests import check_topic_name
from ottla.broker.handler_parts.authorized_operations import (
    ALL_CLUSTER_OPERATIONS,
    ALL_TOPIC_OPERATIONS,
    OPERATIONS_OMITTED,
)
from ottla.broker.handler_parts.partition_states import reachable_leader, replica_states
from ottla.broker.internal_topic_creation import internal_topic
from ottla.controller.topics import CreateTopic
from ottla.coordination.view import PartitionView, TopicView
from ottla.core.errors import (
    ErrorCode,
    KafkaError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_code_for,
)
from ottla.core.ids import INTERNAL_TOPICS, NO_TOPIC_ID, OFFSETS_TOPIC
from ottla.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

FIRST_WHERE_EMPTY_MEANS_NONE = 1
FIRST_WITH_CREATION_FLAG = 4
FIRST_WITH_LISTENER_NOT_FOUND = 6
FIRST_BY_ID = 12
WORK = 3
"""The share of a slice of work of one topic, and of one partition."""


async def handle(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Return the snapshot of the cluster, in the terms of this client's listener."""
    asked = request.topics
    each = ctx.services.slices.each
    if asked is not None and ctx.api_version < FIRST_BY_ID and await _any_by_id(ctx, asked):
        return MetadataResponse(topics=[_refusal(topic, ErrorCode.INVALID_REQUEST) async for topic in each(asked)])
    topics = await _topics(ctx, request)
    view = ctx.services.cluster.current
    brokers = [
        MetadataResponseBroker(node_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker in view.brokers.values()
        if (endpoint := broker.endpoints.get(ctx.listener)) is not None
    ]
    wants_operations = request.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=brokers,
        cluster_id=view.cluster_id,
        # While no controller is elected any broker will do: it passes on what only the controller can serve.
        controller_id=view.controller_id if view.controller_id in view.brokers else ctx.services.node_id,
        topics=topics,
        cluster_authorized_operations=ALL_CLUSTER_OPERATIONS if wants_operations else OPERATIONS_OMITTED,
    )


async def _topics(ctx: RequestContext, request: MetadataRequest) -> list[MetadataResponseTopic]:
    asked = request.topics
    each = ctx.services.slices.each
    if asked is None or (not asked and ctx.api_version < FIRST_WHERE_EMPTY_MEANS_NONE):
        all_topics = ctx.services.cluster.current.topics.values()
        return [await _topic(ctx, request, topic) async for topic in each(all_topics)]
    by_id = [topic async for topic in each(asked) if topic.topic_id != NO_TOPIC_ID]
    if by_id:  # ids and names in one request: Kafka heeds the ids only
        asked = by_id
    once = {(topic.name, topic.topic_id): topic async for topic in each(asked)}
    missing = await _create_missing(ctx, request, list(once.values()))
    return [await _one(ctx, request, topic, missing) async for topic in each(once.values(), WORK)]


async def _any_by_id(ctx: RequestContext, asked: list[MetadataRequestTopic]) -> bool:
    async for topic in ctx.services.slices.each(asked):
        if _by_id(topic):
            return True
    return False


def _by_id(asked: MetadataRequestTopic) -> bool:
    return asked.name is None or asked.topic_id != NO_TOPIC_ID


async def _create_missing(
    ctx: RequestContext, request: MetadataRequest, asked: list[MetadataRequestTopic]
) -> dict[str, KafkaError]:
    """Create what may be created, in one commit; return the error of each topic that did not exist before."""
    services = ctx.services
    allowed = ctx.api_version < FIRST_WITH_CREATION_FLAG or request.allow_auto_topic_creation
    if not allowed or not services.config.controller.auto_create_topics:
        return {}
    topics = services.cluster.current.topics
    missing = [
        topic.name
        async for topic in services.slices.each(asked)
        if topic.name is not None and not _by_id(topic) and topic.name not in topics
    ]
    if not missing:
        return {}
    missing.sort()
    try:
        outcomes = await services.controller_channel.create_topics([_wanted(ctx, name) for name in missing])
    except KafkaError as error:
        return dict.fromkeys(missing, error)
    return {
        name: UnknownTopicOrPartition()
        if outcome is None or isinstance(outcome, TopicAlreadyExists)  # another was faster
        else outcome
        for name, outcome in zip(missing, outcomes, strict=True)
    }


def _wanted(ctx: RequestContext, name: str) -> CreateTopic:
    """Return the topic to create; an internal topic is made as its coordinator would make it."""
    return internal_topic(ctx.services, name) if name == OFFSETS_TOPIC else CreateTopic(name)


async def _one(
    ctx: RequestContext, request: MetadataRequest, asked: MetadataRequestTopic, missing: dict[str, KafkaError]
) -> MetadataResponseTopic:
    view = ctx.services.cluster.current
    try:
        if _by_id(asked):
            topic = view.topic_by_id.get(asked.topic_id.bytes)
            if topic is None:
                raise UnknownTopicId
            return await _topic(ctx, request, topic)
        name = asked.name or ""
        if name in missing:
            raise missing[name]
        topic = view.topics.get(name)
        if topic is None:
            check_topic_name(name)
            raise UnknownTopicOrPartition
    except KafkaError as error:
        return _refusal(asked, error_code_for(error))
    return await _topic(ctx, request, topic)


def _refusal(asked: MetadataRequestTopic, code: ErrorCode) -> MetadataResponseTopic:
    name = asked.name
    if name is None and code is not ErrorCode.UNKNOWN_TOPIC_ID:
        name = ""  # only from version 12 on may it be null
    return MetadataResponseTopic(
        error_code=code, name=name, topic_id=asked.topic_id, is_internal=asked.name in INTERNAL_TOPICS
    )


async def _topic(ctx: RequestContext, request: MetadataRequest, topic: TopicView) -> MetadataResponseTopic:
    wants_operations = request.include_topic_authorized_operations
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            _partition(ctx, topic.name, partition)
            async for partition in ctx.services.slices.each(topic.partitions, WORK)
        ],
        topic_authorized_operations=ALL_TOPIC_OPERATIONS if wants_operations else OPERATIONS_OMITTED,
    )


def _partition(ctx: RequestContext, topic: str, partition: PartitionView) -> MetadataResponsePartition:
    isr, offline, _ = replica_states(ctx.services, topic, partition)
    code, leader = reachable_leader(ctx.services.cluster.current, partition, offline, ctx.listener)
    if code is ErrorCode.LISTENER_NOT_FOUND and ctx.api_version < FIRST_WITH_LISTENER_NOT_FOUND:
        code = ErrorCode.LEADER_NOT_AVAILABLE  # what clients knew before KIP-302
    return MetadataResponsePartition(
        error_code=code,
        partition_index=partition.index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=isr,
        offline_replicas=offline,
    )
