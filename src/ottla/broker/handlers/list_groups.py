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

from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.wire.messages.list_groups import MESSAGES, ListedGroup, ListGroupsRequest, ListGroupsResponse


async def handle(request: Request, body: ListGroupsRequest) -> ListGroupsResponse:
    """Return all groups that pass the filters. An empty filter lets everything through."""
    each = request.services.slices.each
    states = {state.lower() async for state in each(body.states_filter)}
    types = {kind.lower() async for kind in each(body.types_filter)}
    try:
        groups = request.services.coordinators.groups.list_groups()
    except KafkaError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.type.value,
            )
            async for group in each(groups)
            if (not states or group.state.lower() in states) and (not types or group.type.value in types)
        ]
    )


HANDLER = Awaited(MESSAGES, handle)
