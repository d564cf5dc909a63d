"""Sends requests to the controller, whichever broker that is, until it responds or a time limit is reached.

A request of a client travels unchanged in an Envelope (KIP-590) and its response comes back unchanged. A broker that is
not the controller responds to an Envelope with NOT_CONTROLLER: then, and after a lost connection, the request is sent
again, to the controller of the newest snapshot. As in Kafka a request whose response was lost may so be executed twice.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.client.errors import CannotConnect, error_or_none
from ottla.core.errors import KafkaError, NetworkException, NotController, RequestTimedOut, UnsupportedVersion
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.wire.apis import API_INFO, ApiKey
from ottla.wire.codec import decode_response, encode_request
from ottla.wire.errors import MalformedRequest
from ottla.wire.headers import encode_request_header, parse_response_header

if TYPE_CHECKING:
    from ottla.broker.remote.node_connections import NodeConnections
    from ottla.client.connection import Connection
    from ottla.controller.controller import Controller
    from ottla.controller.topics import CreateTopic

RETRY_S = 0.05
CREATION_TIMEOUT_S = 5.0
"""For a topic that a client's Metadata or FindCoordinator request creates: the client asks again."""

_CLIENT_ID = "controller-channel"


class ControllerChannel:
    """The way to the controller. Where this broker is the controller, callers use it directly."""

    def __init__(
        self, controller: Controller, cluster: MetadataCache, nodes: NodeConnections, *, node_id: int, timeout_s: float
    ) -> None:
        self._controller, self._cluster, self._nodes = controller, cluster, nodes
        self._node_id = node_id
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._connected_to = NO_LEADER
        self._connecting = asyncio.Lock()
        self._changed = asyncio.Event()  # there is another controller
        self._creating: dict[str, asyncio.Task[None]] = {}
        cluster.subscribe(self._follow)

    def _follow(self, old: ClusterView, new: ClusterView) -> None:
        if old.controller_id != new.controller_id:
            self._changed.set()
            self._changed = asyncio.Event()

    @property
    def is_local(self) -> bool:
        """Return whether this broker is the controller."""
        return self._controller.is_active

    # ---- Requests

    async def forward(
        self, request: bytes, *, client_host: str = "", principal: bytes | None = None, timeout_s: float | None = None
    ) -> bytes:
        """Send a request frame, without its length, and return the frame of the response.

        Without a principal it is this broker's own request.
        Raises NotController if this broker became the controller, or if no controller responded in time.
        """
        from ottla.wire.generated.envelope import EnvelopeRequest

        envelope = EnvelopeRequest(
            request_data=request, request_principal=principal, client_host_address=_packed_address(client_host)
        )
        while_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + while_s
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            if self.is_local:
                raise NotController("this broker became the controller meanwhile")
            try:
                answer = await self._send(ApiKey.ENVELOPE, envelope, timeout_s=left)
            except (CannotConnect, NetworkException, NotController):
                await self._wait_for_controller(deadline)
                continue
            except RequestTimedOut:
                break
            error = error_or_none(answer.error_code)
            if error is None:
                return bytes(answer.response_data or b"")
            if not isinstance(error, NotController):
                raise error
            await self._wait_for_controller(deadline)
        raise NotController(f"the controller did not respond within {while_s:g} s")

    async def request(
        self,
        key: ApiKey,
        request: Any,
        *,
        client_host: str = "",
        principal: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request of an API that the controller serves to clients, and return the response. See `forward`."""
        version = API_INFO[key].max_version
        header = encode_request_header(key, version, 0, _CLIENT_ID)
        frame = header + encode_request(key, version, request)
        frame = await self.forward(frame, client_host=client_host, principal=principal, timeout_s=timeout_s)
        return decode_response(key, version, frame, parse_response_header(frame, key, version)[1])

    async def send_to_controller(self, key: ApiKey, request: Any, *, timeout_s: float) -> Any:
        """Send a request of an API between brokers once, and return the response.

        Raises NotController where no controller is known, CannotConnect, NetworkException or RequestTimedOut.
        """
        return await self._send(key, request, timeout_s=timeout_s)

    async def _send(self, key: ApiKey, request: Any, *, timeout_s: float) -> Any:
        """Send once. The wait ends as well when the snapshot has another controller: this one may be paused."""
        changed = self._changed
        connection = await self._connect()
        exchange = asyncio.ensure_future(connection.request(key, request, timeout_s=timeout_s))
        replaced = asyncio.ensure_future(changed.wait())
        try:
            await asyncio.wait((exchange, replaced), return_when=asyncio.FIRST_COMPLETED)
            if not exchange.done():
                exchange.cancel()  # first: nothing else would take the error of the closed connection
                await self._disconnect()
                raise NotController("another broker became the controller meanwhile")
            return exchange.result()
        except (UnsupportedVersion, MalformedRequest) as error:
            await self._disconnect()
            raise NetworkException(f"the controller cannot be used: {error}") from error
        finally:
            replaced.cancel()
            if not exchange.done():
                exchange.cancel()

    async def _connect(self) -> Connection:
        async with self._connecting:
            controller = self._cluster.current.controller_id
            if controller in (NO_LEADER, self._node_id):
                raise NotController("the controller is not known")
            connection = self._connection
            if connection is not None and connection.usable and self._connected_to == controller:
                return connection
            await self._disconnect()
            connection = self._connection = await self._nodes.connect_to(controller)
            self._connected_to = controller
            return connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _wait_for_controller(self, deadline: float) -> None:
        """Wait a moment, or until another broker is the controller."""
        left = deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, min(RETRY_S, left))):
                await self._changed.wait()
        except TimeoutError:
            return

    # ---- Topics

    async def create_topics(self, events: Sequence[CreateTopic]) -> list[KafkaError | None]:
        """Create topics on behalf of a client's first use; returns None or the error for each."""
        from ottla.wire.generated import create_topics as wire

        if self.is_local or not self._can_forward:
            outcomes = await self._controller.create_topics(events)
            return [outcome if isinstance(outcome, KafkaError) else None for outcome in outcomes]
        request = wire.CreateTopicsRequest(
            topics=[
                wire.CreatableTopic(
                    name=event.name,
                    num_partitions=event.partitions,
                    replication_factor=event.replication_factor,
                    configs=[wire.CreatableTopicConfig(name=key, value=value) for key, value in event.configs.items()],
                )
                for event in events
            ],
            timeout_ms=int(CREATION_TIMEOUT_S * 1000),
        )
        answer = await self.request(ApiKey.CREATE_TOPICS, request, timeout_s=CREATION_TIMEOUT_S)
        found = {topic.name: error_or_none(topic.error_code, topic.error_message) for topic in answer.topics}
        return [found.get(event.name) for event in events]

    async def create_topic(self, event: CreateTopic) -> None:
        """Create one topic; a second caller waits for the first one's request. Raises the KafkaError."""
        task = self._creating.get(event.name)
        if task is None:
            task = self._creating[event.name] = asyncio.ensure_future(self._create(event))
            task.add_done_callback(lambda _: self._creating.pop(event.name, None))
        await asyncio.shield(task)

    async def _create(self, event: CreateTopic) -> None:
        (error,) = await self.create_topics([event])
        if error is not None:
            raise error

    @property
    def _can_forward(self) -> bool:
        """Return whether there is another broker that may be the controller."""
        return (
            self._cluster.current.controller_id not in (NO_LEADER, self._node_id)
            or len(self._cluster.current.brokers) > 1
        )

    @property
    def must_forward(self) -> bool:
        """Return whether a request for the controller has to be sent to another broker."""
        return not self.is_local and self._can_forward

    async def close(self) -> None:
        """Close the connection, and give up the creation of topics."""
        for task in tuple(self._creating.values()):
            task.cancel()
        await self._disconnect()


def _packed_address(host: str) -> bytes:
    """Return the bytes of an IP address; none for what is not one."""
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        return b""
