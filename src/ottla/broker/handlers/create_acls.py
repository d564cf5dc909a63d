"""CreateAcls (key 30), versions 1 to 3.

What it does
  Creates ACLs, each with its own error; those that exist are created again without effect. The answer comes when the
  controller decides by them.
  Answers SECURITY_DISABLED for each, as Apache Kafka does, where no authorizer is configured.

What it does not do
  Check whether principals exist, and whether an operation is one of the type of resource: Kafka does not either.

Versions
  v2   flexible encoding
  v3   user-defined resource types
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.handler_parts.acl_requests import binding_of, check_creation, has_filter_value, problem_of
from ottla.broker.handler_parts.authorized_operations import NO_AUTHORIZER
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.core.acls import AclBinding, AclOperation
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.create_acls import (
    MESSAGES,
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


async def create(request: Request, body: CreateAclsRequest) -> Sequence[KafkaError | None]:
    """Create the ACLs that are valid; return the outcome of each."""
    if request.authorizer is None:
        return [error_for(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)] * len(body.creations)
    bindings = await collect(request, Each(body.creations, _binding))
    if any(map(has_filter_value, bindings)):
        return [KafkaError()] * len(bindings)
    outcomes: dict[AclBinding, KafkaError | None] = {}
    await collect(request, Each(bindings, lambda _request, each, _view: outcomes.setdefault(each, problem_of(each))))
    valid = [binding for binding, problem in outcomes.items() if problem is None]
    if valid:
        try:
            outcomes |= zip(valid, await request.services.controller.security.acls.create(valid), strict=True)
        except KafkaError as error:
            outcomes |= dict.fromkeys(valid, error)
    return [outcomes[binding] for binding in bindings]


def _binding(_request: Request, creation: AclCreation, _view: ClusterView) -> AclBinding:
    return binding_of(creation)


def answer(
    _request: Request, _body: CreateAclsRequest, outcomes: Sequence[KafkaError | None], _view: ClusterView
) -> InParts[CreateAclsResponse]:
    """Return the outcome of each ACL."""
    response = CreateAclsResponse()
    return InParts(response, Each(outcomes, _result, into=response.results))


def _result(_request: Request, error: KafkaError | None, _view: ClusterView) -> AclCreationResult:
    if error is None:
        return AclCreationResult()
    is_unexplained = error.code == ErrorCode.UNKNOWN_SERVER_ERROR and not str(error)
    return AclCreationResult(error_code=error.code, error_message=None if is_unexplained else error.message)


def refuse(_request: Request, body: CreateAclsRequest, error: KafkaError) -> InParts[CreateAclsResponse]:
    """Answer each creation with an error."""
    response = CreateAclsResponse()
    return InParts(response, Each([error] * len(body.creations), _result, into=response.results))


HANDLER = ElementWiseAfter(
    MESSAGES, first=create, answer=answer, access=(on_cluster(AclOperation.ALTER),), refuse=refuse
).checking(lambda body: body.creations, check_creation)
