"""Decides changes of delegation tokens. The rules and their order are Kafka 4.4's (DelegationTokenControlManager)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ottla.controller.overlay import Overlay
from ottla.controller.security_changes import CreateToken, ExpireToken, RemoveToken, RenewToken, TokenChange
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.metadata_store.store import Create, Delete, Put
from ottla.metadata_store.token_znodes import encode_token, token_path


def change_token(overlay: Overlay, event: TokenChange) -> int:
    """Decide a change; returns when the token expires. Raises the `KafkaError`."""
    if isinstance(event, CreateToken):
        overlay.put_nodes([Create(token_path(event.token.token_id), encode_token(event.token))])
        return event.token.expiry_ms
    stored = overlay.base.delegation_tokens.get(event.token_id)
    if stored is None:
        raise error_for(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    token, path = stored.information, token_path(event.token_id)
    if isinstance(event, RemoveToken):
        if token.is_expired(event.now_ms):
            overlay.put_nodes([Delete(path, stored.version)])
        return token.expiry_ms
    is_expired, may_renew = token.is_expired(event.now_ms), event.principal in (token.owner, *token.renewers)
    if isinstance(event, RenewToken) and is_expired:
        raise error_for(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    if not may_renew:
        raise error_for(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    if isinstance(event, ExpireToken) and event.period_ms < 0:
        overlay.put_nodes([Delete(path, stored.version)])
        return event.now_ms
    if is_expired:
        raise error_for(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    renewed = token._replace(expiry_ms=min(token.max_ms, event.now_ms + event.period_ms))
    overlay.put_nodes([Put(path, encode_token(renewed), stored.version)])
    return renewed.expiry_ms


class TokenAdmin:
    """Changes delegation tokens on request."""

    def __init__(self, change: Callable[[Sequence[TokenChange]], Awaitable[Sequence[object]]]) -> None:
        self._change = change

    async def change(self, change: TokenChange) -> int:
        """Create, renew, expire or remove a token; returns when it expires. Raises the `KafkaError`."""
        (outcome,) = await self._change([change])
        if isinstance(outcome, KafkaError):
            raise outcome
        assert isinstance(outcome, int), "a change of a token results in its time"
        return outcome
