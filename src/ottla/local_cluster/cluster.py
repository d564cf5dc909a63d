"""Runs ZooKeeper and several brokers on this machine until a signal, and starts it all again with its data.

The directory contains `zookeeper/`, a data directory and a log for each broker, and `cluster.json`, the number of
brokers and their ports; `local_cluster/secured.py` adds what a secured one needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.client import admin
from ottla.client.addresses import Address
from ottla.client.cluster import Cluster
from ottla.client.properties import client_options
from ottla.core.clock import SystemClock
from ottla.core.errors import KafkaError
from ottla.local_cluster.control import ControlServer
from ottla.local_cluster.processes import ChildProcess, free_port, last_message
from ottla.local_cluster.secured import SecuredCluster, hidden, secure
from ottla.local_cluster.zookeeper_command import ZooKeeperServer
from ottla.local_cluster.zookeeper_jars import zookeeper_jars
from ottla.pipeline.java import java_home

DEFAULT_BROKERS, DEFAULT_PORT = 3, 9092
HOST = "127.0.0.1"
SESSION_TIMEOUT_MS = 6000
"""Kafka's 18 s are for networks; on one machine a killed broker is replaced sooner."""

_START_TIMEOUT_S, _STOP_TIMEOUT_S = 60.0, 30.0
_POLL_S = 0.05
_RESTART_PAUSE_S = 1.0
_REPLICAS_MAX = 3
_PORT_MAX = 65535
_MIN_ISR = 2

Notify = Callable[[str], None]


class CannotRun(Exception):
    """Reports why the cluster does not run."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Describes the brokers of a cluster: `brokers` of them, on the ports from `port` on."""

    brokers: int
    port: int
    is_secured: bool = False

    @property
    def nodes(self) -> range:
        """Return the brokers' ids."""
        return range(1, self.brokers + 1)

    def address(self, node: int) -> str:
        """Return host:port of a broker."""
        return f"{HOST}:{self.port + node - 1}"

    @property
    def bootstrap(self) -> str:
        """Return all addresses, for clients."""
        return ",".join(map(self.address, self.nodes))


def make_plan(directory: Path, *, brokers: int | None, port: int | None, secured: bool = False) -> ClusterPlan:
    """Combine what is asked for with what the directory has from the last time. Raises CannotRun."""
    saved = _saved_plan(directory)
    if saved is not None and secured and not saved.is_secured:
        raise CannotRun(
            f"{directory} has a cluster without security. Start it without --secure, or give --data another directory"
        )
    plan = ClusterPlan(
        brokers or (saved.brokers if saved else DEFAULT_BROKERS),
        port or (saved.port if saved else DEFAULT_PORT),
        saved.is_secured if saved else secured,
    )
    if plan.port + plan.brokers - 1 > _PORT_MAX:
        raise CannotRun(
            f"{plan.brokers} brokers from port {plan.port} on need ports above {_PORT_MAX}: give a lower --port"
        )
    if saved is not None and plan.brokers < saved.brokers:
        raise CannotRun(
            f"{directory} has {saved.brokers} brokers, whose partitions {plan.brokers} would not have. "
            f"Start it with -n {saved.brokers}, or without -n"
        )
    return plan


def _saved_plan(directory: Path) -> ClusterPlan | None:
    file = directory / "cluster.json"
    try:
        found = json.loads(file.read_text())
        return ClusterPlan(int(found["brokers"]), int(found["port"]), bool(found.get("secured", False)))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CannotRun(f"{file} cannot be read: {error!r}. Restore it, or give --data another directory") from error


def broker_settings(plan: ClusterPlan, node: int, zookeeper: str) -> dict[str, str]:
    """Return the settings of a broker that differ from the defaults."""
    factor = str(min(plan.brokers, _REPLICAS_MAX))
    return {
        "node.id": str(node),
        "zookeeper.connect": f"{zookeeper}/ottla",
        "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "default.replication.factor": factor,
        "min.insync.replicas": str(_MIN_ISR if plan.brokers >= _REPLICAS_MAX else 1),
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "share.coordinator.state.topic.replication.factor": factor,
    }


