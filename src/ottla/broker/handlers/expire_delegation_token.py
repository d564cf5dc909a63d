"""ExpireDelegationToken (key 40), versions 1 to 2.

What it does
  Has a token expire at another time, at the request of its owner or a renewer; with a negative period the token is
  removed at once, also one that has expired.

What it does not do
  End connections that have signed in with the token: their sessions end when it would have expired.

Versions
  v2   flexible encoding
"""

from __future__ import annotations

from ottla.broker.handler_parts.token_requests import NO_TIME, check_client, principal_of, record_change, token_id_of
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.controller.security_changes import ExpireToken
from ottla.core.errors import KafkaError
from ottla.wire.generated.expire_delegation_token import (
    MESSAGES,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)


async def handle(request: Request, body: ExpireDelegationTokenRequest) -> ExpireDelegationTokenResponse:
    """Have a token expire, now or later."""
    token_id = ""
    try:
        check_client(request)
        token_id = await token_id_of(request, bytes(body.hmac))
        now_ms = request.services.clock.wall_ms()
        change = ExpireToken(token_id, principal_of(request), now_ms, body.expiry_time_period_ms)
        expiry_ms = await request.services.controller.security.tokens.change(change)
    except KafkaError as error:
        record_change(request, token_id, error=error.code.name)
        return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=NO_TIME)
    record_change(request, token_id, expiry_ms=expiry_ms)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)


HANDLER = Awaited(MESSAGES, handle, access=())
