"""Connects to the brokers of a cluster, caches its metadata, and retries requests.

There is one connection per broker, opened at the first use. `retrying` is the one place where a request is retried:
after Kafka's retriable errors and lost connections, with exponential backoff, until a deadline.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from ottla.client.addresses import Address
from ottla.client.connection import Connection, Dial, Security, dialer, open_connection
from ottla.client.errors import CannotConnect, raise_for
from ottla.client.metadata import BrokerNode, ClusterInfo, PartitionInfo, TopicInfo, from_response
from ottla.client.retry_report import RetryReport
from ottla.core.clock import SystemClock
from ottla.core.errors import ErrorCode, KafkaError, LeaderNotAvailable, UnknownTopicOrPartition
from ottla.core.ids import TopicPartition
from ottla.core.runtime import new_random
from ottla.wire.apis import ApiKey

T = TypeVar("T")
ANY_BROKER = -1  # as a node id: any broker
_BACKOFF_FIRST_S, _BACKOFF_MOST_S = 0.05, 1.0
# How long to wait for a topic that the Metadata request itself creates; it is known a moment later.
_AUTO_CREATE_S = 5.0


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The client id, timeouts and security of a client."""

    client_id: str = "ottla-client"
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    retry_s: float = 30.0  # how long a retriable error is retried
    security: Security = field(default_factory=Security)
    report_retries: Callable[[str], None] | None = None  # gets a sentence when retries begin and when they end


