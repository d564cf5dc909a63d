"""Lists, sets and deletes the SCRAM credentials of users, as Kafka's Admin client does (KIP-554).

The password stays here: brokers get it salted and hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from ottla.client.cluster import ANY_BROKER, Cluster
from ottla.client.errors import raise_for
from ottla.core.errors import ErrorCode
from ottla.core.runtime import random_bytes
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        AlterUserScramCredentialsResponse,
    )
    from ottla.wire.generated.describe_user_scram_credentials import DescribeUserScramCredentialsResponse

ITERATIONS, ITERATIONS_MIN, ITERATIONS_MAX = 8192, 4096, 16_384
"""Of PBKDF2: ours, and what brokers accept."""
_SALT_BYTES = 24


class ScramMechanism(IntEnum):
    """The mechanisms by their code in requests."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    def __str__(self) -> str:
        """Return the name, as `sasl.mechanism` has it."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The name of the hash function."""
        return self.name.removeprefix("SCRAM_").replace("_", "").lower()


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user and the iterations of each mechanism that it may sign in with."""

    name: str
    iterations: dict[ScramMechanism, int]


class UnsuitablePassword(ValueError):
    """A password that clients would not all hash alike."""


async def list_users(cluster: Cluster, names: Sequence[str] | None = None) -> list[ScramUser]:
    """List the users with SCRAM credentials, all or those of these names. Raises the broker's `KafkaError`."""
    from ottla.wire.generated.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName

    # An empty list is all of them, as null is; to null Kafka 4.4 does not answer a client that may not describe users.
    users = [UserName(name=name) for name in names or ()]
    ask = DescribeUserScramCredentialsRequest(users=users)
    answer: DescribeUserScramCredentialsResponse = await cluster.request(
        ANY_BROKER, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ask
    )
    raise_for(answer.error_code, answer.error_message)
    scram_users = []
    for result in answer.results:
        if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            continue
        raise_for(result.error_code, result.error_message, about=f"user {result.user}")
        iterations = {ScramMechanism(info.mechanism): info.iterations for info in result.credential_infos}
        scram_users.append(ScramUser(result.user, dict(sorted(iterations.items()))))
    return sorted(scram_users, key=lambda user: user.name)


async def set_password(
    cluster: Cluster, name: str, password: str, mechanisms: Iterable[ScramMechanism], *, iterations: int = ITERATIONS
) -> None:
    """Set the credentials of a user, mechanism by mechanism: brokers refuse a request with two of one user.

    Raises the broker's `KafkaError`, and UnsuitablePassword before anything is sent.
    """
    from ottla.wire.generated.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialUpsertion,
    )

    secret = _checked(password).encode()
    for mechanism in mechanisms:
        salt = random_bytes(_SALT_BYTES)
        upsertion = ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism,
            iterations=iterations,
            salt=salt,
            salted_password=hashlib.pbkdf2_hmac(mechanism.digest, secret, salt, iterations),
        )
        await _alter(cluster, AlterUserScramCredentialsRequest(upsertions=[upsertion]), about=f"{mechanism} of {name}")


async def delete_credentials(cluster: Cluster, name: str, mechanisms: Iterable[ScramMechanism]) -> None:
    """Delete credentials of a user, one by one. Raises the broker's `KafkaError`."""
    from ottla.wire.generated.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
    )

    for mechanism in mechanisms:
        deletion = ScramCredentialDeletion(name=name, mechanism=mechanism)
        await _alter(cluster, AlterUserScramCredentialsRequest(deletions=[deletion]), about=f"{mechanism} of {name}")


async def _alter(cluster: Cluster, ask: AlterUserScramCredentialsRequest, *, about: str) -> None:
    answer: AlterUserScramCredentialsResponse = await cluster.retrying(
        lambda: cluster.request_controller(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ask)
    )
    result = answer.results[0]
    raise_for(result.error_code, result.error_message, about=about)


def _checked(password: str) -> str:
    """Return a password that is the same with and without SASLprep: Java's clients do not prepare it, others do."""
    from scramp.core import ScramException, saslprep

    try:
        is_same = saslprep(password) == password
    except ScramException:
        is_same = False
    if not is_same:
        raise UnsuitablePassword(
            "clients would not all read this password alike: SASLprep (RFC 4013) changes or prohibits some characters"
        )
    return password