class LocalCluster:
    """The processes of one cluster. Call `run` once."""

    def __init__(
        self,
        directory: Path,
        plan: ClusterPlan,
        *,
        options: Mapping[str, str],
        environment: Mapping[str, str],
        notify: Notify,
        report_ready: Notify,
        metrics_port: int | None = None,
    ) -> None:
        self._directory, self._plan, self._options = directory, plan, options
        self._metrics_port = metrics_port  # of the first broker
        self._environment, self._notify, self._report_ready = environment, notify, report_ready
        self._zookeeper: ChildProcess | None = None
        self._zookeeper_address = ""
        self._brokers: dict[int, ChildProcess] = {}
        self._states = dict.fromkeys(plan.nodes, "stopped")
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._secured: SecuredCluster | None = None

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises CannotRun, JavaNotFound, JarsNotFound and OSError."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._stopping.set)
        self._directory.mkdir(parents=True, exist_ok=True)
        with _lock(self._directory):
            control = ControlServer(self._directory, self._handle)
            try:
                starting = loop.create_task(self._start(control))
                stopping = loop.create_task(self._stopping.wait())
                await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    await starting
                else:
                    starting.cancel()
                    await asyncio.gather(starting, return_exceptions=True)
                await stopping
            finally:
                self._stopping.set()
                await control.close()
                await self._stop()

    # ---- Start and stop

    async def _start(self, control: ControlServer) -> None:
        if self._plan.is_secured:
            self._secured = secure(self._directory, clock=SystemClock())
        await self._start_zookeeper()
        saved = {"version": 1, "brokers": self._plan.brokers, "port": self._plan.port}
        if self._plan.is_secured:
            saved["secured"] = True
        (self._directory / "cluster.json").write_text(json.dumps(saved) + "\n")
        self._notify(f"starting {self._plan.brokers} brokers")
        await asyncio.gather(*map(self._start_broker, self._plan.nodes))
        await self._until_complete()
        await control.open()
        if self._secured is not None:
            self._secured.write_client_settings(self._plan.bootstrap)
        self._report_ready(f"cluster ready: {self._plan.bootstrap}")
        if self._secured is not None:
            settings = {"bootstrap.servers": self._plan.bootstrap, **self._secured.client_settings()}
            self._report_ready("\n".join([f"# the administrator, from {self._secured.admin_file}", *hidden(settings)]))

    async def _start_zookeeper(self) -> None:
        java = await asyncio.to_thread(java_home, self._environment, self._notify)
        tls = None if self._secured is None else self._secured.zookeeper_tls
        jars = await asyncio.to_thread(zookeeper_jars, self._environment, self._notify, with_tls=tls is not None)
        self._notify("starting ZooKeeper")
        server = ZooKeeperServer(java / "bin" / "java", jars, self._directory / "zookeeper", free_port(), tls=tls)
        self._zookeeper_address = server.address
        await self._run_zookeeper(server)
        self._keep(self._watch_zookeeper(server))

    async def _run_zookeeper(self, server: ZooKeeperServer) -> None:
        log_file = self._directory / "zookeeper.log"
        process = self._zookeeper = await ChildProcess.start(server.prepare(), log_file, ends_with_parent=True)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while not await asyncio.to_thread(server.is_serving):
                    if not process.is_running:
                        raise CannotRun(f"ZooKeeper ended at its start: {last_message(log_file)}. See {log_file}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise CannotRun(f"ZooKeeper did not start within {_START_TIMEOUT_S:g} s. See {log_file}") from None

    async def _watch_zookeeper(self, server: ZooKeeperServer) -> None:
        """Start ZooKeeper again whenever it ends."""
        while self._zookeeper is not None:
            code = await self._zookeeper.wait()
            if self._stopping.is_set():
                return
            self._notify(f"ZooKeeper {_ending(code)}: it is started again. See {self._directory / 'zookeeper.log'}")
            await asyncio.sleep(_RESTART_PAUSE_S)
            try:
                await self._run_zookeeper(server)
            except CannotRun as error:
                self._notify(str(error))

    async def _start_broker(self, node: int) -> None:
        """Start a broker and wait until it serves. Raises CannotRun."""
        log_file = self._directory / f"broker-{node}.log"
        settings = {**broker_settings(self._plan, node, self._zookeeper_address), **self._options}
        if self._metrics_port is not None:
            settings["ottla.http.listener"] = f"{HOST}:{self._metrics_port + node - 1}"
        command = [sys.executable, "-m", "ottla", "server", "--while-stdin-open", "--format", "json"]
        command += ["--data", str(self._directory / f"broker-{node}")]
        if self._secured is None:
            command += ["--port", str(self._plan.port + node - 1)]
        else:
            command += ["--config", str(self._secured.write_broker_settings(node, self._plan.address(node)))]
        for name, value in settings.items():
            command += ["-o", f"{name}={value}"]
        self._states[node] = "starting"
        process = self._brokers[node] = await ChildProcess.start(command, log_file, ends_with_parent=False)
        ready = await process.first_line()
        if not ready:
            code = await process.wait()
            self._states[node] = _ending(code)
            raise CannotRun(f"broker {node} {_ending(code)} at its start: {last_message(log_file)}. See {log_file}")
        self._states[node] = "running"
        self._keep(self._watch_broker(node, process, log_file))

    async def _watch_broker(self, node: int, process: ChildProcess, log_file: Path) -> None:
        """Report the end of a broker. It is not started again: its end may be an experiment."""
        code = await process.wait()
        if self._brokers.get(node) is process:
            self._states[node] = _ending(code)
            if not self._stopping.is_set():
                advice = f"start it again with: ottla up --data {self._directory} --start {node}"
                self._notify(f"broker {node} {_ending(code)}, see {log_file}; {advice}")

    async def _until_complete(self) -> None:
        """Wait until each broker knows all of them."""
        options = None if self._secured is None else client_options(self._secured.client_settings())
        for node in self._plan.nodes:
            host, _, port = self._plan.address(node).partition(":")
            cluster = await Cluster.connect([Address(host, int(port))], options=options)
            try:
                async with asyncio.timeout(_START_TIMEOUT_S):
                    while len((await admin.describe_cluster(cluster)).nodes) < self._plan.brokers:  # noqa: ASYNC110
                        await asyncio.sleep(_POLL_S)
            except (TimeoutError, KafkaError, OSError) as error:
                raise CannotRun(f"broker {node} does not know all brokers: {error!r}") from error
            finally:
                await cluster.close()

    async def _stop(self) -> None:
        """Stop the brokers, and ZooKeeper, which they need until their end, after them."""
        running = {node: process for node, process in self._brokers.items() if process.is_running}
        if running:
            self._notify(f"stopping {len(running)} brokers")
        ended = await asyncio.gather(*(process.stop(_STOP_TIMEOUT_S) for process in running.values()))
        for node, has_ended in zip(running, ended, strict=True):
            if not has_ended:
                self._notify(f"broker {node} did not stop within {_STOP_TIMEOUT_S:g} s and was killed")
        if self._zookeeper is not None:
            await self._zookeeper.stop(_STOP_TIMEOUT_S)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- Commands from another shell

    async def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Execute a command and return its result, or its error."""
        node = request.get("node", 0)
        if request.get("command") != "status" and node not in self._plan.nodes:
            return {"error": f"there is no broker {node}: the brokers are {', '.join(map(str, self._plan.nodes))}"}
        match request.get("command"):
            case "kill":
                return await self._kill(node)
            case "stop":
                return await self._stop_broker(node)
            case "start":
                return await self._start_again(node)
            case _:
                return {"processes": self._rows()}

    async def _kill(self, node: int) -> dict[str, Any]:
        process = self._brokers.pop(node, None)
        if process is None or not process.is_running:
            return {"error": f"broker {node} does not run"}
        self._states[node] = "killed"
        await process.kill()
        return {"message": f"broker {node} was killed"}

    async def _stop_broker(self, node: int) -> dict[str, Any]:
        process = self._brokers.pop(node, None)
        if process is None or not process.is_running:
            return {"error": f"broker {node} does not run"}
        self._states[node] = "stopping"
        has_ended = await process.stop(_STOP_TIMEOUT_S)
        self._states[node] = "stopped" if has_ended else "killed"
        return {"message": f"broker {node} was {self._states[node]}"}

    async def _start_again(self, node: int) -> dict[str, Any]:
        process = self._brokers.get(node)
        if process is not None and process.is_running:
            return {"error": f"broker {node} runs already"}
        try:
            await self._start_broker(node)
        except (CannotRun, OSError) as error:
            return {"error": str(error)}
        return {"message": f"broker {node} is ready: {self._plan.address(node)}"}

    def _rows(self) -> list[dict[str, Any]]:
        """Describe the processes."""
        zookeeper = self._zookeeper
        rows = [
            {
                "process": "zookeeper",
                "address": self._zookeeper_address,
                "state": "running" if zookeeper is not None and zookeeper.is_running else "starting",
                "pid": zookeeper.pid if zookeeper is not None and zookeeper.is_running else None,
                "log": str(self._directory / "zookeeper.log"),
            }
        ]
        for node in self._plan.nodes:
            process = self._brokers.get(node)
            rows.append(
                {
                    "process": f"broker {node}",
                    "address": self._plan.address(node),
                    "state": self._states[node],
                    "pid": process.pid if process is not None and process.is_running else None,
                    "log": str(self._directory / f"broker-{node}.log"),
                }
            )
        return rows


def _ending(code: int) -> str:
    """Describe how a process ended.

    >>> _ending(1), _ending(-9)
    ('ended with exit code 1', 'was ended by SIGKILL')
    """
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextlib.contextmanager
def _lock(directory: Path) -> Any:
    """Hold the directory's lock. Raises CannotRun if another command has it."""
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotRun(
                f"a cluster runs in {directory} already. Stop it, or give --data another directory"
            ) from None
        yield
    finally:
        os.close(descriptor)
