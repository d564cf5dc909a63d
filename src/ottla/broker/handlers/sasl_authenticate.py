"""SaslAuthenticate (key 36), versions 0 to 2.

What it does
  Answers ILLEGAL_SASL_STATE, as Kafka does to a client that has not begun with a handshake on a SASL listener.

What it does not do
  Authenticate: SASL listeners are not implemented yet.

Versions
  v1   session lifetime (KIP-368)
  v2   flexible encoding
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.core.errors import ErrorCode
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

WHY = "there is nothing to sign in to on a PLAINTEXT listener"


def handle(ctx: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:  # noqa: ARG001
    """Refuse."""
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=WHY)
