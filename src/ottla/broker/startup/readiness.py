"""Reports that the broker is ready: the ready line, the ready file, and a service manager's notification socket."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ottla import compiled
from ottla.net.server import ListenerAddress

NOTIFY_VARIABLE = "NOTIFY_SOCKET"
"""The environment variable with which a service manager, such as systemd, names its notification socket."""


class ReadyWorker(NamedTuple):
    """Describes one of several brokers that one service runs."""

    node_id: int
    pid: int
    bootstrap: str


class Ready(NamedTuple):
    """Describes a broker that serves."""

    listeners: Sequence[ListenerAddress]
    node_id: int
    cluster_id: str
    data: Sequence[Path]
    seconds: float
    workers: Sequence[ReadyWorker] = ()  # of `ottla server --workers`; the listeners are those of all

    def line(self) -> str:
        """Format the ready line for people."""
        where = ", ".join(f"{_bracketed(listener.host) or '*'}:{listener.port}" for listener in self.listeners)
        data = ",".join(map(str, self.data))
        if self.workers:
            nodes = f"nodes {self.node_id} to {self.workers[-1].node_id}"
            note = "; topics have 1 replica unless they ask for more, workers are for processors and not for safety"
        else:
            nodes, note = f"node {self.node_id}", ""
        if compiled.is_plain_unasked():
            note += "; as plain Python, which is slower: no compiled modules are installed"
        return f"ottla ready: {where} {nodes} data {data} in {self.seconds:.2f} s{note}"

    def json(self) -> str:
        """Format the same for programs: one line of JSON, whose field names are stable (docs/operating.md)."""
        found: dict[str, Any] = {
            "ready": True,
            "pid": os.getpid(),
            "bootstrap": ",".join(_address(listener) for listener in self.listeners),
            "listeners": [
                {"name": listener.listener, "host": listener.host, "port": listener.port} for listener in self.listeners
            ],
            "node_id": self.node_id,
            "cluster_id": self.cluster_id,
            "data": [str(path) for path in self.data],
            "seconds": round(self.seconds, 3),
        }
        if self.workers:
            found["workers"] = [
                {"node_id": worker.node_id, "pid": worker.pid, "bootstrap": worker.bootstrap} for worker in self.workers
            ]
        return json.dumps(found)


def _address(endpoint: ListenerAddress) -> str:
    """Return the address that a client on the same machine can use."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(endpoint.host, endpoint.host)  # noqa: S104 - compared
    return f"{_bracketed(host)}:{endpoint.port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class ReadyFile:
    """A file that exists while the broker serves. It appears complete: it is written beside and renamed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, ready: Ready) -> None:
        """Create the file. Raises OSError."""
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        new.write_text(ready.json() + "\n", encoding="utf-8")
        new.replace(self._path)

    def remove(self) -> None:
        """Remove the file, also one that a killed broker left. Raises OSError."""
        self._path.unlink(missing_ok=True)


def notify(environment: Mapping[str, str], **fields: str) -> None:
    """Send fields such as READY=1 to the service manager; without one do nothing (sd_notify of systemd).

    A service manager that cannot be reached is no reason to stop: it reports the missing notification itself.
    """
    address = environment.get(NOTIFY_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract socket of Linux
        address = "\0" + address[1:]
    text = "\n".join(f"{name}={value}" for name, value in fields.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(address)
            sender.send(text.encode())
    except OSError:
        return


def seconds_since_start() -> float:
    """Return the seconds since this process began, interpreter and imports included."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, ValueError):
        pass
    return time.process_time()  # macOS has neither
