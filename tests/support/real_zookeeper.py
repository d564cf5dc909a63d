"""Real ZooKeeper servers for tests: one, or an ensemble of three, as processes on free ports of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from kazoo.client import KazooClient

from ottla.local_cluster.zookeeper_command import Peers, ZooKeeperServer, ZooKeeperTls
from ottla.local_cluster.zookeeper_jars import zookeeper_jars
from ottla.metadata_store.zookeeper import ZooKeeperStore
from tests.support.jvm import java
from tests.support.processes import NotReady, free_port, stop

START_TIMEOUT_S = 60.0
TICK_MS = 200
"""Sessions of 400 ms to 4 s are possible."""


@cache
def jars(*, with_tls: bool = False) -> Path:
    """The server's jars. Raises `JarsNotFound`."""
    return zookeeper_jars(os.environ, lambda line: print(line, file=sys.stderr), with_tls=with_tls)


class RealZooKeeper:
    """One ZooKeeper process and its directory; `start` and `stop` or `kill` alternate."""

    def __init__(
        self,
        directory: Path,
        *,
        member: int = 1,
        port: int = 0,
        peers: Peers | None = None,
        tick_ms: int = TICK_MS,
        tls: ZooKeeperTls | None = None,
    ) -> None:
        self.server = ZooKeeperServer(
            java(),
            jars(with_tls=tls is not None),
            directory,
            port or free_port(),
            member=member,
            peers=peers or {},
            tick_ms=tick_ms,
            tls=tls,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.log_file = directory / "zookeeper.out"
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        """host:port for clients."""
        return self.server.address

    def start(self, *, wait: bool = True) -> RealZooKeeper:
        """Start it; with `wait` return when it serves. Raises `NotReady`."""
        with self.log_file.open("ab") as out:
            self.process = subprocess.Popen(self.server.prepare(), stdout=out, stderr=out)
        if wait:
            self.wait_until_serving()
        return self

    def wait_until_serving(self) -> None:
        """Return when it serves clients. Raises `NotReady`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.server.is_serving():
            if time.monotonic() > deadline or (self.process and self.process.poll() is not None):
                raise NotReady(self.log_file.read_text(errors="replace")[-2000:])
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop it with SIGTERM."""
        assert self.process is not None
        stop(self.process)

    def kill(self) -> None:
        """Kill it with -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Suspend the process: it neither answers nor closes its connections."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended process run again."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class RealEnsemble:
    """Three servers that elect a leader."""

    def __init__(self, directory: Path, *, members: int = 3, tick_ms: int = TICK_MS) -> None:
        peers = {member: (free_port(), free_port()) for member in range(1, members + 1)}
        self.servers = {
            member: RealZooKeeper(directory / f"zookeeper-{member}", member=member, peers=peers, tick_ms=tick_ms)
            for member in peers
        }

    @property
    def address(self) -> str:
        """All addresses, for clients."""
        return ",".join(server.address for server in self.servers.values())

    def start(self) -> RealEnsemble:
        """Start all servers; returns when all serve."""
        for server in self.servers.values():
            server.start(wait=False)
        for server in self.servers.values():
            server.wait_until_serving()
        return self

    def stop(self) -> None:
        """Stop the servers that run."""
        for server in self.servers.values():
            if server.process is not None and server.process.poll() is None:
                server.kill()


@contextmanager
def running_zookeeper(directory: Path, *, tick_ms: int = TICK_MS) -> Iterator[RealZooKeeper]:
    """Run one server for the duration of a block."""
    server = RealZooKeeper(directory, tick_ms=tick_ms).start()
    try:
        yield server
    finally:
        server.kill()


async def end_session_from_elsewhere(store: ZooKeeperStore) -> None:
    """End the session of a store as ZooKeeper does after the timeout: a second client with its id closes it."""
    assert store._session is not None
    client = store._session._connection._client

    def end() -> None:
        hosts = ",".join(f"{host}:{port}" for host, port in client.hosts)
        other = KazooClient(hosts, client_id=client.client_id)
        other.start()
        other.stop()
        other.close()

    await asyncio.to_thread(end)
