"""Declares the metadata store, a small tree of versioned nodes with watches and sessions, that all brokers share.

The port offers what ZooKeeper does and no more, so that the store embedded in one broker, the same store over a socket
and ZooKeeper can all implement it. tests/contracts/test_metadata_store.py runs on every implementation.

The rules, which are ZooKeeper's:
- A path is `/a/b`. A node's parent must exist before it; a node with children cannot be deleted.
- A node begins at version 0 and each write adds 1. Writes may name the version they were decided on.
- A commit is all or nothing, and every reader sees it so.
- An ephemeral node lives as long as the session that created it and has no children: it shows that its owner is alive.
- A session reads its own commits, and they are in its own watches when `commit` returns. What others committed may
  come later: `sync` waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, Self

ANY_VERSION = -1
"""As an expected version: any version matches."""

NO_VERSION = -1
"""In place of a version: the node does not exist, or (as a result) the operation wrote no node."""

SEQUENCE_DIGITS = 10


class StoreError(Exception):
    """Reports a commit that changed nothing, `OutcomeUnknown` excepted; `path` is the node that prevented it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class VersionConflict(StoreError):
    """The node was changed since it was read. Read again and decide again."""


class NoSuchNode(StoreError):
    """The node, or the parent of a new node, does not exist."""


class NodeExists(StoreError):
    """A node with that path exists already."""


class NodeHasChildren(StoreError):
    """The node has children. Delete them first."""


class NoChildrenAllowed(StoreError):
    """The parent is ephemeral."""


class SessionLost(StoreError):
    """The session has ended: its ephemeral nodes are deleted and it can do nothing more."""


class OutcomeUnknown(StoreError):
    """The connection was lost before the answer: the commit may have been made or not. `sync`, read, decide again."""


class SessionStatus(Enum):
    """Lists the states of a session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"  # no connection, but the session may still be alive: nothing of it has ended yet
    LOST = "lost"  # its ephemeral nodes are deleted


class SessionState(NamedTuple):
    """Holds the state of a session. A store that opens another session after a lost one counts them."""

    ordinal: int  # of the session, from 1: what was decided in an older one must not be written
    status: SessionStatus


class Node(NamedTuple):
    """Holds a value and its metadata."""

    value: bytes
    version: int  # 0 when created, one more with every write: the token of a conditional write
    created: int  # the commit that created it, counted over the whole store: a broker's epoch (ZooKeeper's czxid)
    ephemeral: bool


class Create(NamedTuple):
    """Creates a node. `NodeExists` if it exists, `NoSuchNode` if its parent does not.

    A sequential node gets a number, the result of the operation, that grows with each one, and the name
    `sequential_path(path, number)`.
    """

    path: str
    value: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class Put(NamedTuple):
    """Replaces the value of a node. Elections depend on the expected version."""

    path: str
    value: bytes
    expected_version: int = ANY_VERSION


class Delete(NamedTuple):
    """Deletes a node without children."""

    path: str
    expected_version: int = ANY_VERSION


class Check(NamedTuple):
    """Changes nothing, but the commit fails if the node has another version: this fences an old controller."""

    path: str
    expected_version: int = ANY_VERSION


Op = Create | Put | Delete | Check


class NodeChange(NamedTuple):
    """Reports the last state of one node."""

    number: int  # of the commit, counted over the whole store
    path: str
    node: Node | None  # None: it was deleted


class Watch:
    """Collects the changes of nodes for one reader, merged by path, until the reader takes them.

    The store publishes: all nodes at first (and again after it lost the connection to what changes), then the changes,
    whole commits at once. The reader takes, or iterates over what it would take. A slow reader costs one entry for each
    path.
    """

    __slots__ = ("_changes", "_is_complete", "_is_over", "_waiter")

    def __init__(self) -> None:
        self._changes: dict[str, NodeChange] = {}
        self._is_complete = False
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None

    def publish(self, changes: Iterable[NodeChange], *, is_complete: bool = False) -> None:
        """Add the changes of a commit, or (`is_complete`) all nodes in place of what was added before."""
        if self._is_over:
            return
        pending = self._changes
        if is_complete:
            pending.clear()
            self._is_complete = True
        for change in changes:
            pending.pop(change.path, None)  # the order is that of the last changes
            pending[change.path] = change
        if self._has_news():
            self._wake()

    def publish_all(self, nodes: dict[str, NodeChange]) -> None:
        """Publish all nodes, by path, in place of what was added before: thousands in one turn of the loop."""
        if not self._is_over:
            self._changes, self._is_complete = nodes, True
            self._wake()

    def end(self) -> None:
        """End the watch: the session is over, or the reader needs no more changes. What was not taken is dropped."""
        self._is_over = True
        self._is_complete = False
        self._changes.clear()
        self._wake()

    @property
    def is_over(self) -> bool:
        """Return whether the watch has ended."""
        return self._is_over

    @property
    def is_complete(self) -> bool:
        """Return whether the next `take` returns all nodes: what is not in it does not exist any more."""
        return self._is_complete

    def take(self) -> tuple[NodeChange, ...]:
        """Return what changed since the last call, in the order of the commits; does not wait."""
        taken = tuple(self._changes.values())
        self._changes.clear()
        self._is_complete = False
        return taken

    async def wait(self) -> bool:
        """Wait for changes. Returns False once the watch is over."""
        while not self._has_news() and not self._is_over:
            assert self._waiter is None, "a watch has one reader"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return not self._is_over

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[NodeChange, ...]:
        if not await self.wait():
            raise StopAsyncIteration
        return self.take()

    def _has_news(self) -> bool:
        return bool(self._changes) or self._is_complete

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class StoreSession(Protocol):
    """Port: the life of a session with the store."""

    @property
    def state(self) -> SessionState:
        """Return the state of the session as this side knows it."""
        ...

    async def next_state(self, known: SessionState) -> SessionState:
        """Return the state as soon as it differs from `known`."""
        ...

    async def renew(self) -> None:
        """Open another session in place of a lost one, with a higher ordinal. Raises `SessionLost` after `close`.

        It tries until the store answers. Until then every call raises `SessionLost`: nothing that was decided in the
        old session is written in the new.
        """
        ...

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes. Calling it twice is harmless."""
        ...


