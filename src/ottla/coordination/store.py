"""Declares the metadata store, a small tree of versioned nodes with watches and sessions, that all brokers share.

The port offers what ZooKeeper does and no more, so that the store embedded in one broker and ZooKeeper itself can both
implement it. tests/contracts/test_metadata_store.py runs on every implementation.

The rules, which are ZooKeeper's:
- A path is `/a/b`. A node's parent must exist before it; a node with children cannot be deleted.
- A node begins at version 0 and each write adds 1. Writes may name the version they were decided on.
- A commit is all or nothing, and every reader sees it so.
- An ephemeral node lives as long as the session that created it and has no children: it shows that its owner is alive.
- A session reads its own commits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

ANY_VERSION = -1
"""As an expected version: any version matches."""

NO_VERSION = -1
"""In place of a version: the node does not exist, or (as a result) the operation wrote no node."""


class StoreError(Exception):
    """Reports a commit that changed nothing; `path` is the node that prevented it."""

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


class Node(NamedTuple):
    """Holds a value and its metadata."""

    value: bytes
    version: int  # 0 when created, one more with every write: the token of a conditional write
    created: int  # the commit that created it, counted over the whole store: a broker's epoch (ZooKeeper's czxid)
    ephemeral: bool


class Create(NamedTuple):
    """Creates a node. `NodeExists` if it exists, `NoSuchNode` if its parent does not."""

    path: str
    value: bytes = b""
    ephemeral: bool = False


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


class MetadataStore(Protocol):
    """Port: one session with the store."""

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if there is none."""
        ...

    async def children(self, path: str) -> frozenset[str]:
        """Return the names of the children; empty if the node does not exist."""
        ...

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """Commit all of `ops`, in order, or none. Returns once the commit would survive a power cut.

        The result holds the new version for each Create and Put, `NO_VERSION` for each Delete and Check. Raises the
        `StoreError` of the first operation that fails.
        """
        ...

    def watch(self, path: str) -> AsyncIterator[frozenset[str]]:
        """Yield every path at or below `path`, then after each change the paths that were created, written or deleted.

        Changes may be merged, and a path may be yielded that has not changed; the last state is never missed.
        """
        ...

    async def lost(self) -> None:
        """Return when the session is over, whether closed or expired."""
        ...

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes. Calling it twice is harmless."""
        ...


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
