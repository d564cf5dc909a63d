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
  v7   topic ids
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.config_resources import topic_entries
from ottla.broker.handler_parts.admin_requests import duplicates, error_fields, with_timeout
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.controller.topics import CreateTopic
from ottla.coordination.view import TopicView
from ottla.core.errors import InvalidRequest, KafkaError
from ottla.core.ids import METADATA_TOPIC
from ottla.limits.loop_slices import LoopSlices
from ottla.wire.messages.create_topics import (
    MESSAGES,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

CONFIGS_WORK = 100
"""The share of a slice of work of all settings of one topic."""


async def handle(request: Request, body: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics: all that can be in one commit; refuse the rest, each with its reason."""
    slices = request.services.slices
    twice = await duplicates(slices, [topic.name for topic in body.topics])
    outcomes: dict[str, TopicView | KafkaError] = {}
    events: list[CreateTopic] = []
    async for topic in slices.each(body.topics):
        if topic.name in twice:
            outcomes[topic.name] = InvalidRequest("Duplicate topic name.")
        elif topic.name == METADATA_TOPIC:
            outcomes[topic.name] = InvalidRequest(f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
        else:
            outcomes[topic.name] = InvalidRequest()  # replaced below: keeps the order of the request
            events.append(await _event(slices, topic))
    try:
        created = await with_timeout(
            body.timeout_ms, request.services.controller.create_topics(events, validate_only=body.validate_only)
        )
        outcomes |= zip((event.name for event in events), created, strict=True)
    except KafkaError as error:
        outcomes |= {event.name: error for event in events}
    shown = _ShownConfigs(request)
    response = CreateTopicsResponse()
    async for name, outcome in slices.each(outcomes.items()):
        response.topics.append(_result(shown, name, outcome))
    return response


async def _event(slices: LoopSlices, topic: CreatableTopic) -> CreateTopic:
    return CreateTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assigned.partition_index, assigned.broker_ids) async for assigned in slices.each(topic.assignments)],
        {config.name: config.value async for config in slices.each(topic.configs)},
    )


class _ShownConfigs:
    """The settings that answers show: made once for all topics with the same settings of their own."""

    def __init__(self, request: Request) -> None:
        self._ctx = request
        self._made: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}

    def of(self, config: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        """Return all settings of a topic."""
        key = tuple(config.items())
        if key not in self._made:
            self._ctx.services.slices.spend(CONFIGS_WORK)
            self._made[key] = [
                CreatableTopicConfigs(
                    name=entry.name,
                    value=entry.value,
                    read_only=entry.read_only,
                    config_source=entry.source,
                    is_sensitive=entry.sensitive,
                )
                for entry in topic_entries(self._ctx.services, config)
            ]
        return self._made[key]


def _result(shown: _ShownConfigs, name: str, outcome: TopicView | KafkaError) -> CreatableTopicResult:
    if isinstance(outcome, KafkaError):
        code, message = error_fields(outcome)
        return CreatableTopicResult(name=name, error_code=code, error_message=message)
    return CreatableTopicResult(
        name=name,
        topic_id=outcome.topic_id,
        error_message=None,
        num_partitions=len(outcome.partitions),
        replication_factor=outcome.replication_factor,
        configs=shown.of(outcome.config),
    )


HANDLER = Awaited(MESSAGES, handle)
