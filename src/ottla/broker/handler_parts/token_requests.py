"""Does what the requests about delegation tokens have in common: who may send them, and whose principals they name."""

from __future__ import annotations

from ottla.broker.requests.request import Request
from ottla.core.acls import ResourceType
from ottla.core.errors import ErrorCode, error_for
from ottla.net.identity import ANONYMOUS
from ottla.security.delegation_tokens import DelegationTokens

NO_TIME = -1
"""In place of a time, in the response to a request that is refused."""


def check_client(request: Request) -> None:
    """Refuse a client that signed in with a token, which could live for ever so, or did not sign in at all."""
    identity = request.identity
    if identity.is_token or identity[:2] == ANONYMOUS[:2]:
        raise error_for(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def tokens_of(request: Request) -> DelegationTokens:
    """Return the tokens. Raises DELEGATION_TOKEN_AUTH_DISABLED if the settings have no key for them."""
    tokens = request.services.tokens
    if tokens is None:
        raise error_for(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return tokens


async def token_id_of(request: Request, secret: bytes) -> str:
    """Return the id of the token with this HMAC; empty if there is none. Raises as `tokens_of`."""
    slices = request.services.slices
    return await slices.run(tokens_of(request).id_of(secret, slices))


def principal_of(request: Request) -> str:
    """Return the client's principal as TYPE:NAME."""
    return f"{request.identity.principal_type}:{request.identity.principal_name}"


def split_principal(principal: str) -> tuple[str, str]:
    """Return the type and the name of a principal.

    >>> split_principal("User:CN=a:b")
    ('User', 'CN=a:b')
    """
    kind, _, name = principal.partition(":")
    return kind, name


def record_change(request: Request, token_id: str, *, error: str = "", expiry_ms: int = NO_TIME) -> None:
    """Record a change of a token in the audit log, by its id: the request names it by its secret."""
    audit_log = request.services.audit_log
    if audit_log is not None:
        details = () if error else (("expiry_timestamp", str(expiry_ms)),)
        audit_log.changed(request, ResourceType.DELEGATION_TOKEN.name, token_id, error=error, details=details)
