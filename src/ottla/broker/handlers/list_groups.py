"""ListGroups (key 16), versions 0 to 5.

What it does
  Names every group this broker coordinates, with its state and type; filters by both, whatever the case of the letters.

What it does not do
  Nothing is left out.

Versions
  v3   flexible encoding
  v4   states, and a filter for them (KIP-518)
  v5   types, and a filter for them (KIP-848)
"""

from __future__ import annotations

from functools import partial

from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import KafkaError
from ottla.groups.group_runtime import GroupRuntime
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.list_groups import MESSAGES, ListedGroup, ListGroupsRequest, ListGroupsResponse

DESCRIBE = Access(
    AclOperation.DESCRIBE, ResourceType.GROUP, "each group", or_cluster=AclOperation.DESCRIBE, refusal="left out"
)


def answer(request: Request, body: ListGroupsRequest, _view: ClusterView) -> InParts[ListGroupsResponse]:
    """Return all groups that pass the filters. An empty filter lets everything through."""
    try:
        groups = request.services.coordinators.groups.list_groups()
    except KafkaError as error:
        return InParts(ListGroupsResponse(error_code=error.code))
    response = ListGroupsResponse()
    states: set[str] = set()
    types: set[str] = set()
    return InParts(
        response,
        Each(body.states_filter, partial(_lower, states)),
        Each(body.types_filter, partial(_lower, types)),
        Each(groups, partial(_group, states, types), into=response.groups),
    )


def _lower(names: set[str], _request: Request, name: str, _view: ClusterView) -> None:
    names.add(name.lower())


def _group(
    states: set[str], types: set[str], request: Request, runtime: GroupRuntime, _view: ClusterView
) -> ListedGroup | None:
    group = runtime.group.summary
    if (states and group.state.lower() not in states) or (types and group.type.value not in types):
        return None
    if DESCRIBE.denies(request, group.group_id, log_if_denied=False):
        return None
    return ListedGroup(
        group_id=group.group_id, protocol_type=group.protocol_type, group_state=group.state, group_type=group.type.value
    )


HANDLER = ElementWise(MESSAGES, answer, access=(DESCRIBE,))
