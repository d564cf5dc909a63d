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

from ottla.broker.requests.handler import Inline
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.wire.generated.sasl_authenticate import MESSAGES, SaslAuthenticateRequest, SaslAuthenticateResponse

WHY = "there is nothing to sign in to on a PLAINTEXT listener"


def handle(request: Request, body: SaslAuthenticateRequest) -> SaslAuthenticateResponse:  # noqa: ARG001
    """Refuse."""
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=WHY)


HANDLER = Inline(MESSAGES, handle, access=())
