"""Composes a broker from its packages, starts them in order and stops them in reverse order."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.broker import listeners as endpoints
from ottla.broker.config import BrokerConfig, has_secrets
from ottla.broker.coordinators import Coordinators, import_in_thread
from ottla.broker.delayed_operations import DelayedOperations
from ottla.broker.event_config import SLOW_REQUEST, make_events
from ottla.broker.internal_topic_creation import create_if_absent
from ottla.broker.maintenance.late_transactions import LateTransactions
from ottla.broker.maintenance.scheduled_tasks import ScheduledTasks
from ottla.broker.maintenance.topic_deletions import TopicDeletions
from ottla.broker.record_validation_queue import RecordValidationQueue
from ottla.broker.remote.controller_channel import ControllerChannel
from ottla.broker.remote.node_connections import NodeConnections
from ottla.broker.requests.driver import RequestDriver
from ottla.broker.requests.registry import INTER_BROKER_APIS
from ottla.broker.requests.stages import Accounting, Admission
from ottla.broker.services import Services
from ottla.broker.sessions.fetch_sessions import FetchSessions
from ottla.broker.startup.cluster_store import expiry_wait_s
from ottla.broker.startup.descriptor_limits import UNLIMITED, DescriptorLimits
from ottla.broker.startup.open_storage import OpenedStorage, OpenStore, forget_missing, open_storage
from ottla.controller.controller import Controller
from ottla.core.clock import Clock
from ottla.core.errors import KafkaError
from ottla.core.files import FileSystem
from ottla.core.ids import TopicPartition
from ottla.core.runtime import new_random
from ottla.core.settings import InvalidSettings
from ottla.limits.budget import ByteBudget
from ottla.limits.loop_slices import LoopSlices
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.producer_ids import ProducerIdManager
from ottla.metadata_store.store import MetadataStore, StoreError
from ottla.net.config import NetConfig
from ottla.net.connection import Dispatch
from ottla.net.connection_limits import ConnectionLimits
from ottla.net.server import ListenerAddress, Listeners
from ottla.replication.replicas import Replicas
from ottla.storage.directories.log_directory import DirectoryInUse

if TYPE_CHECKING:  # imported once the broker serves, or where they are used
    from ottla.broker.dynamic_secrets import DynamicSecrets
    from ottla.broker.listener_tls import ListenersTls
    from ottla.broker.maintenance.log_cleaner import LogCleaner
    from ottla.broker.maintenance.log_cleaner_worker import Worker
    from ottla.broker.maintenance.scrub_scheduler import ScrubScheduler
    from ottla.broker.quotas import Quotas
    from ottla.broker.sasl_listeners import SaslListeners
    from ottla.client.connection import Dial
    from ottla.client.sasl import Sasl
    from ottla.core.events import EventLog
    from ottla.metadata_store.snapshot_age import SnapshotAge
    from ottla.security.audit_log import AuditLog
    from ottla.security.authorizer import AclAuthorizer
    from ottla.security.delegation_tokens import DelegationTokens

log = logging.getLogger(__name__)

SIGN_IN_BYTES_MAX = 16 << 20
"""Memory of all requests above 32 KiB of clients that have not signed in."""

DECODED_SHARE = 4
"""Besides `queued.max.request.bytes` a fourth of it is for long requests once they are decoded."""

_MAINTENANCE_AFTER_SECONDS = 1.0


def overrides_of(view: ClusterView, node_id: int) -> dict[str, str]:
    """Merge the dynamic settings of all brokers with those of this one, which take precedence."""
    everyone = view.broker_configs.get(znodes.DEFAULT_ENTITY)
    this_one = view.broker_configs.get(str(node_id))
    return {**(everyone.values if everyone else {}), **(this_one.values if this_one else {})}


class Broker:
    """Assembles one node: starts its services and stops them in the reverse order."""

    def __init__(
        self,
        config: BrokerConfig,
        paths: Sequence[Path],
        *,
        clock: Clock,
        files: FileSystem,
        descriptors: DescriptorLimits = UNLIMITED,
        on_all_lost: Callable[[], None] = lambda: None,
        open_store: OpenStore | None = None,
        has_own_store: bool = False,
        cleans_in_process: bool = False,
        admission: Admission | None = None,
        accounting: Accounting | None = None,
        initial_users: Mapping[str, str] | None = None,
    ) -> None:
        self._config, self._paths, self._clock, self._files = config, paths, clock, files
        self._open_store = open_store  # of a cluster; without it the store is a file of this broker
        self._is_alone = open_store is None or has_own_store  # no other broker can join
        self._cleans_in_process = cleans_in_process  # the files are in its memory
        self._descriptors = descriptors
        self._on_all_lost = on_all_lost  # no log directory can be used any more
        self._admission, self._accounting = admission, accounting  # of all requests (requests/stages.py)
        self._initial_users = initial_users or {}  # passwords by user
        self.is_serving = False  # it has accepted connections
        self._node_id = config.server.node_id
        self._events: EventLog | None = None  # since the start
        self._storage: OpenedStorage | None = None
        self._services: Services | None = None
        self._listeners: Listeners | None = None
        self._tls: ListenersTls | None = None  # with listeners that have TLS
        self._watching_tls: asyncio.Task[None] | None = None
        self._driver: RequestDriver | None = None
        self.request_memory = ByteBudget(config.net.queued_request_bytes_max)  # of large requests that arrive
        self._scheduled_tasks: ScheduledTasks | None = None
        self._late_transactions: LateTransactions | None = None
        self._starting_maintenance: asyncio.Task[None] | None = None
        self.log_cleaner: LogCleaner | None = None
        self._sasl: SaslListeners | None = None  # with listeners with SASL
        self._scrub_scheduler: ScrubScheduler | None = None
        self._cluster: MetadataCache | None = None
        self._following: asyncio.Task[None] | None = None
        self._removing_tokens: asyncio.Task[None] | None = None
        self.quotas: Quotas | None = None  # with the first quota
        if config.secrets.secret:
            _ = self._secrets  # it raises if the secret cannot be used
        self._snapshot_age: SnapshotAge | None = None  # in a cluster, with ACLs or SASL

    # ---- Starting

    async def start(self) -> list[ListenerAddress]:
        """Open everything; returns where it listens.

        Raises InvalidSettings for certificates that cannot be used, OSError, KafkaError, and what `open_storage` does.

        The addresses are taken before anything is opened, and connections are accepted last: clients believe what a
        broker answers, so that it must know the cluster, and be known in it, before it answers anything.
        """
        config = self._config
        events = self._events = make_events(config.events, self._clock, self._node_id)
        if SLOW_REQUEST in config.given and config.events.slow_request_ms >= 0:
            from ottla.broker.requests.slow_requests import SlowRequests

            slow_s = config.events.slow_request_ms / 1000
            self._accounting = SlowRequests(self._clock, events, slow_s=slow_s, inner=self._accounting)
        self._load_tls()
        self._sasl = self._open_sasl()
        listeners = self._listeners = self._make_listeners()
        bound = await self._bind(listeners)
        storage = self._storage = await open_storage(
            config, self._paths, clock=self._clock, files=self._files, open_store=self._open_store
        )
        store = storage.store
        cluster = self._cluster = MetadataCache(store)
        self._snapshot_age = self._make_snapshot_age(cluster)
        slices = LoopSlices()
        replicas = Replicas(
            storage.directories,
            node_id=self._node_id,
            defaults=config.log,
            clock=self._clock,
            missing=storage.missing,
            deleted_topics=storage.deleted_topics,
            slices=slices,
            on_availability=self._availability,
            on_all_lost=self._on_all_lost,
            config=config.replication,
            events=events,
            slow_fsync_s=config.events.slow_fsync_ms / 1000,
        )
        cluster.subscribe(replicas.follow)
        controller = self._make_controller(store, cluster, slices)
        services = self._services = self._make_services(store, cluster, controller, replicas, slices)
        services.listeners_tls = self._tls
        services.dynamic_secrets = lambda: self._secrets
        services.tokens = self._make_tokens(cluster)
        services.audit_log = self._make_audit_log(services)
        self._publish(events, services)
        cluster.subscribe(services.coordinators.follow)
        report = await self._report_at_start(storage, services)
        await self._register(services, bound, report)
        await self._add_users(storage.store, cluster)
        await self._follow_cluster(storage, services, cluster)
        await self._update_tls(services)
        self._driver = self._make_driver(services, cluster)
        cluster.subscribe(self._follow_quotas)
        await listeners.listen(await self._dispatch(services, self._driver))
        self.is_serving = True
        self._start_tasks(storage, services, cluster, report)
        return bound

    def _make_driver(self, services: Services, cluster: MetadataCache) -> RequestDriver:
        return RequestDriver(
            services,
            ByteBudget(self._config.net.queued_request_bytes_max // DECODED_SHARE),
            admission=self._admission,
            authorizer=self._make_authorizer(cluster, services),
            accounting=self._accounting,
            audit_log=services.audit_log,
            snapshot_age=self._snapshot_age,
        )

    def _publish(self, events: EventLog, services: Services) -> None:
        """Let handlers record events, and have all written to the topic if the settings ask for it."""
        services.events = services.request_errors.events = events
        if self._config.events.topic_enable:
            from ottla.broker.audit_outputs import make_event_topic

            events.output = make_event_topic(services)

    def _make_tokens(self, cluster: MetadataCache) -> DelegationTokens | None:
        """Return the delegation tokens of the cluster; None without a key for them."""
        config = self._config.tokens
        if not config.secret_key:
            return None
        from ottla.security.delegation_tokens import DelegationTokens

        return DelegationTokens(config, clock=self._clock, stored=lambda: cluster.current.delegation_tokens)

    @cached_property
    def _secrets(self) -> DynamicSecrets:
        from ottla.broker.dynamic_secrets import DynamicSecrets

        return DynamicSecrets(self._config.secrets)

    def _make_audit_log(self, services: Services) -> AuditLog | None:
        if not self._config.audit.is_on:
            return None
        from ottla.broker.audit_outputs import make_audit_log

        return make_audit_log(services, self._files)

    def _make_snapshot_age(self, cluster: MetadataCache) -> SnapshotAge | None:
        """Return what confirms the snapshot; None where no other can change it, or no client is judged by it."""
        age_ms_max = self._config.authorizer.metadata_age_ms_max
        if self._is_alone or age_ms_max < 0 or (self._sasl is None and not self._config.authorizer.is_on):
            return None
        from ottla.metadata_store.snapshot_age import SnapshotAge

        return SnapshotAge(self._clock, age_ms_max / 1000, cluster.sync)

    def _make_authorizer(self, cluster: MetadataCache, services: Services) -> AclAuthorizer | None:
        if not self._config.authorizer.is_on:
            return None
        from ottla.security.authorizer import AclAuthorizer

        return AclAuthorizer(cluster, self._config.authorizer, services.audit_log, self._events)

    def _make_services(
        self,
        store: MetadataStore,
        cluster: MetadataCache,
        controller: Controller,
        replicas: Replicas,
        slices: LoopSlices,
    ) -> Services:
        config, loop = self._config, asyncio.get_running_loop()
        listener = endpoints.inter_broker_listener(self._config.net, is_alone=self._is_alone)
        producer_ids = ProducerIdManager(store, node_id=self._node_id)
        nodes = NodeConnections(
            cluster,
            node_id=self._node_id,
            listener=listener,
            inter_broker_versions={row.key: (row.min_version, row.max_version) for row in INTER_BROKER_APIS.values()},
            dial=self._inter_broker_dial(listener),
            sasl=self._inter_broker_sasl(listener),
        )
        channel = ControllerChannel(
            controller, cluster, nodes, node_id=self._node_id, timeout_s=config.server.request_timeout_ms / 1000
        )
        coordinators = Coordinators(
            config,
            cluster=cluster,
            replicas=replicas,
            producer_ids=producer_ids,
            clock=self._clock,
            create_topic=self._create_internal_topic,
            create_named_topic=channel.create_topic,
            current_config=self._current_config,
            connect_to=nodes.connect_to,
            events=self._events,
        )
        return Services(
            node_id=self._node_id,
            config=config,
            clock=self._clock,
            cluster=cluster,
            controller=controller,
            controller_channel=channel,
            nodes=nodes,
            replicas=replicas,
            coordinators=coordinators,
            producer_ids=producer_ids,
            fetch_sessions=FetchSessions(slots=config.server.fetch_sessions_max, rng=new_random()),
            record_validation=RecordValidationQueue.with_threads(self._clock, loop.call_soon_threadsafe),
            delayed_operations=DelayedOperations(),
            has_own_store=self._is_alone,
            slices=slices,
        )

    def _load_tls(self) -> None:
        """Load the certificates of listeners with TLS. Raises InvalidSettings."""
        protocols = endpoints.security_protocols(self._config.net)
        if any(protocols[address.listener].uses_tls for address in endpoints.to_listen_at(self._config.net)):
            from ottla.broker.listener_tls import ListenersTls

            self._tls = ListenersTls(self._config, self._clock)
            self._tls.load()

    async def _update_tls(self, services: Services) -> None:
        """Load certificates by the settings in the store, and record from now on who signs in by one."""
        if self._tls is None:
            return
        if services.audit_log is not None:
            self._tls.record_in(services.audit_log)
        await self._tls.update()

    def _make_controller(self, store: MetadataStore, cluster: MetadataCache, slices: LoopSlices) -> Controller:
        return Controller(
            store=store,
            cluster=cluster,
            config=self._config.controller,
            log_defaults=self._config.log,
            clock=self._clock,
            rng=new_random(),
            node_id=self._node_id,
            slices=slices,
            events=self._events,
        )

    def _inter_broker_dial(self, listener: str) -> Callable[[], Dial] | None:
        """Return what connects to other brokers by a listener with TLS; None if it has none."""
        if self._tls is None or self._tls.of(listener) is None:
            return None
        from ottla.broker.remote.inter_broker_security import InterBrokerSecurity

        security = InterBrokerSecurity(listener, self._tls)
        return lambda: security.dial(self._current_config())

    def _inter_broker_sasl(self, listener: str) -> Sasl | None:
        """Return how this broker signs in to others. Raises InvalidSettings."""
        if self._sasl is None:
            return None
        from ottla.broker.remote.inter_broker_security import inter_broker_sasl

        try:
            return inter_broker_sasl(self._config, listener)
        except InvalidSettings:
            if not self._is_alone:
                raise
            return None

    def _current_config(self) -> BrokerConfig:
        return self._config if self._services is None else self._services.config

    async def _dispatch(self, services: Services, driver: RequestDriver) -> Dispatch:
        """Return what takes the requests of new connections: the sign-in where there are listeners with SASL."""
        if self._sasl is None:
            return driver
        from ottla.broker.requests.sign_in import SignInDispatch
        from ottla.broker.sasl_listeners import SnapshotUsers
        from ottla.broker.sign_ins import SignIns

        await self._sasl.start()
        listeners = self._sasl.open(SnapshotUsers(services.cluster, services.tokens))
        services.sign_ins = SignIns(
            listeners, self._clock, audit_log=services.audit_log, snapshot_age=self._snapshot_age
        )
        return SignInDispatch(services.sign_ins, driver)

    async def _create_internal_topic(self, topic: str) -> None:
        assert self._services is not None
        await create_if_absent(self._services, topic)

    def _open_sasl(self) -> SaslListeners | None:
        """Return the listeners with SASL, checked. Raises InvalidSettings."""
        if not endpoints.any_uses_sasl(self._config.net):
            return None
        from ottla.broker.sasl_listeners import SaslListeners

        return SaslListeners(self._config)

    def _make_listeners(self) -> Listeners:
        net = self._config.net
        return Listeners(
            net,
            budget=self.request_memory,
            sign_in_budget=None if self._sasl is None else ByteBudget(SIGN_IN_BYTES_MAX),
            now=self._clock.monotonic,
            events=self._events,
            limits=ConnectionLimits(
                net,
                partial(self._config.of_listener, NetConfig),
                now=self._clock.monotonic,
                handles_for=self._descriptors.connections,
                protected=endpoints.protected_listener(net),
                window_num=self._config.quotas.window_num,
                window_seconds=self._config.quotas.window_seconds,
            ),
        )

    async def _bind(self, listeners: Listeners) -> list[ListenerAddress]:
        """Take the addresses. Raises OSError, and DirectoryInUse if the one that has them is this broker, running."""
        try:
            protocols = endpoints.security_protocols(self._config.net)
            return [
                await listeners.bind(
                    endpoint,
                    protocols[endpoint.listener],
                    None if self._tls is None else self._tls.of(endpoint.listener),
                )
                for endpoint in endpoints.to_listen_at(self._config.net)
            ]
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                from ottla.broker.startup.start_check import directory_in_use

                if (used := directory_in_use(self._paths)) is not None:
                    raise DirectoryInUse(f"{used} is in use by a running broker") from error
            raise

    async def _register(
        self, services: Services, opened: list[ListenerAddress], report: znodes.ReplicaReport | None
    ) -> None:
        """Start the controller, register this broker and load the first snapshot. Raises InvalidSettings."""
        config = self._config
        advertised = endpoints.to_advertise(config.net, opened)
        directories = services.replicas.directories
        directories.cordon(config.server.cordoned_log_dirs)
        await services.controller.start(
            znodes.BrokerRegistration(
                node_id=self._node_id,
                endpoints={name: znodes.Endpoint(*place) for name, place in advertised.items()},
                protocols={name: endpoints.security_protocols(config.net)[name].name for name in advertised},
                rack=config.server.rack or None,
                started_ms=self._clock.wall_ms(),
                is_cordoned=directories.is_cordoned,
            ),
            report,
            wait_s=expiry_wait_s(config),
        )

    async def _add_users(self, store: MetadataStore, cluster: MetadataCache) -> None:
        """Give the first users their credentials. Raises InvalidSettings and StoreError."""
        file = self._config.sasl.initial_users_file
        if not self._initial_users and not file:
            return
        from ottla.broker.startup.initial_users import add_users, read_users

        await add_users(store, {**read_users(file), **self._initial_users})
        await cluster.refresh()

    async def _follow_cluster(self, storage: OpenedStorage, services: Services, cluster: MetadataCache) -> None:
        """Begin replication, and apply the cluster's changes to this broker."""
        if not self._is_alone:
            from ottla.broker.remote.alter_partition import AlterPartitionChannel

            sender = AlterPartitionChannel(
                services.controller, services.controller_channel, cluster, node_id=self._node_id
            )
            services.replicas.start_replication(services.nodes.connect_to, sender)
        await services.replicas.handle_strays()
        if not storage.is_complete and not services.replicas.is_any_lost:
            await forget_missing(storage, self._node_id)  # what they had is in the report of this broker
        await self._learn_secrets(storage.store, cluster)
        cluster.subscribe(self._reconfigure)
        services.replicas.continue_moves()
        self._following = asyncio.get_running_loop().create_task(cluster.follow(), name="follow the cluster")
        if self._snapshot_age is not None:
            self._snapshot_age.start()

    async def _learn_secrets(self, store: MetadataStore, cluster: MetadataCache) -> None:
        """Decrypt the settings of this broker that are secrets."""
        if has_secrets(overrides_of(cluster.current, self._node_id)):
            await self._secrets.encode_again(store, cluster.current, self._node_id)
        while has_secrets(overrides := overrides_of(cluster.current, self._node_id)):
            if not self._secrets.unknown_in(overrides):
                return
            await self._secrets.learn(overrides)

    def _follow_quotas(self, old: ClusterView, new: ClusterView) -> None:
        """Apply the quotas of the cluster; without one no code of quotas is loaded."""
        if self.quotas is None:
            if not any(new.configs.get(kind) for kind in znodes.QUOTA_KINDS):
                return
            from ottla.broker.quotas import Quotas

            assert self._driver is not None, "it follows once there is a driver"
            assert self._listeners is not None
            self.quotas = Quotas(
                self._config.quotas,
                self._driver,
                self._listeners,
                self._accounting,
                self._clock.monotonic,
                self._events,
            )
            old = ClusterView()
        self.quotas.follow(old, new)

    def _start_tasks(
        self, storage: OpenedStorage, services: Services, cluster: MetadataCache, report: znodes.ReplicaReport | None
    ) -> None:
        """Start the scheduled tasks, and a little later the cleaner and the scrubber."""
        reports = None
        if report is not None:
            from ottla.broker.maintenance.replica_reports import ReplicaReports

            reports = ReplicaReports(services.controller, cluster, services.replicas, report)
        self._late_transactions = LateTransactions(
            services.replicas, self._clock, lambda: services.config.transactions.max_timeout_ms
        )
        self._scheduled_tasks = ScheduledTasks(
            services.replicas,
            config=self._config.log,
            clock=self._clock,
            slices=services.slices,
            complete_deletions=TopicDeletions(storage.store, services.replicas, self._node_id).remove_completed,
            check_transactions=self._late_transactions.check,
            reserves=storage.reserves,
            report_replicas=None if reports is None else reports.update,
        )
        if self._tls is not None:
            self._watching_tls = asyncio.get_running_loop().create_task(self._tls.watch(), name="watch certificates")
        if services.tokens is not None:
            self._removing_tokens = self._remove_expired_tokens(services, cluster)
        self._starting_maintenance = asyncio.get_running_loop().create_task(
            self._start_maintenance(services), name="start the cleaner and the scrubber"
        )

    def _remove_expired_tokens(self, services: Services, cluster: MetadataCache) -> asyncio.Task[None]:
        from ottla.broker.maintenance.token_expiry import remove_expired_tokens

        removing = remove_expired_tokens(
            services.controller.security.tokens.change,
            is_controller=lambda: services.controller.is_active,
            view=lambda: cluster.current,
            clock=self._clock,
            interval_s=self._config.tokens.expiry_check_interval_ms / 1000,
        )
        return asyncio.get_running_loop().create_task(removing, name="remove expired tokens")

    async def _report_at_start(self, storage: OpenedStorage, services: Services) -> znodes.ReplicaReport | None:
        """Return what to report of this broker's replicas with its registration. None if it is alone."""
        if self._is_alone:
            return None
        from ottla.broker.maintenance.replica_reports import read_cluster, report_at_start
        from ottla.replication.replica_inspection import inspect_replicas

        inspecting = inspect_replicas(
            await read_cluster(storage.store),
            storage.directories,
            services.slices,
            node_id=self._node_id,
            is_complete=storage.is_complete,
        )
        inspection = await services.slices.run(inspecting)
        services.replicas.continue_after(inspection)
        report = report_at_start(storage.directories)
        return report._replace(
            is_clean=report.is_clean and not inspection.is_unclean,
            suspects=report.suspects | inspection.missing | inspection.suspects,
        )

    async def _start_maintenance(self, services: Services) -> None:
        """Start what has work only later, once the first clients have their responses."""
        await asyncio.sleep(_MAINTENANCE_AFTER_SECONDS)
        try:
            await import_in_thread("ottla.broker.maintenance.log_cleaner", "ottla.broker.maintenance.scrub_scheduler")
            self._create_maintenance(services)
        except Exception:
            log.exception("the log cleaner and the scrubber cannot be started; restart the broker")

    def _create_maintenance(self, services: Services) -> None:
        from ottla.broker.maintenance.log_cleaner import LogCleaner
        from ottla.broker.maintenance.scrub_scheduler import ScrubScheduler

        self._scrub_scheduler = ScrubScheduler(
            services.replicas.directories.opened,
            files=self._files,
            config=lambda: services.config.scrub,
            clock=self._clock,
        )
        if self._config.cleaner.enable:
            self.log_cleaner = LogCleaner(
                lambda: services.replicas.directories.online,
                config=lambda: services.config.cleaner,
                clock=self._clock,
                new_worker=self._new_cleaner_worker,
                events=services.events,
            )

    def _new_cleaner_worker(self) -> Worker:
        from ottla.broker.maintenance.log_cleaner_worker import ProcessWorker

        if not self._cleans_in_process:
            return ProcessWorker()
        from ottla.broker.maintenance.log_cleaner_thread import ThreadWorker

        return ThreadWorker(self._files, self._clock)

    def _reconfigure(self, old: ClusterView, new: ClusterView) -> Awaitable[None] | None:
        """Apply live changes of the broker's own settings (AlterConfigs)."""
        if old.configs is new.configs or self._services is None:
            return None
        overrides = overrides_of(new, self._node_id)
        if has_secrets(overrides) and self._secrets.unknown_in(overrides):
            return self._learn_and_apply(overrides)
        self._apply(overrides)
        return None

    async def _learn_and_apply(self, overrides: Mapping[str, str]) -> None:
        await self._secrets.learn(overrides)
        self._apply(overrides)

    def _apply(self, overrides: Mapping[str, str]) -> None:
        services = self._services
        assert services is not None, "it is set before the first snapshot"
        if has_secrets(overrides):
            overrides = self._secrets.decoded(overrides)
        config = self._config.with_overrides(overrides)
        services.config = config
        if self._tls is not None:
            self._tls.reconfigure(config)
        directories = services.replicas.directories
        directories.cordon(config.server.cordoned_log_dirs)
        services.controller.announce_cordoned(is_cordoned=directories.is_cordoned)
        services.replicas.reconfigure(config.log)
        services.replicas.context.configure(config.replication)
        services.controller.log_defaults = config.log
        if self._listeners is not None:
            self._listeners.limits.configure(config.net, partial(config.of_listener, NetConfig))
            self._listeners.close_excess()

    def _availability(self, topic_partition: TopicPartition, is_online: bool) -> None:
        """Inform the coordinators: they cannot serve the keys whose partition cannot be read or written."""
        if self._services is not None:
            self._services.coordinators.partition_changed(topic_partition, is_online=is_online)

    # ---- State

    @property
    def services(self) -> Services | None:
        """Return what handlers use; None before the start has come to it."""
        return self._services

    @property
    def cluster_id(self) -> str:
        """Return the id of the cluster that this broker has joined; empty before the start."""
        return "" if self._services is None else self._services.cluster.current.cluster_id

    @property
    def listeners(self) -> Listeners | None:
        """Return the listeners with their connections; None before the start has come to them."""
        return self._listeners

    @property
    def late_transactions(self) -> int:
        """Return how many transactions were open for too long at the last check."""
        return 0 if self._late_transactions is None else len(self._late_transactions)

    async def delete_expired(self) -> None:
        """Delete what topics need not keep now, and not at the next scheduled check: for a test that moves the time."""
        if self._scheduled_tasks is not None:
            await self._scheduled_tasks.delete_expired()

    # ---- Stopping

    async def _hand_over(self, services: Services) -> None:
        """Let other brokers lead before this one stops, while it still serves."""
        config = self._config.server
        if not config.controlled_shutdown:
            return
        within_s = config.controlled_shutdown_retries * config.controlled_shutdown_backoff_ms / 1000
        try:
            remaining = await services.controller.shut_down(within_s)
        except (StoreError, KafkaError) as error:
            log.warning("the stop is not controlled: %r", error)
        else:
            if remaining:
                log.warning(
                    "%d partitions have no leader until this broker starts again or its session ends: no other broker "
                    "took them over within %g s",
                    remaining,
                    within_s,
                )

    async def stop(self) -> None:
        """Hand over what this broker leads, then stop everything in the reverse order; also after a failed start."""
        services = self._services
        if services is not None and not self._is_alone:
            await self._hand_over(services)
        if services is not None:
            services.stopping.set()
            services.delayed_operations.stop()
            await services.coordinators.close()
        within_seconds = self._config.server.shutdown_ms / 1000
        if self._listeners is not None:
            await self._listeners.close(within_seconds=within_seconds)
        if self._driver is not None:
            await self._driver.drain(within_seconds=1.0)
        if self._sasl is not None:
            self._sasl.close()
        if self._snapshot_age is not None:
            await self._snapshot_age.close()
        if services is not None:
            await services.record_validation.close()
            if services.audit_log is not None:
                await services.audit_log.close()
            if services.events is not None:
                await services.events.close()
        for task in (self._watching_tls, self._starting_maintenance, self._removing_tokens):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._scrub_scheduler is not None:
            await self._scrub_scheduler.stop()
        if self.log_cleaner is not None:
            await self.log_cleaner.stop()
        if self._scheduled_tasks is not None:
            await self._scheduled_tasks.stop()
        if services is not None:
            await services.controller_channel.close()
            await services.nodes.close()
            await services.controller.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._cluster is not None:
            await self._cluster.close()
        if services is not None:
            await services.replicas.close()
        elif self._storage is not None:
            self._storage.directories.close()
        if self._storage is not None:
            await self._storage.store.close()
