"""CreateTopics (key 19), versions 2 to 7.

What it does
  Creates each topic with the partitions, replicas, assignment and settings asked for, or returns the
  error; an error of one topic does not affect the others. All valid ones are created in one commit, and the answer
  comes when they can be written to. -1 partitions or replicas mean the broker's defaults. `validate_only` checks
  everything and creates nothing.

What it does not do
  Ask a create-topic policy: there is no plug-in for one.

Versions
  v4   -1 for partitions and replicas (taken in every version here)
  v5   flexible encoding; the answer carries the numbers and all settings of the topic (KIP-525)
  v6   THROTTLING_QUOTA_EXCEEDED (KIP-599); before, topics above the quota are created and the client waits
  v7   topic ids
"""

from __future__ import annotations

from functools import partial

from ottla.broker.config_resources import DescribedConfig, topic_entries
from ottla.broker.handler_parts.admin_requests import error_fields, with_timeout
from ottla.broker.handler_parts.mutation_quotas import mutation_quota, within_quota
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts, collect, repeated
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.controller.topics import CreateTopic
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import InvalidRequest, KafkaError, error_for
from ottla.core.ids import METADATA_TOPIC
from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.wire.generated.create_topics import (
    MESSAGES,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

FIRST_WITH_STRICT_QUOTA = 6
CONFIG_WORK = 3
"""Units of work of one setting of a topic."""

CREATE = Access(AclOperation.CREATE, ResourceType.TOPIC, "each topic", or_cluster=AclOperation.CREATE)
DESCRIBE_CONFIGS = Access(
    AclOperation.DESCRIBE_CONFIGS,
    ResourceType.TOPIC,
    "each created topic",
    refusal="`topic_config_error_code` in place of its numbers and settings",
)

_Outcomes = dict[str, TopicView | KafkaError]
"""Each topic or its error, in the order of the request."""


async def create(request: Request, body: CreateTopicsRequest) -> _Outcomes:
    """Create topics: all that can be in one commit; return the outcome of each topic."""
    twice: set[str] = set()
    await collect(request, repeated((topic.name for topic in body.topics), twice))
    outcomes: _Outcomes = {}
    events: list[CreateTopic] = []
    await collect(request, Each(body.topics, partial(_event, twice, outcomes), into=events))
    controller = request.services.controller
    try:
        if (quota := mutation_quota(request, strict_since=FIRST_WITH_STRICT_QUOTA)) is not None:
            checked = await controller.create_topics(events, validate_only=True)
            partitions = [len(each.partitions) if isinstance(each, TopicView) else 0 for each in checked]
            events = within_quota(quota, events, partitions, outcomes)
        created = await with_timeout(
            body.timeout_ms, controller.create_topics(events, validate_only=body.validate_only)
        )
        outcomes |= zip((event.name for event in events), created, strict=True)
    except KafkaError as error:
        outcomes |= {event.name: error for event in events}
    return outcomes


def _event(
    twice: set[str], outcomes: _Outcomes, request: Request, topic: CreatableTopic, _view: ClusterView
) -> InParts[CreateTopic] | None:
    """Return the topic to create; note another as refused."""
    name = topic.name
    if name in twice:
        outcomes[name] = InvalidRequest("Duplicate topic name.")
        return None
    if name == METADATA_TOPIC:
        outcomes[name] = InvalidRequest(f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
        return None
    if CREATE.denies(request, name):
        outcomes[name] = error_for(CREATE.error.code, "Authorization failed.")  # Kafka's text
        return None
    outcomes[name] = InvalidRequest()  # replaced by what the controller says: keeps the order of the request
    assignments: list[tuple[int, list[int]]] = []
    configs: dict[str, str | None] = {}
    return InParts(
        CreateTopic(name, topic.num_partitions, topic.replication_factor, assignments, configs),
        Each(topic.assignments, _assigned, into=assignments),
        Each(topic.configs, partial(_set, configs)),
    )


def _assigned(_request: Request, assigned: CreatableReplicaAssignment, _view: ClusterView) -> tuple[int, list[int]]:
    return assigned.partition_index, assigned.broker_ids


def _set(configs: dict[str, str | None], _request: Request, config: CreatableTopicConfig, _view: ClusterView) -> None:
    configs[config.name] = config.value


_ShownConfigs = dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]]
"""All settings of a topic by those of its own: made once for all topics that have the same."""


def answer(
    _request: Request, _body: CreateTopicsRequest, outcomes: _Outcomes, _view: ClusterView
) -> InParts[CreateTopicsResponse]:
    """Return the outcome of each topic."""
    response = CreateTopicsResponse()
    shown: _ShownConfigs = {}
    return InParts(response, Each(outcomes.items(), partial(_result, shown), into=response.topics))


def _result(
    shown: _ShownConfigs, request: Request, outcome: tuple[str, TopicView | KafkaError], _view: ClusterView
) -> InParts[CreatableTopicResult]:
    name, topic = outcome
    if isinstance(topic, KafkaError):
        code, message = error_fields(topic)
        return InParts(CreatableTopicResult(name=name, error_code=code, error_message=message))
    if DESCRIBE_CONFIGS.denies(request, name, log_if_denied=False):
        return InParts(
            CreatableTopicResult(
                name=name,
                topic_id=topic.topic_id,
                error_message=None,
                topic_config_error_code=DESCRIBE_CONFIGS.error.code,
            )
        )
    key = tuple(topic.config.items())
    is_first = key not in shown
    result = CreatableTopicResult(
        name=name,
        topic_id=topic.topic_id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=topic.replication_factor,
        configs=shown.setdefault(key, []),
    )
    if not is_first:
        return InParts(result)
    entries = topic_entries(request.services, topic.config)
    return InParts(result, Each(entries, _config, into=shown[key], work=CONFIG_WORK))


def _config(_request: Request, entry: DescribedConfig, _view: ClusterView) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
    )


HANDLER = ElementWiseAfter(MESSAGES, first=create, answer=answer, access=(CREATE, DESCRIBE_CONFIGS))
