"""Runs several brokers of one machine as processes of one service, which share one metadata store.

This process, the owner, holds the store and the worker processes, and serves no clients: a busy broker delays no
election. Worker k of N listens at the port P + k - 1 as node base + k - 1. The first has the data directories
themselves, so that one broker can become several; the others have `workers/<k>` below them.

The workers are brokers as any other (`ottla server --store-socket`). They stop cleanly when the owner is gone, because
the pipe on their standard input is closed then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ottla.broker import config as configuration
from ottla.broker.config import BrokerConfig
from ottla.broker.listeners import PORT_MAX
from ottla.broker.startup.open_storage import (
    NoUsableDirectory,
    check_store_directory,
    metadata_directory,
    warn_of_absent_nodes,
)
from ottla.core.files import SystemFiles
from ottla.core.settings import InvalidSettings, SettingProblem
from ottla.core.unix_sockets import socket_address
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.sqlite_file import FILE_NAME as METADATA_FILE
from ottla.metadata_store.store import MetadataStore
from ottla.metadata_store.store_server import StoreServer
from ottla.net.server import ListenerAddress
from ottla.storage.directories.directory_identity import cluster_id_of, make_durably
from ottla.storage.directories.log_directory import DirectoryInUse
from ottla.storage.small_files import LOCK

SOCKET_NAME = "store.sock"
"""Beside the metadata store's file."""

PLACEHOLDER = "{worker}"
"""In `listeners` and `advertised.listeners`: the number of the worker."""

_OF_ONE_REPLICA = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
)
"""Settings that are 1 unless they are given: workers are for processors, not for copies."""

_DIVIDED = ("queued.max.request.bytes",)
_RESTART_MIN_S = 0.1
_RESTART_MAX_S = 5.0
_HEALTHY_S = 10.0
"""A worker that served for so long is restarted without a delay that grew."""

_PREVIOUS_S = 30.0
"""Maximum time in which the workers of an owner that was killed stop."""

_KILLED_AFTER_S = 20.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The command line of the workers, besides what differs between them."""

    config_file: Path | None
    options: Mapping[str, str]
    is_dev: bool
    log_file: Path | None


class WorkerFailed(Exception):
    """Reports that a worker ended before it served for the first time. It has written why."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


# ---- What differs between workers


def worker_directories(paths: Sequence[Path], number: int) -> list[Path]:
    """Return the log directories of a worker. The name is none that a partition's directory can have.

    >>> worker_directories([Path("/data")], 1), worker_directories([Path("/data")], 2)
    ([PosixPath('/data')], [PosixPath('/data/workers/2')])
    """
    return list(paths) if number == 1 else [path / "workers" / str(number) for path in paths]


def worker_listener(text: str, number: int) -> str:
    """Return the listener of a worker: its number in place of `{worker}`, else a port of its own.

    >>> worker_listener("PLAINTEXT://0.0.0.0:9092", 3), worker_listener("CLIENT://w{worker}.local:9092", 3)
    ('PLAINTEXT://0.0.0.0:9094', 'CLIENT://w3.local:9092')
    >>> worker_listener("PLAINTEXT://127.0.0.1:0", 3)
    'PLAINTEXT://127.0.0.1:0'
    """
    if PLACEHOLDER in text:
        return text.replace(PLACEHOLDER, str(number))
    address, colon, port = text.rpartition(":")
    return f"{address}{colon}{int(port) + number - 1}" if port.isdecimal() and int(port) else text


def of_first_worker(config: BrokerConfig) -> BrokerConfig:
    """Return the configuration with the listeners of the first worker."""
    net = config.net
    listeners = tuple(worker_listener(text, 1) for text in net.listeners)
    advertised = tuple(worker_listener(text, 1) for text in net.advertised_listeners)
    return replace(config, net=replace(net, listeners=listeners, advertised_listeners=advertised))


