"""Brokers with SCRAM and ACLs, and clients whose rights and passwords change while faults happen.

`visitor` asks every broker again and again about a topic that an ACL allows it by turns. `commuter` signs in to every
broker by passwords old and new. The changes go through the controller; the store says when each was committed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from typing import Any

from ottla.client.acl_admin import create_acls, delete_acls
from ottla.client.addresses import Address
from ottla.client.connection import Connection, Security, open_connection
from ottla.client.errors import CannotConnect
from ottla.client.sasl import Sasl
from ottla.client.user_admin import ScramMechanism, set_password
from ottla.core.acls import AclBinding, AclOperation, PatternType, PermissionType, ResourcePattern, ResourceType
from ottla.core.errors import ErrorCode, KafkaError
from ottla.metadata_store import acl_znodes, znodes
from ottla.metadata_store.store import Create, Delete, MetadataStore, Op, Put
from ottla.security.config import AUTHORIZERS
from ottla.security.sasl.credentials import from_salted_password, from_text, salted_password, to_text
from ottla.security.sasl.jaas import SCRAM_MODULE
from ottla.wire.apis import ApiKey
from ottla.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from tests.simulation.cluster import SimCluster
from tests.simulation.history import Change, Use

MECHANISM = "SCRAM-SHA-256"
AGE_S = 4.0
"""ottla.security.metadata.max.age.ms: by the sessions' timeouts of 2 and 6 s it counts before their end and after."""

BROKER, ADMIN, CLIENT, VISITOR, COMMUTER = "broker", "admin", "client", "visitor", "commuter"
PROBED = "probed"
"""A topic that does not exist: who may describe it learns so, the others do not."""

OPTIONS = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": MECHANISM,
    "sasl.mechanism.inter.broker.protocol": MECHANISM,
    f"listener.name.plaintext.{MECHANISM.lower()}.sasl.jaas.config": (
        f'{SCRAM_MODULE} required username="{BROKER}" password="{BROKER}-0";'
    ),
    "authorizer.class.name": AUTHORIZERS[0],
    "super.users": f"User:{BROKER};User:{ADMIN}",
    "ottla.security.metadata.max.age.ms": str(round(AGE_S * 1000)),
}
_ANSWER_S = 3.0
_ITERATIONS = 4096
_ACL = ResourcePattern(ResourceType.TOPIC, PatternType.LITERAL, PROBED)
ALLOWED = AclBinding(*_ACL, f"User:{VISITOR}", "*", AclOperation.DESCRIBE, PermissionType.ALLOW)
_ACL_PATH = acl_znodes.acl_path(_ACL)
_PASSWORD_PATH = znodes.config_path(znodes.USERS_KIND, COMMUTER)


def password(user: str, number: int = 0) -> str:
    """Return the password of a user after so many changes."""
    return f"{user}-{number}"


def security(user: str, number: int = 0) -> Security:
    """Return how a client signs in."""
    return Security(sasl=Sasl(MECHANISM, user, password(user, number)))


async def prepare(store: MetadataStore) -> None:
    """Create the users and what clients are allowed, before the first broker starts."""
    ops: list[Op] = [Create("/config"), Create(f"/config/{znodes.USERS_KIND}")]
    for user in (BROKER, ADMIN, CLIENT, VISITOR, COMMUTER):
        salt = f"salt of {user}".encode()  # always the same: the run is the seed's
        salted = salted_password(MECHANISM, password(user), salt, _ITERATIONS)
        credential = from_salted_password(MECHANISM, salted, salt, _ITERATIONS)
        config = znodes.encode_config({MECHANISM: to_text(credential)})
        ops.append(Create(znodes.config_path(znodes.USERS_KIND, user), config))
    ops += [Create(path) for path in acl_znodes.directories(())]
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
        pattern = ResourcePattern(kind, PatternType.LITERAL, "*")
        every = AclBinding(*pattern, f"User:{CLIENT}", "*", AclOperation.ALL, PermissionType.ALLOW)
        ops.append(Create(acl_znodes.acl_path(pattern), acl_znodes.encode_acls([every.entry])))
    await store.commit(ops)


def changes_of(time_s: float, ops: Sequence[Op]) -> list[Change]:
    """Return what a commit changed of the visitor's right and of the commuter's password."""
    found = []
    for op in ops:
        if op.path == _ACL_PATH and isinstance(op, Create | Put | Delete):
            entries = () if isinstance(op, Delete) else acl_znodes.decode_acls(op.path, op.value)
            found.append(Change(time_s, VISITOR, int(bool(entries))))
        elif op.path == _PASSWORD_PATH and isinstance(op, Put):
            found.append(Change(time_s, COMMUTER, _number_of(znodes.decode_config(op.path, op.value)[MECHANISM])))
    return found


