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

from functools import partial

from ottla.broker.handler_parts.authorized_operations import NO_AUTHORIZER
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.create_acls import (
    MESSAGES,
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


def answer(_request: Request, body: CreateAclsRequest, _view: ClusterView) -> InParts[CreateAclsResponse]:
    """Refuse each creation: there is no authorizer."""
    response = CreateAclsResponse()
    return InParts(response, Each(body.creations, _refused, into=response.results))


def _refused(_request: Request, _creation: AclCreation, _view: ClusterView) -> AclCreationResult:
    return AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)


def refuse(_request: Request, body: CreateAclsRequest, error: KafkaError) -> InParts[CreateAclsResponse]:
    """Answer each entry with an error."""
    response = CreateAclsResponse()
    return InParts(response, Each(body.creations, partial(_denied, error), into=response.results))


def _denied(error: KafkaError, _request: Request, _creation: AclCreation, _view: ClusterView) -> AclCreationResult:
    return AclCreationResult(error_code=error.code, error_message=error.message)


HANDLER = ElementWise(MESSAGES, answer, access=(on_cluster(AclOperation.ALTER),), refuse=refuse)
