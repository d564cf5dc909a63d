"""Implements the metadata store on one machine: a tree of nodes in memory, persisted in a SQLite file.

One `EmbeddedMetadataStore` holds the tree; each broker has an `EmbeddedSession` with it (a server has one, a simulated
cluster several). A read costs a dictionary look-up. A commit is checked against the tree, written to the file in a
worker thread as one SQLite transaction, and published only then: every value that was read would survive a power cut.
The commits that arrive during a write go into the next transaction together. Without a file the tree is in memory only
and no call ever waits, as simulations and tests need.

Ephemeral nodes are never written to the file: the sessions of a process end with it. The commit counter is written
with every commit, so that a node's `created` grows across restarts (it is a broker's epoch).
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath

from ottla.core.errors import StorageError
from ottla.metadata_store.sqlite_file import ADVICE, MetadataFile, NodeRow
from ottla.metadata_store.store import (
    ANY_VERSION,
    NO_VERSION,
    Check,
    Create,
    Delete,
    NoChildrenAllowed,
    Node,
    NodeChange,
    NodeExists,
    NodeHasChildren,
    NoSuchNode,
    Op,
    Put,
    SessionLost,
    SessionState,
    SessionStates,
    SessionStatus,
    StoreError,
    VersionConflict,
    Watch,
    is_within,
    parent_of,
    sequential_path,
)

_CHECKPOINT_DELAY_S = 1.0  # the commits of a burst share the second sync that a checkpoint costs
_TRANSIENT_ERRORS = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_WRITE})
"""Disk full, no file handle, quota used up: nothing was written, and the next commit may succeed. SQLite reports a
failed fsync as another error, also if the disk was full."""

_FULL_ERRORS = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})

logger = logging.getLogger(__name__)
_ROOT = Node(b"", 0, 0, ephemeral=False)


@lru_cache(maxsize=256)
def _only(name: str) -> frozenset[str]:
    """Return the children of a node with one child; the nodes of all partitions share it."""
    return frozenset((name,))


def _nothing_to_free() -> bool:
    """Return False: there is no reserve."""
    return False


OPS_AT_ONCE = 200
"""After so many operations of one commit the event loop serves others."""


class _Commit:
    """Holds a commit that waits for its turn, then its outcome."""

    __slots__ = ("_outcome", "is_done", "ops", "session")

    def __init__(self, session: int, ops: Sequence[Op]) -> None:
        self.session, self.ops = session, ops
        self.is_done = False
        self._outcome: list[int] | Exception = []

    def complete(self, outcome: list[int] | Exception) -> None:
        """Set the outcome."""
        self._outcome, self.is_done = outcome, True

    def result(self) -> list[int]:
        """Return the results of the operations. Raises what prevented the commit."""
        assert self.is_done
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class _StoreTransaction:
    """Collects the changes of one commit; the tree does not change until the file has them.

    `earlier` holds what the commits before it in the same write change.
    """

    __slots__ = (
        "_children",
        "_earlier",
        "_nodes",
        "_sequential",
        "_session",
        "changed",
        "child_count_changes",
        "number",
    )

    def __init__(self, store: EmbeddedMetadataStore, earlier: _CommitBatch, session: int) -> None:
        self._nodes, self._children = store.nodes, store.child_names
        self._earlier, self._session = earlier, session
        self.number = earlier.last_commit + 1
        self._sequential = 0
        self.changed: dict[str, NodeRow | None] = {}
        self.child_count_changes: dict[str, int] = {}  # by parent

    @property
    def last_number(self) -> int:
        """Return the number after this commit: each sequential node takes one."""
        return self.number + max(self._sequential - 1, 0)

    def add(self, op: Op) -> int:
        """Check one operation and add it. Returns its result; raises the `StoreError`."""
        match op:
            case Create(path, value, ephemeral, sequential):
                number = 0
                if sequential:
                    number = self.number + self._sequential
                    self._sequential += 1
                    path = sequential_path(path, number)
                self._create(path, value, ephemeral=ephemeral)
                return number
            case Put(path, value, expected):
                entry = self._expect(path, expected)
                node = entry.node._replace(value=value, version=entry.node.version + 1)
                self.changed[path] = NodeRow(node, entry.owner)
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
        earlier = self._earlier.child_count_changes.get(path, 0)
        if len(self._children.get(path, ())) + earlier + self.child_count_changes.get(path, 0) > 0:
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
        node = Node(value, 0, self.number, ephemeral)
        self.changed[path] = NodeRow(node, self._session if ephemeral else 0)
        self._count(path, 1)

    def _entry(self, path: str) -> NodeRow | None:
        if path in self.changed:
            return self.changed[path]
        earlier = self._earlier.changed
        return earlier[path] if path in earlier else self._nodes.get(path)

    def _expect(self, path: str, version: int) -> NodeRow:
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


class _CommitBatch:
    """Collects the commits of one write, in order."""

    __slots__ = ("changed", "child_count_changes", "last_commit", "outcomes", "transactions")

    def __init__(self, last_commit: int) -> None:
        self.last_commit = last_commit
        self.changed: dict[str, NodeRow | None] = {}
        self.child_count_changes: dict[str, int] = {}
        self.transactions: list[_StoreTransaction] = []
        self.outcomes: list[list[int] | Exception] = []

    def add(self, transaction: _StoreTransaction, results: list[int]) -> None:
        """Add a commit that passed all checks."""
        self.outcomes.append(results)
        if not transaction.changed:
            return
        self.transactions.append(transaction)
        self.last_commit = transaction.last_number
        self.changed.update(transaction.changed)
        for parent, by in transaction.child_count_changes.items():
            self.child_count_changes[parent] = self.child_count_changes.get(parent, 0) + by


class EmbeddedMetadataStore:
    """Holds the nodes, their watchers and the file that persists them."""

    def __init__(self, file: MetadataFile | None = None, make_space: Callable[[], bool] = _nothing_to_free) -> None:
        self._file = file
        self._make_space = make_space  # called if the disk is full; returns whether a write may be repeated
        self._last_commit, self.nodes = file.load() if file else (0, {})
        self.nodes["/"] = NodeRow(_ROOT, 0)
        self.child_names: dict[str, set[str] | frozenset[str]] = {}
        for path in self.nodes:
            self._link(path)
        self._broken: BaseException | None = None
        self._is_failing = False
        self.checkpoint_delay_s = _CHECKPOINT_DELAY_S
        self._checkpointing: asyncio.Task[None] | None = None
        self._is_checkpointed = True
        self._commit_lock = asyncio.Lock()
        self._queue: deque[_Commit] = deque()
        self._watches: dict[Watch, str] = {}  # and their prefixes
        self._last_session = 0
        self._sessions: set[int] = set()
        self._owned: dict[int, dict[str, None]] = {}  # by session: its ephemeral nodes

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

    def session(self) -> EmbeddedSession:
        """Open a session; it lasts until it is closed or expires."""
        return EmbeddedSession(self)

    def open_session(self) -> int:
        """Return the number of a new session. For `EmbeddedSession`."""
        self._last_session += 1
        self._sessions.add(self._last_session)
        return self._last_session

    async def commit(self, session: int, ops: Sequence[Op]) -> list[int]:
        """Check, write and publish, in the order of the calls. Who comes first writes for all who wait."""
        commit = _Commit(session, ops)
        self._queue.append(commit)
        try:
            async with self._commit_lock:
                if not commit.is_done:
                    await self._write_queue()
        except asyncio.CancelledError:
            if commit in self._queue:  # nothing of it has happened
                self._queue.remove(commit)
            raise
        return commit.result()

    async def end(self, session: int) -> None:
        """Delete the ephemeral nodes of a session, and close the file with the last session."""
        if session not in self._sessions:
            return
        self._sessions.discard(session)
        async with self._commit_lock:
            transaction = _StoreTransaction(self, _CommitBatch(self._last_commit), session)
            for path in self._owned.get(session, ()):
                transaction.remove(path)
            if transaction.changed:  # ephemeral nodes only, which the file does not contain
                self._last_commit = transaction.last_number
                self._publish(transaction)
            if not self._sessions and self._file is not None:
                if self._checkpointing is not None:
                    self._checkpointing.cancel()
                await asyncio.to_thread(self._file.close)

    async def _write_queue(self) -> None:
        """Write all commits that wait in one transaction. Each of them has its outcome afterwards."""
        taken = tuple(self._queue)
        self._queue.clear()
        try:
            batch = await self._check_all(taken)
        except asyncio.CancelledError:
            self._queue.extendleft(reversed(taken))
            raise
        cancelled = None
        if batch.changed:
            try:
                cancelled = await self._write(batch)
            except StorageError as error:
                for commit in taken:
                    commit.complete(error)
                return
            self._last_commit = batch.last_commit
            for transaction in batch.transactions:
                self._publish(transaction)
        for commit, outcome in zip(taken, batch.outcomes, strict=True):
            commit.complete(outcome)
        if cancelled is not None:
            raise cancelled

    async def _check_all(self, commits: Sequence[_Commit]) -> _CommitBatch:
        """Check each commit on the result of those before it."""
        batch = _CommitBatch(self._last_commit)
        checked = 0
        for commit in commits:
            transaction = _StoreTransaction(self, batch, commit.session)
            results = []
            try:
                if commit.session not in self._sessions:
                    raise SessionLost(commit.ops[0].path if commit.ops else "/")
                for op in commit.ops:
                    results.append(transaction.add(op))
                    checked += 1
                    if checked % OPS_AT_ONCE == 0:
                        await asyncio.sleep(0)
            except (StoreError, AssertionError) as error:
                batch.outcomes.append(error)
            else:
                batch.add(transaction, results)
        return batch

    async def _checkpoint(self, file: MetadataFile) -> None:
        """Checkpoint soon after a commit: SQLite ends a write-ahead log at a corrupt frame without an error."""
        while not self._is_checkpointed:
            await asyncio.sleep(self.checkpoint_delay_s)
            async with self._commit_lock:
                self._is_checkpointed = True
                await asyncio.to_thread(file.checkpoint)

    async def _write(self, batch: _CommitBatch) -> asyncio.CancelledError | None:
        """Write to the file, if there is one. A caller that is cancelled meanwhile still has to publish the commits."""
        if self._file is None:
            return None
        if self._broken is not None:
            raise StorageError("the metadata store failed earlier. Restart the broker") from self._broken
        work = asyncio.get_running_loop().run_in_executor(None, self._write_to, self._file, batch)
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
        self._is_checkpointed = False
        if self._checkpointing is None or self._checkpointing.done():
            self._checkpointing = asyncio.get_running_loop().create_task(self._checkpoint(self._file))
        return cancelled

    def _write_to(self, file: MetadataFile, batch: _CommitBatch) -> None:
        """Write commits, in a thread; once more if the disk was full and space could be made."""
        try:
            file.write(batch.last_commit, batch.changed)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) not in _FULL_ERRORS or not self._make_space():
                raise
            file.write(batch.last_commit, batch.changed)

    def _note_failure(self, error: sqlite3.Error | OSError) -> None:
        """Stay writable after a full disk or quota. After any other error the content of the file is unknown."""
        if getattr(error, "sqlite_errorcode", None) not in _TRANSIENT_ERRORS:
            self._broken = error
            logger.error("the metadata store accepts no changes until a restart: %s", error)
        elif not self._is_failing:
            self._is_failing = True
            logger.warning("the metadata store cannot write and refuses changes until it can: %s", error)

    def _publish(self, transaction: _StoreTransaction) -> None:
        for path, entry in transaction.changed.items():
            old = self.nodes.get(path)
            if old is not None and old.owner and (entry is None or entry.owner != old.owner):
                self._disown(path, old.owner)
            if entry is None:
                self.nodes.pop(path, None)
                self._unlink(path)
            else:
                self.nodes[path] = entry
                self._link(path)
                if entry.owner:
                    self._owned.setdefault(entry.owner, {})[path] = None
        for watch, prefix in self._watches.items():
            watch.publish(_changes(transaction.number, prefix, transaction.changed))

    def _disown(self, path: str, owner: int) -> None:
        owned = self._owned[owner]
        del owned[path]
        if not owned:
            del self._owned[owner]

    def _link(self, path: str) -> None:
        if path == "/":
            return
        parent, name = parent_of(path), path.rpartition("/")[2]
        names = self.child_names.get(parent)
        if names is None:
            self.child_names[parent] = _only(name)
        elif isinstance(names, set):
            names.add(name)
        elif name not in names:
            self.child_names[parent] = {*names, name}

    def _unlink(self, path: str) -> None:
        parent, name = parent_of(path), path.rpartition("/")[2]
        names = self.child_names.get(parent)
        if isinstance(names, set):
            names.discard(name)
        if not names or names == {name}:
            self.child_names.pop(parent, None)

    def list_nodes(self, prefix: str) -> dict[str, Node]:
        """Return all nodes at or below a prefix, parents first, siblings by name."""
        nodes: dict[str, Node] = {}
        entry = self.nodes.get(prefix)
        if entry is None:
            return nodes
        pending = [prefix]
        while pending:
            path = pending.pop()
            nodes[path] = self.nodes[path].node
            pending += [_join(path, name) for name in sorted(self.child_names.get(path, ()), reverse=True)]
        nodes.pop("/", None)
        return nodes

    def add_watch(self, prefix: str) -> Watch:
        """Return a new watch. For `EmbeddedSession`."""
        watch = Watch()
        number = self._last_commit
        watch.publish_all(
            {
                path: NodeChange(number, path, self.nodes[path].node)
                for path in sorted(self.nodes)  # parents first
                if path != "/" and (prefix == "/" or is_within(path, prefix))
            }
        )
        self._watches = {each: of for each, of in self._watches.items() if not each.is_over}
        self._watches[watch] = prefix
        return watch

    def end_watch(self, watch: Watch) -> None:
        """Stop publishing to a watch, and end it."""
        self._watches.pop(watch, None)
        watch.end()


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path != "/" else f"/{name}"


def _changes(number: int, prefix: str, changed: Mapping[str, NodeRow | None]) -> Iterable[NodeChange]:
    everything = prefix == "/"
    return (
        NodeChange(number, path, None if entry is None else entry.node)
        for path, entry in changed.items()
        if everything or is_within(path, prefix)
    )


class EmbeddedSession(SessionStates):
    """Implements the `MetadataStore` port for one participant."""

    def __init__(self, store: EmbeddedMetadataStore) -> None:
        super().__init__(SessionState(1, SessionStatus.CONNECTED))
        self._store, self._number = store, store.open_session()
        self._watches: list[Watch] = []
        self._is_closed = False

    @property
    def number(self) -> int:
        """Return the number of the session in the store."""
        return self._number

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if there is none."""
        self._must_be_alive(path)
        entry = self._store.nodes.get(path)
        return entry.node if entry else None

    async def children(self, path: str) -> frozenset[str]:
        """Return the names of the children."""
        self._must_be_alive(path)
        return frozenset(self._store.child_names.get(path, ()))

    async def list_nodes(self, prefix: str) -> dict[str, Node]:
        """Return all nodes at or below `prefix`."""
        self._must_be_alive(prefix)
        return self._store.list_nodes(prefix)

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """Commit all of `ops` or none."""
        self._must_be_alive(ops[0].path if ops else "/")
        return await self._store.commit(self._number, ops)

    def watch(self, prefix: str) -> Watch:
        """Watch all nodes at or below `prefix`."""
        self._must_be_alive(prefix)
        watch = self._store.add_watch(prefix)
        self._watches = [each for each in self._watches if not each.is_over]
        self._watches.append(watch)
        return watch

    async def sync(self) -> None:
        """Return at once: all sessions share one tree."""
        self._must_be_alive("/")

    async def renew(self) -> None:
        """Open another session in place of a lost one."""
        if self._is_closed:
            raise SessionLost("/")
        if self._state.status is SessionStatus.LOST:
            self._number = self._store.open_session()
            self._enter(SessionState(self._state.ordinal + 1, SessionStatus.CONNECTED))

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes."""
        self._is_closed = True
        await self.expire()

    async def expire(self) -> None:
        """End the session as a store does after a session timeout. For tests and simulations."""
        if self._state.status is not SessionStatus.LOST:
            self._enter(SessionState(self._state.ordinal, SessionStatus.LOST))
            for watch in self._watches:
                self._store.end_watch(watch)
            self._watches.clear()
        await self._store.end(self._number)

    def _must_be_alive(self, path: str) -> None:
        if self._state.status is SessionStatus.LOST:
            raise SessionLost(path)
