"""DeleteGroups (key 42), versions 0 to 3.

What it does
  Deletes groups that have no members, with all their offsets; of a share group the states of its share partitions.

What it does not do
  Nothing is left out.

Versions
  v2   flexible encoding
  v3   a message may say more than the error code; it does for groups of types that are not served (KIP-1331)
"""

from __future__ import annotations

import asyncio

from ottla.broker.coordinators import GROUPS, SHARE_GROUPS, import_in_thread, naming_work
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode, KafkaError
from ottla.wire.messages.delete_groups import MESSAGES, DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

TOGETHER = 20
"""Groups deleted at once, so that they share the write to the disk."""

LONG_NAME_CHARS = 1000
"""A group with a longer name is not deleted together with others after it: to find it is long work already."""

DELETION_WORK = 10
"""One group's share of a slice of work."""


async def handle(request: Request, body: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete each group separately, once; concurrently, because each waits for the disk."""
    await import_in_thread(GROUPS, SHARE_GROUPS)
    slices = request.services.slices
    response = DeleteGroupsResponse()
    together: list[str] = []
    async for group_id in slices.each(dict.fromkeys(body.groups_names), DELETION_WORK):
        slices.spend(naming_work(group_id))
        together.append(group_id)
        if len(together) == TOGETHER or len(group_id) > LONG_NAME_CHARS:
            response.results += await _delete_together(request, together)
            together = []
    response.results += await _delete_together(request, together)
    return response


async def _delete_together(request: Request, group_ids: list[str]) -> list[DeletableGroupResult]:
    errors = await asyncio.gather(*(_delete(request, group_id) for group_id in group_ids))
    return [
        DeletableGroupResult(group_id=group_id, error_code=error)
        for group_id, error in zip(group_ids, errors, strict=True)
    ]


async def _delete(request: Request, group_id: str) -> ErrorCode:
    try:
        await request.services.coordinators.share_groups.prepare_deletion(group_id)
        await request.services.coordinators.groups.delete(group_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


HANDLER = Awaited(MESSAGES, handle)
