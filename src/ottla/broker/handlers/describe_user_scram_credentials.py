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

from functools import partial

from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, repeated
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.describe_user_scram_credentials import (
    MESSAGES,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    UserName,
)

NAME_SHOWN_MAX = 100  # of a user's name in a message


def answer(
    _request: Request, body: DescribeUserScramCredentialsRequest, _view: ClusterView
) -> InParts[DescribeUserScramCredentialsResponse]:
    """Answer that no user has credentials, once for each name."""
    response = DescribeUserScramCredentialsResponse()
    users = body.users or []
    twice: set[str] = set()
    return InParts(
        response,
        repeated((user.name for user in users), twice),
        Each(users, partial(_result, twice), into=response.results, key=_name),
    )


def _name(user: UserName) -> str:
    return user.name


def _result(
    twice: set[str], _request: Request, user: UserName, _view: ClusterView
) -> DescribeUserScramCredentialsResult:
    name = user.name
    shown = name[:NAME_SHOWN_MAX]
    if name in twice:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {shown}"
    else:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {shown}"
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)


def refuse(
    _request: Request, body: DescribeUserScramCredentialsRequest, error: KafkaError
) -> InParts[DescribeUserScramCredentialsResponse]:
    """Answer the request and each user with an error, without the names, as Kafka does."""
    response = DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.message)
    return InParts(response, Each(body.users or (), partial(_denied, error), into=response.results))


def _denied(
    error: KafkaError, _request: Request, _user: UserName, _view: ClusterView
) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(error_code=error.code, error_message=error.message)


HANDLER = ElementWise(MESSAGES, answer, access=(on_cluster(AclOperation.DESCRIBE),), refuse=refuse)
