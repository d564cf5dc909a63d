"""DescribeUserScramCredentials (key 50), version 0.

What it does
  Lists the mechanisms and iterations of users' SCRAM credentials: of those that are named, or of all. A user without
  credentials is answered RESOURCE_NOT_FOUND, and a name that occurs more than once DUPLICATE_RESOURCE, as in Kafka.

What it does not do
  Show a salt or a key.

Versions
  v0   the first, flexible (KIP-554)
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial

from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, repeated
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView, EntityConfig
from ottla.security.sasl.credentials import MECHANISM_OF_NUMBER, from_text
from ottla.wire.generated.describe_user_scram_credentials import (
    MESSAGES,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    UserName,
)

NAME_SHOWN_MAX = 100  # of a user's name in a message


def answer(
    _request: Request, body: DescribeUserScramCredentialsRequest, view: ClusterView
) -> InParts[DescribeUserScramCredentialsResponse]:
    """Return the credentials of each user that is named, or of all that have some."""
    response = DescribeUserScramCredentialsResponse()
    if not body.users:
        stored = view.configs.get(znodes.USERS_KIND, {}).items()
        return InParts(response, Each(stored, _stored, into=response.results))
    twice: set[str] = set()
    return InParts(
        response,
        repeated((user.name for user in body.users), twice),
        Each(body.users, partial(_result, twice), into=response.results, key=_name),
    )


def _name(user: UserName) -> str:
    return user.name


def _stored(
    _request: Request, stored: tuple[str, EntityConfig], _view: ClusterView
) -> DescribeUserScramCredentialsResult | None:
    name, config = stored
    infos = _infos(config.values)
    if not infos:
        return None
    return DescribeUserScramCredentialsResult(user=znodes.desanitized(name), error_message=None, credential_infos=infos)


def _infos(settings: Mapping[str, str]) -> list[CredentialInfo]:
    """Return the mechanism and the iterations of each credential of a user."""
    infos = []
    for number, mechanism in MECHANISM_OF_NUMBER.items():
        text = settings.get(mechanism)
        if text is not None:
            with contextlib.suppress(ValueError):  # malformed: no client can sign in with it
                infos.append(CredentialInfo(mechanism=number, iterations=from_text(text).iterations))
    return infos


def _result(
    twice: set[str], _request: Request, user: UserName, view: ClusterView
) -> DescribeUserScramCredentialsResult:
    name = user.name
    shown = name[:NAME_SHOWN_MAX]
    if name in twice:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {shown}"
    elif infos := _infos(view.user_settings(name)):
        return DescribeUserScramCredentialsResult(user=name, error_message=None, credential_infos=infos)
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
