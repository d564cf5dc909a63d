"""DescribeAcls (key 29), versions 1 to 3.

What it does
  Answers SECURITY_DISABLED, as Apache Kafka does where no authorizer is configured: admin clients, MirrorMaker 2 and
  kafka-acls.sh know that answer.

What it does not do
  Access control lists.

Versions
  v2   flexible encoding
  v3   user-defined resource types
"""

from __future__ import annotations

from ottla.broker.handler_parts.authorized_operations import NO_AUTHORIZER
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.handler import Inline
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode
from ottla.wire.generated.describe_acls import MESSAGES, DescribeAclsRequest, DescribeAclsResponse


def handle(request: Request, body: DescribeAclsRequest) -> DescribeAclsResponse:  # noqa: ARG001
    """Refuse the request: there is no authorizer."""
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


HANDLER = Inline(MESSAGES, handle, access=(on_cluster(AclOperation.DESCRIBE),))
