"""Implements the metadata store on one machine: a tree of nodes in memory, persisted in a SQLite file.

One `EmbeddedMetadataStore` holds the tree; each broker has a `Session` with it (a server has one, a simulated cluster
several). A read costs a dictionary look-up. A commit is checked against the tree, written to the file in a worker
thread as one SQLite transaction, and published only then: every value that was read would survive a power cut. Without
a file the tree is in memory only and no call ever waits, as simulations and tests need.

Ephemeral nodes are never written to the file: the sessions of a process end with it. The commit counter is written
with every commit, so that a node's `created` grows across restarts (it is a broker's epoch).
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import PurePath

from ottla.coordination.metadata_file import ADVICE, Entry, MetadataFile
from ottla.coordination.store import (
    ANY_VERSION,
    NO_VERSION,
    Check,
    Create,
    Delete,
    NoChildrenAllowed,
    Node,
    NodeExists,
    NodeHasChildren,
    NoSuchNode,
    Op,
    Put,
    SessionLost,
    VersionConflict,
    is_within,
    parent_of,
)
from ottla.core.errors import StorageError

_CHECKPOINT_DELAY_S = 1.0  # the commits of a burst share the second sync that a checkpoint costs
_TRANSIENT_ERRORS = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_WRITE})
"""Disk full, no file handle, quota used up: nothing was written, and the next commit may succeed. SQLite reports a
failed fsync as another error, also if the disk was full."""

_FULL_ERRORS = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})

logger = logging.getLogger(__name__)
_ROOT = Node(b"", 0, 0, ephemeral=False)


def _nothing_to_free() -> bool:
    """Return False: there is no reserve."""
    return False


OPS_AT_ONCE = 200
"""After so many operations of one commit the event loop serves others."""


class _Transaction:
    """Collects the changes of one commit; the tree does not change until the file has them."""

    __slots__ = ("_children", "_commit", "_nodes", "_session", "changed", "child_count_changes")

    def __init__(self, store: EmbeddedMetadataStore, commit: int, session: int) -> None:
        self._nodes, self._children = store.nodes, store.child_names
        self._commit, self._session = commit, session
        self.changed: dict[str, Entry | None] = {}
        self.child_count_changes: dict[str, int] = {}  # by parent

    def add(self, op: Op) -> int:
        """Check one operation and add it. Returns the version it leaves; raises the `StoreError`."""
        match op:
            case Create(path, value, ephemeral):
                self._create(path, value, ephemeral=ephemeral)
                return 0
            case Put(path, value, expected):
                entry = self._expect(path, expected)
                node = entry.node._replace(value=value, version=entry.node.version + 1)
                self.changed[path] = Entry(node, entry.owner)
                return node.version
            case Delete(path, expected):
                self._expect(path, expected)
                self.remove(path)
                return NO_VERSION
            case Check(path, expected):
                self._expect(path, expected)
                return NO_VERSION

    def remove(self, path: str) -> None:
        """Delete a node. Raises NodeHasChildren."""
        if len(self._children.get(path, ())) + self.child_count_changes.get(path, 0) > 0:
            raise NodeHasChildren(path)
        self.changed[path] = None
        self._count(path, -1)

    def _create(self, path: str, value: bytes, *, ephemeral: bool) -> None:
        assert path[:1] == "/" != path[-1:], f"{path!r} is not a valid path"
        if self._entry(path) is not None:
            raise NodeExists(path)
        parent = self._entry(parent_of(path))
        if parent is None:
            raise NoSuchNode(parent_of(path))
        if parent.owner:
            raise NoChildrenAllowed(parent_of(path))
        node = Node(value, 0, self._commit, ephemeral)
        self.changed[path] = Entry(node, self._session if ephemeral else 0)
        self._count(path, 1)

    def _entry(self, path: str) -> Entry | None:
        return self.changed[path] if path in self.changed else self._nodes.get(path)

    def _expect(self, path: str, version: int) -> Entry:
        entry = self._entry(path)
        if entry is None:
            raise NoSuchNode(path)
        if version not in {ANY_VERSION, entry.node.version}:
            raise VersionConflict(path)
        return entry

    def _count(self, path: str, by: int) -> None:
        parent = parent_of(path)
        changes = self.child_count_changes
        changes[parent] = changes.get(parent, 0) + by


class EmbeddedMetadataStore:
    """Holds the nodes, their watchers and the file that persists them."""

    def __init__(self, file: MetadataFile | None = None, make_space: Callable[[], bool] = _nothing_to_free) -> None:
        self._file = file
        self._make_space = make_space  # called if the disk is full; returns whether a write may be repeated
        self._last_commit, self.nodes = file.load() if file else (0, {})
        self.nodes["/"] = Entry(_ROOT, 0)
        self.child_names: dict[str, set[str]] = {}
        for path in self.nodes:
            self._link(path)
        self._broken: BaseException | None = None
        self._is_failing = False
        self.checkpoint_delay_s = _CHECKPOINT_DELAY_S
        self._checkpointing: asyncio.Task[None] | None = None
        self._is_checkpointed = True
        self._commit_lock = asyncio.Lock()
        self._watchers: set[_Watcher] = set()
        self._last_session = 0
        self._sessions: set[Session] = set()

    @classmethod
    def open(cls, path: PurePath, make_space: Callable[[], bool] = _nothing_to_free) -> EmbeddedMetadataStore:
        """Open or create the file. Raises `StorageError` naming the file if it cannot be read."""
        try:
            file = MetadataFile(path)
            try:
                return cls(file, make_space)
            except BaseException:
                file.close()
                raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StorageError(f"the metadata store {path} cannot be opened, {error}. {ADVICE}") from error

    def close(self) -> None:
        """Close the file of a store that has no session; the last session's end closes it otherwise."""
        assert not self._sessions, "a session still uses the file"
        if self._file is not None:
            self._file.close()

    def session(self) -> Session:
        """Open a session; it lasts until it is closed or expires."""
        self._last_session += 1
        session = Session(self, self._last_session)
        self._sessions.add(session)
        return session

    async def commit(self, session: Session, ops: Sequence[Op]) -> list[int]:
        """Check, write and publish; one commit at a time, in the order of the calls."""
        async with self._commit_lock:
            if session not in self._sessions:
                raise SessionLost(ops[0].path if ops else "/")
            transaction = _Transaction(self, self._last_commit + 1, session.number)
            results = []
            for op in ops:
                results.append(transaction.add(op))
                if len(results) % OPS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            await self._apply(transaction)
            return results

    async def end(self, session: Session) -> None:
        """Delete the ephemeral nodes of a session, and close the file with the last session."""
        if session not in self._sessions:
            return
        self._sessions.discard(session)
        async with self._commit_lock:
            transaction = _Transaction(self, self._last_commit + 1, session.number)
            for path in [path for path, entry in self.nodes.items() if entry.owner == session.number]:
                transaction.remove(path)
            self._publish(transaction.changed)  # ephemeral nodes only, which the file does not contain
            if not self._sessions and self._file is not None:
                if self._checkpointing is not None:
                    self._checkpointing.cancel()
                await asyncio.to_thread(self._file.close)

    async def _apply(self, transaction: _Transaction) -> None:
        if not transaction.changed:
            return
        cancelled = await self._write(transaction.changed) if self._file is not None else None
        if self._file is not None:
            self._is_checkpointed = False
            if self._checkpointing is None or self._checkpointing.done():
                self._checkpointing = asyncio.get_running_loop().create_task(self._checkpoint(self._file))
        self._last_commit += 1
        self._publish(transaction.changed)
        if cancelled is not None:
            raise cancelled

    async def _checkpoint(self, file: MetadataFile) -> None:
        """Checkpoint soon after a commit: SQLite ends a write-ahead log at a corrupt frame without an error."""
        while not self._is_checkpointed:
            await asyncio.sleep(self.checkpoint_delay_s)
            async with self._commit_lock:
                self._is_checkpointed = True
                await asyncio.to_thread(file.checkpoint)

    async def _write(self, changed: dict[str, Entry | None]) -> asyncio.CancelledError | None:
        """Wait for the disk. If the caller is cancelled, the commit is still completed and published first."""
        if self._broken is not None:
            raise StorageError("the metadata store failed earlier. Restart the broker") from self._broken
        assert self._file is not None
        work = asyncio.get_running_loop().run_in_executor(None, self._write_to, self._file, changed)
        cancelled = None
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError as error:
                cancelled = error
        try:
            work.result()
        except (sqlite3.Error, OSError) as error:
            self._note_failure(error)
            raise StorageError(f"the metadata store could not write: {error}") from error
        if self._is_failing:
            self._is_failing = False
            logger.info("the metadata store accepts changes again")
        return cancelled

    def _write_to(self, file: MetadataFile, changed: dict[str, Entry | None]) -> None:
        """Write a commit, in a thread; once more if the disk was full and space could be made."""
        try:
            file.write(self._last_commit + 1, changed)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) not in _FULL_ERRORS or not self._make_space():
                raise
            file.write(self._last_commit + 1, changed)

    def _note_failure(self, error: sqlite3.Error | OSError) -> None:
        """Stay writable after a full disk or quota. After any other error the content of the file is unknown."""
        if getattr(error, "sqlite_errorcode", None) not in _TRANSIENT_ERRORS:
            self._broken = error
            logger.error("the metadata store accepts no changes until a restart: %s", error)
        elif not self._is_failing:
            self._is_failing = True
            logger.warning("the metadata store cannot write and refuses changes until it can: %s", error)

    def _publish(self, changed: dict[str, Entry | None]) -> None:
        for path, entry in changed.items():
            if entry is None:
                self.nodes.pop(path, None)
                self._unlink(path)
            else:
                self.nodes[path] = entry
                self._link(path)
        for watcher in self._watchers:
            watcher.notify(changed)

    def _link(self, path: str) -> None:
        if path != "/":
            self.child_names.setdefault(parent_of(path), set()).add(path.rpartition("/")[2])

    def _unlink(self, path: str) -> None:
        names = self.child_names.get(parent_of(path), set())
        names.discard(path.rpartition("/")[2])
        if not names:
            self.child_names.pop(parent_of(path), None)

    def add_watcher(self, watcher: _Watcher) -> None:
        """Notify a watcher of every node that exists and of every change from now on."""
        self._watchers.add(watcher)
        watcher.notify(self.nodes)

    def remove_watcher(self, watcher: _Watcher) -> None:
        """Stop notifying a watcher."""
        self._watchers.discard(watcher)


