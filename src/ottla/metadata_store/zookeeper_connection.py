"""Sends requests to ZooKeeper through kazoo and returns the answers on the event loop.

kazoo works in threads of its own. They hand everything over by `call_soon_threadsafe`: no other code runs in them. A
request that cannot be answered raises `ZooKeeperDisconnected`, whether ZooKeeper received it or not. kazoo connects
again by itself, and would open a new session after a lost one; this connection ends then, so that its owner decides
when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    WriterNotClosedException,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, READ_ACL_UNSAFE

from ottla.metadata_store.store import (
    Check,
    Create,
    Delete,
    NoChildrenAllowed,
    NodeExists,
    NodeHasChildren,
    NoSuchNode,
    Op,
    Put,
    SessionStatus,
    VersionConflict,
    parent_of,
)

REQUESTS_MAX = 256
"""Requests in flight: kazoo wakes its thread by a byte per request through a pipe that must not fill up."""

_RETRY_DELAY_S, _RETRY_DELAY_MAX_S = 0.05, 1.0
_STOP_EXTRA_S = 5.0  # kazoo itself waits for its connection for the session timeout

logger = logging.getLogger(__name__)
_kazoo_logger = logging.Logger("ottla.kazoo", logging.ERROR)  # noqa: LOG001 - see below
"""Kazoo's own. It logs each failed attempt to connect, and with DEBUG each request: the password of the digest, and
what is written for users and brokers. So it is not among the loggers whose level a client can set."""
_kazoo_logger.parent = logging.getLogger("ottla")


class ZooKeeperDisconnected(Exception):
    """Reports that a request was not answered: the connection was lost, or the session is over."""


class ZooKeeperUnreachable(OSError):
    """Reports that no server of ZooKeeper answered in time."""


class ZooKeeperNode(NamedTuple):
    """Holds what ZooKeeper has of a node."""

    value: bytes
    version: int
    created: int  # czxid
    modified: int  # mzxid
    owner: int  # the session of an ephemeral node, else 0
    children: int
    child_changes: int  # children ever created plus children ever deleted
    created_ms: int

    @property
    def is_ephemeral(self) -> bool:
        """Return whether it ends with a session."""
        return self.owner != 0


class ZooKeeperSecurity(NamedTuple):
    """Holds how a broker authenticates with ZooKeeper, and whether it protects the nodes that it creates."""

    digest: str = ""  # NAME:PASSWORD
    sets_acl: bool = False
    context: ssl.SSLContext | None = None  # of TLS


SENSITIVE: Final = ("/config/users", "/config/brokers", "/delegation_token")
"""Nodes at or below these have secrets in them: as in Kafka not everybody may read them."""


def node_acl(path: str) -> list[ACL]:
    """Return who may do what with a node, as Kafka's defaultAcls: its creator everything, others read at most."""
    is_sensitive = any(path == root or path.startswith(f"{root}/") for root in SENSITIVE)
    return list(CREATOR_ALL_ACL if is_sensitive else CREATOR_ALL_ACL + READ_ACL_UNSAFE)


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Connects with TLS. kazoo itself reads PEM files only, and has no choice of versions."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    def create_connection(self, address: Any, hostname: str | None = None, **options: Any) -> ssl.SSLSocket:
        """Open a connection. Raises OSError, of which errors of TLS are."""
        plain = super().create_connection(address, hostname=hostname, timeout=options.get("timeout"))
        try:
            return self._context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise


class ZooKeeperConnection:
    """One session with ZooKeeper. `on_status` is called on the loop with each status after the first CONNECTED."""

    def __init__(
        self,
        hosts: str,
        *,
        chroot: str,
        session_timeout_s: float,
        on_status: Callable[[SessionStatus], None],
        security: ZooKeeperSecurity | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_status = on_status
        self._hosts, self._chroot = hosts, chroot
        self._requests = asyncio.Semaphore(REQUESTS_MAX)
        self._connected = asyncio.Event()
        self._asked: set[asyncio.Future[Any]] = set()
        self._is_over = False  # no request is sent any more
        self._is_stopped = False
        self._security = security or ZooKeeperSecurity()
        tls = self._security.context
        self._client = KazooClient(
            hosts,
            handler=None if tls is None else _TlsHandler(tls),
            auth_data=[("digest", self._security.digest)] if self._security.digest else None,
            timeout=session_timeout_s,
            connection_retry=KazooRetry(
                max_tries=-1, delay=_RETRY_DELAY_S, max_delay=_RETRY_DELAY_MAX_S, ignore_expire=False
            ),
            command_retry=KazooRetry(max_tries=0),
            logger=_kazoo_logger,
        )
        self._client.add_listener(self._on_kazoo_state)

    async def open(self, timeout_s: float) -> None:
        """Connect, and create the chroot if it is missing. Raises ZooKeeperUnreachable and ZooKeeperDisconnected."""
        self._client.start_async()
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise ZooKeeperUnreachable(
                f"no ZooKeeper server of {self._hosts} answered within {timeout_s:g} s. Check zookeeper.connect, and "
                f"that ZooKeeper runs"
            ) from None
        at = ""
        for name in self._chroot.split("/")[1:]:
            at += f"/{name}"
            with contextlib.suppress(NodeExists):
                await self.commit([Create(at)])
        self._client.chroot = self._chroot

    def abandon(self) -> None:
        """End the session on this side: nothing is sent any more, and nothing waits for an answer."""
        self._is_over = True
        self._client._stopped.set()  # noqa: SLF001 - kazoo's thread ends and sends nothing that is in its queue
        for answer in tuple(self._asked):
            if not answer.done():
                answer.set_exception(ZooKeeperDisconnected("the session is over"))

    async def close(self) -> None:
        """End the session, in ZooKeeper too if it is connected, and the threads. Calling it twice is harmless."""
        if not self._is_stopped:
            self._is_over = self._is_stopped = True
            stopped = asyncio.Event()
            self._client.handler.spawn(self._stop, stopped)  # a daemon: the process can end if kazoo's threads do not
            try:
                async with asyncio.timeout(self.session_timeout_s + _STOP_EXTRA_S):
                    await stopped.wait()
            except TimeoutError:
                logger.warning("kazoo did not stop within %.0f s; its threads are left", self.session_timeout_s)

    def _stop(self, stopped: asyncio.Event) -> None:
        try:
            self._stop_client()
        finally:
            self._hand_over(stopped.set)

    def _stop_client(self) -> None:
        client = self._client
        with contextlib.suppress(WriterNotClosedException):  # its thread waits for a server; it ends by itself
            if client._stopped.is_set():  # noqa: SLF001 - by `abandon` or `_on_kazoo_state`
                client._safe_close()  # noqa: SLF001
            else:
                client.stop()
            client.close()

    @property
    def session_id(self) -> int:
        """Return the id of the session; 0 without one."""
        found = self._client.client_id
        return int(found[0]) if found else 0

    @property
    def session_timeout_s(self) -> float:
        """Return the timeout on which client and server have agreed."""
        return float(self._client._session_timeout) / 1000  # noqa: SLF001 - kazoo has no accessor

    # ---- Requests

    async def get(self, path: str, on_change: Callable[[], None] | None = None) -> ZooKeeperNode | None:
        """Read a node; None if there is none. `on_change` is called once, at the next change or disconnection.

        It is not called for a node that does not exist.
        """
        try:
            value, stat = await self._ask(self._client.get_async, path, self._watcher(on_change))
        except NoNodeError:
            return None
        return _found(value, stat)

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> ZooKeeperNode | None:
        """Return a node without its value. `on_change` as for `get`, also for a node that does not exist yet."""
        stat = await self._ask(self._client.exists_async, path, self._watcher(on_change))
        return None if stat is None else _found(b"", stat)

    async def children(self, path: str) -> list[str]:
        """Return the names of the children; empty if there is no such node."""
        try:
            return list(await self._ask(self._client.get_children_async, path))
        except NoNodeError:
            return []

    async def sync(self, path: str) -> None:
        """Wait until the server that we are connected to has every commit made before this call."""
        await self._ask(self._client.sync_async, path)

    async def commit(self, ops: Sequence[Op]) -> list[Any]:
        """Commit operations. Returns the path of each Create, the version after each Put, and None for the rest.

        Raises the `StoreError` of the first operation that fails, or `ZooKeeperDisconnected`: it may have been
        committed or not.
        """
        transaction = self._client.transaction()
        for op in ops:
            match op:
                case Create(path, value, ephemeral, sequential):
                    acl = node_acl(path) if self._security.sets_acl else None
                    transaction.create(path, value, acl=acl, ephemeral=ephemeral, sequence=sequential)
                case Put(path, value, expected):
                    transaction.set_data(path, value, expected)
                case Delete(path, expected):
                    transaction.delete(path, expected)
                case Check(path, expected):
                    transaction.check(path, expected)
        results = await self._ask(transaction.commit_async)
        for op, result in zip(ops, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                raise _store_error(op, result)
        return [
            str(result) if isinstance(op, Create) else int(result.version) if isinstance(op, Put) else None
            for op, result in zip(ops, results, strict=True)
        ]

    async def _ask(self, request: Callable[..., Any], *arguments: Any) -> Any:
        """Send a request and return its answer. Raises `ZooKeeperDisconnected`, and kazoo's errors about nodes."""
        async with self._requests:
            if self._is_over:
                raise ZooKeeperDisconnected("the session is over")
            answer: asyncio.Future[Any] = self._loop.create_future()
            self._asked.add(answer)
            request(*arguments).rawlink(lambda result: self._hand_over(_resolve, answer, result))
            try:
                return await answer
            except (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError, NoChildrenForEphemeralsError):
                raise
            except KazooException as error:
                raise ZooKeeperDisconnected(repr(error)) from error
            finally:
                self._asked.discard(answer)

    def _watcher(self, on_change: Callable[[], None] | None) -> Callable[[Any], None] | None:
        if on_change is None:
            return None
        return lambda _event: self._hand_over(on_change)

    # ---- Called in kazoo's threads

    def _hand_over(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(call, *arguments)

    def _on_kazoo_state(self, state: str) -> None:
        match state:
            case KazooState.CONNECTED:
                status = SessionStatus.CONNECTED
                self._hand_over(self._connected.set)
            case KazooState.SUSPENDED:
                status = SessionStatus.SUSPENDED
            case _:
                status = SessionStatus.LOST
                self._client._stopped.set()  # noqa: SLF001 - no new session: stop kazoo's connection loop
        self._hand_over(self._on_status, status)


def _resolve(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return  # the caller was cancelled
    if result.exception is not None:
        answer.set_exception(result.exception)
    else:
        answer.set_result(result.value)


def _found(value: bytes, stat: Any) -> ZooKeeperNode:
    return ZooKeeperNode(
        value, stat.version, stat.czxid, stat.mzxid, stat.ephemeralOwner, stat.numChildren, stat.cversion, stat.ctime
    )


def _store_error(op: Op, error: Exception) -> Exception:
    """Convert kazoo's error of an operation."""
    match error:
        case BadVersionError():
            return VersionConflict(op.path)
        case NoNodeError():
            return NoSuchNode(parent_of(op.path) if isinstance(op, Create) else op.path)
        case NodeExistsError():
            return NodeExists(op.path)
        case NotEmptyError():
            return NodeHasChildren(op.path)
        case NoChildrenForEphemeralsError():
            return NoChildrenAllowed(parent_of(op.path))
        case _:
            return ZooKeeperDisconnected(repr(error))
