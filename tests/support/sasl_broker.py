"""A broker in this process whose listener requires SASL, and a client that says exactly what a test wants said."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from scramp import ScramClient

from ottla.controller.config_changes import AlterConfig, ConfigChange
from ottla.core.settings import AlterConfigOpType
from ottla.metadata_store import znodes
from ottla.security.sasl.credentials import HASHES, from_password, to_text
from ottla.testing.cluster import TestCluster
from ottla.testing.real_machine import RealMachines
from tests.support.wire_client import Answer, decode, encode

PASSWORD = "correct horse"
PLAIN_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="plain secret";'
BASE = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": PLAIN_JAAS,
    "connection.failed.authentication.delay.ms": "5",
}


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._correlation_id = 0

    @classmethod
    async def connect(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.writer.transport.abort()

    def send_frame(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def receive_frame(self) -> bytes:
        """The next frame; empty if the broker closed the connection."""
        try:
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return b""

    async def call(self, api: str, version: int, **values: Any) -> Answer | None:
        """The answer to a request; None if the broker closed the connection."""
        self._correlation_id += 1
        self.send_frame(encode(api, version, self._correlation_id, values))
        frame = await self.receive_frame()
        return decode(api, version, frame)[1] if frame else None

    async def handshake(self, mechanism: str, version: int = 1) -> Answer | None:
        return await self.call("sasl_handshake", version, mechanism=mechanism)

    async def token(self, token: bytes, version: int = 2) -> Answer | None:
        return await self.call("sasl_authenticate", version, auth_bytes=token)

    async def raw_token(self, token: bytes) -> bytes:
        self.send_frame(token)
        return await self.receive_frame()

    async def sign_in(
        self, user: str = "alice", password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256", *, version: int = 2
    ) -> Answer:
        """Sign in; the last answer."""
        answer = await self.handshake(mechanism)
        assert answer is not None and answer["error_code"] == 0, answer
        client = ScramClient([mechanism], user, password)
        answer = await self.token(client.get_client_first().encode(), version)
        assert answer is not None and answer["error_code"] == 0, answer
        client.set_server_first(answer["auth_bytes"].decode())
        answer = await self.token(client.get_client_final().encode(), version)
        assert answer is not None
        if answer["error_code"] == 0:
            client.set_server_final(answer["auth_bytes"].decode())
        return answer

    async def may_ask(self) -> bool:
        """Whether a request of a client that has signed in is served."""
        return await self.call("metadata", 8, topics=[]) is not None

    @property
    async def is_closed(self) -> bool:
        return await self.receive_frame() == b""


class SaslBroker:
    """The broker."""

    def __init__(self, cluster: TestCluster) -> None:
        self.cluster = cluster

    @property
    def port(self) -> int:
        return self.cluster.ports[1]

    async def client(self) -> Client:
        return await Client.connect(self.port)

    async def add_user(self, name: str, password: str = PASSWORD) -> None:
        """Give a user a credential of both mechanisms."""
        changes = [
            ConfigChange(AlterConfigOpType.SET, mechanism, to_text(from_password(mechanism, password)))
            for mechanism in HASHES
        ]
        event = AlterConfig(znodes.USERS_KIND, znodes.sanitized(name), changes, {}, lambda _values: None)
        assert await self.cluster.services(1).controller.alter_configs([event]) == [None]


@asynccontextmanager
async def sasl_broker(path: Path, options: Mapping[str, str] | None = None) -> AsyncIterator[SaslBroker]:
    """Run a broker with the user alice."""
    options = {**BASE, **(options or {})}
    async with TestCluster(RealMachines(path), options=options, has_shared_store=False) as cluster:
        await cluster.start(1)
        broker = SaslBroker(cluster)
        await broker.add_user("alice")
        yield broker
