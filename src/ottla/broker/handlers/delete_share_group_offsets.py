"""DeleteShareGroupOffsets (key 92), version 0.

What it does
  Deletes the states of a share group's partitions of some topics (KIP-932); the group must have no members. A later
  member begins where the group's setting determines.

What it does not do
  Nothing is left out.

Versions
  v0   the first, flexible (KIP-932)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.core.errors import ErrorCode, KafkaError
from ottla.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)


async def handle(ctx: RequestContext, request: DeleteShareGroupOffsetsRequest) -> DeleteShareGroupOffsetsResponse:
    """Delete each topic's states separately."""
    view = ctx.services.cluster.current
    names = [topic.topic_name async for topic in ctx.services.slices.each(request.topics)]
    ids = {name: view.topics[name].topic_id for name in names if name in view.topics}
    try:
        results = await ctx.services.coordinators.share_groups.delete_offsets(request.group_id, list(ids.values()))
    except KafkaError as error:
        return DeleteShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
    response = DeleteShareGroupOffsetsResponse()
    for name in names:
        answered = DeleteShareGroupOffsetsResponseTopic(topic_name=name)
        if name not in ids:
            answered.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answered.error_message = "This server does not host this topic-partition."
        else:
            answered.topic_id = ids[name]
            failed = results.get(ids[name])
            if failed is not None:
                answered.error_code, answered.error_message = failed.code, failed.message
        response.responses.append(answered)
    return response