def _number_of(text: str) -> int:
    """Return which password a credential is of."""
    credential = from_text(text)
    for number in itertools.count():
        salted = salted_password(MECHANISM, password(COMMUTER, number), credential.salt, credential.iterations)
        if from_salted_password(MECHANISM, salted, credential.salt, credential.iterations) == credential:
            return number
    raise AssertionError("the numbers do not end")


class AccessClients:
    """The clients of one run. Each broker has a visitor and a commuter of its own."""

    def __init__(self, cluster: SimCluster, pause_s: float) -> None:
        self.cluster, self.loop, self.history, self._pause_s = cluster, cluster.loop, cluster.history, pause_s
        self._tasks: list[asyncio.Task[None]] = []
        self._passwords = 1  # how many there were

    def start(self) -> None:
        """Start all clients."""
        for node, address in zip(self.cluster.machines, self.cluster.seeds(), strict=True):
            self._start(f"visitor-{node}", self._visit(node, address))
            self._start(f"commuter-{node}", self._commute(node, address))
        self._start("access-admin", self._change())

    def stop(self) -> None:
        """End them; a problem is recorded if one has failed."""
        for task in self._tasks:
            if task.done() and task.exception() is not None:
                self.cluster.problem(f"a client failed: {task.exception()!r}")
            task.cancel()

    def _start(self, host: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self.loop.create_task(work, context=self.cluster.client_process(host)))

    async def _change(self) -> None:
        rng = self.loop.rng_for("client/access-admin")
        client = await self.cluster.patient_client(ADMIN, retry_s=5.0)
        while True:
            await asyncio.sleep(rng.random() * 4 * self._pause_s)
            try:
                match rng.randrange(3):
                    case 0:
                        await create_acls(client, [ALLOWED])
                    case 1:
                        await delete_acls(client, [ALLOWED])
                    case _:
                        self._passwords += 1  # it may or may not have been set if this fails
                        await set_password(
                            client,
                            COMMUTER,
                            password(COMMUTER, self._passwords - 1),
                            [ScramMechanism.SCRAM_SHA_256],
                            iterations=_ITERATIONS,
                        )
            except (KafkaError, CannotConnect, OSError):
                continue

    async def _visit(self, node: int, address: Address) -> None:
        rng = self.loop.rng_for(f"client/visitor-{node}")
        connection: Connection | None = None
        while True:
            await asyncio.sleep(rng.random() * self._pause_s)
            began = self.loop.time()
            try:
                if connection is None:
                    connection = await signed_in(address, security(VISITOR))
                is_allowed = await may_describe(connection)
            except (KafkaError, CannotConnect, OSError):
                if connection is not None:
                    await connection.close()
                    connection = None
                continue
            self.history.uses.append(Use(began, self.loop.time(), node, VISITOR, 1, is_allowed))

    async def _commute(self, node: int, address: Address) -> None:
        rng = self.loop.rng_for(f"client/commuter-{node}")
        while True:
            await asyncio.sleep(rng.random() * 2 * self._pause_s)
            began, number = self.loop.time(), max(self._passwords - 1 - rng.choice((0, 0, 1, 1, 2)), 0)
            try:
                connection = await signed_in(address, security(COMMUTER, number))
            except KafkaError as error:
                if error.code == ErrorCode.SASL_AUTHENTICATION_FAILED:
                    self.history.uses.append(Use(began, self.loop.time(), node, COMMUTER, number, is_allowed=False))
                continue
            except (CannotConnect, OSError):
                continue
            self.history.uses.append(Use(began, self.loop.time(), node, COMMUTER, number, is_allowed=True))
            await connection.close()


async def signed_in(address: Address, how: Security) -> Connection:
    """Connect to one broker."""
    return await open_connection(address, client_id="access", timeout_s=_ANSWER_S, sasl=how.sasl)


async def may_describe(connection: Connection) -> bool:
    """Ask whether the visitor may describe the topic."""
    ask = MetadataRequest(topics=[MetadataRequestTopic(name=PROBED)], allow_auto_topic_creation=False)
    answer = await connection.request(ApiKey.METADATA, ask, timeout_s=_ANSWER_S)
    code: int = answer.topics[0].error_code
    return code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