class SessionStates:
    """Implements the state of a `StoreSession`, which its subclasses change with `_enter`."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._state_changed = asyncio.Event()

    @property
    def state(self) -> SessionState:
        """Return the state of the session as this side knows it."""
        return self._state

    async def next_state(self, known: SessionState) -> SessionState:
        """Return the state as soon as it differs from `known`."""
        while self._state == known:
            await self._state_changed.wait()
        return self._state

    def _enter(self, state: SessionState) -> None:
        self._state = state
        self._state_changed.set()
        self._state_changed = asyncio.Event()


class MetadataStore(StoreSession, Protocol):
    """Port: the store, in one session."""

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if there is none."""
        ...

    async def children(self, path: str) -> frozenset[str]:
        """Return the names of the children; empty if the node does not exist."""
        ...

    async def list_nodes(self, prefix: str) -> dict[str, Node]:
        """Return all nodes at or below `prefix` by path, parents first. The root itself is no node."""
        ...

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """Commit all of `ops`, in order, or none. Returns once the commit would survive a power cut.

        The result holds the new version for each Put, 0 for each Create (its number if it is sequential), `NO_VERSION`
        for each Delete and Check. Raises the `StoreError` of the first operation that fails.
        """
        ...

    def watch(self, prefix: str) -> Watch:
        """Return a watch of all nodes at or below `prefix`: first come all that exist, then the changes.

        It ends with the session. Changes of one path may be merged; the last state is never missed, and a commit is
        never seen in part.
        """
        ...

    async def sync(self) -> None:
        """Return once this session's reads and watches have every commit that was made before the call."""
        ...


def sequential_path(path: str, number: int) -> str:
    """Return the path of a sequential node.

    >>> sequential_path("/changes/c_", 7)
    '/changes/c_0000000007'
    """
    return f"{path}{number:0{SEQUENCE_DIGITS}d}"


def parent_of(path: str) -> str:
    """Return the path of the parent.

    >>> parent_of("/brokers/ids/1"), parent_of("/brokers")
    ('/brokers/ids', '/')
    """
    return path.rpartition("/")[0] or "/"


def is_within(path: str, root: str) -> bool:
    """Return whether `path` is `root` or below it.

    >>> is_within("/a/b", "/a"), is_within("/ab", "/a"), is_within("/a", "/")
    (True, False, True)
    """
    return path == root or path.startswith(root.rstrip("/") + "/")
