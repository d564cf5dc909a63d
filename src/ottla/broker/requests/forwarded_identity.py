"""Encodes who sent a forwarded request, as the `request_principal` of an Envelope (KIP-590).

The layout is that of Kafka's `DefaultPrincipalData`, version 0, after its version number. The client's listener and the
user's groups are tagged fields of our own, which Kafka ignores: the controller answers with the addresses of that
listener, and asks the authorizer about the groups, too.
"""

from __future__ import annotations

import struct
from typing import ClassVar

from ottla.net.identity import ConnectionIdentity
from ottla.wire.compiled_codec import struct_codec
from ottla.wire.errors import MalformedRequest
from ottla.wire.schema import Field, Struct, Wire

_VERSION = struct.Struct(">h")
_LISTENER_TAG, _GROUPS_TAG = 10_000, 10_001


class _PrincipalData(Struct):
    __slots__ = ("groups", "listener", "principal_name", "principal_type", "token_authenticated")

    WIRE: ClassVar[Wire] = (
        Field("principal_type", "string"),
        Field("principal_name", "string"),
        Field("token_authenticated", "bool"),
        Field("listener", "string", tag=_LISTENER_TAG),
        Field("groups", "string", array=True, tag=_GROUPS_TAG),
    )

    def __init__(
        self,
        *,
        principal_type: str = "",
        principal_name: str = "",
        token_authenticated: bool = False,
        listener: str = "",
        groups: list[str] | None = None,
    ) -> None:
        self.principal_type = principal_type
        self.principal_name = principal_name
        self.token_authenticated = token_authenticated
        self.listener = listener
        self.groups = [] if groups is None else groups


_PLAN = struct_codec(_PrincipalData, version=0, flexible=True)


def encode_identity(identity: ConnectionIdentity, listener: str) -> bytes:
    """Encode the identity of a client and the listener that it is connected to."""
    out = bytearray(_VERSION.pack(0))
    _PLAN.write(
        out,
        _PrincipalData(
            principal_type=identity.principal_type,
            principal_name=identity.principal_name,
            token_authenticated=identity.is_token,
            listener=listener,
            groups=list(identity.groups),
        ),
    )
    return bytes(out)


def decode_identity(data: bytes) -> tuple[ConnectionIdentity, str]:
    """Return the identity and the listener. Raises MalformedRequest."""
    try:
        (version,) = _VERSION.unpack_from(data)
        if version != 0:
            raise MalformedRequest(f"a principal in version {version}")
        principal: _PrincipalData = _PLAN.read(data, _VERSION.size)[0]
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"a principal: {error}") from error
    identity = ConnectionIdentity(
        principal.principal_type, principal.principal_name, tuple(principal.groups), principal.token_authenticated
    )
    return identity, principal.listener
