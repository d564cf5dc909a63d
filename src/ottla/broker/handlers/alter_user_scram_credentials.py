"""AlterUserScramCredentials (key 51), version 0.

What it does
  Gives users SCRAM credentials, by the password that the client has salted, and takes them away, with Kafka's checks. A
  user has one of each mechanism. Of each user one credential may be changed in a request; an error of one user does not
  affect the others. The change counts from the next sign-in on; sessions go on.

What it does not do
  See a password.

Versions
  v0   the first, flexible (KIP-554)
"""

from __future__ import annotations

from functools import partial

from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.controller.config_changes import AlterConfig, ConfigChange
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.core.settings import AlterConfigOpType
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.security.sasl.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_OF_NUMBER,
    from_salted_password,
    to_text,
)
from ottla.wire.generated.alter_user_scram_credentials import (
    MESSAGES,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

USER_WORK = 20
"""The share of a slice of work of one user."""


class _Users:
    """The changes of a request, by user, and their errors."""

    def __init__(self) -> None:
        self.changes: dict[str, ConfigChange] = {}
        self.errors: dict[str, KafkaError] = {}

    def add(self, user: str, change: ConfigChange | KafkaError) -> None:
        """Note the change of a user, or why there can be none; a user is changed once."""
        if user in self.errors:
            return
        if self.changes.pop(user, None) is not None:
            message = "A user credential cannot be altered twice in the same request"
            self.errors[user] = error_for(ErrorCode.DUPLICATE_RESOURCE, message)
        elif isinstance(change, KafkaError):
            self.errors[user] = change
        else:
            self.changes[user] = change


async def alter(request: Request, body: AlterUserScramCredentialsRequest) -> _Users:
    """Change the credentials; return the errors."""
    users = _Users()
    await collect(request, Each[ScramCredentialDeletion, None](body.deletions, partial(_delete, users)))
    await collect(
        request, Each[ScramCredentialUpsertion, None](body.upsertions, partial(_upsert, users), work=USER_WORK)
    )
    events = [
        AlterConfig(znodes.USERS_KIND, znodes.sanitized(user), [change], {}, _accept)
        for user, change in users.changes.items()
    ]
    outcomes: list[KafkaError | None]
    try:
        outcomes = await request.services.controller.alter_configs(events)
    except KafkaError as error:
        outcomes = [error for _ in events]
    for user, outcome in zip(users.changes, outcomes, strict=True):
        if outcome is not None:
            users.errors[user] = outcome
    return users


def _accept(_values: object) -> None:
    """Accept all values: they are checked already."""


def _mechanism_of(user: str, number: int) -> str | KafkaError:
    if not user:
        return error_for(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = MECHANISM_OF_NUMBER.get(number)
    return mechanism or error_for(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _delete(users: _Users, _request: Request, deletion: ScramCredentialDeletion, view: ClusterView) -> None:
    user, mechanism = deletion.name, _mechanism_of(deletion.name, deletion.mechanism)
    change: ConfigChange | KafkaError
    if isinstance(mechanism, KafkaError):
        change = mechanism
    elif mechanism in view.user_settings(user):
        change = ConfigChange(AlterConfigOpType.DELETE, mechanism)
    else:
        message = "Attempt to delete a user credential that does not exist"
        change = error_for(ErrorCode.RESOURCE_NOT_FOUND, message)
    users.add(user, change)


def _upsert(users: _Users, _request: Request, upsertion: ScramCredentialUpsertion, _view: ClusterView) -> None:
    user, iterations = upsertion.name, upsertion.iterations
    mechanism = _mechanism_of(user, upsertion.mechanism)
    salt, salted_password = bytes(upsertion.salt), bytes(upsertion.salted_password)
    change: ConfigChange | KafkaError
    if isinstance(mechanism, KafkaError):
        change = mechanism
    elif iterations < ITERATIONS_MIN:
        change = error_for(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif iterations > ITERATIONS_MAX:
        change = error_for(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    elif not salt or not salted_password:
        change = error_for(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty")
    else:
        credential = from_salted_password(mechanism, salted_password, salt, iterations)
        change = ConfigChange(AlterConfigOpType.SET, mechanism, to_text(credential))
    users.add(user, change)


def answer(
    _request: Request, _body: AlterUserScramCredentialsRequest, users: _Users, _view: ClusterView
) -> InParts[AlterUserScramCredentialsResponse]:
    """Return the outcome of each user."""
    response = AlterUserScramCredentialsResponse()
    names = list(dict.fromkeys((*users.changes, *users.errors)))
    return InParts(response, Each(names, partial(_result, users), into=response.results))


def _result(users: _Users, _request: Request, user: str, _view: ClusterView) -> AlterUserScramCredentialsResult:
    code, message = error_fields(users.errors.get(user))
    return AlterUserScramCredentialsResult(user=user, error_code=code, error_message=message)


def refused(
    _request: Request, body: AlterUserScramCredentialsRequest, error: KafkaError
) -> InParts[AlterUserScramCredentialsResponse]:
    """Answer a client that may not change credentials, once for each user."""
    response = AlterUserScramCredentialsResponse()
    users = _Users()
    users.errors = dict.fromkeys([deletion.name for deletion in body.deletions], error)
    users.errors |= dict.fromkeys([upsertion.name for upsertion in body.upsertions], error)
    names = list(users.errors)
    return InParts(response, Each(names, partial(_result, users), into=response.results))


HANDLER = ElementWiseAfter(
    MESSAGES, first=alter, answer=answer, access=(on_cluster(AclOperation.ALTER),), refuse=refused
)
