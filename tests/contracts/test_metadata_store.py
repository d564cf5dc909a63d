"""Tests what every MetadataStore must do. One suite, run against each implementation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from ottla.controller.config import ControllerConfig
from ottla.controller.machine import apply
from ottla.controller.overlay import Overlay, Rules
from ottla.controller.security_changes import CreateAcls, DeleteAcls
from ottla.core.acls import (
    AccessControlEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
    bind,
)
from ottla.metadata_store import acl_znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.socket_store import SocketStore
from ottla.metadata_store.sqlite_file import FILE_NAME
from ottla.metadata_store.store import (
    NO_VERSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    NoChildrenAllowed,
    NodeExists,
    NodeHasChildren,
    NoSuchNode,
    Op,
    Put,
    SessionLost,
    SessionState,
    SessionStatus,
    StoreError,
    VersionConflict,
    Watch,
    sequential_path,
)
from ottla.metadata_store.store_server import StoreServer
from ottla.metadata_store.zookeeper import ZooKeeperStore
from ottla.metadata_store.zookeeper_connect import parse_connect
from ottla.storage.config import LogConfig
from tests.support.real_zookeeper import RealZooKeeper, end_session_from_elsewhere, running_zookeeper


class Sessions(Protocol):
    """Runs one store under test. A subclass for each implementation."""

    async def open(self) -> MetadataStore:
        """Open another session with the same store."""
        ...

    async def expire(self, session: MetadataStore) -> None:
        """End a session from the store's side, as if nothing had been heard of its owner."""
        ...

    async def close(self) -> None:
        """Stop the store."""
        ...


class EmbeddedSessions:
    """Runs the embedded store, in memory or with a file."""

    def __init__(self, path: Path | None) -> None:
        self._store = EmbeddedMetadataStore() if path is None else EmbeddedMetadataStore.open(path)

    async def open(self) -> MetadataStore:
        return self._store.session()

    async def expire(self, session: MetadataStore) -> None:
        assert isinstance(session, EmbeddedSession)
        await session.expire()

    async def close(self) -> None:
        pass


