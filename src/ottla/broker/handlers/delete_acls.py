"""DeleteAcls (key 31), versions 1 to 3.

What it does
  Answers SECURITY_DISABLED for each filter, as Apache Kafka does where no authorizer is configured.

What it does not do
  Access control lists.

Versions
  v2   flexible encoding
  v3   user-defined resource types
"""

from __future__ import annotations

from ottla.broker.handler_parts.authorized_operations import NO_AUTHORIZER
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.wire.messages.delete_acls import MESSAGES, DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


async def handle(request: Request, body: DeleteAclsRequest) -> DeleteAclsResponse:
    """Refuse each filter: there is no authorizer."""
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
            async for _ in request.services.slices.each(body.filters)
        ]
    )


HANDLER = Awaited(MESSAGES, handle)
