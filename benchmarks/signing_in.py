"""Users for measurements: settings of a broker where they sign in by PLAIN, and their ACLs.

`admin` may do everything; `user` what one ACL allows, beside which there are many of others.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import clients
from tests.support.wire_client import Wire, encode

ADMIN, USER, PASSWORD = "admin", "user", "secret"
OTHERS = 1_000
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_{ADMIN}="{PASSWORD}" user_{USER}="{PASSWORD}";'
)


def settings(*, authorizer: bool) -> dict[str, str]:
    """Return the settings of sign-in, with access control or without."""
    found = {"sasl.enabled.mechanisms": "PLAIN", "listener.name.plaintext.plain.sasl.jaas.config": JAAS}
    if authorizer:
        found |= {"authorizer.class.name": AUTHORIZER, "super.users": f"User:{ADMIN};User:ANONYMOUS"}
    return found


def write_settings(file: Path, *, authorizer: bool) -> None:
    """Write them into a file of properties."""
    file.write_text("".join(f"{name}={value}\n" for name, value in settings(authorizer=authorizer).items()))


@contextmanager
def as_admin(port: int) -> Iterator[Wire]:
    """Connect as the user who may do everything."""
    with Wire(port, timeout_s=200) as wire:
        assert not wire.call("sasl_handshake", 1, mechanism="PLAIN")["error_code"]
        token = f"\0{ADMIN}\0{PASSWORD}".encode()
        assert not wire.call("sasl_authenticate", 2, auth_bytes=token)["error_code"]
        yield wire


def connect_as_user(port: int) -> socket.socket:
    """Connect a bare socket as the user who may do what an ACL allows."""
    made = clients.connect(port)
    token = f"\0{USER}\0{PASSWORD}".encode()
    for frame in (
        encode("sasl_handshake", 1, 1, {"mechanism": "PLAIN"}),
        encode("sasl_authenticate", 1, 2, {"auth_bytes": token}),
    ):
        made.sendall(struct.pack(">i", len(frame)) + frame)
        clients.check(clients.receive(made), 8)  # after the length and the correlation id
    return made


def create_acls(wire: Wire, topic: str) -> None:
    """Allow the user everything with topics of this prefix, and others something with theirs."""
    creations = [_acl(topic, USER), *(_acl(f"other-{number}", f"other-{number}") for number in range(OTHERS))]
    results = wire.call("create_acls", 1, creations=creations)["results"]
    assert not any(result["error_code"] for result in results)


def _acl(prefix: str, user: str) -> dict[str, object]:
    return {
        "resource_type": 2,  # topics
        "resource_name": prefix,
        "resource_pattern_type": 4,  # prefixed
        "principal": f"User:{user}",
        "host": "*",
        "operation": 2,  # all
        "permission_type": 3,  # allowed
    }
