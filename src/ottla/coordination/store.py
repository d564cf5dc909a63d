"""What all brokers must agree on: a small tree of versioned values with watches and liveness.

It is what ZooKeeper gives and no more, so that the store embedded in one broker and ZooKeeper itself stand behind the
same few methods. tests/contracts/test_metadata_store.py runs on every implementation: the port promises only what the
weakest of them can keep.

The rules, which are ZooKeeper's:
- A path is `/a/b`. A node's parent must exist before it; a node with children cannot be deleted.
- A node begins at version 0 and each write adds 1. Writes may name the version they were decided on.
- A commit is all or nothing, and every reader sees it so.
- An ephemeral node lives as long as the session of the store that made it, has no children, and says: I am alive.
- Whoever has committed sees that commit in what it reads next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

ANY_VERSION = -1
"""As an expected version: whatever is there."""

NO_VERSION = -1
"""As a result: the operation leaves no node behind, or changes none."""


class StoreError(Exception):
    """A commit that changed nothing; `path` is the node that stood in its way."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class VersionConflict(StoreError):
    """Someone wrote since you read. Read again and decide again."""


class NoSuchNode(StoreError):
    """The node, or the parent it would need, is not there."""


class NodeExists(StoreError):
    """There is a node at that path already."""


class NodeHasChildren(StoreError):
    """Delete what lies below first."""


class NoChildrenAllowed(StoreError):
    """The parent is ephemeral."""


class SessionLost(StoreError):
    """This store's session is over: its ephemeral nodes are gone and it may not act any more."""


class Node(NamedTuple):
    """A value and what the store knows of it."""

    value: bytes
    version: int  # 0 when created, one more with every write: the token of a conditional write
    created: int  # the commit that made it, counted over the whole store: a broker's epoch (ZooKeeper's czxid)
    ephemeral: bool


class Create(NamedTuple):
    """A new node. `NodeExists` if it is there, `NoSuchNode` if its parent is not."""

    path: str
    value: bytes = b""
    ephemeral: bool = False


class Put(NamedTuple):
    """A new value for a node that is there. Every election rests on the expected version."""

    path: str
    value: bytes
    expected_version: int = ANY_VERSION


class Delete(NamedTuple):
    """The end of a node without children."""

    path: str
    expected_version: int = ANY_VERSION


class Check(NamedTuple):
    """No change, but the commit stands only if the node still has this version: how an old controller is fenced."""

    path: str
    expected_version: int = ANY_VERSION


Op = Create | Put | Delete | Check


class MetadataStore(Protocol):
    """One session with the store."""

    async def get(self, path: str) -> Node | None:
        """The node, or None if there is none."""
        ...

    async def children(self, path: str) -> frozenset[str]:
        """The names directly below; empty if the node is not there."""
        ...

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """All of `ops`, in order, or none of them. Returns once it would survive a power cut.

        The result holds the new version for each Create and Put, `NO_VERSION` for each Delete and Check. Raises the
        `StoreError` of the first operation that cannot be done.
        """
        ...

    def watch(self, path: str) -> AsyncIterator[frozenset[str]]:
        """First every path at or below `path`, then after each change the paths that were created, written or deleted.

        Changes may be merged, and a path may be named that has not changed; the last state is never missed.
        """
        ...

    async def lost(self) -> None:
        """Returns when the session is over, whether closed or expired."""
        ...

    async def close(self) -> None:
        """End the session; its ephemeral nodes go. Calling it twice is harmless."""
        ...


def parent_of(path: str) -> str:
    """The path above.

    >>> parent_of("/brokers/ids/1"), parent_of("/brokers")
    ('/brokers/ids', '/')
    """
    return path.rpartition("/")[0] or "/"


def is_within(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies below it.

    >>> is_within("/a/b", "/a"), is_within("/ab", "/a"), is_within("/a", "/")
    (True, False, True)
    """
    return path == root or path.startswith(root.rstrip("/") + "/")
