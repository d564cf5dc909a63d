"""CreatePartitions (key 37), versions 0 to 3.

What it does
  Raises a topic's number of partitions to the total asked for, with the brokers of each new one where they are given.
  An error of one topic does not affect the others. The answer comes when the new partitions can be written to.

What it does not do
  Lower the number: Kafka cannot either.

Versions
  v2   flexible encoding
  v3   the same as v2 (it may answer THROTTLING_QUOTA_EXCEEDED, which is never the case here)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.broker.handler_parts.admin_requests import duplicates, error_fields, with_timeout
from ottla.controller.topics import CreatePartitions
from ottla.core.errors import InvalidRequest, KafkaError
from ottla.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


async def handle(ctx: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Create partitions: all that can be in one commit; refuse the rest, each with its reason."""
    each = ctx.services.slices.each
    twice = await duplicates(ctx.services.slices, [topic.name for topic in request.topics])
    outcomes: dict[str, KafkaError | None] = {name: InvalidRequest("Duplicate topic name.") for name in twice}
    events = [
        CreatePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [assigned.broker_ids async for assigned in each(topic.assignments)],
        )
        async for topic in each(request.topics)
        if topic.name not in twice
    ]
    try:
        created = await with_timeout(
            request.timeout_ms, ctx.services.controller.create_partitions(events, validate_only=request.validate_only)
        )
        outcomes |= zip((event.name for event in events), created, strict=True)
    except KafkaError as error:
        outcomes |= {event.name: error for event in events}
    return CreatePartitionsResponse(results=[_result(name, outcome) async for name, outcome in each(outcomes.items())])


def _result(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    code, message = error_fields(error)
    return CreatePartitionsTopicResult(name=name, error_code=code, error_message=message)
