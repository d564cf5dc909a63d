"""DeleteAcls (key 31), versions 1 to 3.

What it does
  Deletes the ACLs that each filter chooses, and returns them; an ACL that several filters choose is returned for each.
  The answer comes when the controller decides without them.
  Answers SECURITY_DISABLED for each filter, as Apache Kafka does, where no authorizer is configured.

What it does not do
  Return the ACLs of a resource that cannot be read. A filter on its type, name and type of pattern alone deletes them.

Versions
  v2   flexible encoding
  v3   user-defined resource types
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.handler_parts.acl_requests import check_filter, filter_of, problem_of_filter
from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.handler_parts.authorized_operations import NO_AUTHORIZER
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.controller.security_changes import DeletedAcls
from ottla.core.acls import AclBinding, AclFilter, AclOperation
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.delete_acls import (
    MESSAGES,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

Outcome = DeletedAcls | KafkaError


async def delete(request: Request, body: DeleteAclsRequest) -> Sequence[Outcome]:
    """Delete the ACLs that the filters choose; return those of each filter."""
    if request.authorizer is None:
        return [error_for(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)] * len(body.filters)
    filters = await collect(request, Each(body.filters, _filter))
    valid = [acl_filter for acl_filter in filters if isinstance(acl_filter, AclFilter)]
    if not valid:
        return [acl_filter for acl_filter in filters if isinstance(acl_filter, KafkaError)]
    try:
        deleted = iter(await request.services.controller.security.acls.delete(valid))
    except KafkaError as error:
        return [acl_filter if isinstance(acl_filter, KafkaError) else error for acl_filter in filters]
    return [acl_filter if isinstance(acl_filter, KafkaError) else next(deleted) for acl_filter in filters]


def _filter(_request: Request, fields: DeleteAclsFilter, _view: ClusterView) -> AclFilter | KafkaError:
    chosen = filter_of(fields)
    return problem_of_filter(chosen) or chosen


def answer(
    _request: Request, _body: DeleteAclsRequest, outcomes: Sequence[Outcome], _view: ClusterView
) -> InParts[DeleteAclsResponse]:
    """Return the ACLs that each filter has deleted."""
    response = DeleteAclsResponse()
    return InParts(response, Each(outcomes, _filter_result, into=response.filter_results))


def _filter_result(
    _request: Request, outcome: Outcome, _view: ClusterView
) -> DeleteAclsFilterResult | InParts[DeleteAclsFilterResult]:
    if isinstance(outcome, KafkaError):
        code, message = error_fields(outcome)
        return DeleteAclsFilterResult(error_code=code, error_message=message)
    result = DeleteAclsFilterResult(error_message=None)
    return InParts(result, Each(outcome, _matching, into=result.matching_acls))


def _matching(_request: Request, binding: AclBinding, _view: ClusterView) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission_type,
    )


def refuse(_request: Request, body: DeleteAclsRequest, error: KafkaError) -> InParts[DeleteAclsResponse]:
    """Answer each filter with an error."""
    response = DeleteAclsResponse()
    return InParts(response, Each([error] * len(body.filters), _filter_result, into=response.filter_results))


HANDLER = ElementWiseAfter(
    MESSAGES, first=delete, answer=answer, access=(on_cluster(AclOperation.ALTER),), refuse=refuse
).checking(lambda body: body.filters, check_filter)
