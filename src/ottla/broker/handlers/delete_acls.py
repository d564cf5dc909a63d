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

from functools import partial

from ottla.broker.handler_parts.authorized_operations import NO_AUTHORIZER
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError
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


def refuse(_request: Request, body: DeleteAclsRequest, error: KafkaError) -> InParts[DeleteAclsResponse]:
    """Answer each filter with an error."""
    response = DeleteAclsResponse()
    return InParts(response, Each(body.filters, partial(_denied, error), into=response.filter_results))


def _denied(
    error: KafkaError, _request: Request, _filter: DeleteAclsFilter, _view: ClusterView
) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=error.code, error_message=error.message)


HANDLER = ElementWise(MESSAGES, answer, access=(on_cluster(AclOperation.ALTER),), refuse=refuse)
