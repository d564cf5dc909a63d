"""Three brokers and ZooKeeper as processes, with a proxy before each listener and before ZooKeeper.

`cut_off` separates a broker from ZooKeeper, from the other brokers or from its clients; `heal` ends it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.support.log_files import batches_in
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_ports
from tests.support.real_zookeeper import RealZooKeeper
from tests.support.tcp_proxy import TcpProxy

SESSION_TIMEOUT_MS = 4000
LAG_TIME_MS = 5000


class ProxiedCluster:
    """Lifecycle: `start`, faults, `close`."""

    def __init__(self, directory: Path, *, brokers: int = 3) -> None:
        self.directory = directory
        self.nodes = range(1, brokers + 1)
        self.zookeeper = RealZooKeeper(directory / "zookeeper", tick_ms=500)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        first = free_ports(2 * brokers)
        self._ports = {node: (first + 2 * (node - 1), first + 2 * (node - 1) + 1) for node in self.nodes}
        self.to_zookeeper: dict[int, TcpProxy] = {}
        self.to_broker: dict[int, TcpProxy] = {}  # from the other brokers
        self.from_clients: dict[int, TcpProxy] = {}
        self.brokers: dict[int, OttlaProcess] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(proxy.address for proxy in self.from_clients.values())

    def start(self) -> ProxiedCluster:
        self._thread.start()
        self.zookeeper.start()
        for node, (clients, internal) in self._ports.items():
            self.to_zookeeper[node] = self._run(TcpProxy("127.0.0.1", self.zookeeper.server.port).start())
            self.to_broker[node] = self._run(TcpProxy("127.0.0.1", internal).start())
            self.from_clients[node] = self._run(TcpProxy("127.0.0.1", clients).start())
            settings = {
                "node.id": node,
                "zookeeper.connect": f"{self.to_zookeeper[node].address}/ottla",
                "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
                "listeners": f"CLIENTS://127.0.0.1:{clients},INTERNAL://127.0.0.1:{internal}",
                "advertised.listeners": f"CLIENTS://{self.from_clients[node].address},"
                f"INTERNAL://{self.to_broker[node].address}",
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INTERNAL:PLAINTEXT",
                "inter.broker.listener.name": "INTERNAL",
                "min.insync.replicas": 2,
                "replica.lag.time.max.ms": LAG_TIME_MS,
            }
            options = [text for name, value in settings.items() for text in ("-o", f"{name}={value}")]
            broker = OttlaProcess(self.directory / f"node-{node}", options=options)
            broker.port = clients
            self.brokers[node] = broker.start()
        return self

    def log(self, node: int) -> str:
        return self.brokers[node].log

    def content(self, node: int, topic: str, partition: int) -> bytes:
        """Every batch of a replica's log."""
        directory = self.brokers[node].data / f"{topic}-{partition}"
        return b"".join(batches_in(file) for file in sorted(directory.glob("*.log")))

    @property
    def proxies(self) -> list[TcpProxy]:
        return [*self.to_zookeeper.values(), *self.to_broker.values(), *self.from_clients.values()]

    def cut_off(self, proxy: TcpProxy, *, silently: bool = False) -> None:
        """Lose what goes through a proxy: connections are closed and refused, or `silently` all bytes vanish."""
        self._change(proxy, drops_requests=silently, drops_answers=silently, cut=not silently, refuses=not silently)

    def lose_answers(self, proxy: TcpProxy) -> None:
        """Let requests through a proxy, and lose the answers."""
        self._change(proxy, drops_answers=True)

    def heal(self, proxy: TcpProxy) -> None:
        """Let connections through again; those that have lost bytes are closed."""
        self._change(proxy, cut=True)

    def _change(
        self,
        proxy: TcpProxy,
        *,
        drops_requests: bool = False,
        drops_answers: bool = False,
        cut: bool = False,
        refuses: bool = False,
    ) -> None:
        async def change() -> None:
            proxy.drops_requests, proxy.drops_answers = drops_requests, drops_answers
            proxy.refuses = refuses
            if cut:
                proxy.cut()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(10)

    def _run(self, starting: Coroutine[Any, Any, TcpProxy]) -> TcpProxy:
        return asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)

    def close(self) -> None:
        for broker in self.brokers.values():
            if broker.process is not None and broker.process.poll() is None:
                broker.kill()
        if self.zookeeper.process is not None:
            self.zookeeper.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