def worker_settings(config: BrokerConfig, paths: Sequence[Path], number: int, workers: int) -> dict[str, str]:
    """Return the settings of a worker that the owner decides."""
    given = config.given
    found = {
        "broker.id" if "broker.id" in given else "node.id": str(config.server.node_id + number - 1),
        "log.dir" if "log.dir" in given and "log.dirs" not in given else "log.dirs": ",".join(
            map(str, worker_directories(paths, number))
        ),
        "listeners": ",".join(worker_listener(text, number) for text in config.net.listeners),
    }
    if config.http.listener:
        found["ottla.http.listener"] = worker_listener(config.http.listener, number)
    if config.net.advertised_listeners:
        advertised = (worker_listener(text, number) for text in config.net.advertised_listeners)
        found["advertised.listeners"] = ",".join(advertised)
    known = configuration.declared()
    found |= {key: "1" for key in _OF_ONE_REPLICA if key in known and key not in given}
    for key in _DIVIDED:
        section, name, spec = known[key]
        found[key] = str(max(getattr(getattr(config, section), name) // workers, int(spec.at_least or 1)))
    return found


def check_listeners(texts: Sequence[str], workers: int) -> None:
    """Raise InvalidSettings if two workers would have the same address, or a port that does not exist."""
    found = [worker_listener(text, number) for text in texts for number in range(1, workers + 1)]
    addresses = [text.partition("://")[2] for text in found]
    for text, address in zip(found, addresses, strict=True):
        port = address.rpartition(":")[2]
        problem = ""
        if addresses.count(address) > 1 and port != "0":
            problem = f"several workers would listen there. Write {PLACEHOLDER} in the port or the host"
        elif port.isdecimal() and int(port) > PORT_MAX:
            problem = f"the port of the last worker is larger than {PORT_MAX}"
        if problem:
            raise InvalidSettings([SettingProblem("listeners", text, problem)])


# ---- The owner


class Owner:
    """Holds the store and the workers: starts them, restarts those that end, and stops them."""

    def __init__(
        self,
        config: BrokerConfig,
        paths: Sequence[Path],
        workers: int,
        options: WorkerOptions,
        initial_users: Mapping[str, str] | None = None,
    ) -> None:
        self._config, self._paths, self._options = config, list(paths), options
        self._initial_users = initial_users or {}  # passwords by user
        self._place = metadata_directory(config, paths)
        self._socket = self._place / SOCKET_NAME
        self._own_session: MetadataStore | None = None  # keeps the store open while no worker is connected
        self._server: StoreServer | None = None
        self._workers = [_Worker(number, self._command(number, workers)) for number in range(1, workers + 1)]

    def _command(self, number: int, workers: int) -> list[str]:
        given = self._options
        command = [sys.executable, "-m", "ottla", "server", "--format", "json", "--while-stdin-open"]
        command += ["--store-socket", str(self._socket)]
        if given.config_file is not None:
            command += ["--config", str(given.config_file)]
        if given.is_dev:
            command.append("--dev")
        if given.log_file is not None:
            path = given.log_file
            command += ["--log-file", str(path.with_name(f"{path.stem}.worker-{number}{path.suffix}"))]
        settings = {**given.options, **worker_settings(self._config, self._paths, number, workers)}
        for key, text in settings.items():
            command += ["-o", f"{key}={text}"]
        return command

    async def start(self) -> list[WorkerReady]:
        """Open the store and start the workers; returns when all of them serve.

        Raises WorkerFailed, OSError, KafkaError, DirectoryInUse, NoUsableDirectory.
        """
        await self._wait_for_previous()
        self._check_directories()
        make_durably(SystemFiles(), self._place)
        tree = EmbeddedMetadataStore.open(self._place / METADATA_FILE)
        self._own_session = tree.session()
        if self._initial_users:
            from ottla.broker.startup.initial_users import add_users

            await add_users(self._own_session, self._initial_users)
        await warn_of_absent_nodes(self._own_session, self._config.server.node_id, len(self._workers))

        async def open_session() -> MetadataStore:
            return tree.session()

        self._server = StoreServer(self._socket, open_session)
        await self._server.start()
        for worker in self._workers:
            worker.start()
        return list(await asyncio.gather(*(worker.ready() for worker in self._workers)))

    def _check_directories(self) -> None:
        if (self._place / METADATA_FILE).exists():
            return
        files = SystemFiles()
        known = None
        for path in self._paths:
            with contextlib.suppress(OSError):
                known = known or cluster_id_of(files, path)
        check_store_directory(files, self._paths, self._place, known)
        if known is not None:
            raise NoUsableDirectory(
                f"{self._place} has logs and no metadata store of Ottla. Start it once without --workers: that "
                "imports the topics"
            )

    async def _wait_for_previous(self) -> None:
        """Wait for the workers of an owner that was killed: they stop as soon as they notice.

        Raises DirectoryInUse if an owner or a broker is running.
        """
        is_served = _is_served(self._socket)
        deadline = asyncio.get_running_loop().time() + (_PREVIOUS_S if self._socket.exists() and not is_served else 0)
        while (used := self._used_directory()) is not None:
            if asyncio.get_running_loop().time() >= deadline:
                raise DirectoryInUse(f"{used} is in use by a running broker")
            await asyncio.sleep(0.05)
        if is_served:
            raise DirectoryInUse(f"{self._place} is in use by a running `ottla server --workers`")

    def _used_directory(self) -> Path | None:
        """Return a worker's log directory that another process has locked."""
        files = SystemFiles()
        for number in range(1, len(self._workers) + 1):
            for path in worker_directories(self._paths, number):
                if path.is_dir():
                    try:
                        files.lock(path / LOCK).release()
                    except BlockingIOError:
                        return path
        return None

    async def stop(self) -> None:
        """Stop the workers, then the store."""
        within_seconds = self._config.server.shutdown_ms / 1000 + _KILLED_AFTER_S
        await asyncio.gather(*(worker.stop(within_seconds) for worker in self._workers))
        if self._server is not None:
            await self._server.close()
        if self._own_session is not None:
            await self._own_session.close()

    def reopen_logs(self) -> None:
        """Let the workers reopen their log files."""
        for worker in self._workers:
            worker.signal(signal.SIGHUP)

    def state(self) -> dict[str, object]:
        """Return the processes, for the log."""
        return {f"worker {worker.number}": worker.pid or "not running" for worker in self._workers}


def _is_served(path: Path) -> bool:
    """Return whether a process accepts connections there."""
    if not path.exists():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, socket_address(path) as address:
        try:
            probe.connect(address)
        except OSError:
            return False
    return True


# ---- Worker processes


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Describes a worker that serves."""

    number: int
    pid: int
    node_id: int
    cluster_id: str
    listeners: Sequence[ListenerAddress]
    bootstrap: str


class _Worker:
    """Keeps one worker process running."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self._command = list(command)
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[WorkerReady] | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Return the process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Begin to run the process."""
        self._ready = asyncio.get_running_loop().create_future()
        self._running = asyncio.get_running_loop().create_task(self._run(), name=f"worker {self.number}")

    async def ready(self) -> WorkerReady:
        """Return when the process serves for the first time. Raises WorkerFailed."""
        assert self._ready is not None
        return await self._ready

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def stop(self, within_seconds: float) -> None:
        """Stop the process cleanly, or kill it when the time is over."""
        self._stopping.set()
        if self._running is None:
            return
        self.signal(signal.SIGTERM)
        _, late = await asyncio.wait((self._running,), timeout=within_seconds)
        if late:
            log.error("worker %d did not stop within %.0f s and is killed", self.number, within_seconds)
            self.signal(signal.SIGKILL)
            await asyncio.wait((self._running,))

    async def _run(self) -> None:
        assert self._ready is not None
        loop = asyncio.get_running_loop()
        delay_s = _RESTART_MIN_S
        while not self._stopping.is_set():
            started = loop.time()
            code = await self._run_once()
            if self._stopping.is_set():
                break
            if not self._ready.done():
                self._ready.set_exception(WorkerFailed(code))
                return
            delay_s = _RESTART_MIN_S if loop.time() - started > _HEALTHY_S else min(2 * delay_s, _RESTART_MAX_S)
            log.error("worker %d has ended with code %d: it is started again in %.1f s", self.number, code, delay_s)
            await asyncio.sleep(delay_s)
        if not self._ready.done():
            self._ready.cancel()

    async def _run_once(self) -> int:
        """Run the process until it ends; returns its exit code."""
        environment = {key: text for key, text in os.environ.items() if key != "NOTIFY_SOCKET"}
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        if self._stopping.is_set():
            self.signal(signal.SIGTERM)
        assert process.stdout is not None
        async for line in process.stdout:
            self._read_ready_line(line, process.pid)
        return await process.wait()

    def _read_ready_line(self, line: bytes, pid: int) -> None:
        assert self._ready is not None
        try:
            found: dict[str, Any] = json.loads(line)
            listeners = [
                ListenerAddress(str(each["name"]), str(each["host"]), int(each["port"])) for each in found["listeners"]
            ]
            ready = WorkerReady(self.number, pid, found["node_id"], found["cluster_id"], listeners, found["bootstrap"])
        except (ValueError, KeyError, TypeError):
            sys.stderr.write(line.decode(errors="replace"))
            return
        if self._ready.done():
            log.info("worker %d serves again", self.number)
        else:
            self._keep_ports(listeners)
            self._ready.set_result(ready)

    def _keep_ports(self, listeners: Sequence[ListenerAddress]) -> None:
        """Start the process at the same ports again, also those that the system picked."""
        texts = ",".join(
            f"{listener.listener}://{f'[{listener.host}]' if ':' in listener.host else listener.host}:{listener.port}"
            for listener in listeners
        )
        at = next(index for index, text in enumerate(self._command) if text.startswith("listeners="))
        self._command[at] = f"listeners={texts}"
