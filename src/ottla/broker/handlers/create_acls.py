"""CreateAcls (key 30), versions 1 to 3.

What it does
  Answers SECURITY_DISABLED for each entry, as Apache Kafka does where no authorizer is configured.

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
from ottla.wire.messages.create_acls import MESSAGES, AclCreationResult, CreateAclsRequest, CreateAclsResponse


async def handle(request: Request, body: CreateAclsRequest) -> CreateAclsResponse:
    """Refuse each creation: there is no authorizer."""
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
            async for _ in request.services.slices.each(body.creations)
        ]
    )


HANDLER = Awaited(MESSAGES, handle)
