"""SaslAuthenticate (key 36), versions 0 to 2.

What it does
  Takes a token of the mechanism that SaslHandshake has begun, and answers with the mechanism's own; with the last one
  the client is signed in. SASL_AUTHENTICATION_FAILED comes after `connection.failed.authentication.delay.ms`, and the
  connection is closed. Without a handshake before it, ILLEGAL_SASL_STATE.

What it does not do
  Distinguish a user that does not exist from one with a wrong password.

Versions
  v1   session lifetime (KIP-368)
  v2   flexible encoding
"""

from __future__ import annotations

from ottla.broker.handler_parts.failed_sign_in import close_after_delay
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.security.sasl.mechanism import AuthenticationFailed
from ottla.security.sasl.sign_in import SignIn, State
from ottla.wire.generated.sasl_authenticate import MESSAGES, SaslAuthenticateRequest, SaslAuthenticateResponse

SIGNED_IN_ALREADY = "SaslAuthenticate request received after successful authentication"


async def handle(request: Request, body: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Answer a token."""
    connection, sign_ins = request.connection, request.services.sign_ins
    sign_in = connection.authentication
    if sign_ins is None or not isinstance(sign_in, SignIn) or sign_in.state is not State.AUTHENTICATE:
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=SIGNED_IN_ALREADY)
    try:
        step = sign_ins.take_token(connection, sign_in, bytes(body.auth_bytes))
    except AuthenticationFailed as error:
        await close_after_delay(connection, sign_in)
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=error.answer)
    return SaslAuthenticateResponse(auth_bytes=step.token, session_lifetime_ms=step.session_ms)


HANDLER = Awaited(MESSAGES, handle, access=())
