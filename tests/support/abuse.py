"""Clients that abuse a broker, each kind in a process of its own, and an innocent one beside them.

    python -m tests.support.abuse KIND COUNT SASL_PORT TLS_PORT

It prints a line once it has begun, has done COUNT (connections, attempts or requests) and goes on, and ends with its
standard input, when it prints how many it did. The broker has the users of `settings`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import select
import selectors
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from ottla.broker.record_validation_queue import HELD_BYTES_MAX, THREADS
from ottla.core.error_codes import ErrorCode
from ottla.net.connection import BUFFER_BYTES
from ottla.net.outbound import HANDED_OVER_BYTES
from ottla.net.tls import UNFINISHED_MAX
from ottla.records.codecs import DECOMPRESSED_BYTES_MAX
from ottla.security.config import AUTHORIZERS
from ottla.security.sasl.jaas import PLAIN_MODULE
from tests.support.batches import CODECS, Written, batch, numbered, record, with_payload
from tests.support.certificates import Certificates
from tests.support.signed_in import SignedInWire
from tests.support.wire_client import ConnectionEnded, Wire, encode

ADMIN, INNOCENT, READER, BOMBER, HOG = "admin", "innocent", "reader", "bomber", "hog"
PASSWORD = "secret of all"
OWN, BIG, COMPACTED, FILLED = "own", "big", "compacted", "filled"
"""Topics: of the innocent client, of slow readers, of bombs, and of the client that is above its quota."""

MIB = 1 << 20
QUOTA_BYTES = 4 * MIB
"""A second, of `hog`, which sends as fast as it can: more than ten times as much."""
PIECE_BYTES = 256 << 10
_CONNECTIONS_ABOVE_QUOTA = 10
IN_FLIGHT = 100
MARGIN = 1.25
"""So much of its budget the memory may be at its peak."""

_OF_A_CONNECTION = 8 << 10
_OF_A_STREAM = 160 << 10
"""OpenSSL's memory, a piece that it has encrypted, and the piece that comes next."""
_SLACK = 8 * MIB
"""Of the allocator, and what is imported or made at the first time."""
_READ_BYTES = 4 * MIB
_SMALL_WINDOW = 4096
_MECHANISM = "SCRAM-SHA-256"


def settings(certificates: Certificates, users_file: Path) -> dict[str, str]:
    """Return the settings of the broker: a listener with SASL alone, another one with TLS too, ACLs, and its users."""
    users_file.write_text(f"{ADMIN}={PASSWORD}\n{INNOCENT}={PASSWORD}\n")
    users = " ".join(f'user_{user}="{PASSWORD}"' for user in (ADMIN, READER, BOMBER, HOG))
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": f"{_MECHANISM},PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
        "ottla.initial.users.file": str(users_file),
        "authorizer.class.name": AUTHORIZERS[0],
        "super.users": f"User:{ADMIN}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.store("server.pem")),
        "max.connections": "20000",
    }


def connected(port: int, user: str, *, tls: ssl.SSLContext | None = None, mechanism: str = "PLAIN") -> SignedInWire:
    """Connect and sign in."""
    return SignedInWire(port, user, PASSWORD, tls=tls, mechanism=mechanism, timeout_s=120)


