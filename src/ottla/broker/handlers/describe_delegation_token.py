"""DescribeDelegationToken (key 41), versions 1 to 3.

What it does
  Shows the tokens of all or of some owners: those that the client owns, has created or may renew, and others if it may
  describe the token or the tokens of its owner (KIP-373). The response has their secrets, as in Kafka.

What it does not do
  Show anything to clients that signed in with a token, or did not sign in.

Versions
  v2   flexible encoding
  v3   who has created a token (KIP-373)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ottla.broker.handler_parts.token_requests import check_client, principal_of, split_principal, tokens_of
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import KafkaError
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.token_znodes import StoredToken
from ottla.wire.generated.describe_delegation_token import (
    MESSAGES,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

TOKEN_WORK = 10
"""The share of a slice of work of one token: its HMAC, and what the authorizer is asked."""

RENEWERS_OF_WORK = 20
"""Renewers that are compared with the owners asked for in one unit of work."""

DESCRIBE = Access(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "each token of others", refusal="left out")
DESCRIBE_TOKENS = Access(
    AclOperation.DESCRIBE_TOKENS,
    ResourceType.USER,
    "the owner of each token of others, in place of the token",
    refusal="left out",
)


def answer(
    request: Request, body: DescribeDelegationTokenRequest, view: ClusterView
) -> InParts[DescribeDelegationTokenResponse]:
    """Describe the tokens that the client may see."""
    response = DescribeDelegationTokenResponse()
    try:
        check_client(request)
        tokens = tokens_of(request)
    except KafkaError as error:
        response.error_code = error.code
        return InParts(response)
    if body.owners is not None and not body.owners:
        return InParts(response)
    owners: set[str] | None = None if body.owners is None else set()
    one = partial(_token, principal_of(request), owners, tokens.hmac_of)
    parts: list[Each[StoredToken, DescribedDelegationToken]] = [
        Each(list(view.delegation_tokens.values()), one, into=response.tokens, work=_work)
    ]
    if owners is None or body.owners is None:
        return InParts(response, *parts)

    def note(_request: Request, owner: DescribeDelegationTokenOwner, _view: ClusterView) -> None:
        owners.add(f"{owner.principal_type}:{owner.principal_name}")

    return InParts(response, Each(body.owners, note), *parts)


def _work(stored: StoredToken) -> int:
    return TOKEN_WORK + len(stored.information.renewers) // RENEWERS_OF_WORK


def _token(
    client: str,
    owners: set[str] | None,
    hmac_of: Callable[[str], bytes],
    request: Request,
    stored: StoredToken,
    _view: ClusterView,
) -> InParts[DescribedDelegationToken] | None:
    token = stored.information
    known_to = {token.owner, token.requester, *token.renewers}
    if owners is not None and not owners & known_to:
        return None
    if (
        client not in known_to
        and DESCRIBE.denies(request, token.token_id, log_if_denied=False)
        and DESCRIBE_TOKENS.denies(request, token.owner, log_if_denied=False)
    ):
        return None
    owner_type, owner_name = split_principal(token.owner)
    requester_type, requester_name = split_principal(token.requester)
    described = DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=hmac_of(token.token_id),
    )
    return InParts(described, Each(token.renewers, _renewer, into=described.renewers))


def _renewer(_request: Request, renewer: str, _view: ClusterView) -> DescribedDelegationTokenRenewer:
    kind, name = split_principal(renewer)
    return DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)


HANDLER = ElementWise(MESSAGES, answer, access=(DESCRIBE, DESCRIBE_TOKENS))
