"""CreateDelegationToken (key 38), versions 1 to 3.

What it does
  Creates a token with which a client can sign in as the owner: the client of the request, or another user for whom it
  may create tokens (KIP-373). Renewers may renew it.

What it does not do
  Create tokens for clients that signed in with a token, or did not sign in.

Versions
  v2   flexible encoding
  v3   the owner (KIP-373)
"""

from __future__ import annotations

from ottla.broker.handler_parts.token_requests import NO_TIME, check_client, principal_of, split_principal, tokens_of
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.controller.security_changes import CreateToken
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.core.ids import id_text, random_topic_id
from ottla.core.settings import LONG_MAX
from ottla.metadata_store.token_znodes import TokenInformation
from ottla.net.identity import USER
from ottla.wire.generated.create_delegation_token import (
    MESSAGES,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

RENEWERS_MAX = 1_000
"""A token with more of them would not fit into a node of the metadata store."""

CREATE_TOKENS = Access(AclOperation.CREATE_TOKENS, ResourceType.USER, "the owner, if it is not the client")


async def handle(request: Request, body: CreateDelegationTokenRequest) -> CreateDelegationTokenResponse:
    """Create a token."""
    requester = principal_of(request)
    owner = f"{body.owner_principal_type}:{body.owner_principal_name}" if body.owner_principal_name else requester
    response = CreateDelegationTokenResponse(
        issue_timestamp_ms=NO_TIME, expiry_timestamp_ms=NO_TIME, max_timestamp_ms=NO_TIME
    )
    response.principal_type, response.principal_name = split_principal(owner)
    response.token_requester_principal_type, response.token_requester_principal_name = split_principal(requester)
    try:
        check_client(request)
        if owner != requester and CREATE_TOKENS.denies(request, owner):
            raise CREATE_TOKENS.error
        if any(renewer.principal_type != USER for renewer in body.renewers):
            raise error_for(ErrorCode.INVALID_PRINCIPAL_TYPE)
        tokens = tokens_of(request)
        if len(body.renewers) > RENEWERS_MAX:
            raise error_for(ErrorCode.INVALID_REQUEST, f"more than {RENEWERS_MAX} renewers")
        now_ms, config = request.services.clock.wall_ms(), tokens.config
        lifetime_ms = min(body.max_lifetime_ms, config.max_lifetime_ms) if body.max_lifetime_ms > 0 else 0
        max_ms = min(now_ms + (lifetime_ms or config.max_lifetime_ms), LONG_MAX)
        token = TokenInformation(
            id_text(random_topic_id()),
            owner,
            requester,
            tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in body.renewers),
            now_ms,
            min(max_ms, now_ms + config.expiry_time_ms),
            max_ms,
        )
        await request.services.controller.security.tokens.change(CreateToken(token))
    except KafkaError as error:
        response.error_code = error.code
        return response
    response.issue_timestamp_ms, response.expiry_timestamp_ms = token.issue_ms, token.expiry_ms
    response.max_timestamp_ms, response.token_id = token.max_ms, token.token_id
    response.hmac = tokens.hmac_of(token.token_id)
    return response


HANDLER = Awaited(MESSAGES, handle, access=(CREATE_TOKENS,))
