"""SaslHandshake (key 17), versions 0 to 1.

What it does
  Answers ILLEGAL_SASL_STATE, as Kafka does on a PLAINTEXT listener. It is listed because clients derive a broker's
  features from the list (librdkafka's feature table).

What it does not do
  Authenticate: SASL listeners are not implemented yet.

Versions
  v1   SaslAuthenticate carries the tokens that follow (KIP-152)
"""

from __future__ import annotations

from ottla.broker.requests.handler import Inline
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.wire.generated.sasl_handshake import MESSAGES, SaslHandshakeRequest, SaslHandshakeResponse


def handle(request: Request, body: SaslHandshakeRequest) -> SaslHandshakeResponse:  # noqa: ARG001
    """Refuse."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


HANDLER = Inline(MESSAGES, handle, access=())
