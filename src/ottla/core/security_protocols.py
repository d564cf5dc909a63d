"""Lists the security protocols of listeners and connections (Kafka's SecurityProtocol)."""

from __future__ import annotations

from enum import IntEnum


class SecurityProtocol(IntEnum):
    """Lists how connections are secured: by TLS, by SASL, by both or by neither. The numbers are Kafka's."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def uses_tls(self) -> bool:
        """Return whether connections are encrypted."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def uses_sasl(self) -> bool:
        """Return whether clients sign in with SASL."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


PROTOCOL_NAMES = tuple(protocol.name for protocol in SecurityProtocol)
