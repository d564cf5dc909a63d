"""DescribeAcls (key 29), versions 1 to 3.

What it does
  Returns the ACLs that a filter chooses, those of one pattern together, from the snapshot of this broker.
  Answers SECURITY_DISABLED, as Apache Kafka does, where no authorizer is configured: admin clients, MirrorMaker 2 and
  kafka-acls.sh know that answer.

What it does not do
  Return the ACLs of a resource that cannot be read: there is a line in the log of each broker.

Versions
  v2   flexible encoding
  v3   user-defined resource types
"""

from __future__ import annotations

from functools import partial

from ottla.broker.handler_parts.acl_requests import check_filter, filter_of
from ottla.broker.handler_parts.authorized_operations import NO_AUTHORIZER
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AccessControlEntry, AclFilter, AclOperation, ResourcePattern
from ottla.core.errors import ErrorCode
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.describe_acls import (
    MESSAGES,
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

ENTRIES_OF_WORK = 10
"""ACLs of a resource that are compared with a filter in one unit of work."""


def answer(
    request: Request, body: DescribeAclsRequest, view: ClusterView
) -> DescribeAclsResponse | InParts[DescribeAclsResponse]:
    """Return the ACLs that the filter chooses."""
    if request.authorizer is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    chosen, response = filter_of(body), DescribeAclsResponse()
    patterns = view.acls.candidates(chosen)

    def work(pattern: ResourcePattern) -> int:
        acls = view.acls.get(pattern)
        return 1 if acls is None else 1 + len(acls.entries) // ENTRIES_OF_WORK

    return InParts(response, Each(patterns, partial(_resource, chosen), into=response.resources, work=work))


def _resource(
    chosen: AclFilter, _request: Request, pattern: ResourcePattern, view: ClusterView
) -> InParts[DescribeAclsResource] | None:
    entries = view.acls.choose(pattern, chosen)
    if not entries:
        return None
    resource = DescribeAclsResource(
        resource_type=pattern.resource_type, resource_name=pattern.name, pattern_type=pattern.pattern_type
    )
    return InParts(resource, Each(sorted(entries), _description, into=resource.acls))


def _description(_request: Request, entry: AccessControlEntry, _view: ClusterView) -> AclDescription:
    return AclDescription(
        principal=entry.principal, host=entry.host, operation=entry.operation, permission_type=entry.permission_type
    )


HANDLER = ElementWise(MESSAGES, answer, access=(on_cluster(AclOperation.DESCRIBE),)).checking(
    lambda body: (body,), check_filter
)
