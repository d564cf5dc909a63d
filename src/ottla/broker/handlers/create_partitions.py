"""CreatePartitions (key 37), versions 0 to 3.

What it does
  Raises a topic's number of partitions to the total asked for, with the brokers of each new one where they are given.
  An error of one topic does not affect the others. The answer comes when the new partitions can be written to.

What it does not do
  Lower the number: Kafka cannot either.

Versions
  v2   flexible encoding
  v3   THROTTLING_QUOTA_EXCEEDED (KIP-599); before, partitions above the quota are created and the client waits
"""

from __future__ import annotations

from functools import partial

from ottla.broker.handler_parts.admin_requests import error_fields, with_timeout
from ottla.broker.handler_parts.mutation_quotas import mutation_quota, within_quota
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts, collect, repeated
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.controller.topics import CreatePartitions
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import InvalidRequest, KafkaError
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.create_partitions import (
    MESSAGES,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

FIRST_WITH_STRICT_QUOTA = 3
ALTER = Access(AclOperation.ALTER, ResourceType.TOPIC, "each topic")


async def create(request: Request, body: CreatePartitionsRequest) -> dict[str, KafkaError | None]:
    """Create partitions: all that can be in one commit; return the outcome of each topic."""
    twice: set[str] = set()
    await collect(request, repeated((topic.name for topic in body.topics), twice))
    outcomes: dict[str, KafkaError | None] = {name: InvalidRequest("Duplicate topic name.") for name in twice}
    events: list[CreatePartitions] = []
    await collect(request, Each(body.topics, partial(_event, twice, outcomes), into=events))
    controller = request.services.controller
    try:
        if (quota := mutation_quota(request, strict_since=FIRST_WITH_STRICT_QUOTA)) is not None:
            checked = await controller.create_partitions(events, validate_only=True)
            present = request.services.cluster.current.topics
            partitions = [
                event.total - len(present[event.name].partitions) if error is None else 0
                for event, error in zip(events, checked, strict=True)
            ]
            events = within_quota(quota, events, partitions, outcomes)
        created = await with_timeout(
            body.timeout_ms, controller.create_partitions(events, validate_only=body.validate_only)
        )
        outcomes |= zip((event.name for event in events), created, strict=True)
    except KafkaError as error:
        outcomes |= {event.name: error for event in events}
    return outcomes


def _event(
    twice: set[str],
    outcomes: dict[str, KafkaError | None],
    request: Request,
    topic: CreatePartitionsTopic,
    _view: ClusterView,
) -> InParts[CreatePartitions] | None:
    if topic.name in twice:
        return None
    if ALTER.denies(request, topic.name):
        outcomes[topic.name] = ALTER.error
        return None
    if topic.assignments is None:
        return InParts(CreatePartitions(topic.name, topic.count, None))
    brokers: list[list[int]] = []
    return InParts(
        CreatePartitions(topic.name, topic.count, brokers), Each(topic.assignments, _assigned_brokers, into=brokers)
    )


def _assigned_brokers(_request: Request, assigned: CreatePartitionsAssignment, _view: ClusterView) -> list[int]:
    return assigned.broker_ids


def answer(
    _request: Request, _body: CreatePartitionsRequest, outcomes: dict[str, KafkaError | None], _view: ClusterView
) -> InParts[CreatePartitionsResponse]:
    """Return the outcome of each topic."""
    response = CreatePartitionsResponse()
    return InParts(response, Each(outcomes.items(), _result, into=response.results))


def _result(
    _request: Request, outcome: tuple[str, KafkaError | None], _view: ClusterView
) -> CreatePartitionsTopicResult:
    name, error = outcome
    code, message = error_fields(error)
    return CreatePartitionsTopicResult(name=name, error_code=code, error_message=message)


HANDLER = ElementWiseAfter(MESSAGES, first=create, answer=answer, access=(ALTER,))
