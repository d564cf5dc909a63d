"""Envelope (key 58), version 0.

What it does
  Serves a client's request that another broker has forwarded because this one is the controller (KIP-590): as a request
  of that client, with its identity, address and listener; without an identity inside it is the other broker's own
  request. The response is that of the request inside, as the client
  gets it. NOT_CONTROLLER if this broker is not the controller.

What it does not do
  Requests of other APIs than those of the controller: INVALID_REQUEST.

Versions
  v0   flexible encoding
"""

from __future__ import annotations

import ipaddress

from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.forwarded_identity import decode_identity
from ottla.broker.requests.handler import Enveloped, ForwardedRequest
from ottla.broker.requests.registry import APIS
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.generated.envelope import MESSAGES, EnvelopeRequest, EnvelopeResponse
from ottla.wire.headers import parse_request_header

FORWARDED_IN_PART = frozenset({ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS})
"""The APIs whose handlers forward themselves: a part of such a request may concern the loggers of another broker."""


def unwrap(request: Request, body: EnvelopeRequest) -> ForwardedRequest | EnvelopeResponse:
    """Return the request inside, or the error."""
    if not request.services.controller.is_active:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    frame, principal = bytes(body.request_data), body.request_principal
    try:
        header = parse_request_header(frame)
        if principal:
            identity, listener = decode_identity(bytes(principal))
            host = _host(bytes(body.client_host_address))
        else:  # of the other broker itself, such as the creation of an internal topic
            identity, listener, host = request.identity, request.listener, request.client_host
    except MalformedRequest:
        return invalid()
    key, version, _, _, _ = header
    row = APIS.get(key)  # type: ignore[call-overload]
    if (
        row is None
        or not (row.controller_only or key in FORWARDED_IN_PART)
        or not row.min_version <= version <= row.max_version
    ):
        return invalid()
    return ForwardedRequest(header, frame, host, identity, listener)


def wrap(response: bytes) -> EnvelopeResponse:
    """Put the frame of a response into the response."""
    return EnvelopeResponse(response_data=response)


def invalid() -> EnvelopeResponse:
    """Refuse what is no request for the controller."""
    return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)


def _host(address: bytes) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return ""


HANDLER = Enveloped(
    MESSAGES, unwrap=unwrap, wrap=wrap, malformed=invalid, access=(on_cluster(AclOperation.CLUSTER_ACTION),)
)
