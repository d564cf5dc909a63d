"""Defines the znodes of delegation tokens, byte for byte as in Kafka 3.x with ZooKeeper (DelegationTokenManagerZk).

A node has who may use the token and until when. It has no secret: that is derived from the token's id with a key which
is a setting of the brokers.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from ottla.metadata_store.znodes import TOKENS, MalformedNode

_VERSION: Final = 3
_VERSION_WITH_REQUESTER: Final = 3


class TokenInformation(NamedTuple):
    """Holds what the cluster knows of a token. Principals are TYPE:NAME."""

    token_id: str
    owner: str
    requester: str  # who created it, for itself or for the owner (KIP-373)
    renewers: tuple[str, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int  # it cannot be renewed for longer

    def is_expired(self, now_ms: int) -> bool:
        """Return whether it is not valid any more."""
        return self.max_ms < now_ms or self.expiry_ms < now_ms


class StoredToken(NamedTuple):
    """Holds a token and the version of its node."""

    information: TokenInformation
    version: int


def token_path(token_id: str) -> str:
    """Return the path of a token."""
    return f"{TOKENS}/{token_id}"


def is_token_id(text: str) -> bool:
    """Return whether a text can be a token's id, which is the name of its node.

    >>> is_token_id("uAfOIoMFQ7m8vZVI-sNxvg"), is_token_id("a/b")
    (True, False)
    """
    return re.fullmatch(r"[A-Za-z0-9_-]+", text) is not None


def _sanitized(principal: str) -> str:
    """Return a text as Kafka's Sanitizer writes it.

    >>> _sanitized("User:CN=a b*~")
    'User%3ACN%3Da%20b%2A%7E'
    """
    return quote(principal, safe="").replace("~", "%7E")


def encode_token(token: TokenInformation) -> bytes:
    """Encode version 3."""
    value = {
        "version": _VERSION,
        "owner": _sanitized(token.owner),
        "tokenRequester": _sanitized(token.requester),
        "renewers": [_sanitized(renewer) for renewer in token.renewers],
        "issueTimestamp": token.issue_ms,
        "maxTimestamp": token.max_ms,
        "expiryTimestamp": token.expiry_ms,
        "tokenId": token.token_id,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode_token(path: str, value: bytes) -> TokenInformation:
    """Decode versions 1 to 3; before the last the owner is the requester. Raises MalformedNode."""
    try:
        parsed = json.loads(value)
        version = int(parsed["version"])
        if not 1 <= version <= _VERSION:
            raise ValueError(f"version {version}")
        owner = _principal(parsed["owner"])
        return TokenInformation(
            str(parsed["tokenId"]),
            owner,
            _principal(parsed["tokenRequester"]) if version >= _VERSION_WITH_REQUESTER else owner,
            tuple(_principal(renewer) for renewer in parsed["renewers"]),
            int(parsed["issueTimestamp"]),
            int(parsed["expiryTimestamp"]),
            int(parsed["maxTimestamp"]),
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedNode(path, repr(error)) from error


def _principal(text: str) -> str:
    principal = unquote(text)
    if ":" not in principal:
        raise ValueError(f"{principal} is not TYPE:NAME")
    return principal
