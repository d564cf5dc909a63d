"""DescribeClientQuotas (key 48), versions 0 to 1.

What it does
  Checks the filter as Kafka does and answers that no quota is set.

What it does not do
  Quotas are not served yet.

Versions
  v1   flexible encoding
"""

from __future__ import annotations

from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.handler import Inline
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import InvalidRequest, KafkaError, UnsupportedVersion
from ottla.wire.generated.describe_client_quotas import (
    MESSAGES,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""The ways in which a component of a filter matches a name: the given one, the default's, any."""


def handle(request: Request, body: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:  # noqa: ARG001
    """Return no quotas, or what is wrong with the filter."""
    try:
        _check(body.components)
    except KafkaError as error:
        code, message = error_fields(error)
        return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)
    return DescribeClientQuotasResponse()


def _check(components: list[ComponentData]) -> None:
    """Raise InvalidRequest or UnsupportedVersion for a wrong filter.

    Ends after four components at most: there are three types.
    """
    types: set[str] = set()
    for component in components:
        name = component.entity_type
        if not name:
            raise InvalidRequest("Invalid empty entity type.")
        if name in types:
            raise InvalidRequest(f"Entity type {name} cannot appear more than once in the filter.")
        if name not in {USER, CLIENT_ID, IP}:
            raise UnsupportedVersion(f"Unsupported entity type {name}")
        match component.match_type, component.match:
            case (0, None):
                raise InvalidRequest("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            case (1, str()):
                raise InvalidRequest("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
            case (2, str()):
                raise InvalidRequest("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
            case (0 | 1 | 2, _):
                types.add(name)
            case (unknown, _):
                raise InvalidRequest(f"Unknown match type {unknown}")
    if IP in types and len(types) > 1:
        raise InvalidRequest("Invalid entity filter component combination")


HANDLER = Inline(MESSAGES, handle, access=(on_cluster(AclOperation.DESCRIBE_CONFIGS),))
