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

from ottla.broker.coordinators import GROUPS, SHARE_GROUPS, import_in_thread, naming_work
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import collect_awaited
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import KafkaError
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.delete_groups import MESSAGES, DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

WORK = 10
"""Units of work of one group, without its name."""

DELETE = Access(AclOperation.DELETE, ResourceType.GROUP, "each group")

TOGETHER = 20 * WORK
"""So much is deleted at once, to share the write to the disk."""


async def handle(request: Request, body: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete each group separately, once; concurrently, because each waits for the disk."""
    await import_in_thread(GROUPS, SHARE_GROUPS)
    results = await collect_awaited(request, body.groups_names, _delete, key=str, work=_work, together=TOGETHER)
    return DeleteGroupsResponse(results=results)


def _work(group_id: str) -> int:
    return WORK + naming_work(group_id)


async def _delete(request: Request, group_id: str, _view: ClusterView) -> DeletableGroupResult:
    coordinators = request.services.coordinators
    try:
        if DELETE.denies(request, group_id):
            raise DELETE.error
        await coordinators.share_groups.prepare_deletion(group_id)
        await coordinators.groups.delete(group_id)
    except KafkaError as error:
        return DeletableGroupResult(group_id=group_id, error_code=error.code)
    return DeletableGroupResult(group_id=group_id)


HANDLER = Awaited(MESSAGES, handle, access=(DELETE,))
