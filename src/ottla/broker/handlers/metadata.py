"""Metadata (key 3), versions 0 to 13.

What it does
  Tells a client the brokers, as the listener it came by is advertised, the controller, and the topics it asks for, by
  name or id: their partitions, leaders, leader epochs and replicas. A topic that is asked for by name, does not exist
  and may be created (`auto.create.topics.enable` and the request's own flag) is created first, so that the answer holds
  its leader.

What it does not do
  Authorized operations are not filled in: nothing is forbidden before the security room exists.

Versions
  v0   no topics means all; v1 null means all, none means none
  v4   the request's own word on creating topics
  v5   offline replicas; v7 leader epochs
  v8   authorized operations
  v9   flexible encoding
  v10  topic ids; v12 topics asked for by id
  v13  an error code for the whole answer
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.coordination.view import NO_LEADER, ClusterView, PartitionView, TopicView
from ottla.core.errors import (
    ErrorCode,
    InvalidTopic,
    KafkaError,
    LeaderNotAvailable,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.core.ids import NO_TOPIC_ID, why_illegal_topic
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


async def handle(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """The picture of the cluster, in the terms of this client's listener."""
    topics = await _topics(ctx, request)
    view = ctx.services.cluster.current
    brokers = [
        MetadataResponseBroker(node_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker in view.brokers.values()
        if (endpoint := broker.endpoints.get(ctx.listener)) is not None
    ]
    return MetadataResponse(
        brokers=brokers, cluster_id=view.cluster_id, controller_id=view.controller_id, topics=topics
    )


async def _topics(ctx: RequestContext, request: MetadataRequest) -> list[MetadataResponseTopic]:
    asked = request.topics
    view = ctx.services.cluster.current
    if asked is None or (not asked and ctx.api_version < FIRST_WHERE_EMPTY_MEANS_NONE):
        return [_topic(view, topic) for topic in view.topics.values()]
    may_create = ctx.services.config.controller.auto_create_topics and (
        ctx.api_version < FIRST_WITH_CREATION_FLAG or request.allow_auto_topic_creation
    )
    return [await _one(ctx, each, may_create=may_create) for each in asked]


async def _one(ctx: RequestContext, asked: MetadataRequestTopic, *, may_create: bool) -> MetadataResponseTopic:
    view = ctx.services.cluster.current
    try:
        if asked.topic_id != NO_TOPIC_ID:
            by_id = view.topic_by_id.get(asked.topic_id)
            if by_id is None:
                raise UnknownTopicId
            return _topic(view, by_id)
        name = asked.name or ""
        topic = view.topics.get(name)
        if topic is None:
            topic = await _create(ctx, name, may_create=may_create)
    except KafkaError as error:
        name_known = asked.name if asked.topic_id == NO_TOPIC_ID else None
        return MetadataResponseTopic(error_code=error.code, name=name_known, topic_id=asked.topic_id)
    return _topic(ctx.services.cluster.current, topic)


async def _create(ctx: RequestContext, name: str, *, may_create: bool) -> TopicView:
    why = why_illegal_topic(name)
    if why is not None:
        raise InvalidTopic(why)
    if not may_create:
        raise UnknownTopicOrPartition
    try:
        return await ctx.services.controller.create_topic(name)
    except TopicAlreadyExists:  # another client was faster
        found = ctx.services.cluster.current.topics.get(name)
        if found is None:
            raise LeaderNotAvailable from None
        return found


def _topic(view: ClusterView, topic: TopicView) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_partition(view, partition) for partition in topic.partitions],
    )


def _partition(view: ClusterView, partition: PartitionView) -> MetadataResponsePartition:
    led = partition.leader != NO_LEADER
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=list(view.offline_replicas(partition)),
    )