class SocketSessions:
    """Runs the embedded store with clients on a unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._server: StoreServer | None = None
        self._opened: list[SocketStore] = []

    async def open(self) -> MetadataStore:
        if self._server is None:
            tree = EmbeddedMetadataStore()

            async def open_session() -> MetadataStore:
                return tree.session()

            self._server = StoreServer(self._path, open_session)
            await self._server.start()
        self._opened.append(await SocketStore.open(self._path, node_id=len(self._opened)))
        return self._opened[-1]

    async def expire(self, session: MetadataStore) -> None:
        assert isinstance(session, SocketStore)
        assert self._server is not None
        self._server.expire(self._opened.index(session))

    async def close(self) -> None:
        for session in self._opened:
            await session.close()
        assert self._server is not None
        await self._server.close()


class ZooKeeperSessions:
    """Runs the store on a real ZooKeeper, in a tree of its own."""

    numbers = itertools.count(1)

    def __init__(self, server: RealZooKeeper) -> None:
        self._connect = parse_connect(f"{server.address}/test/{next(self.numbers)}")

    async def open(self) -> MetadataStore:
        store = ZooKeeperStore(self._connect, session_timeout_s=3, connection_timeout_s=10)
        await store.renew()
        return store

    async def expire(self, session: MetadataStore) -> None:
        assert isinstance(session, ZooKeeperStore)
        await end_session_from_elsewhere(session)

    async def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


ZOOKEEPER = pytest.param("zookeeper", marks=[pytest.mark.external, pytest.mark.slow])


@pytest.fixture(params=["memory", "sqlite", "socket", ZOOKEEPER])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Sessions:
    match request.param:
        case "memory":
            return EmbeddedSessions(None)
        case "sqlite":
            return EmbeddedSessions(tmp_path / FILE_NAME)
        case "socket":
            return SocketSessions(tmp_path / "store.sock")
        case _:
            return ZooKeeperSessions(request.getfixturevalue("zookeeper"))


@pytest.fixture
async def store(sessions: Sessions) -> AsyncIterator[MetadataStore]:
    opened = await sessions.open()
    try:
        yield opened
    finally:
        await opened.close()
        await sessions.close()


async def taken(changes: Watch) -> dict[str, bytes | None]:
    """Take the next changes: the values by path, None for a deleted node."""
    return {change.path: change.node.value if change.node else None for change in await anext(changes)}


async def test_a_created_node_is_read_back_at_version_0(store: MetadataStore) -> None:
    assert await store.commit([Create("/a", b"one")]) == [0]
    node = await store.get("/a")
    assert node is not None
    assert (node.value, node.version, node.ephemeral) == (b"one", 0, False)


async def test_a_node_that_is_not_there_is_none_and_has_no_children(store: MetadataStore) -> None:
    assert await store.get("/nowhere") is None
    assert await store.children("/nowhere") == frozenset()


async def test_of_two_writers_who_read_the_same_version_one_wins(store: MetadataStore) -> None:
    await store.commit([Create("/controller", b"none")])
    rivals = (store.commit([Put("/controller", name, expected_version=0)]) for name in (b"broker 1", b"broker 2"))
    outcomes = await asyncio.gather(*rivals, return_exceptions=True)

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["VersionConflict", "list"]


async def test_each_write_adds_one_to_the_version_and_the_results_say_so(store: MetadataStore) -> None:
    results = await store.commit([Create("/a"), Put("/a", b"1"), Put("/a", b"2", 1), Check("/a", 2), Delete("/a")])
    assert results == [0, 1, 2, NO_VERSION, NO_VERSION]
    assert await store.get("/a") is None


@pytest.mark.parametrize(
    ("ops", "refusal", "path"),
    [
        ([Create("/a")], NodeExists, "/a"),
        ([Create("/nowhere/a")], NoSuchNode, "/nowhere"),
        ([Create("/a/alive/below")], NoChildrenAllowed, "/a/alive"),
        ([Put("/nowhere", b"")], NoSuchNode, "/nowhere"),
        ([Put("/a", b"", expected_version=7)], VersionConflict, "/a"),
        ([Delete("/nowhere")], NoSuchNode, "/nowhere"),
        ([Delete("/a/b", expected_version=7)], VersionConflict, "/a/b"),
        ([Delete("/a")], NodeHasChildren, "/a"),
        ([Check("/a", 7)], VersionConflict, "/a"),
        ([Check("/nowhere")], NoSuchNode, "/nowhere"),
    ],
)
async def test_a_commit_with_one_impossible_operation_changes_nothing(
    store: MetadataStore, ops: Sequence[Op], refusal: type[StoreError], path: str
) -> None:
    await store.commit([Create("/a"), Create("/a/b"), Create("/a/alive", ephemeral=True)])
    await store.commit([Create("/b", b"before"), Create("/c")])

    # Harmless operations around it: they must leave no trace. None touches what the impossible one is about.
    with pytest.raises(refusal) as caught:
        await store.commit([Put("/b", b"after"), Create("/new"), Delete("/c"), *ops, Create("/newer")])

    assert caught.value.path == path
    node = await store.get("/b")
    assert node is not None
    assert (node.value, node.version) == (b"before", 0)
    assert await store.children("/") >= {"a", "b", "c"}
    assert not await store.children("/") & {"new", "newer"}
    assert await store.children("/a") == {"b", "alive"}


async def test_a_parent_and_its_children_go_in_one_commit(store: MetadataStore) -> None:
    await store.commit([Create("/a"), Create("/a/b"), Create("/a/b/c")])
    await store.commit([Delete("/a/b/c"), Delete("/a/b"), Delete("/a")])
    assert await store.children("/a") == frozenset()
    assert await store.get("/a") is None


async def test_a_node_made_again_is_younger_and_starts_at_version_0(store: MetadataStore) -> None:
    await store.commit([Create("/a"), Put("/a", b"x")])
    first = await store.get("/a")
    await store.commit([Delete("/a")])
    await store.commit([Create("/a")])
    second = await store.get("/a")
    assert first is not None
    assert second is not None
    assert second.created > first.created
    assert second.version == 0


async def test_an_ephemeral_node_goes_with_its_session_and_others_see_it_go(
    store: MetadataStore, sessions: Sessions
) -> None:
    other = await sessions.open()
    await store.commit([Create("/ids")])
    await other.commit([Create("/ids/2", b"alive", ephemeral=True), Create("/kept")])
    await store.sync()
    assert await store.children("/ids") == {"2"}
    changes = store.watch("/ids")
    assert await taken(changes) == {"/ids": b"", "/ids/2": b"alive"}

    await other.close()

    assert await taken(changes) == {"/ids/2": None}
    await store.sync()
    assert await store.children("/ids") == frozenset()
    assert await store.get("/kept") is not None
    lost = await asyncio.wait_for(other.next_state(SessionState(1, SessionStatus.CONNECTED)), 5)
    assert lost == SessionState(1, SessionStatus.LOST)


async def test_a_session_that_is_over_refuses_everything(store: MetadataStore, sessions: Sessions) -> None:
    other = await sessions.open()
    await other.close()
    await other.close()
    for attempt in (other.get("/a"), other.children("/a"), other.commit([Create("/a", ephemeral=True)])):
        with pytest.raises(SessionLost):
            await attempt
    assert await store.get("/a") is None


async def test_a_watch_ends_with_its_session(store: MetadataStore, sessions: Sessions) -> None:
    other = await sessions.open()
    await store.commit([Create("/a")])
    seen = 0
    async for _ in other.watch("/"):
        seen += 1
        await other.close()
    assert seen == 1


async def test_a_watch_has_what_is_there_and_then_what_changed_below_its_path_only(store: MetadataStore) -> None:
    await store.commit([Create("/a"), Create("/a/b"), Create("/ab")])
    changes = store.watch("/a")
    assert await taken(changes) == {"/a": b"", "/a/b": b""}

    await store.commit([Put("/ab", b"not below"), Create("/a/c")])
    await store.commit([Put("/a/b", b"x")])
    await store.commit([Delete("/a/c")])

    seen: dict[str, bytes | None] = {}
    while not (seen.get("/a/b") and "/a/c" in seen):
        seen |= await taken(changes)
    assert seen == {"/a/b": b"x", "/a/c": None}


async def test_a_watcher_who_looks_late_still_learns_of_every_path_that_changed(store: MetadataStore) -> None:
    await store.commit([Create("/t")])
    changes = store.watch("/t")
    await anext(changes)
    for number in range(20):
        await store.commit([Create(f"/t/{number}")])

    seen: set[str] = set()
    while len(seen) < 20:
        seen |= (await taken(changes)).keys()
    assert seen == {f"/t/{number}" for number in range(20)}


async def test_a_watch_of_nothing_begins_empty_and_complete(store: MetadataStore) -> None:
    changes = store.watch("/later")
    assert await changes.wait()
    assert (changes.is_complete, changes.take(), changes.is_complete) == (True, (), False)
    await store.commit([Create("/later")])
    assert await taken(changes) == {"/later": b""}


async def test_a_committer_finds_the_change_in_its_own_watch_at_once(store: MetadataStore) -> None:
    changes = store.watch("/")
    await changes.wait()
    changes.take()
    for number in range(20):
        await store.commit([Create(f"/{number}", str(number).encode())])
        (change,) = changes.take()
        node = await store.get(f"/{number}")
        assert (change.path, change.node) == (f"/{number}", node)


async def test_changes_come_in_the_order_of_the_commits_with_growing_numbers(
    store: MetadataStore, sessions: Sessions
) -> None:
    await store.commit([Create("/n", b"")])
    changes = store.watch("/n")
    await anext(changes)
    numbers = []
    other = await sessions.open()
    for number in range(10):
        await (store, other)[number % 2].commit([Put("/n", str(number).encode()), Create(f"/n/{number}")])
    await store.sync()
    for change in changes.take():
        numbers.append(change.number)
        if change.node is not None and change.path != "/n":
            assert change.node.created == change.number
    await other.close()
    assert numbers == sorted(numbers)
    assert len(set(numbers)) >= 10


async def test_a_commit_is_seen_whole_by_others(store: MetadataStore, sessions: Sessions) -> None:
    async def write(store: MetadataStore) -> None:
        for number in range(1, 30):
            text = str(number).encode()
            await store.commit([Put("/left", text), Put("/right", text)])

    await store.commit([Create("/left", b"0"), Create("/right", b"0")])
    other = await sessions.open()
    changes = other.watch("/")
    writing = asyncio.ensure_future(write(store))
    seen: dict[str, bytes | None] = {}
    while seen.get("/left") != b"29":
        seen |= await taken(changes)
        assert seen["/left"] == seen["/right"]
    await writing
    await other.close()


async def test_sync_waits_for_what_others_committed_before(store: MetadataStore, sessions: Sessions) -> None:
    other = await sessions.open()
    changes = other.watch("/")
    await changes.wait()
    changes.take()
    for number in range(10):
        await store.commit([Create(f"/{number}")])
        await other.sync()
        assert await other.get(f"/{number}") is not None
        assert [change.path for change in changes.take()] == [f"/{number}"]
    await other.close()


async def test_all_nodes_below_a_path_are_listed_with_their_values(store: MetadataStore) -> None:
    await store.commit([Create("/a", b"1"), Create("/a/b", b"2"), Create("/a/b/c", b"3"), Create("/ab", b"4")])
    found = await store.list_nodes("/a")
    assert {path: node.value for path, node in found.items()} == {"/a": b"1", "/a/b": b"2", "/a/b/c": b"3"}
    assert list(found) == ["/a", "/a/b", "/a/b/c"]
    assert found["/a/b"] == await store.get("/a/b")
    assert await store.list_nodes("/nowhere") == {}
    everything = await store.list_nodes("/")
    assert everything.keys() >= {"/a", "/a/b", "/a/b/c", "/ab"}
    assert "/" not in everything


async def test_sequential_nodes_have_growing_numbers_also_after_deletions(store: MetadataStore) -> None:
    await store.commit([Create("/c")])
    numbers = []
    for _ in range(3):
        first, second = await store.commit(
            [Create("/c/n_", b"x", sequential=True), Create("/c/n_", ephemeral=True, sequential=True)]
        )
        numbers += [first, second]
        node = await store.get(sequential_path("/c/n_", second))
        assert node is not None
        assert node.ephemeral
        await store.commit([Delete(sequential_path("/c/n_", first)), Delete(sequential_path("/c/n_", second))])
    assert numbers == sorted(set(numbers))
    await store.commit([Create("/after")])


async def test_a_lost_session_can_do_nothing_until_it_is_renewed(store: MetadataStore, sessions: Sessions) -> None:
    other = await sessions.open()
    await other.commit([Create("/alive", ephemeral=True)])
    changes = other.watch("/")
    await anext(changes)

    await sessions.expire(other)

    async with asyncio.timeout(5):
        state = other.state
        while state.status is not SessionStatus.LOST:
            state = await other.next_state(state)
    assert state == SessionState(1, SessionStatus.LOST)
    assert not await changes.wait()
    with pytest.raises(SessionLost):
        await other.commit([Create("/alive", ephemeral=True)])
    await store.sync()
    assert await store.get("/alive") is None

    await other.renew()
    assert other.state == SessionState(2, SessionStatus.CONNECTED)
    await other.commit([Create("/alive", b"again", ephemeral=True)])
    assert await taken(other.watch("/alive")) == {"/alive": b"again"}
    await other.close()
    with pytest.raises(SessionLost):
        await other.renew()


async def test_many_commits_at_once_keep_their_order_and_each_has_its_own_outcome(store: MetadataStore) -> None:
    await store.commit([Create("/n", b"0")])
    commits: list[list[Op]] = [[Put("/n", b"%d" % number, number)] for number in range(30)]
    commits.insert(10, [Put("/n", b"x", 5), Create("/never")])
    commits.insert(20, [Create("/n/child"), Create("/n/child/below")])
    commits += [[Delete("/n/child")], [Delete("/n/child/below")], [Delete("/n/child")]]

    outcomes = await asyncio.gather(*map(store.commit, commits), return_exceptions=True)

    failed = [(type(outcome), at) for at, outcome in enumerate(outcomes) if isinstance(outcome, BaseException)]
    assert failed == [(VersionConflict, 10), (NodeHasChildren, 32)]
    node = await store.get("/n")
    assert node is not None
    assert (node.value, node.version) == (b"29", 30)
    assert await store.get("/never") is None
    assert await store.children("/n") == frozenset()


async def test_a_committer_sees_its_commit_at_once(store: MetadataStore) -> None:
    await store.commit([Create("/n", b"0")])
    for number in range(1, 10):
        await store.commit([Put("/n", str(number).encode())])
        node = await store.get("/n")
        assert node is not None
        assert (node.value, node.version) == (str(number).encode(), number)


async def test_many_increments_by_compare_and_set_lose_none(store: MetadataStore) -> None:
    async def increment(store: MetadataStore) -> None:
        while True:
            node = await store.get("/n")
            assert node is not None
            try:
                await store.commit([Put("/n", str(int(node.value) + 1).encode(), node.version)])
            except VersionConflict:
                continue
            return

    await store.commit([Create("/n", b"0")])
    await asyncio.gather(*(increment(store) for _ in range(12)))
    node = await store.get("/n")
    assert node is not None
    assert node.value == b"12"


ODD_NAMES = (
    "web",
    "*",
    "a b%2F",
    "a/b",
    "/",
    ".",
    "..",
    "...",
    "a\nb",
    "\x7f",
    "é",
    "😀",
    "\u200b",
    "\uf8ff",
    "\ufff0",
    "x" * 20_000,
)


async def test_acls_of_every_name_are_kept_and_followed(sessions: Sessions) -> None:
    def decided(view: ClusterView, event: CreateAcls | DeleteAcls) -> list[Op]:
        overlay = Overlay(view, Rules(ControllerConfig(), LogConfig()))
        apply(overlay, event)
        return [op for commit in overlay.commits() for op in commit]

    entry = AccessControlEntry("User:é", "10.0.0.0/8", AclOperation.ALL, PermissionType.DENY)
    kinds = (PatternType.LITERAL, PatternType.PREFIXED)
    patterns = [ResourcePattern(ResourceType.GROUP, kind, name) for name in ODD_NAMES for kind in kinds]
    writer, reader = await sessions.open(), await sessions.open()
    cluster = MetadataCache(reader)
    await writer.commit([Create(path) for path in acl_znodes.directories(patterns)])
    await cluster.load()

    await writer.commit(decided(cluster.current, CreateAcls([bind(pattern, entry) for pattern in patterns])))
    assert set((await cluster.sync()).acls.bindings()) == {bind(pattern, entry) for pattern in patterns}
    assert len(await reader.children(acl_znodes.LITERAL_CHANGES)) == len(
        await reader.children(acl_znodes.EXTENDED_CHANGES)
    )

    everything = AclFilter(ResourceType.ANY, PatternType.ANY, None, None, None, AclOperation.ANY, PermissionType.ANY)
    await writer.commit(decided(cluster.current, DeleteAcls([everything])))
    assert not list((await cluster.sync()).acls.patterns())
    assert not await reader.children("/kafka-acl/Group")
    await writer.close()
    await reader.close()
    await sessions.close()
