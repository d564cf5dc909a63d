"""The composition root: one broker's rooms, put together, started in order and stopped in the reverse order."""

from __future__ import annotations

import logging
import random
from pathlib import Path

from ottla.broker import endpoints
from ottla.broker.background import Background
from ottla.broker.config import BrokerConfig
from ottla.broker.context import Services
from ottla.broker.dispatch import Dispatcher
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.internal_log import InternalLog
from ottla.controller.controller import Controller
from ottla.coordination.embedded import Session, Tree
from ottla.coordination.view import Cluster
from ottla.core.clock import Clock
from ottla.core.files import FileSystem
from ottla.groups.coordinator import GroupCoordinator
from ottla.net.server import Endpoint, Listeners
from ottla.quotas.budget import ByteBudget
from ottla.replication.replicas import Replicas
from ottla.storage.directory import LogDirectory
from ottla.transactions.producer_ids import ProducerIds

log = logging.getLogger(__name__)

METADATA_FILE = "ottla-metadata.db"
OFFSETS_TOPIC = "__consumer_offsets"


class Broker:
    """One node, from its settings to its sockets."""

    def __init__(self, config: BrokerConfig, path: Path, *, clock: Clock, files: FileSystem) -> None:
        self._config, self._path, self._clock, self._files = config, path, clock, files
        self._node_id = config.server.node_id
        self._directory: LogDirectory | None = None
        self._store: Session | None = None
        self._replicas: Replicas | None = None
        self._listeners: Listeners | None = None
        self._dispatcher: Dispatcher | None = None
        self._services: Services | None = None
        self._background: Background | None = None

    async def start(self) -> list[Endpoint]:
        """Open everything; returns where it listens. Raises OSError, KafkaError, DirectoryInUse."""
        config = self._config
        self._files.make_directory(self._path)
        self._directory = LogDirectory.open(
            self._path, files=self._files, clock=self._clock, config=config.log, node_id=self._node_id
        )
        store = self._store = Tree.open(self._path / METADATA_FILE).session()
        cluster = Cluster(store)
        replicas = self._replicas = Replicas(
            self._directory, node_id=self._node_id, defaults=config.log, clock=self._clock
        )
        cluster.subscribe(replicas.follow)
        controller = Controller(store, cluster, config=config.controller, log_defaults=config.log, clock=self._clock)
        offsets = InternalLog(
            OFFSETS_TOPIC, replicas=replicas, cluster=cluster, controller=controller, clock=self._clock
        )
        services = self._services = Services(
            node_id=self._node_id,
            config=config,
            clock=self._clock,
            cluster=cluster,
            controller=controller,
            replicas=replicas,
            groups=GroupCoordinator(config.groups, clock=self._clock, log=offsets),
            producer_ids=ProducerIds(store, node_id=self._node_id),
            fetch_sessions=FetchSessions(slots=config.server.fetch_sessions_max, rng=random.Random()),
        )
        return await self._open_doors(services, cluster, controller)

    async def _open_doors(self, services: Services, cluster: Cluster, controller: Controller) -> list[Endpoint]:
        """Listen before registering, so that port 0 is known; serve after, so that nobody is answered too early."""
        config = self._config
        self._dispatcher = Dispatcher(services)
        self._listeners = Listeners(
            config.net,
            dispatch=self._dispatcher,
            budget=ByteBudget(config.net.queued_request_bytes_max),
            now=self._clock.monotonic,
        )
        opened = [await self._listeners.open(endpoint) for endpoint in endpoints.to_listen_at(config.net)]
        await controller.register_broker(
            self._node_id, endpoints.to_advertise(config.net, opened), rack=config.server.rack or None
        )
        return opened
