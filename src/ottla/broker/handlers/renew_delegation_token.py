"""RenewDelegationToken (key 39), versions 1 to 2.

What it does
  Has a token expire later, at the request of its owner or a renewer, but not after its longest lifetime.

What it does not do
  Renew a token that has expired.

Versions
  v2   flexible encoding
"""

from __future__ import annotations

from ottla.broker.handler_parts.token_requests import (
    NO_TIME,
    check_client,
    principal_of,
    record_change,
    token_id_of,
    tokens_of,
)
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.controller.security_changes import RenewToken
from ottla.core.errors import KafkaError
from ottla.wire.generated.renew_delegation_token import (
    MESSAGES,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


async def handle(request: Request, body: RenewDelegationTokenRequest) -> RenewDelegationTokenResponse:
    """Renew a token."""
    token_id = ""
    try:
        check_client(request)
        tokens = tokens_of(request)
        token_id = await token_id_of(request, bytes(body.hmac))
        period_ms = tokens.config.expiry_time_ms
        if body.renew_period_ms > 0:
            period_ms = min(period_ms, body.renew_period_ms)
        now_ms = request.services.clock.wall_ms()
        change = RenewToken(token_id, principal_of(request), now_ms, period_ms)
        expiry_ms = await request.services.controller.security.tokens.change(change)
    except KafkaError as error:
        record_change(request, token_id, error=error.code.name)
        return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=NO_TIME)
    record_change(request, token_id, expiry_ms=expiry_ms)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)


HANDLER = Awaited(MESSAGES, handle, access=())
