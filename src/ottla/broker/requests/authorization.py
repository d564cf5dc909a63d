"""Declares what an API requires a client to be allowed to do, and asks the authorizer about it.

Each handler declares its `Access`es, from which `docs/acls.md` is generated. There are two kinds:

- with `name`: of the request as a whole. The driver asks before it calls the handler, in the order of the declaration,
  and a denied request is answered by the handler's `refuse`.
- without: of the elements that the request names, or that are found for it. The handler asks, by `denies`.

Without an authorizer everything is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from ottla.core.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.net.identity import ConnectionIdentity
from ottla.wire.headers import RequestHeader

_FAILED: Final = "_AUTHORIZATION_FAILED"
_DENIALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,  # whose tokens are created or described
}


def denial(resource: ResourceType) -> KafkaError:
    """Return the error for a denied resource of this type, with the text that Kafka's clients have for it."""
    code = _DENIALS[resource]
    return error_for(code, f"{code.name.removesuffix(_FAILED).replace('_', ' ').capitalize()} authorization failed.")


class AuthorizableRequest(Protocol):
    """The part of a request that an authorizer may know. Of a forwarded one it is the client's."""

    header: RequestHeader
    identity: ConnectionIdentity
    client_id: str | None
    client_host: str
    listener: str


class Authorizer(Protocol):
    """Decides what a client may do."""

    def is_super_user(self, identity: ConnectionIdentity) -> bool:
        """Return whether the client may do everything, whatever the metadata store says."""
        ...

    def is_allowed(
        self,
        request: AuthorizableRequest,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
        *,
        log_if_denied: bool = True,
    ) -> bool:
        """Return whether the client may do this with the resource of this name.

        `log_if_denied` is false where a denial only leaves something out of the response, or where another operation
        would do as well.
        """
        ...

    def is_allowed_for_any(self, request: AuthorizableRequest, operation: AclOperation, resource: ResourceType) -> bool:
        """Return whether there may be a resource of this type with which the client may do this."""
        ...


class AuthorizedRequest(AuthorizableRequest, Protocol):
    """A request with its authorizer."""

    authorizer: Authorizer | None


class Access:
    """An operation that a client must be allowed to perform on a resource.

    - `about`: which resources of the request these are, in words.
    - `name`: the resource of the request as a whole, by its body.
    - `or_cluster`: an operation on the cluster that is enough, too, whatever the resource.
    - `refusal`: what a denied element is answered with, in words; by default with the error of the resource's type.
    """

    __slots__ = ("about", "name", "operation", "or_cluster", "refusal", "resource")

    def __init__(
        self,
        operation: AclOperation,
        resource: ResourceType,
        about: str,
        *,
        name: Callable[[Any], str] | None = None,
        or_cluster: AclOperation | None = None,
        refusal: str = "",
    ) -> None:
        self.operation = operation
        self.resource = resource
        self.about = about
        self.name = name
        self.or_cluster = or_cluster
        self.refusal = refusal

    def denies(self, request: AuthorizedRequest, name: str, *, log_if_denied: bool = True) -> bool:
        """Return whether the client may not do this with this resource; `log_if_denied` as in Authorizer."""
        authorizer = request.authorizer
        if authorizer is None:
            return False
        if self.or_cluster is not None and authorizer.is_allowed(
            request, self.or_cluster, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=False
        ):
            return False
        return not authorizer.is_allowed(request, self.operation, self.resource, name, log_if_denied=log_if_denied)

    def denies_any(self, request: AuthorizedRequest) -> bool:
        """Return whether there is no resource of the type with which the client may do this."""
        authorizer = request.authorizer
        if authorizer is None:
            return False
        if self.or_cluster is not None and authorizer.is_allowed(
            request, self.or_cluster, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=False
        ):
            return False
        return not authorizer.is_allowed_for_any(request, self.operation, self.resource)

    @property
    def error(self) -> KafkaError:
        """Return the error of a resource that is denied."""
        return denial(self.resource)


def on_cluster(operation: AclOperation, *, or_cluster: AclOperation | None = None) -> Access:
    """Return an access to the cluster that a request requires as a whole."""
    return Access(operation, ResourceType.CLUSTER, "the cluster", name=_cluster, or_cluster=or_cluster)


def on_group(operation: AclOperation) -> Access:
    """Return an access to the group of a request that a request requires as a whole."""
    return Access(operation, ResourceType.GROUP, "the group", name=_group_id)


def on_transactional_id(operation: AclOperation) -> Access:
    """Return an access to the transactional id of a request that it requires as a whole."""
    return Access(operation, ResourceType.TRANSACTIONAL_ID, "the transactional id", name=_transactional_id)


def _cluster(_body: Any) -> str:
    return CLUSTER_NAME


def _group_id(body: Any) -> str:
    group_id: str = body.group_id
    return group_id


def _transactional_id(body: Any) -> str:
    transactional_id: str = body.transactional_id
    return transactional_id
