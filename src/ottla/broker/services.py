"""Holds what a handler may use besides its request: the services of the packages below the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.request_errors import RequestErrors
from ottla.core.clock import Clock
from ottla.limits.loop_slices import LoopSlices

if TYPE_CHECKING:  # names only: importing them here would make every handler import every package
    from ottla.broker.client_metrics.instances import ClientMetrics
    from ottla.broker.config import BrokerConfig
    from ottla.broker.coordinators import Coordinators
    from ottla.broker.delayed_operations import DelayedOperations
    from ottla.broker.dynamic_secrets import DynamicSecrets
    from ottla.broker.listener_tls import ListenersTls
    from ottla.broker.record_validation_queue import RecordValidationQueue
    from ottla.broker.refused_batches import RefusedBatches
    from ottla.broker.remote.controller_channel import ControllerChannel
    from ottla.broker.remote.node_connections import NodeConnections
    from ottla.broker.sessions.fetch_sessions import FetchSessions
    from ottla.broker.sessions.replica_sessions import ReplicaSessions
    from ottla.broker.sign_ins import SignIns
    from ottla.controller.controller import Controller
    from ottla.core.events import EventLog
    from ottla.metadata_store.metadata_cache import MetadataCache
    from ottla.metadata_store.producer_ids import ProducerIdManager
    from ottla.replication.replicas import Replicas
    from ottla.security.audit_log import AuditLog
    from ottla.security.delegation_tokens import DelegationTokens


class Services:
    """Holds the services of this broker, created by broker/broker.py."""

    __slots__ = (
        "audit_log",
        "bytes_out",
        "client_metrics",
        "clock",
        "cluster",
        "config",
        "controller",
        "controller_channel",
        "coordinators",
        "delayed_operations",
        "dynamic_secrets",
        "events",
        "fetch_sessions",
        "has_own_store",
        "listeners_tls",
        "node_id",
        "nodes",
        "producer_ids",
        "record_validation",
        "refused_batches",
        "replica_sessions",
        "replicas",
        "request_errors",
        "sign_ins",
        "slices",
        "stopping",
        "tokens",
    )

    def __init__(
        self,
        *,
        node_id: int,
        config: BrokerConfig,
        clock: Clock,
        cluster: MetadataCache,
        controller: Controller,
        controller_channel: ControllerChannel,
        nodes: NodeConnections,
        replicas: Replicas,
        coordinators: Coordinators,
        producer_ids: ProducerIdManager,
        fetch_sessions: FetchSessions,
        record_validation: RecordValidationQueue,
        delayed_operations: DelayedOperations,
        has_own_store: bool = True,
        slices: LoopSlices | None = None,
    ) -> None:
        self.node_id = node_id
        self.config = config
        self.clock = clock
        self.cluster = cluster
        self.controller = controller
        self.controller_channel = controller_channel
        self.nodes = nodes
        self.replicas = replicas
        self.coordinators = coordinators
        self.producer_ids = producer_ids
        self.fetch_sessions = fetch_sessions
        self.record_validation = record_validation
        self.delayed_operations = delayed_operations
        self.has_own_store = has_own_store  # no other broker can join: an internal topic may have fewer replicas
        self.client_metrics: ClientMetrics | None = None  # since the first client that asks for subscriptions
        self.listeners_tls: ListenersTls | None = None  # if a listener has TLS
        self.refused_batches: RefusedBatches | None = None  # since the first of them
        self.replica_sessions: ReplicaSessions | None = None  # since the first fetch of a follower
        self.sign_ins: SignIns | None = None  # with listeners with SASL
        self.slices = LoopSlices() if slices is None else slices
        self.tokens: DelegationTokens | None = None  # None: there are none, by the settings
        self.dynamic_secrets: Callable[[], DynamicSecrets] | None = None  # the broker sets it
        self.audit_log: AuditLog | None = None  # None: there is none, by the settings
        self.events: EventLog | None = None  # the broker sets it
        self.bytes_out: dict[str, int] = {}  # by topic, to consumers, while there is an `Accounting`
        self.request_errors = RequestErrors()  # the broker sets it, with its events
        self.stopping = asyncio.Event()
