"""Creates, lists, renews and expires delegation tokens, as Kafka's Admin client does (KIP-48)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.client.cluster import ANY_BROKER, Cluster
from ottla.client.errors import raise_for
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.create_delegation_token import CreateDelegationTokenResponse
    from ottla.wire.generated.describe_delegation_token import DescribeDelegationTokenResponse
    from ottla.wire.generated.expire_delegation_token import ExpireDelegationTokenResponse
    from ottla.wire.generated.renew_delegation_token import RenewDelegationTokenResponse

NOW = -1
"""As the period of an expiry: the token is deleted at once."""
BROKERS_DEFAULT = -1
"""As a lifetime or a period: what the brokers' settings say."""


@dataclass(frozen=True, slots=True)
class Token:
    """A delegation token. Principals are `TYPE:NAME`; times are milliseconds since 1970."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    latest_ms: int  # until then it can be renewed
    hmac: bytes = field(repr=False)


async def create_token(
    cluster: Cluster, *, owner: str | None = None, renewers: Sequence[str] = (), lifetime_ms: int = BROKERS_DEFAULT
) -> Token:
    """Create a token of a user, by default of the one that is signed in. Raises the broker's `KafkaError`."""
    from ottla.wire.generated.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest

    owner_type, owner_name = (None, None) if owner is None else parse_principal(owner)
    may_renew = [
        CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in map(parse_principal, renewers)
    ]
    ask = CreateDelegationTokenRequest(
        owner_principal_type=owner_type,
        owner_principal_name=owner_name,
        renewers=may_renew,
        max_lifetime_ms=lifetime_ms,
    )
    answer: CreateDelegationTokenResponse = await cluster.request(ANY_BROKER, ApiKey.CREATE_DELEGATION_TOKEN, ask)
    raise_for(answer.error_code)
    owned_by = f"{answer.principal_type}:{answer.principal_name}"
    requester = f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}"
    return Token(
        token_id=answer.token_id,
        owner=owned_by,
        requester=owned_by if requester == ":" else requester,  # before version 3 of the API
        renewers=tuple(renewers),
        issued_ms=answer.issue_timestamp_ms,
        expires_ms=answer.expiry_timestamp_ms,
        latest_ms=answer.max_timestamp_ms,
        hmac=bytes(answer.hmac),
    )


async def list_tokens(cluster: Cluster, owners: Sequence[str] | None = None) -> list[Token]:
    """List the tokens that this user may see, all or those of some owners, the oldest first. Raises `KafkaError`."""
    from ottla.wire.generated.describe_delegation_token import (
        DescribeDelegationTokenOwner,
        DescribeDelegationTokenRequest,
    )

    of = None
    if owners is not None:
        pairs = map(parse_principal, owners)
        of = [DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in pairs]
    ask = DescribeDelegationTokenRequest(owners=of)
    answer: DescribeDelegationTokenResponse = await cluster.request(ANY_BROKER, ApiKey.DESCRIBE_DELEGATION_TOKEN, ask)
    raise_for(answer.error_code)
    tokens = []
    for token in answer.tokens:
        owner = f"{token.principal_type}:{token.principal_name}"
        requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
        tokens.append(
            Token(
                token_id=token.token_id,
                owner=owner,
                requester=owner if requester == ":" else requester,
                renewers=tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in token.renewers),
                issued_ms=token.issue_timestamp,
                expires_ms=token.expiry_timestamp,
                latest_ms=token.max_timestamp,
                hmac=bytes(token.hmac),
            )
        )
    return sorted(tokens, key=lambda token: (token.issued_ms, token.token_id))


async def renew_token(cluster: Cluster, hmac: bytes, *, period_ms: int = BROKERS_DEFAULT) -> int:
    """Move the expiry of a token to a period from now; returns it. Raises the broker's `KafkaError`."""
    from ottla.wire.generated.renew_delegation_token import RenewDelegationTokenRequest

    ask = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    answer: RenewDelegationTokenResponse = await cluster.request(ANY_BROKER, ApiKey.RENEW_DELEGATION_TOKEN, ask)
    raise_for(answer.error_code)
    return answer.expiry_timestamp_ms


async def expire_token(cluster: Cluster, hmac: bytes, *, period_ms: int = NOW) -> int:
    """Let a token expire now or after a period; returns its expiry. Raises the broker's `KafkaError`."""
    from ottla.wire.generated.expire_delegation_token import ExpireDelegationTokenRequest

    ask = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    answer: ExpireDelegationTokenResponse = await cluster.request(ANY_BROKER, ApiKey.EXPIRE_DELEGATION_TOKEN, ask)
    raise_for(answer.error_code)
    return answer.expiry_timestamp_ms


def parse_principal(text: str) -> tuple[str, str]:
    """Divide `TYPE:NAME`; a name alone is a user's.

    >>> parse_principal("User:alice"), parse_principal("bob")
    (('User', 'alice'), ('User', 'bob'))
    """
    kind, colon, name = text.partition(":")
    return (kind, name) if colon else ("User", text)
