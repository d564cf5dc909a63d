"""The composition root: one broker's rooms, put together, started in order and stopped in the reverse order."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from ottla.broker import endpoints
from ottla.broker.background import Background
from ottla.broker.config import BrokerConfig
from ottla.broker.context import Services
from ottla.broker.dispatch import Dispatcher
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.inspections import Inspections
from ottla.broker.internal_log import InternalLog
from ottla.controller.controller import Controller
from ottla.coordination import layout, membership
from ottla.coordination.embedded import Session, Tree
from ottla.coordination.view import Cluster, ClusterView
from ottla.core.clock import Clock
from ottla.core.files import FileSystem
from ottla.core.ids import id_text
from ottla.groups.coordinator import GroupCoordinator
from ottla.net.server import Endpoint, Listeners
from ottla.quotas.budget import ByteBudget
from ottla.replication.replicas import Replicas
from ottla.storage.directory import ForeignDirectory, LogDirectory, cluster_id_of
from ottla.transactions.producer_ids import ProducerIds

if TYPE_CHECKING:  # needed at a first start only
    from ottla.broker.adoption import Adoption

log = logging.getLogger(__name__)

METADATA_FILE = "ottla-metadata.db"
OFFSETS_TOPIC = "__consumer_offsets"


def overrides_of(view: ClusterView, node_id: int) -> dict[str, str]:
    """What AlterConfigs has set for all brokers, and for this one above it."""
    everyone = view.broker_configs.get(layout.DEFAULT_ENTITY)
    this_one = view.broker_configs.get(str(node_id))
    return {**(everyone.values if everyone else {}), **(this_one.values if this_one else {})}


class Broker:
    """One node, from its settings to its sockets."""

    def __init__(self, config: BrokerConfig, path: Path, *, clock: Clock, files: FileSystem) -> None:
        self._config, self._path, self._clock, self._files = config, path, clock, files
        self._node_id = config.server.node_id
        self._directory: LogDirectory | None = None
        self._store: Session | None = None
        self._services: Services | None = None
        self._listeners: Listeners | None = None
        self._dispatcher: Dispatcher | None = None
        self._background: Background | None = None
        self._following: asyncio.Task[None] | None = None

    # ---- Starting ----------------------------------------------------------------------------------------------

    async def start(self) -> list[Endpoint]:
        """Open everything; returns where it listens. Raises OSError, KafkaError, DirectoryInUse, ForeignDirectory."""
        config = self._config
        store, cluster_id = await self._open_disk()
        cluster = Cluster(store)
        assert self._directory is not None
        replicas = Replicas(self._directory, node_id=self._node_id, defaults=config.log, clock=self._clock)
        cluster.subscribe(replicas.follow)
        controller = Controller(
            store=store,
            cluster=cluster,
            config=config.controller,
            log_defaults=config.log,
            clock=self._clock,
            rng=random.Random(),
            node_id=self._node_id,
        )
        offsets = InternalLog(OFFSETS_TOPIC, replicas=replicas, cluster=cluster, clock=self._clock)
        self._services = Services(
            node_id=self._node_id,
            config=config,
            clock=self._clock,
            cluster=cluster,
            controller=controller,
            replicas=replicas,
            groups=GroupCoordinator(config.groups, clock=self._clock, log=offsets, node_id=self._node_id),
            producer_ids=ProducerIds(store, node_id=self._node_id),
            fetch_sessions=FetchSessions(slots=config.server.fetch_sessions_max, rng=random.Random()),
            inspections=Inspections(self._clock),
        )
        cluster.subscribe(self._services.groups.follow)
        log.debug("cluster %s", cluster_id)
        return await self._open_doors(self._services, cluster)

    async def _open_disk(self) -> tuple[Session, str]:
        """The lock comes first: nothing of a directory that another broker uses is touched."""
        known = cluster_id_of(self._files, self._path)
        proposed = known or id_text(uuid4())
        found = self._to_take_over() if not self._files.exists(self._path / METADATA_FILE) else None
        self._directory = LogDirectory.open(
            self._files, self._path, self._clock, self._config.log, node_id=self._node_id, cluster_id=proposed,
            topic_overrides=found.overrides if found else None,
        )  # fmt: skip
        store = self._store = Tree.open(self._path / METADATA_FILE).session()
        cluster_id = await membership.join_cluster(store, proposed)
        if cluster_id != proposed:
            raise ForeignDirectory(f"{self._path} says cluster.id={proposed}, but its metadata says {cluster_id}")
        await self._take_over(store, self._directory, found)
        return store, cluster_id

    def _to_take_over(self) -> Adoption | None:
        """What a Kafka left here. Raises ForeignDirectory for what cannot be taken over, before anything is touched."""
        from ottla.broker import adoption

        return adoption.look([self._path], self._config)

    async def _take_over(self, store: Session, directory: LogDirectory, found: Adoption | None) -> None:
        """A store that was never used gets the topics that lie on the disk (broker/adoption.py)."""
        new = await store.get(layout.CONTROLLER_EPOCH) is None
        if not new and await store.get(layout.ADOPTED) is None:
            return
        from ottla.broker import taking_over

        if not await taking_over.is_new(store):
            await taking_over.check_untouched(store, [self._path], self._path / METADATA_FILE)
            return
        found = found or self._to_take_over()
        if found is not None:
            await taking_over.settle(found, store, directory.logs, [self._path], node_id=self._node_id)

    async def _open_doors(self, services: Services, cluster: Cluster) -> list[Endpoint]:
        """Bind first, so that port 0 is known; clients are served from the moment the broker is registered."""
        config = self._config
        self._dispatcher = Dispatcher(services)
        self._listeners = Listeners(
            config.net,
            dispatch=self._dispatcher,
            budget=ByteBudget(config.net.queued_request_bytes_max),
            now=self._clock.monotonic,
        )
        opened = [await self._listeners.open(endpoint) for endpoint in endpoints.to_listen_at(config.net)]
        advertised = endpoints.to_advertise(config.net, opened)
        await services.controller.start(
            layout.BrokerRegistration(
                node_id=self._node_id,
                endpoints={name: layout.Endpoint(*place) for name, place in advertised.items()},
                protocols=dict.fromkeys(advertised, "PLAINTEXT"),
                rack=config.server.rack or None,
                started_ms=self._clock.wall_ms(),
            )
        )
        services.replicas.report_strays()
        cluster.subscribe(self._reconfigure)
        self._following = asyncio.get_running_loop().create_task(cluster.follow(), name="follow the cluster")
        self._background = Background(services.replicas, config=config.log, clock=self._clock)
        return opened

    def _reconfigure(self, old: ClusterView, new: ClusterView) -> None:
        """Live changes of the broker's own settings (AlterConfigs) take effect."""
        if old.configs is new.configs or self._services is None:
            return
        services = self._services
        config = self._config.with_overrides(overrides_of(new, self._node_id))
        services.config = config
        services.replicas.reconfigure(config.log)
        services.controller.log_defaults = config.log

    # ---- Stopping ----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """In the reverse order; also after a start that failed half-way."""
        services = self._services
        if services is not None:
            services.stopping.set()
            services.replicas.wake_all()
            await services.groups.close()
        within_seconds = self._config.server.shutdown_ms / 1000
        if self._listeners is not None:
            await self._listeners.close(within_seconds=within_seconds)
        if self._dispatcher is not None:
            await self._dispatcher.drain(within_seconds=1.0)
        if services is not None:
            services.inspections.close()
        if self._background is not None:
            await self._background.stop()
        if services is not None:
            await services.controller.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if services is not None:
            await services.replicas.close()
        elif self._directory is not None:
            self._directory.close()
        if self._store is not None:
            await self._store.close()
