"""Changes a user's ACL and password while brokers are killed, and verifies what all brokers make of the last change."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.support.signed_in import ClientSecurity, SignInRefused, as_user
from tests.support.up_process import UpProcess
from tests.support.wire_client import ConnectionEnded

ADMIN, LOAD, VISITOR = "admin", "load", "visitor"
LOAD_PASSWORD = "password of the load"
PROBED = "probed"
"""A topic that does not exist: who may describe it learns so."""
_ACL = (
    ResourceType.TOPIC,
    PROBED,
    ResourcePatternType.LITERAL,
    f"User:{VISITOR}",
    "*",
    AclOperation.DESCRIBE,
    AclPermissionType.ALLOW,
)
DENIED = 29
WITHIN_S = 60.0
_TIMEOUT_S = 20.0


def load_user(cluster: UpProcess) -> ClientSecurity:
    """Return how clients that do the work of a test connect: in a secured cluster as a user who may just do that."""
    if not cluster.is_secured:
        return as_user(cluster, LOAD)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **as_user(cluster, ADMIN).properties})
    _set_password(admin, LOAD, LOAD_PASSWORD)
    every = [
        AclBinding(
            kind, "*", ResourcePatternType.LITERAL, f"User:{LOAD}", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    for created in admin.create_acls(every).values():
        created.result(_TIMEOUT_S)
    security = as_user(cluster, LOAD, LOAD_PASSWORD)
    for port in cluster.ports:
        _until(lambda port=port: _is_served(security, port), "every broker knows the user")  # type: ignore[misc]
    return security


def _is_served(security: ClientSecurity, port: int) -> bool:
    with security.wire(port) as wire:
        return not wire.call("metadata", 8, topics=[])["throttle_time"]


def _set_password(admin: AdminClient, user: str, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    for altered in admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(user, info, password.encode())]
    ).values():
        altered.result(_TIMEOUT_S)


class ChangingRights:
    """A thread that changes what `visitor` may do, and its password. Lifecycle: `start`, `finish`."""

    def __init__(self, cluster: UpProcess) -> None:
        self._cluster = cluster
        self._admin = AdminClient(
            {"bootstrap.servers": cluster.bootstrap, "log_level": 0, **as_user(cluster, ADMIN).properties}
        )
        self._passwords = 0
        self.changes = 0
        """Those that were acknowledged."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> ChangingRights:
        self._thread.start()
        return self

    def _run(self) -> None:
        rng = random.Random(1)
        while not self._stopping.wait(0.2):
            with contextlib.suppress(KafkaException):
                rng.choice((self._allow, self._deny, self._change_password))()
                self.changes += 1

    def _allow(self) -> None:
        for created in self._admin.create_acls([AclBinding(*_ACL)]).values():
            created.result(_TIMEOUT_S)

    def _deny(self) -> None:
        for deleted in self._admin.delete_acls([AclBindingFilter(*_ACL)]).values():
            deleted.result(_TIMEOUT_S)

    def _change_password(self) -> None:
        self._passwords += 1
        _set_password(self._admin, VISITOR, self._password())

    def _password(self, before: int = 0) -> str:
        return f"password {self._passwords - before}"

    def finish(self) -> None:
        """Make a last change of each kind, and wait until every broker decides by it."""
        self._stopping.set()
        self._thread.join()
        for _ in range(2):
            _until(self._done(self._change_password), "the password is changed")
        _until(self._done(self._allow), "it is allowed")
        self._all_decide(is_allowed=True)
        _until(self._done(self._deny), "it is denied")
        self._all_decide(is_allowed=False)

    @staticmethod
    def _done(change: Callable[[], None]) -> Callable[[], bool]:
        def done() -> bool:
            change()
            return True

        return done

    def _all_decide(self, *, is_allowed: bool) -> None:
        for port in self._cluster.ports:
            _until(
                lambda port=port: self._decides(port) == (False, is_allowed),  # type: ignore[misc]
                f"the broker at {port} decides by the last change",
            )

    def _decides(self, port: int) -> tuple[bool, bool]:
        """Return whether the last password but one is taken, and whether the user may describe the topic."""
        takes_old = True
        try:
            as_user(self._cluster, VISITOR, self._password(1)).wire(port).close()
        except SignInRefused:
            takes_old = False
        with as_user(self._cluster, VISITOR, self._password()).wire(port) as wire:
            answer = wire.call("metadata", 8, topics=[{"name": PROBED}], allow_auto_topic_creation=False)
        return takes_old, answer["topics"][0]["error_code"] != DENIED


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        with contextlib.suppress(KafkaException, OSError, ConnectionEnded, SignInRefused):
            if holds():
                return
        assert time.monotonic() < deadline, f"not within {WITHIN_S} s: {what}"
        time.sleep(0.1)
