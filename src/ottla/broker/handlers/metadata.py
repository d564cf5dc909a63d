"""Metadata (key 3), versions 0 to 13.

What it does
  Returns the brokers with their addresses on the listener of the request, the controller, and the requested topics, by
  name or id: their partitions, leaders, leader epochs and replicas. A topic that is requested by name, does not exist
  and may be created (`auto.create.topics.enable` and the request's own flag) is created. As in Kafka the response to
  the call that creates it is UNKNOWN_TOPIC_OR_PARTITION, and the client's next call finds the topic: a topic that was
  deleted is not in the response to the call that asks whether it is gone.

  A topic that the client may not describe is left out where all are requested, and looks the same whether or not it
  exists where it is named.

What it does not do
  Nothing is left out.

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

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from ottla.broker.handler_parts.admin_requests import check_topic_name
from ottla.broker.handler_parts.authorized_operations import (
    DESCRIBE_CLUSTER,
    OPERATIONS_OMITTED,
    OPERATIONS_WORK,
    authorized_operations,
    cluster_operations,
)
from ottla.broker.handler_parts.mutation_quotas import mutation_quota, within_quota
from ottla.broker.handler_parts.partition_states import reachable_leader, replica_states
from ottla.broker.internal_topic_creation import internal_topic
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.controller.topics import CreateTopic
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import (
    ErrorCode,
    KafkaError,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_code_for,
)
from ottla.core.ids import INTERNAL_TOPICS, NO_TOPIC_ID, OFFSETS_TOPIC
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from ottla.wire.generated.metadata import (
    MESSAGES,
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


DESCRIBE = Access(
    AclOperation.DESCRIBE,
    ResourceType.TOPIC,
    "each topic",
    refusal="`TOPIC_AUTHORIZATION_FAILED`; left out where all are requested",
)
CREATE = Access(
    AclOperation.CREATE, ResourceType.TOPIC, "each topic that is to be created", or_cluster=AclOperation.CREATE
)


class _Requested(NamedTuple):
    """The topics to answer, each once; None: all of the cluster."""

    topics: list[MetadataRequestTopic] | None
    missing: Mapping[str, KafkaError] = MappingProxyType({})  # of those that did not exist before
    is_refused: bool = False


async def create_missing(request: Request, body: MetadataRequest) -> _Requested:
    """Find what is requested, and create what may be created."""
    asked = body.topics
    if asked is None or (not asked and request.api_version < FIRST_WHERE_EMPTY_MEANS_NONE):
        return _Requested(None)
    if request.api_version < FIRST_BY_ID and await collect(request, Each(asked, _requested_by_id)):
        return _Requested(asked, is_refused=True)
    with_id = await collect(request, Each(asked, _requested_with_id, key=_identity))
    if with_id:  # ids and names in one request: Kafka heeds the ids only
        return _Requested(with_id)
    once = await collect(request, Each(asked, _requested, key=_identity))
    return _Requested(once, await _create(request, body, once))


def _identity(topic: MetadataRequestTopic) -> tuple[str | None, UUID]:
    return topic.name, topic.topic_id


def _requested(_request: Request, topic: MetadataRequestTopic, _view: ClusterView) -> MetadataRequestTopic:
    return topic


def _requested_with_id(
    _request: Request, topic: MetadataRequestTopic, _view: ClusterView
) -> MetadataRequestTopic | None:
    return None if topic.topic_id == NO_TOPIC_ID else topic


def _requested_by_id(_request: Request, topic: MetadataRequestTopic, _view: ClusterView) -> MetadataRequestTopic | None:
    return topic if _by_id(topic) else None


def _by_id(topic: MetadataRequestTopic) -> bool:
    return topic.name is None or topic.topic_id != NO_TOPIC_ID


async def _create(request: Request, body: MetadataRequest, topics: list[MetadataRequestTopic]) -> dict[str, KafkaError]:
    """Create what may be created, in one commit; return the error of each topic that did not exist before."""
    services = request.services
    allowed = request.api_version < FIRST_WITH_CREATION_FLAG or body.allow_auto_topic_creation
    if not allowed or not services.config.controller.auto_create_topics:
        return {}
    denied: dict[str, KafkaError] = {}
    missing = await collect(request, Each(topics, partial(_missing_name, denied)))
    if not missing:
        return denied
    missing.sort()
    if (quota := mutation_quota(request, strict_since=0)) is not None:
        throttled: dict[str, KafkaError] = {}
        partitions = [services.config.controller.num_partitions] * len(missing)
        missing = within_quota(quota, missing, partitions, throttled)
        denied |= {name: UnknownTopicOrPartition() for name in throttled}
    try:
        outcomes = await services.controller_channel.create_topics([_new_topic(request, name) for name in missing])
    except KafkaError as error:
        return denied | dict.fromkeys(missing, error)
    return denied | {
        name: UnknownTopicOrPartition()
        if outcome is None or isinstance(outcome, TopicAlreadyExists)  # another was faster
        else outcome
        for name, outcome in zip(missing, outcomes, strict=True)
    }


def _missing_name(
    denied: dict[str, KafkaError], request: Request, topic: MetadataRequestTopic, view: ClusterView
) -> str | None:
    """Return the name of a topic that is to be created; note one that the client may not create."""
    name = topic.name
    if name is None or _by_id(topic) or name in view.topics or DESCRIBE.denies(request, name, log_if_denied=False):
        return None
    if CREATE.denies(request, name):
        denied[name] = CREATE.error
        return None
    return name


def _new_topic(request: Request, name: str) -> CreateTopic:
    """Return the topic to create; an internal topic is made as its coordinator would make it."""
    return internal_topic(request.services, name) if name == OFFSETS_TOPIC else CreateTopic(name)


def answer(
    request: Request, body: MetadataRequest, requested: _Requested, view: ClusterView
) -> InParts[MetadataResponse]:
    """Return the snapshot of the cluster, in the terms of this client's listener."""
    if requested.is_refused:
        refused = MetadataResponse()
        return InParts(refused, Each(requested.topics or (), _invalid, into=refused.topics))
    wants_operations = body.include_cluster_authorized_operations
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for broker in view.brokers.values()
            if (endpoint := broker.endpoints.get(request.listener)) is not None
        ],
        cluster_id=view.cluster_id,
        # While no controller is elected any broker will do: it passes on what only the controller can serve.
        controller_id=view.controller_id if view.controller_id in view.brokers else request.services.node_id,
        cluster_authorized_operations=cluster_operations(request) if wants_operations else OPERATIONS_OMITTED,
    )
    work = WORK + OPERATIONS_WORK if body.include_topic_authorized_operations else WORK
    if requested.topics is None:
        return InParts(
            response, Each(view.topics.values(), partial(_describable_topic, body), into=response.topics, work=work)
        )
    one = partial(_requested_topic, body, requested.missing)
    return InParts(response, Each(requested.topics, one, into=response.topics, work=work))


