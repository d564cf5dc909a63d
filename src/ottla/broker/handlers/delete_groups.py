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
from ottla.broker.handler_helpers import naming_work
from ottla.core.errors import ErrorCode, KafkaError
from ottla.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

TOGETHER = 20
"""Groups deleted at once, so that they share the write to the disk."""

DELETION_WORK = 10 * TOGETHER
"""Their share of a slice of work."""


async def handle(ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Each group once and by itself; together, because each waits for the disk."""
    group_ids = list(dict.fromkeys(request.groups_names))
    response = DeleteGroupsResponse()
    async for first in ctx.services.slices.each(range(0, len(group_ids), TOGETHER), DELETION_WORK):
        some = group_ids[first : first + TOGETHER]
        ctx.services.slices.spend(sum(map(naming_work, some)))
        errors = await asyncio.gather(*(_delete(ctx, group_id) for group_id in some))
        response.results += [
            DeletableGroupResult(group_id=group_id, error_code=error)
            for group_id, error in zip(some, errors, strict=True)
        ]
    return response


async def _delete(ctx: RequestContext, group_id: str) -> ErrorCode:
    try:
        await ctx.services.groups.delete(group_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