class _Watcher:
    """Collects the paths that changed since the last `take`."""

    __slots__ = ("_root", "changed", "has_changes")

    def __init__(self, root: str) -> None:
        self._root = root
        self.changed: set[str] = set()
        self.has_changes = asyncio.Event()

    def notify(self, changed: dict[str, Entry] | dict[str, Entry | None]) -> None:
        self.changed.update(path for path in changed if is_within(path, self._root))
        if self.changed:
            self.has_changes.set()

    def take(self) -> frozenset[str]:
        taken = frozenset(self.changed)
        self.changed.clear()
        self.has_changes.clear()
        return taken


class Session:
    """Implements the `MetadataStore` port for one participant."""

    def __init__(self, store: EmbeddedMetadataStore, number: int) -> None:
        self._store, self.number = store, number
        self._over = asyncio.Event()

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if there is none."""
        self._must_be_alive(path)
        entry = self._store.nodes.get(path)
        return entry.node if entry else None

    async def children(self, path: str) -> frozenset[str]:
        """Return the names of the children."""
        self._must_be_alive(path)
        return frozenset(self._store.child_names.get(path, ()))

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """Commit all of `ops` or none."""
        self._must_be_alive(ops[0].path if ops else "/")
        return await self._store.commit(self, ops)

    async def watch(self, path: str) -> AsyncIterator[frozenset[str]]:
        """Yield every path at or below `path`, then the paths that change. Ends with the session."""
        watcher = _Watcher(path)
        self._store.add_watcher(watcher)
        over = asyncio.ensure_future(self._over.wait())
        try:
            first = watcher.take()
            yield first
            while not self._over.is_set():
                waiting = asyncio.ensure_future(watcher.has_changes.wait())
                try:
                    await asyncio.wait((waiting, over), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                if watcher.changed and not self._over.is_set():
                    yield watcher.take()
        finally:
            over.cancel()
            self._store.remove_watcher(watcher)

    async def lost(self) -> None:
        """Return when the session is over."""
        await self._over.wait()

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes."""
        self._over.set()
        await self._store.end(self)

    async def expire(self) -> None:
        """End the session as a store does after a session timeout. For tests and simulations."""
        await self.close()

    def _must_be_alive(self, path: str) -> None:
        if self._over.is_set():
            raise SessionLost(path)
