"""Declares the machine on which a broker of a test runs: what survives the broker's processes, real or simulated."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar

from ottla.broker import config
from ottla.broker.broker import Broker
from ottla.broker.config import BrokerConfig
from ottla.broker.services import Services
from ottla.client.addresses import Address
from ottla.core.clock import Clock
from ottla.core.files import FileSystem
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """The settings of one machine, as its cluster decides them."""

    node_id: int
    options: Mapping[str, str]
    directories: int  # log directories
    store: EmbeddedMetadataStore | None  # None: the broker has a store of its own, which no other broker can join


class Machine(ABC):
    """One machine, with a disk, an address and at most one broker that runs.

    `state` is "down", "starting", "up", "stopping" or "failed"; after "failed", `failure` says why.
    """

    def __init__(self, settings: MachineSettings, address: Address, paths: list[Path]) -> None:
        self.node_id, self.address, self.paths = settings.node_id, address, paths
        self.options = settings.options
        self.broker: Broker | None = None
        self.state = "down"
        self.failure: BaseException | None = None

    @property
    @abstractmethod
    def files(self) -> FileSystem:
        """The disk."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """The clock."""

    @property
    def services(self) -> Services | None:
        """Return the services of the broker that runs; None if there is none."""
        return None if self.broker is None or self.state != "up" else self.broker.services

    def read_config(self) -> BrokerConfig:
        """Read the settings of the next process."""
        address = {
            "node.id": str(self.node_id),
            "listeners": f"PLAINTEXT://{self.address.host}:{self.address.port}",
            "ottla.allow.insecure.listeners": "true",  # a simulated network has hosts, and no strangers
        }
        given, _ = config.read(file=None, environment={}, options={**address, **self.options})
        return given

    # ---- Processes

    @abstractmethod
    async def start_broker(self) -> None:
        """Start a broker; returns once it serves. Raises what prevents it."""

    @abstractmethod
    async def stop_broker(self) -> None:
        """Stop the broker as SIGTERM does."""

    @abstractmethod
    async def kill_broker(self, *, session_expires: bool = True) -> None:
        """End the broker as SIGKILL does: nothing of it runs any more, and what it wrote is in the files.

        Without `session_expires` the metadata store considers it alive until `expire_session`.
        """

    @abstractmethod
    async def expire_session(self) -> None:
        """End the session of the broker, as the store does if it hears nothing of it."""

    @abstractmethod
    def run(self, function: Callable[..., T], *args: object) -> T:
        """Call a function as the broker's process: what it begins ends with the process."""

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as the broker's process."""
        return self.run(asyncio.get_running_loop().create_task, work)

    @abstractmethod
    def close(self) -> None:
        """Give back what the machine holds. No broker runs."""

    # ---- The disk

    @abstractmethod
    def fill_disk(self, path: PurePath) -> None:
        """Leave no space at or below a path."""

    @abstractmethod
    def free_disk(self) -> None:
        """Give space again."""


class Machines(Protocol):
    """The place where the machines of a cluster are: real or simulated."""

    @property
    def clock(self) -> Clock:
        """The clock of the test."""
        ...

    def machine(self, settings: MachineSettings) -> Machine:
        """Return a new machine."""
        ...
