"""Declares what the driver asks about access: whether a client may do something with a resource."""

from __future__ import annotations

from typing import Any, Final, Protocol

from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.net.identity import ConnectionIdentity
from ottla.wire.headers import RequestHeader

_DENIALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


def denial(resource: ResourceType) -> KafkaError:
    """Return the error for a denied resource of this type."""
    return error_for(_DENIALS[resource])


class AuthorizableRequest(Protocol):
    """The part of a request that an authorizer may know. Of a forwarded one it is the client's."""

    header: RequestHeader
    identity: ConnectionIdentity
    client_host: str
    listener: str


class Authorizer(Protocol):
    """Decides what a client may do."""

    def authorize(self, request: AuthorizableRequest, body: Any) -> KafkaError | None:
        """Return the error of a request that is denied as a whole.

        `body` is not decoded yet, but bytes, if it is a Produce or Fetch request of many partitions.
        """
        ...

    def is_allowed(
        self, request: AuthorizableRequest, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        """Return whether the client may do this with the resource of this name."""
        ...