class Cluster:
    """A client of one cluster. Create one with `Cluster.connect`; it belongs to one event loop."""

    def __init__(self, seeds: Sequence[Address], *, options: ClientOptions, dial: Dial, rng: random.Random) -> None:
        assert seeds, "at least one address is needed"
        self.options = options
        self.rng = rng
        self.info = ClusterInfo(None, -1, {}, {})
        self._seeds = tuple(seeds)
        self._dial = dial
        self._connections: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Lock] = {}
        self.retries = RetryReport(options.report_retries, SystemClock())

    @classmethod
    async def connect(
        cls,
        seeds: Sequence[Address],
        *,
        options: ClientOptions | None = None,
        dial: Dial | None = None,
        rng: random.Random | None = None,
    ) -> Cluster:
        """Connect to the first address that answers and fetch the metadata. Raises `CannotConnect` naming all of them.

        `dial` is for tests; by default connections are TCP, with TLS according to the options' security, which may
        raise `tls.InvalidKeyStore`. A failed authentication raises the broker's `KafkaError`.
        """
        options = options or ClientOptions()
        dial = dial or dialer(options.security)
        cluster = cls(seeds, options=options, dial=dial, rng=rng or new_random())
        try:
            await cluster.refresh([])
        except BaseException:
            await cluster.close()
            raise
        return cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections))

    # ---- Metadata

    async def refresh(self, topics: Iterable[str] | None, *, allow_auto_topic_creation: bool = False) -> ClusterInfo:
        """Fetch the metadata of the brokers and these topics (None: all; empty: none) and cache it."""
        from ottla.wire.generated.metadata import MetadataRequest, MetadataRequestTopic

        metadata_request_topics = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        ask = MetadataRequest(topics=metadata_request_topics, allow_auto_topic_creation=allow_auto_topic_creation)
        fresh = from_response(await self.request(ANY_BROKER, ApiKey.METADATA, ask))
        known = {} if metadata_request_topics is None else {**self.info.topics}
        self.info = ClusterInfo(fresh.cluster_id, fresh.controller_id, fresh.nodes, {**known, **fresh.topics})
        return fresh

    async def topic(self, name: str, *, fresh: bool = False, allow_auto_topic_creation: bool = False) -> TopicInfo:
        """Return a topic's metadata, from the cache unless `fresh`. Raises its `KafkaError` (unknown, ...)."""
        found = self.info.topics.get(name)
        if not fresh and found is not None and found.error_code == ErrorCode.NONE:
            return found
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _AUTO_CREATE_S
        wait_s = _BACKOFF_FIRST_S
        while True:
            info = await self.refresh([name], allow_auto_topic_creation=allow_auto_topic_creation)
            found = info.topics.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error_code
            if code == ErrorCode.NONE:
                assert found is not None
                return found
            waiting = code == ErrorCode.LEADER_NOT_AVAILABLE or (
                allow_auto_topic_creation and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            if not waiting or loop.time() + wait_s > give_up_at:
                raise_for(code, about=f"topic {name}")
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _BACKOFF_MOST_S)

    async def partition(self, tp: TopicPartition, *, fresh: bool = False) -> PartitionInfo:
        """Return a partition that has a leader. Raises `UnknownTopicOrPartition` or `LeaderNotAvailable`."""
        topic = await self.topic(tp.topic, fresh=fresh)
        found = next((p for p in topic.partitions if p.partition == tp.partition), None)
        if found is None:
            raise UnknownTopicOrPartition(
                f"topic {tp.topic} has no partition {tp.partition}; it has {len(topic.partitions)}, numbered from 0"
            )
        if found.leader_id < 0:
            raise LeaderNotAvailable(f"partition {tp} has no leader now")
        return found

    async def by_leader(
        self, partitions: Iterable[TopicPartition], *, fresh: bool = False
    ) -> dict[int, list[TopicPartition]]:
        """Group partitions by the node id of their leader."""
        topic_partitions = list(partitions)
        if fresh or any(tp.topic not in self.info.topics for tp in topic_partitions):
            await self.refresh({tp.topic for tp in topic_partitions})
        grouped: dict[int, list[TopicPartition]] = {}
        for tp in topic_partitions:
            grouped.setdefault((await self.partition(tp)).leader_id, []).append(tp)
        return grouped

    async def coordinator(self, key: str, *, key_type: int = 0) -> int:
        """Find the node id of the coordinator of a group (type 0) or a transactional id (type 1)."""
        from ottla.wire.generated.find_coordinator import FindCoordinatorRequest

        answer = await self.request(
            ANY_BROKER,
            ApiKey.FIND_COORDINATOR,
            FindCoordinatorRequest(key_type=key_type, key=key, coordinator_keys=[key]),
        )
        found = answer.coordinators[0] if answer.coordinators else answer
        raise_for(found.error_code, found.error_message, about=f"the coordinator of {key}")
        if found.node_id not in self.info.nodes:
            await self.refresh([])
        nodes = {**self.info.nodes, found.node_id: BrokerNode(found.node_id, found.host, found.port)}
        self.info = ClusterInfo(self.info.cluster_id, self.info.controller_id, nodes, self.info.topics)
        return int(found.node_id)

    # ---- Requests

    async def request(
        self, node_id: int, key: ApiKey, request: Any, *, timeout_s: float | None = None, at_most: int | None = None
    ) -> Any:
        """Send a request, without retries, to a broker by its id or to `ANY_BROKER`."""
        connection = await self.connection(node_id)
        return await connection.request(
            key, request, timeout_s=timeout_s or self.options.request_timeout_s, at_most=at_most
        )

    async def request_controller(self, key: ApiKey, request: Any) -> Any:
        """Send a request to the controller of the cached metadata."""
        if self.info.controller_id not in self.info.nodes:
            await self.refresh([])
        known = self.info.controller_id in self.info.nodes
        return await self.request(self.info.controller_id if known else ANY_BROKER, key, request)

    async def retrying(self, attempt: Callable[[], Awaitable[T]], *, retry_s: float | None = None) -> T:
        """Run `attempt` until it succeeds, fails with an error that is not retriable, or the time is up.

        Each attempt must look up its broker again: the leader or coordinator may have changed.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + (self.options.retry_s if retry_s is None else retry_s)
        wait_s, operation = _BACKOFF_FIRST_S, object()
        try:
            while True:
                try:
                    result = await attempt()
                except (KafkaError, CannotConnect) as error:
                    pause_s = wait_s * (0.8 + 0.4 * self.rng.random())
                    if (isinstance(error, KafkaError) and not error.retriable) or loop.time() + pause_s > give_up_at:
                        raise
                    self.retries.failed(operation, error, left_s=give_up_at - loop.time())
                else:
                    self.retries.succeeded(operation)
                    return result
                await asyncio.sleep(pause_s)
                wait_s = min(wait_s * 2, _BACKOFF_MOST_S)
        finally:
            self.retries.given_up(operation)

    async def connection(self, node_id: int) -> Connection:
        """Return a usable connection to a broker, or to `ANY_BROKER`. Raises `CannotConnect`."""
        if node_id == ANY_BROKER:
            return await self._any_connection()
        node = self.info.nodes.get(node_id)
        if node is None:
            await self.refresh([])
            node = self.info.nodes.get(node_id)
        if node is None:
            raise CannotConnect(f"broker {node_id}", "the cluster has no such broker")
        try:
            return await self._connected(node.address)
        except CannotConnect as error:
            raise CannotConnect(
                f"broker {node_id} at {node.address} (its advertised listener)", error.reason
            ) from error

    async def _any_connection(self) -> Connection:
        for connection in self._connections.values():
            if connection.usable:
                return connection
        failures: list[CannotConnect] = []
        known = [node.address for node in self.info.nodes.values()]
        for address in dict.fromkeys((*known, *self._seeds)):
            try:
                return await self._connected(address)
            except CannotConnect as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        reasons = "; ".join(f"{failure.address}: {failure.reason}" for failure in failures)
        raise CannotConnect("any of the brokers", reasons)

    async def _connected(self, address: Address) -> Connection:
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is not None and connection.usable:
                return connection
            if connection is not None:
                await connection.close()
            made = await open_connection(
                address,
                client_id=self.options.client_id,
                timeout_s=self.options.connect_timeout_s,
                dial=self._dial,
                sasl=self.options.security.sasl,
            )
            self._connections[address] = made
            return made
