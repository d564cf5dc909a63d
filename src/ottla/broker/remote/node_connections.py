"""Connects this broker to the other brokers of its cluster, at the addresses in the current snapshot.

Each fetcher and each channel has a connection of its own: a fetch that waits for data delays no other request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ottla.client.addresses import Address
from ottla.client.errors import CannotConnect
from ottla.core.errors import KafkaError
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:  # imported with the first connection: one broker alone has none
    from ottla.client.connection import Connection, Dial
    from ottla.client.sasl import Sasl

CONNECT_TIMEOUT_S = 5.0


class NodeConnections:
    """Opens connections to brokers by their node id, and closes all of them with this broker."""

    def __init__(
        self,
        cluster: MetadataCache,
        *,
        node_id: int,
        listener: str,
        inter_broker_versions: Mapping[ApiKey, tuple[int, int]],
        dial: Callable[[], Dial] | None = None,
        sasl: Sasl | None = None,
    ) -> None:
        self._cluster = cluster
        self._sasl = sasl  # signs this broker in; None where it need not
        self._dial = dial  # makes connections with TLS; None for plain ones
        self._listener = listener  # that brokers use among themselves
        self._inter_broker_versions = inter_broker_versions  # served to brokers, and not advertised to clients
        self._client_id = f"broker-{node_id}"
        self._opened: list[Connection] = []
        self._is_closed = False

    def address_of(self, node_id: int) -> Address | None:
        """Return where a broker listens for other brokers; None if it is not alive or has no such listener."""
        broker = self._cluster.current.brokers.get(node_id)
        endpoint = broker.endpoints.get(self._listener) if broker is not None else None
        return Address(endpoint.host, endpoint.port) if endpoint is not None else None

    async def connect_to(self, node_id: int) -> Connection:
        """Open a connection, which belongs to the caller. Raises CannotConnect."""
        from ottla.client.connection import dial_tcp, open_connection

        address = self.address_of(node_id)
        if address is None:
            raise CannotConnect(f"broker {node_id}", f"it is not alive, or has no listener {self._listener}")
        dial = dial_tcp if self._dial is None else self._dial()
        try:
            connection = await open_connection(
                address, client_id=self._client_id, timeout_s=CONNECT_TIMEOUT_S, dial=dial, sasl=self._sasl
            )
        except KafkaError as error:  # of the sign-in: it may succeed later, once the other broker knows this one's user
            raise CannotConnect(str(address), f"this broker cannot sign in: {error.message}") from error
        if self._is_closed:
            await connection.close()
            raise CannotConnect(str(address), "this broker stops")
        for key, versions in self._inter_broker_versions.items():
            connection.versions.setdefault(key, versions)
        self._opened = [each for each in self._opened if each.usable]
        self._opened.append(connection)
        return connection

    async def close(self) -> None:
        """Close every connection that is still open."""
        self._is_closed = True
        opened, self._opened = self._opened, []
        for connection in opened:
            await connection.close()
