"""DeleteTopics (key 20), versions 1 to 6.

What it does
  Deletes topics by name or by id, records and settings included, unless `delete.topic.enable` is false. The answer
  comes when the snapshot has no such topic and its directories are renamed; the files are removed a little later.

What it does not do
  Protect internal topics: as in Kafka only the client tools do.

Versions
  v3   TOPIC_DELETION_DISABLED instead of INVALID_REQUEST where deletion is not enabled
  v4   flexible encoding; v5 error messages
  v6   by topic id
"""

from __future__ import annotations

from uuid import UUID

from ottla.broker.context import RequestContext
from ottla.broker.handler_parts.admin_requests import duplicates, error_fields, with_timeout
from ottla.core.errors import InvalidRequest, KafkaError, TopicDeletionDisabled, UnknownTopicId
from ottla.core.ids import NO_TOPIC_ID
from ottla.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

FIRST_VERSION_DISABLED_CODE = 3


async def handle(ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Check each topic separately, and delete the valid ones in one commit."""
    each = ctx.services.slices.each
    asked = request.topics or [DeleteTopicState(name=name) async for name in each(request.topic_names)]
    results: list[DeletableTopicResult] = []
    wanted: dict[str, UUID] = {}  # what to delete, with the id to answer with
    async for name, topic_id, error in each(await _resolved(ctx, asked)):
        if error is not None or name is None:
            results.append(_result(name, topic_id, error))
        else:
            wanted[name] = topic_id
    names = list(wanted)
    try:
        outcomes = await with_timeout(request.timeout_ms, ctx.services.controller.delete_topics(names))
    except KafkaError as error:
        outcomes = [error for _ in names]
    async for name, outcome in each(zip(names, outcomes, strict=True)):
        known: KafkaError | None = outcome
        if isinstance(outcome, TopicDeletionDisabled) and ctx.api_version < FIRST_VERSION_DISABLED_CODE:
            known = InvalidRequest("Topic deletion is disabled.")
        results.append(_result(name, wanted[name], known))
    return DeleteTopicsResponse(responses=results)


async def _resolved(
    ctx: RequestContext, asked: list[DeleteTopicState]
) -> list[tuple[str | None, UUID, KafkaError | None]]:
    """Resolve each topic once to its name and id, or to the error of an ambiguous request."""
    view = ctx.services.cluster.current
    slices = ctx.services.slices
    names_twice = await duplicates(slices, [each.name for each in asked if each.name is not None])
    ids_twice = await duplicates(slices, [each.topic_id for each in asked if each.topic_id != NO_TOPIC_ID])
    named = {each.name for each in asked}
    found: dict[tuple[str | None, UUID], KafkaError | None] = {}
    once = {(each.name, each.topic_id): None async for each in slices.each(asked)}
    async for name, topic_id in slices.each(once):
        by_id = view.topic_by_id.get(topic_id.bytes)
        if name is None and topic_id == NO_TOPIC_ID:
            found[name, topic_id] = InvalidRequest("Neither topic name nor id were specified.")
        elif name is not None and topic_id != NO_TOPIC_ID:
            found[name, topic_id] = InvalidRequest("You may not specify both topic name and topic id.")
        elif name in names_twice:
            found[name, topic_id] = InvalidRequest("Duplicate topic name.")
        elif topic_id in ids_twice:
            found[name, topic_id] = InvalidRequest("Duplicate topic id.")
        elif name is not None:
            known = view.topics.get(name)
            # The answer to a name carries the topic's id, too, from version 6 on.
            found[name, known.topic_id if known else NO_TOPIC_ID] = None
        elif by_id is None:
            found[name, topic_id] = UnknownTopicId("This server does not host this topic ID.")
        elif by_id.name in named:
            found[by_id.name, topic_id] = InvalidRequest(
                "The provided topic name maps to an ID that was already supplied."
            )
        else:
            found[by_id.name, topic_id] = None
    return [(name, topic_id, error) for (name, topic_id), error in found.items()]


def _result(name: str | None, topic_id: UUID, error: KafkaError | None) -> DeletableTopicResult:
    code, message = error_fields(error)
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)
