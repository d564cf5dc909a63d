"""DeleteGroups (key 42), versions 0 to 2.

What it does
  Deletes groups that have no members, with all their offsets.

What it does not do
  Nothing is left out.

Versions
  v2   flexible encoding
"""

from __future__ import annotations

import asyncio

from ottla.broker.context import RequestContext
from ottla.core.errors import ErrorCode, KafkaError
from ottla.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Each group once and by itself; together, because each waits for the disk."""
    group_ids = list(dict.fromkeys(request.groups_names))
    errors = await asyncio.gather(*(_delete(ctx, group_id) for group_id in group_ids))
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=error)
            for group_id, error in zip(group_ids, errors, strict=True)
        ]
    )


async def _delete(ctx: RequestContext, group_id: str) -> ErrorCode:
    try:
        await ctx.services.groups.delete(group_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