def _invalid(_request: Request, topic: MetadataRequestTopic, _view: ClusterView) -> MetadataResponseTopic:
    return _refusal(topic, ErrorCode.INVALID_REQUEST)


def _requested_topic(
    body: MetadataRequest,
    missing: Mapping[str, KafkaError],
    request: Request,
    asked: MetadataRequestTopic,
    view: ClusterView,
) -> InParts[MetadataResponseTopic]:
    try:
        if _by_id(asked):
            topic = view.topic_by_id.get(asked.topic_id.bytes)
            if topic is None:
                raise UnknownTopicId
            if DESCRIBE.denies(request, topic.name):
                return InParts(
                    MetadataResponseTopic(error_code=DESCRIBE.error.code, name=None, topic_id=topic.topic_id)
                )
            return _topic(body, request, topic, view)
        name = asked.name or ""
        if DESCRIBE.denies(request, name):
            return InParts(MetadataResponseTopic(error_code=DESCRIBE.error.code, name=name))
        if name in missing:
            raise missing[name]
        topic = view.topics.get(name)
        if topic is None:
            check_topic_name(name)
            raise UnknownTopicOrPartition
    except KafkaError as error:
        refusal = _refusal(asked, error_code_for(error))
        if not _by_id(asked):
            refusal.topic_authorized_operations = _operations(body, request, asked.name or "")
        return InParts(refusal)
    return _topic(body, request, topic, view)


def _refusal(asked: MetadataRequestTopic, code: ErrorCode) -> MetadataResponseTopic:
    name = asked.name
    if name is None and code is not ErrorCode.UNKNOWN_TOPIC_ID:
        name = ""  # only from version 12 on may it be null
    return MetadataResponseTopic(
        error_code=code, name=name, topic_id=asked.topic_id, is_internal=asked.name in INTERNAL_TOPICS
    )


def _describable_topic(
    body: MetadataRequest, request: Request, topic: TopicView, view: ClusterView
) -> InParts[MetadataResponseTopic] | None:
    return None if DESCRIBE.denies(request, topic.name, log_if_denied=False) else _topic(body, request, topic, view)


def _topic(
    body: MetadataRequest, request: Request, topic: TopicView, _view: ClusterView
) -> InParts[MetadataResponseTopic]:
    result = MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        topic_authorized_operations=_operations(body, request, topic.name),
    )
    return InParts(result, Each(topic.partitions, partial(_partition, topic.name), into=result.partitions, work=WORK))


def _operations(body: MetadataRequest, request: Request, topic: str) -> int:
    if not body.include_topic_authorized_operations:
        return OPERATIONS_OMITTED
    return authorized_operations(request, ResourceType.TOPIC, topic)


def _partition(topic: str, request: Request, partition: PartitionView, view: ClusterView) -> MetadataResponsePartition:
    isr, offline, _ = replica_states(request.services, view, topic, partition)
    code, leader = reachable_leader(view, partition, offline, request.listener)
    if code is ErrorCode.LISTENER_NOT_FOUND and request.api_version < FIRST_WITH_LISTENER_NOT_FOUND:
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


def refuse(_request: Request, body: MetadataRequest, error: KafkaError) -> InParts[MetadataResponse]:
    """Answer each topic with an error: most versions have no other place for it."""
    response = MetadataResponse(error_code=error.code)
    return InParts(response, Each(body.topics or (), partial(_refused, error), into=response.topics))


def _refused(
    error: KafkaError, _request: Request, asked: MetadataRequestTopic, _view: ClusterView
) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error.code, name=asked.name or "", topic_id=asked.topic_id)


HANDLER = ElementWiseAfter(
    MESSAGES, first=create_missing, answer=answer, access=(DESCRIBE, CREATE, DESCRIBE_CLUSTER), refuse=refuse
)
