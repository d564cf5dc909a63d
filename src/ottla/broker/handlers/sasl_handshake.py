"""SaslHandshake (key 17), versions 0 to 1.

What it does
  Begins a sign-in with a mechanism, on a listener with SASL; the answer names those that are enabled there. Of a client
  that has signed in it renews the session, if that has an end (KIP-368), at most once a second. A mechanism that is not
  enabled is answered UNSUPPORTED_SASL_MECHANISM, after a delay, and the connection is closed. Anywhere else the answer
  is ILLEGAL_SASL_STATE, as in Kafka.

What it does not do
  Kerberos (GSSAPI).

Versions
  v0   the tokens that follow have no request headers (KIP-43)
  v1   SaslAuthenticate carries them (KIP-152)
"""

from __future__ import annotations

from ottla.broker.handler_parts.failed_sign_in import close_after_delay
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.security.sasl.sign_in import SignIn, State
from ottla.wire.generated.sasl_handshake import MESSAGES, SaslHandshakeRequest, SaslHandshakeResponse


async def handle(request: Request, body: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Begin a sign-in, or renew a session."""
    connection, sign_ins = request.connection, request.services.sign_ins
    sign_in = connection.authentication
    if not isinstance(sign_in, SignIn) or sign_ins is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    error = sign_in.handshake(body.mechanism, request.api_version, request.services.clock.monotonic())
    if error == ErrorCode.ILLEGAL_SASL_STATE:
        if sign_in.state is State.EXPIRED:
            connection.close()
        return SaslHandshakeResponse(error_code=error)
    response = SaslHandshakeResponse(error_code=error, mechanisms=list(sign_in.listener.exchanges))
    if error != ErrorCode.NONE:
        assert sign_in.error is not None, "the handshake has failed"
        sign_ins.note_failure(connection, sign_in, sign_in.error)
        await close_after_delay(connection, sign_in)
    else:
        sign_ins.begin_again(connection)
    return response


HANDLER = Awaited(MESSAGES, handle, access=())
