"""Sends the requests of this broker's coordinators to other brokers: one connection to each broker, opened on demand.

Each user has channels of its own, because a broker responds to the requests of a connection in order: a marker that
waits to be replicated must not delay the verification of a batch.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ottla.client.errors import CannotConnect
from ottla.core.errors import NetworkException, UnsupportedVersion
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest

if TYPE_CHECKING:  # imported with the first connection: one broker alone has none
    from ottla.client.connection import Connection, ConnectTo

REQUEST_TIMEOUT_S = 30.0
"""Timeout of a request (Kafka's request.timeout.ms)."""

BATCH_ITEMS_MAX = 1000
"""Items in one request."""


class NodeChannels:
    """Holds one connection to each broker that was asked. Call `follow` with each new cluster snapshot."""

    def __init__(self, connect_to: ConnectTo) -> None:
        self._connect_to = connect_to
        self._connecting: dict[int, asyncio.Task[Connection]] = {}  # done once the connection is open
        self._closing: set[asyncio.Task[None]] = set()

    async def request(self, node_id: int, key: ApiKey, request: Any) -> Any:
        """Send a request and return the response. Raises NetworkException or RequestTimedOut; nothing is retried."""
        try:
            connection = await self._connection(node_id)
            return await connection.request(key, request, timeout_s=REQUEST_TIMEOUT_S)
        except (CannotConnect, UnsupportedVersion, MalformedRequest, struct.error) as error:
            raise NetworkException(f"broker {node_id} cannot be asked: {error}") from error

    async def _connection(self, node_id: int) -> Connection:
        task = self._connecting.get(node_id)
        if task is not None and task.done() and (task.cancelled() or task.exception() or not task.result().usable):
            self._disconnect(node_id)
            task = None
        if task is None:
            task = self._connecting[node_id] = asyncio.ensure_future(self._connect_to(node_id))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # the broker is gone; the caller is not cancelled
                raise NetworkException(f"broker {node_id} is not alive") from None
            raise

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Close the connections of brokers that are gone or were started again: their requests fail at once."""
        if old.brokers is new.brokers:
            return
        for node_id in list(self._connecting):
            before, now = old.brokers.get(node_id), new.brokers.get(node_id)
            if now is None or (before is not None and before.epoch != now.epoch):
                self._disconnect(node_id)

    def _disconnect(self, node_id: int) -> None:
        task = self._connecting.pop(node_id, None)
        if task is not None:
            closing = asyncio.ensure_future(_close(task))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        for node_id in list(self._connecting):
            self._disconnect(node_id)
        while self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)


async def _close(task: asyncio.Task[Connection]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled() and task.exception() is None:
        await task.result().close()


I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

Exchange = Callable[[int, Sequence[I]], Awaitable[Sequence[R]]]
"""Sends items to a broker in one request; returns their results in the same order. Raises KafkaError for all."""


class BatchingQueues(Generic[I, R]):
    """Sends items to brokers, one request at a time to each: what arrives meanwhile shares the next request."""

    def __init__(self, exchange: Exchange[I, R], key_of: Callable[[I], Hashable]) -> None:
        self._exchange, self._key_of = exchange, key_of
        self._waiting: dict[int, deque[tuple[I, asyncio.Future[R]]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def send(self, node_id: int, item: I) -> R:
        """Send an item and return its result. Raises KafkaError. Cancelled before it is sent, it is not sent."""
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node_id, deque()).append((item, result))
        if node_id not in self._tasks:
            self._tasks[node_id] = asyncio.get_running_loop().create_task(self._drain(node_id))
        return await result

    async def _drain(self, node_id: int) -> None:
        waiting = self._waiting[node_id]
        try:
            while waiting:
                batch = self._next_batch(waiting)
                if batch:
                    await self._send(node_id, batch)
        finally:
            del self._tasks[node_id], self._waiting[node_id]
            for _, result in waiting:  # only if it was cancelled
                result.cancel()

    def _next_batch(self, waiting: deque[tuple[I, asyncio.Future[R]]]) -> list[tuple[I, asyncio.Future[R]]]:
        """Take the next items, those with the same key in separate requests: a response names them by their key."""
        batch: list[tuple[I, asyncio.Future[R]]] = []
        keys: set[Hashable] = set()
        while waiting and len(batch) < BATCH_ITEMS_MAX:
            if waiting[0][1].done():  # cancelled
                waiting.popleft()
                continue
            key = self._key_of(waiting[0][0])
            if key in keys:
                break
            keys.add(key)
            batch.append(waiting.popleft())
        return batch

    async def _send(self, node_id: int, batch: Sequence[tuple[I, asyncio.Future[R]]]) -> None:
        try:
            results = await self._exchange(node_id, [item for item, _ in batch])
            for (_, waiter), result in zip(batch, results, strict=True):
                if not waiter.done():
                    waiter.set_result(result)
        except Exception as error:  # noqa: BLE001  # each sender gets the error
            for _, waiter in batch:
                if not waiter.done():
                    waiter.set_exception(error)
        except BaseException:
            for _, waiter in batch:
                waiter.cancel()
            raise

    async def close(self) -> None:
        """Cancel everything that waits."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waiting in self._waiting.values():  # whose task was cancelled before it began
            for _, result in waiting:
                result.cancel()
