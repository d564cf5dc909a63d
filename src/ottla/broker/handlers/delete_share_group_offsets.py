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

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode, KafkaError
from ottla.wire.messages.delete_share_group_offsets import (
    MESSAGES,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)


async def handle(request: Request, body: DeleteShareGroupOffsetsRequest) -> DeleteShareGroupOffsetsResponse:
    """Delete each topic's states separately."""
    view = request.services.cluster.current
    names = [topic.topic_name async for topic in request.services.slices.each(body.topics)]
    ids = {name: view.topics[name].topic_id for name in names if name in view.topics}
    try:
        results = await request.services.coordinators.share_groups.delete_offsets(body.group_id, list(ids.values()))
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


HANDLER = Awaited(MESSAGES, handle)
