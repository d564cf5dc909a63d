"""Runs one session with ZooKeeper and keeps a copy of the tree, which the commit feed brings up to date.

A session begins with a full load and follows the feed from the number that was next before the load. Only after a gap,
when entries that it needs were trimmed, it loads everything again. Ephemeral nodes vanish without a commit, so each of
them is watched, and read again after a lost connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ottla.metadata_store import znodes
from ottla.metadata_store.commit_feed import (
    ENTRY_PREFIX,
    FEED,
    EffectKind,
    MalformedEntry,
    NodeEffect,
    decode_entry,
    effects_of,
    encode_entry,
    entry_number,
    entry_path,
    next_number,
)
from ottla.metadata_store.store import (
    NO_VERSION,
    Create,
    Delete,
    Node,
    NodeExists,
    NodeHasChildren,
    NoSuchNode,
    Op,
    OutcomeUnknown,
    Put,
    SessionLost,
    SessionStatus,
    VersionConflict,
    parent_of,
)
from ottla.metadata_store.zookeeper_connection import (
    ZooKeeperConnection,
    ZooKeeperDisconnected,
    ZooKeeperNode,
    ZooKeeperUnreachable,
)

CHECK_INTERVAL_S = 60.0
"""The feed is compared with its directory so often, in case entries were trimmed before they were read."""

TRIM_AFTER_MS = 15 * 60_000
TRIM_ABOVE = 10_000
"""The controller deletes entries that are older, and the oldest above this number: one answer lists all of them."""

RETRY_S = 1.0
"""Pause after an unexpected error before all metadata is read again."""

_RECONNECT_PAUSE_S = 0.05
_TRIM_OPS = 500
_NOT_OURS = frozenset({"/zookeeper", FEED})

Changes = Mapping[str, Node | None]
"""The new content of each node that changed, None for a deleted one."""

logger = logging.getLogger(__name__)


class _Gap(Exception):
    """Reports that the feed cannot be followed, and why."""


class ZooKeeperSession:
    """One session. Lifecycle: `open`, then used until `status` is LOST, and `close`.

    `on_changes` is called with the number of a commit and what it changed, `on_status` after each change of `status`.
    """

    def __init__(
        self,
        connect: Callable[[Callable[[SessionStatus], None]], ZooKeeperConnection],
        *,
        on_changes: Callable[[int, Changes], None],
        on_status: Callable[[SessionStatus], None],
    ) -> None:
        self.status = SessionStatus.CONNECTED
        self.nodes: dict[str, Node] = {}
        self.child_names: dict[str, set[str]] = {}
        self._on_changes, self._on_status = on_changes, on_status
        self._connection = connect(self._set_status)
        self._expiry: asyncio.TimerHandle | None = None
        self._following: asyncio.Task[None] | None = None
        self._is_closing = False
        self._commits = 0
        self._next = 0  # number of the entry to read next
        self._must_load = True
        self._last_commit = 0  # the zxid of the last commit that the copy has
        self._ahead: dict[str, int] = {}  # nodes that were read themselves, and may be newer than `_last_commit`
        self._awaited = -1  # number of the entry whose creation wakes `_follow`
        self._touched: set[str] = set()  # ephemeral nodes that may have changed
        self._refreshed = ""  # the one of them that is being read
        self._is_checked = True  # whether the feed was compared with its directory since the connection was opened
        self._check_due_s = asyncio.get_running_loop().time() + CHECK_INTERVAL_S  # by then again, however many commits
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()  # replaced at each step of `_follow`, and when the status changes

    async def open(self, timeout_s: float) -> None:
        """Connect and load the tree. Raises ZooKeeperUnreachable."""
        try:
            await self._connection.open(timeout_s)
            with contextlib.suppress(NodeExists):
                await self._connection.commit([Create(FEED)])
            while self._must_load:
                with contextlib.suppress(_Gap):
                    await self._load()
        except ZooKeeperDisconnected as error:
            raise ZooKeeperUnreachable(
                f"the connection to ZooKeeper was lost while all metadata was read: {error}"
            ) from error
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="zookeeper")

    async def close(self) -> None:
        """End the session; its ephemeral nodes are deleted. Calling it twice is harmless."""
        self._is_closing = True
        self._set_status(SessionStatus.LOST)
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._connection.close()

    def _set_status(self, status: SessionStatus) -> None:
        if self.status in {status, SessionStatus.LOST}:
            return
        self.status = status
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if status is SessionStatus.SUSPENDED:
            # ZooKeeper has heard from us before this moment, so it expires the session before this timer
            loop, timeout_s = asyncio.get_running_loop(), self._connection.session_timeout_s
            self._expiry = loop.call_later(timeout_s, self._set_status, SessionStatus.LOST)
            self._awaited = -1
            self._is_checked = False
            self._touched.update(path for path, node in self.nodes.items() if node.ephemeral)
            self._touched.update(znodes.ADMIN_REQUESTS)
        if status is SessionStatus.LOST and not self._is_closing:
            self._connection.abandon()
        self._wake.set()
        self._moved()
        self._on_status(status)

    # ---- Reads and writes

    @property
    def last_commit(self) -> int:
        """Return the number of the last commit that the copy has."""
        return self._last_commit

    def list_nodes(self, prefix: str) -> dict[str, Node]:
        """Return all nodes at or below a prefix, parents first, siblings by name."""
        nodes: dict[str, Node] = {}
        pending = [prefix]
        while pending:
            path = pending.pop()
            node = self.nodes.get(path)
            if node is not None:
                nodes[path] = node
            elif path != "/":
                continue
            start = path.rstrip("/")
            pending += [f"{start}/{name}" for name in sorted(self.child_names.get(path, ()), reverse=True)]
        return nodes

    async def sync(self) -> None:
        """Bring the copy up to date with every commit made before this call. Raises SessionLost."""
        while True:
            try:
                await self._connection.sync("/")
                target = await self._end_of_feed()
            except ZooKeeperDisconnected:
                await self._until_connected("/")
                continue
            break
        self._touched.update(path for path, node in self.nodes.items() if node.ephemeral)
        self._wake.set()
        await self._until(lambda: self._next >= target and not self._touched and not self._refreshed)
        self.must_be_alive("/")

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """Commit operations; returns when the copy has them. Raises what the port declares."""
        if not ops:
            return []
        first = ops[0].path
        self.must_be_alive(first)
        effects = effects_of(ops)
        self._commits += 1
        commit_id = f"{self._connection.session_id}-{self._commits}"
        entry = (Create(ENTRY_PREFIX, encode_entry(commit_id, effects), sequential=True),) if effects else ()
        since = self._next
        while True:
            try:
                answers = await self._connection.commit([*ops, *entry])
            except (VersionConflict, NoSuchNode, NodeExists, NodeHasChildren) as error:
                with contextlib.suppress(ZooKeeperDisconnected, SessionLost):
                    await self._announce_foreign_changes(error.path, ops)
                raise
            except ZooKeeperDisconnected:
                found = await self._find(commit_id, since, ops) if entry else NO_VERSION
                if found == NO_VERSION:
                    await self._until_connected(first)
                    continue
                number, answers = found, [None] * len(ops)
            else:
                number = entry_number(answers.pop()) if entry else NO_VERSION
            break
        self._wake.set()
        await self._until(lambda: self._next > number)
        return [self._result(op, answer) for op, answer in zip(ops, answers, strict=True)]

    def _result(self, op: Op, answer: str | int | None) -> int:
        match op:
            case Create(sequential=True):
                return entry_number(str(answer))
            case Create():
                return 0
            case Put(path):
                node = self.nodes.get(path)
                return answer if isinstance(answer, int) else node.version if node else NO_VERSION
            case _:
                return NO_VERSION

    async def _find(self, commit_id: str, since: int, ops: Sequence[Op]) -> int:
        """Return the number of a commit whose answer was lost, or NO_VERSION if it was not made and never will be.

        Raises OutcomeUnknown if the session is over before that can be known.
        """
        path = ops[0].path
        while True:
            try:
                await self._until_connected(path)
                await self._connection.sync("/")
                names = await self._connection.children(FEED)
                numbers = sorted(number for name in names if (number := entry_number(name)) >= since)
                nodes = await asyncio.gather(*(self._connection.get(entry_path(number)) for number in numbers))
            except ZooKeeperDisconnected:
                continue
            except SessionLost:
                raise OutcomeUnknown(path) from None
            for number, node in zip(numbers, nodes, strict=True):
                if node is not None and decode_entry(node.value).commit_id == commit_id:
                    if any(isinstance(op, Create) and op.sequential for op in ops):
                        raise OutcomeUnknown(path)  # it was made, but its number is not known
                    return number
            return NO_VERSION

    async def _announce_foreign_changes(self, conflict: str, ops: Sequence[Op]) -> None:
        """Find out whether another program changed nodes of a commit that failed; if so all brokers read them again.

        The feed has no entry for such a change, so that no broker would know of it before its next full load. Raises
        ZooKeeperDisconnected and SessionLost.
        """
        await self.sync()
        if not await self._foreign_changes([conflict]):
            return  # a commit of a broker, as the copy has it now
        effects = await self._foreign_changes(list(dict.fromkeys([conflict, *(op.path for op in ops)])))
        if effects:
            paths = ", ".join(effect.path for effect in effects)
            logger.warning("another program changed nodes in ZooKeeper; all brokers read them again: %s", paths)
            self._commits += 1
            entry = encode_entry(f"{self._connection.session_id}-{self._commits}", effects)
            await self._connection.commit([Create(ENTRY_PREFIX, entry, sequential=True)])
            await self.sync()

    async def _foreign_changes(self, paths: Sequence[str]) -> list[NodeEffect]:
        """Compare nodes with the copy; returns what no commit explains, as effects that make a reader read them."""
        before = [(self.nodes.get(path), set(self.child_names.get(path, ()))) for path in paths]
        nodes = await asyncio.gather(*map(self._connection.get, paths))
        names = await asyncio.gather(*map(self._connection.children, paths))
        await self.sync()
        effects = []
        for path, (node, children), read, below in zip(paths, before, nodes, names, strict=True):
            if self.nodes.get(path) != node or (node or read) is None:
                continue  # a commit came meanwhile
            if (node is not None and node.ephemeral) or (read is not None and read.is_ephemeral):
                continue  # watched
            if node is None or read is None or _node(read) != node:
                effects.append(NodeEffect(EffectKind.UNKNOWN, path))
            elif not children.issuperset(below) and path != "/" and self.child_names.get(path, set()) == children:
                effects.append(NodeEffect(EffectKind.CHILD_CREATED, path))
        return effects

    def must_be_alive(self, path: str) -> None:
        """Raise SessionLost if the session is over."""
        if self.status is SessionStatus.LOST:
            raise SessionLost(path)

    async def _until_connected(self, path: str) -> None:
        """Wait for a connection. Raises SessionLost."""
        await asyncio.sleep(_RECONNECT_PAUSE_S)  # the status comes by another thread, and may come later
        await self._until(lambda: self.status is SessionStatus.CONNECTED)
        self.must_be_alive(path)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, or the session is over."""
        while not holds() and self.status is not SessionStatus.LOST:
            await self._progress.wait()

    def _moved(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    # ---- The copy of the tree

    async def _load(self) -> None:
        """Read the whole tree, apply the commits made meanwhile, and publish what differs from the copy."""
        before = self.nodes
        number = await self._end_of_feed()
        zoo_keeper_nodes: dict[str, ZooKeeperNode] = {}
        await self._read_tree(["/"], zoo_keeper_nodes)
        end = await self._end_of_feed()
        nodes = {path: _node(node) for path, node in zoo_keeper_nodes.items()}
        self.nodes, self._next, self._awaited = nodes, number, -1
        self.child_names = {}
        for path in nodes:
            self._link(path)
        self._ahead = {path: node.modified for path, node in zoo_keeper_nodes.items()}
        self._last_commit = max(self._ahead.values(), default=self._last_commit)
        changes: dict[str, Node | None] = {path: None for path in reversed(before) if path not in nodes}
        changes.update((path, node) for path, node in nodes.items() if before.get(path) != node)
        self._on_changes(self._last_commit, changes)
        await self._read_entries()
        if self._next < end:
            raise _Gap("commits were deleted while all metadata was read")
        self._ahead = {}
        self._must_load = False
        self._touched.update(znodes.ADMIN_REQUESTS)
        self._wake.set()

    async def _end_of_feed(self) -> int:
        """Return the number that the next commit of any session gets."""
        node = await self._connection.exists(FEED)
        return next_number(node.child_changes, node.children) if node else 0

    async def _read_tree(self, paths: list[str], nodes: dict[str, ZooKeeperNode]) -> None:
        """Read nodes and everything below them, parents first."""
        while paths:
            zoo_keeper_nodes = await asyncio.gather(*map(self._read, paths))
            parents = []
            for path, node in zip(paths, zoo_keeper_nodes, strict=True):
                if node is not None:
                    if path != "/":
                        nodes[path] = node
                    if node.children:
                        parents.append(path)
            names = await asyncio.gather(*map(self._connection.children, parents))
            paths, partitions = [], []
            for parent, below in zip(parents, names, strict=True):
                children = [f"{parent.rstrip('/')}/{name}" for name in sorted(below)]
                if znodes.is_partitions_path(parent):
                    partitions += children
                else:
                    paths += [child for child in children if child not in _NOT_OURS]
            paths += await self._read_partitions(partitions, nodes)

    async def _read_partitions(self, paths: list[str], nodes: dict[str, ZooKeeperNode]) -> list[str]:
        """Read the states of partitions without their parents, which are empty: a third of the requests.

        Returns the paths that have no state.
        """
        states = await asyncio.gather(*(self._read(f"{path}/state") for path in paths))
        for path, state in zip(paths, states, strict=True):
            if state is not None:
                nodes[path] = state._replace(value=b"", version=0, children=1)
                nodes[f"{path}/state"] = state
        return [path for path, state in zip(paths, states, strict=True) if state is None]

    async def _read(self, path: str) -> ZooKeeperNode | None:
        """Read a node; an ephemeral one is watched, and one that other programs create without an entry in the feed."""
        if path in znodes.ADMIN_REQUESTS:
            await self._connection.exists(path, partial(self._touch, path))
        node = await self._connection.get(path)
        if node is not None and node.is_ephemeral:
            node = await self._connection.get(path, partial(self._touch, path))
        return node

    def _touch(self, path: str) -> None:
        self._touched.add(path)
        self._wake.set()

    async def _follow(self) -> None:
        """Keep the copy up to date until the session is over. Run as a task."""
        while self.status is not SessionStatus.LOST:
            self._wake.clear()
            try:
                if self._must_load:
                    await self._load()
                else:
                    await self._catch_up()
            except _Gap as gap:
                logger.warning("reading all metadata again, because %s", gap)
                self._must_load = True
                continue
            except ZooKeeperDisconnected:
                with contextlib.suppress(SessionLost):
                    await self._until_connected("/")
                continue
            except Exception:
                logger.exception("unexpected error while ZooKeeper was followed; reading all metadata again")
                self._must_load = True
                await asyncio.sleep(RETRY_S)
                continue
            self._moved()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._check_due_s):
                    await self._wake.wait()
            if asyncio.get_running_loop().time() >= self._check_due_s:
                self._is_checked = False

    async def _catch_up(self) -> None:
        """Apply new commits and the ends of ephemeral nodes. Raises `_Gap` and ZooKeeperDisconnected."""
        if not self._is_checked:
            await self._check_feed()
            self._is_checked, self._check_due_s = True, asyncio.get_running_loop().time() + CHECK_INTERVAL_S
        while self._touched:
            path = self._refreshed = min(self._touched)
            self._touched.discard(path)  # it may be touched again while it is read
            try:
                node = await self._read(path)
            except ZooKeeperDisconnected:
                self._touched.add(path)
                raise
            finally:
                self._refreshed = ""
            if node is not None:
                self._ahead[path] = node.modified
            self._apply(self._last_commit, {path: _node(node) if node else None})
        await self._read_entries()

    async def _check_feed(self) -> None:
        """Compare the feed with its directory, and trim it if this session is the controller's. Raises `_Gap`."""
        end = await self._end_of_feed()
        numbers = sorted(map(entry_number, await self._connection.children(FEED)))
        if end > self._next and (not numbers or numbers[0] > self._next):
            raise _Gap("commits were deleted before this broker read them")
        controller = await self._connection.exists(znodes.CONTROLLER)
        if controller is not None and controller.owner == self._connection.session_id:
            await self._trim(numbers)

    async def _trim(self, numbers: Sequence[int]) -> None:
        """Delete the entries that no broker needs any more: one that has not read them loads everything."""
        newest = await self._connection.exists(entry_path(numbers[-1])) if numbers else None
        if newest is None:
            return
        for at in range(0, len(numbers), _TRIM_OPS):
            slice_ = numbers[at : at + _TRIM_OPS]
            last = await self._connection.exists(entry_path(slice_[-1]))
            is_old = last is not None and last.created_ms < newest.created_ms - TRIM_AFTER_MS
            if not is_old and len(numbers) - at - len(slice_) < TRIM_ABOVE:
                return
            with contextlib.suppress(NoSuchNode):  # another controller trims, too
                await self._connection.commit([Delete(entry_path(number)) for number in slice_])

    async def _read_entries(self) -> None:
        """Apply the commits from `_next` on, and watch for the one after them.

        Raises `_Gap` and ZooKeeperDisconnected.
        """
        while True:
            number = self._next
            node = await self._connection.get(entry_path(number))
            if node is not None:
                changes = await self._changes_of(node)
                self._next, self._last_commit = number + 1, max(self._last_commit, node.created)
                if self._ahead:
                    self._ahead = {path: commit for path, commit in self._ahead.items() if commit > node.created}
                self._apply(node.created, changes)
                self._moved()
            elif self._awaited == number:
                return
            else:
                self._awaited = number
                if await self._connection.exists(entry_path(number), self._wake.set) is None:
                    return

    async def _changes_of(self, found: ZooKeeperNode) -> dict[str, Node | None]:
        """Return what an entry changes in the copy, which may be newer than the entry."""
        try:
            entry = decode_entry(found.value)
        except MalformedEntry as error:
            raise _Gap(f"an entry of {FEED} cannot be decoded: {error}") from error
        changes: dict[str, Node | None] = {}
        to_read: list[str] = []
        for effect in entry.effects:
            if effect.kind is EffectKind.CHILD_CREATED:
                names = await self._connection.children(effect.path)
                children = (f"{effect.path.rstrip('/')}/{name}" for name in sorted(names))
                to_read += [child for child in children if child not in self.nodes]
            elif self._ahead.get(effect.path, 0) < found.created:
                changes[effect.path] = node = self._node_of(effect, found.created)
                if node is None and effect.kind is not EffectKind.DELETED:
                    to_read.append(effect.path)
        for path, read in zip(to_read, await asyncio.gather(*map(self._read, to_read)), strict=True):
            changes[path] = _node(read) if read else None
            if read is not None:
                self._ahead[path] = read.modified
        return changes

    def _node_of(self, effect: NodeEffect, commit: int) -> Node | None:
        """Return the node after an effect; None if it must be read."""
        match effect.kind:
            case EffectKind.CREATED:
                return Node(effect.value, effect.version, commit, ephemeral=False)
            case EffectKind.WRITTEN if (before := self.nodes.get(effect.path)) is not None:
                return before._replace(value=effect.value, version=before.version + effect.version)
            case _:
                return None

    def _apply(self, number: int, changes: Changes) -> None:
        """Change the copy and report it."""
        changed = {path: node for path, node in changes.items() if self.nodes.get(path) != node}
        for path, node in changed.items():
            if node is None:
                self.nodes.pop(path, None)
                self._unlink(path)
            else:
                self.nodes[path] = node
                self._link(path)
        if changed:
            self._on_changes(number, changed)

    def _link(self, path: str) -> None:
        self.child_names.setdefault(parent_of(path), set()).add(path.rpartition("/")[2])

    def _unlink(self, path: str) -> None:
        names = self.child_names.get(parent_of(path))
        if names is not None:
            names.discard(path.rpartition("/")[2])
            if not names:
                del self.child_names[parent_of(path)]


def _node(found: ZooKeeperNode) -> Node:
    return Node(found.value, found.version, found.created, found.is_ephemeral)
