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
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.delete_acls import (
    MESSAGES,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


def answer(_request: Request, body: DeleteAclsRequest, _view: ClusterView) -> InParts[DeleteAclsResponse]:
    """Refuse each filter: there is no authorizer."""
    response = DeleteAclsResponse()
    return InParts(response, Each(body.filters, _refused, into=response.filter_results))


def _refused(_request: Request, _filter: DeleteAclsFilter, _view: ClusterView) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


HANDLER = ElementWise(MESSAGES, answer)
