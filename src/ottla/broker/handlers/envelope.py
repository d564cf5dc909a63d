"""Envelope (key 58), version 0.

What it does
  Serves a client's request that another broker has forwarded because this one is the controller (KIP-590). The response
  is that of the request inside, as the client gets it. NOT_CONTROLLER if this broker is not the controller.

What it does not do
  Principals: there is no authentication yet. Requests of other APIs than those of the controller: INVALID_REQUEST.

Versions
  v0   flexible encoding
"""

from __future__ import annotations

import ipaddress
from inspect import isawaitable

from ottla.broker.context import RequestContext
from ottla.broker.registry import APIS
from ottla.core.errors import ErrorCode
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.headers import parse_request_header, response_header
from ottla.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

FORWARDED_IN_PART = frozenset({ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS})
"""The APIs whose handlers forward themselves: a part of such a request may concern the loggers of another broker."""


async def handle(ctx: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    """Unwrap the request, serve it and wrap its response."""
    services = ctx.services
    if not services.controller.is_active:
        return EnvelopeResponse(response_data=None, error_code=ErrorCode.NOT_CONTROLLER)
    frame = bytes(request.request_data)
    try:
        key, version, correlation_id, client_id, body_at = parse_request_header(frame)
        row = APIS.get(key)  # type: ignore[call-overload]
        if (
            row is None
            or not (row.controller_only or key in FORWARDED_IN_PART)
            or not row.min_version <= version <= row.max_version
        ):
            return EnvelopeResponse(response_data=None, error_code=ErrorCode.INVALID_REQUEST)
        decoded = await services.slices.run(
            codec.decode_request_slices(ApiKey(key), version, frame, body_at, slices=services.slices)
        )
    except MalformedRequest:
        return EnvelopeResponse(response_data=None, error_code=ErrorCode.INVALID_REQUEST)
    forwarded = RequestContext(
        services,
        api_version=version,
        client_id=client_id,
        client_host=_host(bytes(request.client_host_address)),
        listener=ctx.listener,
        connection_id=ctx.connection_id,
        state={},
        is_forwarded=True,
    )
    result = row.handler()(forwarded, decoded)
    answer = await result if isawaitable(result) else result
    body = await services.slices.run(codec.encode_response_slices(ApiKey(key), version, answer, slices=services.slices))
    return EnvelopeResponse(response_data=response_header(key, version, correlation_id) + bytes(body))


def _host(address: bytes) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return ""