def prepare(port: int) -> None:
    """Create the topics, what each user may do, and the quota."""
    with connected(port, ADMIN) as wire:
        config = [{"name": "cleanup.policy", "value": "compact"}, {"name": "max.message.bytes", "value": str(8 * MIB)}]
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": config if name == COMPACTED else []}
            for name in (OWN, BIG, COMPACTED, FILLED)
        ]
        made = wire.call("create_topics", 5, topics=topics, timeout=20_000)
        assert not any(topic["error_code"] for topic in made["topics"]), made
        acls = [
            {
                "resource_type": 2,
                "resource_name": topic,
                "resource_pattern_type": 3,
                "principal": f"User:{user}",
                "host": "*",
                "operation": 2,
                "permission_type": 3,
            }
            for user, topic in ((INNOCENT, OWN), (READER, BIG), (BOMBER, COMPACTED), (HOG, FILLED))
        ]
        assert not any(result["error_code"] for result in wire.call("create_acls", 2, creations=acls)["results"])
        entry = {
            "entity": [{"entity_type": "user", "entity_name": HOG}],
            "ops": [{"key": "producer_byte_rate", "value": float(QUOTA_BYTES), "remove": False}],
        }
        wire.call("alter_client_quotas", 1, entries=[entry], validate_only=False)
        for _ in range(3 * _READ_BYTES // (512 << 10)):
            assert not produce(wire, BIG, batch([Written(os.urandom(512 << 10), None)]))


def produce(wire: Wire, topic: str, records: bytes) -> int:
    """Produce one batch; returns the error."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    answer = wire.call("produce", 9, acks=-1, timeout=60_000, topic_data=data)
    code: int = answer["responses"][0]["partition_responses"][0]["error_code"]
    return code


# ---- The innocent client


class Innocent:
    """A client on a connection with TLS, signed in by SCRAM, that produces and asks for metadata."""

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        self._port, self._tls = port, tls
        self.wire = self._connect()
        self._records = batch(numbered(1))

    def _connect(self) -> SignedInWire:
        return connected(self._port, INNOCENT, tls=self._tls, mechanism=_MECHANISM)

    def ask(self) -> None:
        """Make both requests. Raises AssertionError for an error."""
        assert not produce(self.wire, OWN, self._records)
        answer = self.wire.call("metadata", 8, topics=[{"name": OWN}], allow_auto_topic_creation=False)
        assert not answer["topics"][0]["error_code"]

    def sign_in_again(self) -> None:
        """Make another connection in place of this one."""
        self.wire.close()
        self.wire = self._connect()

    def close(self) -> None:
        """End the connection."""
        self.wire.close()


# ---- The abusers


class Ports(NamedTuple):
    """Where the broker listens."""

    sasl: int
    tls: int


Abuse = Callable[[int, Ports], Iterator[None]]
"""Given how many connections it may hold, yields after each one or each attempt."""


def _framed(api: str, version: int, **values: object) -> bytes:
    frame = encode(api, version, 1, dict(values), "abuser")
    return struct.pack(">i", len(frame)) + frame


def idle(count: int, ports: Ports) -> Iterator[None]:
    """Hold connections of clients that have not signed in: silent ones, and with half a request or half a handshake."""
    held = []
    hello = client_hello()
    for number in range(count):
        to_tls = number % 2
        made = socket.create_connection(("127.0.0.1", ports.tls if to_tls else ports.sasl), timeout=60)
        held.append(made)
        if number % 4 > 1:
            made.sendall(hello[:100] if to_tls else struct.pack(">i", 30_000) + bytes(100))
        yield
    while True:
        yield


def slow_readers(count: int, ports: Ports) -> Iterator[None]:
    """Hold connections that ask for megabytes, several times, and read nothing."""
    context = ssl._create_unverified_context()
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": _READ_BYTES, "current_leader_epoch": -1}
    asked = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": _READ_BYTES, "session_epoch": -1}
    fetch = _framed("fetch", 11, **asked, topics=[{"topic": BIG, "partitions": [part]}])
    held = []
    for number in range(count):
        to_tls = number % 2
        wire = connected(ports.tls if to_tls else ports.sasl, READER, tls=context if to_tls else None)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_WINDOW)
        wire.socket.sendall(fetch * 20)
        held.append(wire)
        yield
    while True:
        yield


def failed_sign_ins(_: int, ports: Ports) -> Iterator[None]:
    """Sign in by wrong passwords and unknown users, and by messages that are none."""
    plain = _framed("sasl_handshake", 1, mechanism="PLAIN") + _framed(
        "sasl_authenticate", 1, auth_bytes=b"\0innocent\0wrong"
    )
    scram = (
        _framed("sasl_handshake", 1, mechanism=_MECHANISM)
        + _framed("sasl_authenticate", 1, auth_bytes=b"n,,n=innocent,r=abc")
        + _framed("sasl_authenticate", 1, auth_bytes=b"c=biws,r=abcdef,p=" + b"A" * 43 + b"=")
    )
    none = _framed("sasl_handshake", 1, mechanism="GSSAPI") + _framed("sasl_authenticate", 1, auth_bytes=b"x" * 1000)
    return _flood(ports.sasl, itertools.cycle((plain, scram, none)), until_closed=True)


def handshakes(_: int, ports: Ports) -> Iterator[None]:
    """Begin TLS handshakes by a message that costs nothing, and leave when the broker has answered it."""
    return _flood(ports.tls, itertools.repeat(client_hello()), until_closed=False)


def _flood(port: int, messages: Iterable[bytes], *, until_closed: bool) -> Iterator[None]:
    """Connect and send again and again, with some connections at a time."""
    abort = struct.pack("ii", 1, 0)  # leaves no port that waits
    source = iter(messages)
    with selectors.DefaultSelector() as selector:
        while True:
            while len(selector.get_map()) < IN_FLIGHT:
                made = socket.create_connection(("127.0.0.1", port), timeout=60)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, abort)
                with contextlib.suppress(ConnectionError):
                    made.sendall(next(source))
                selector.register(made, selectors.EVENT_READ)
            for key, _ in selector.select(1):
                connection = cast("socket.socket", key.fileobj)
                with contextlib.suppress(ConnectionError):
                    if connection.recv(65536) and until_closed:
                        continue
                selector.unregister(connection)
                connection.close()
                yield


def client_hello() -> bytes:
    """Return the first message of a TLS client."""
    outgoing = ssl.MemoryBIO()
    tls = ssl._create_unverified_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def bombs(_: int, ports: Ports) -> Iterator[None]:
    """Produce batches whose records unpack to more than they may, or are none."""
    sent = []
    for codec, compress in CODECS.items():
        bomb = bytes(compress(bytes(2 * DECOMPRESSED_BYTES_MAX)))
        garbage = bytes(compress(bytes(DECOMPRESSED_BYTES_MAX - 1)))
        keyless = bytes(compress(record(Written(bytes(12 << 20), None), 0)))
        sent += [
            with_payload(payload, count=count, attributes=codec)
            for payload, count in ((bomb, 9), (garbage, 9), (keyless, 1))
        ]
    wires = [connected(ports.sasl, BOMBER) for _ in range(4)]
    for records in itertools.cycle(sent):
        data = [{"name": COMPACTED, "partition_data": [{"index": 0, "records": records}]}]
        pending = [(wire, wire.send("produce", 9, acks=-1, timeout=60_000, topic_data=data)) for wire in wires]
        for wire, correlation_id in pending:
            answer = wire.receive("produce", 9, correlation_id)
            (refused,) = answer["responses"][0]["partition_responses"]
            assert refused["error_code"] == ErrorCode.INVALID_RECORD, refused
            yield


def above_quota(_: int, ports: Ports) -> Iterator[None]:
    """Produce as fast as several connections take it, whatever the broker says about waiting."""
    data = [{"name": FILLED, "partition_data": [{"index": 0, "records": batch([Written(bytes(PIECE_BYTES), None)])}]}]
    frame = _framed("produce", 9, acks=-1, timeout=60_000, topic_data=data)
    wires = [connected(ports.sasl, HOG) for _ in range(_CONNECTIONS_ABOVE_QUOTA)]
    left = {wire.socket: memoryview(b"") for wire in wires}
    while True:
        readable, writable, __ = select.select(left, left, [], 1)
        for connection in writable:
            rest = left[connection] or memoryview(frame)
            left[connection] = rest[connection.send(rest) :]
        for connection in readable:
            if not connection.recv(65536):
                raise ConnectionEnded
            yield


ABUSES: dict[str, Abuse] = {
    "idle connections": idle,
    "slow readers": slow_readers,
    "failed sign-ins": failed_sign_ins,
    "TLS handshakes": handshakes,
    "compressed bombs": bombs,
    "10x the quota": above_quota,
}


def budget_bytes(kind: str, count: int) -> int:
    """Return what a broker may hold for an abuser. Of a flood's connections there are twice as many as at a time."""
    budgets = {
        "idle connections": count * _OF_A_CONNECTION + count // 4 * BUFFER_BYTES + UNFINISHED_MAX * _OF_A_STREAM // 2,
        "slow readers": count * (_OF_A_CONNECTION + BUFFER_BYTES + HANDED_OVER_BYTES) + count // 2 * _OF_A_STREAM,
        "failed sign-ins": 2 * IN_FLIGHT * (_OF_A_CONNECTION + BUFFER_BYTES),
        "TLS handshakes": 2 * IN_FLIGHT * (_OF_A_CONNECTION + _OF_A_STREAM),
        "compressed bombs": HELD_BYTES_MAX + THREADS * DECOMPRESSED_BYTES_MAX,
        "10x the quota": _CONNECTIONS_ABOVE_QUOTA * (_OF_A_CONNECTION + MIB),
    }
    return budgets[kind] + _SLACK


class Abuser:
    """One kind of abuse, in a process."""

    def __init__(self, kind: str, count: int, ports: Ports, *, prefix: Sequence[str] = ()) -> None:
        program = [*prefix, sys.executable, "-m", "tests.support.abuse"]
        command = [*program, kind, str(count), str(ports.sasl), str(ports.tls)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def has_done_its_count(self) -> bool:
        """Whether it has done as many as it was asked to."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def stop(self) -> int:
        """End it; returns how many it did."""
        output, _ = self._process.communicate("", timeout=60)
        assert self._process.returncode == 0, output
        return int(output.split()[-1])


def main(kind: str, count: int, ports: Ports) -> None:
    """Abuse the broker until standard input ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    done, checked_s = 0, 0.0
    abuse = ABUSES[kind](count, ports)
    holds = kind in {"idle connections", "slow readers"}
    with contextlib.suppress(ConnectionEnded):
        for _ in abuse:
            done += 1
            if done == count:
                sys.stdout.write("has done its count\n")
                sys.stdout.flush()
                if holds:
                    sys.stdin.read()
                    break
            now = time.monotonic()
            if now - checked_s > 0.05:
                checked_s = now
                if select.select([sys.stdin], [], [], 0)[0]:
                    break
    sys.stdout.write(f"{done}\n")
    sys.stdout.flush()
    os._exit(0)  # at once: its connections end with it


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Ports(int(sys.argv[3]), int(sys.argv[4])))
