"""Describes one ZooKeeper server: its directory, its configuration file, and the command that runs it.

A server is a member of an ensemble if it has peers, otherwise it is standalone. The owner starts and stops the process.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

TICK_MS = 1000
"""Sessions last at least 2 and at most 20 ticks."""

_STANDALONE = "org.apache.zookeeper.server.ZooKeeperServerMain"
_MEMBER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# Small and quick to start: one broker's registration and the metadata of 10,000 partitions need 30 MB.
_JVM_OPTIONS = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_ANSWER_MAX = 4096

Peers = Mapping[int, tuple[int, int]]
"""The members of an ensemble by id: the ports for followers and for elections."""


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """The certificates of a server that only takes connections with TLS, of clients with a certificate."""

    identity: Path
    """A PEM file: the key and the certificates of the server."""
    trusted: Path

    def settings(self) -> dict[str, object]:
        """Return what zoo.cfg has of TLS."""
        return {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": self.identity,
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": self.trusted,
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
        }

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a client that is the server itself."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        context.load_cert_chain(self.identity)
        return context


@dataclass(frozen=True, slots=True)
class ZooKeeperServer:
    """One server on this machine."""

    java: Path
    jars: Path
    directory: Path
    port: int
    host: str = "127.0.0.1"
    member: int = 1
    peers: Peers = field(default_factory=dict)
    tick_ms: int = TICK_MS
    tls: ZooKeeperTls | None = None

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{self.host}:{self.port}"

    def configuration(self) -> str:
        """Return the content of zoo.cfg."""
        port = "clientPort" if self.tls is None else "secureClientPort"
        settings: dict[str, object] = {
            "tickTime": self.tick_ms,
            "initLimit": max(5, 10_000 // self.tick_ms),
            "syncLimit": max(2, 5_000 // self.tick_ms),
            "dataDir": self.directory / "data",
            port: self.port,
            f"{port}Address": self.host,
            "maxClientCnxns": 0,
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,srvr",
        }
        if self.tls is not None:
            settings |= self.tls.settings()
        settings |= {
            f"server.{member}": f"{self.host}:{followers}:{elections}"
            for member, (followers, elections) in self.peers.items()
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())

    def prepare(self) -> list[str]:
        """Write the configuration and return the command that runs the server in the foreground."""
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        file = self.directory / "zoo.cfg"
        file.write_text(self.configuration())
        if self.peers:
            (self.directory / "data" / "myid").write_text(f"{self.member}\n")
        logging = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
        main = _MEMBER if self.peers else _STANDALONE
        return [str(self.java), *_JVM_OPTIONS, *logging, "-cp", f"{self.jars}{os.sep}*", main, str(file)]

    def _connect(self) -> socket.socket:
        plain = socket.create_connection((self.host, self.port), timeout=1.0)
        if self.tls is None:
            return plain
        try:
            return self.tls.client_context().wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise

    def is_serving(self) -> bool:
        """Return whether it serves clients: in an ensemble only once there is a leader."""
        try:
            with self._connect() as connection:
                connection.sendall(b"srvr")
                answer = b""
                while len(answer) < _ANSWER_MAX and (piece := connection.recv(_ANSWER_MAX)):
                    answer += piece
        except OSError:
            return False
        return b"Mode:" in answer
