"""DescribeUserScramCredentials (key 50), version 0.

What it does
  Answers that no user has credentials: an empty list for all users, RESOURCE_NOT_FOUND for a user by name and
  DUPLICATE_RESOURCE for a name that occurs more than once, as in Kafka.

What it does not do
  Users and SCRAM credentials are not served yet.

Versions
  v0   the first, flexible (KIP-554)
"""

from __future__ import annotations

from ottla.broker.handler_parts.admin_requests import duplicates
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.wire.messages.describe_user_scram_credentials import (
    MESSAGES,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

NAME_SHOWN_MAX = 100  # of a user's name in a message


async def handle(request: Request, body: DescribeUserScramCredentialsRequest) -> DescribeUserScramCredentialsResponse:
    """Answer that no user has credentials."""
    slices = request.services.slices
    names = [user.name async for user in slices.each(body.users or ())]
    twice = await duplicates(slices, names)
    return DescribeUserScramCredentialsResponse(
        results=[_result(name, is_twice=name in twice) async for name in slices.each(dict.fromkeys(names))]
    )


def _result(name: str, *, is_twice: bool) -> DescribeUserScramCredentialsResult:
    shown = name[:NAME_SHOWN_MAX]
    if is_twice:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {shown}"
    else:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {shown}"
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)


HANDLER = Awaited(MESSAGES, handle)
