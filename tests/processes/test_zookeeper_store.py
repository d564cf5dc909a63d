"""The store on a real ZooKeeper when connections, entries of the feed, servers and sessions are lost."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ottla.metadata_store import znodes, zookeeper_session
from ottla.metadata_store.commit_feed import FEED, VALUE_MAX, entry_path
from ottla.metadata_store.store import (
    Check,
    Create,
    Delete,
    Op,
    OutcomeUnknown,
    Put,
    SessionLost,
    SessionState,
    SessionStatus,
    VersionConflict,
)
from ottla.metadata_store.zookeeper import ZooKeeperStore, ZooKeeperUnreachable
from ottla.metadata_store.zookeeper_connect import parse_connect
from ottla.metadata_store.zookeeper_connection import ZooKeeperConnection
from ottla.metadata_store.zookeeper_session import ZooKeeperSession
from tests.support.real_zookeeper import RealEnsemble, RealZooKeeper, running_zookeeper
from tests.support.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.slow, pytest.mark.external]
SESSION_S = 3.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


class Stores:
    """Opens stores in one tree, directly or through a proxy."""

    def __init__(self, server: RealZooKeeper) -> None:
        self._server, self._chroot = server, f"/test-{next(_numbers)}"
        self.proxy = TcpProxy("127.0.0.1", server.server.port)
        self._opened: list[ZooKeeperStore] = []

    async def open(self, *, by_proxy: bool = False) -> ZooKeeperStore:
        if by_proxy and not self.proxy.port:
            await self.proxy.start()
        address = self.proxy.address if by_proxy else self._server.address
        connect = parse_connect(address + self._chroot)
        self._opened.append(ZooKeeperStore(connect, session_timeout_s=SESSION_S, connection_timeout_s=10))
        await self._opened[-1].renew()
        return self._opened[-1]

    async def close(self) -> None:
        for store in self._opened:
            await store.close()
        if self.proxy.port:
            await self.proxy.close()


@pytest.fixture
async def stores(server: RealZooKeeper) -> AsyncIterator[Stores]:
    opened = Stores(server)
    try:
        yield opened
    finally:
        await opened.close()


def connection_of(store: ZooKeeperStore) -> ZooKeeperConnection:
    assert store._session is not None
    return store._session._connection


def requests_in(dropped: bytearray) -> int:
    """Return how many requests of the store there are: pings have a negative xid."""
    found = at = 0
    while at < len(dropped):
        size, xid = struct.unpack_from(">ii", dropped, at)
        found += xid > 0
        at += 4 + size
    return found


async def until(store: ZooKeeperStore, status: SessionStatus) -> SessionState:
    state = store.state
    while state.status is not status:
        state = await store.next_state(state)
    return state


async def test_a_commit_whose_answer_is_lost_is_found_by_its_id_and_not_made_twice(stores: Stores) -> None:
    witness, store = await stores.open(), await stores.open(by_proxy=True)
    await store.commit([Create("/n", b"0"), Create("/alive", ephemeral=True)])
    stores.proxy.drops_answers = True
    writing = asyncio.ensure_future(store.commit([Put("/n", b"1", 0), Create("/once")]))
    while await witness.get("/once") is None:
        await witness.sync()
    assert not writing.done()
    stores.proxy.drops_answers = False
    stores.proxy.cut()

    assert await writing == [1, 0]
    assert store.state == SessionState(1, SessionStatus.CONNECTED)
    assert (await store.get("/n")) == (await witness.get("/n"))
    await witness.sync()
    assert await witness.get("/alive") is not None


async def test_a_commit_that_never_arrived_is_sent_again(stores: Stores) -> None:
    store = await stores.open(by_proxy=True)
    stores.proxy.drops_requests = True
    writing = [asyncio.ensure_future(store.commit([Create(f"/{n}")])) for n in range(3)]
    checking = asyncio.ensure_future(store.commit([Check("/")]))
    while requests_in(stores.proxy.dropped) < 4:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    stores.proxy.drops_requests = False
    stores.proxy.cut()
    assert [await each for each in writing] == [[0], [0], [0]]
    await checking
    with pytest.raises(VersionConflict):
        await store.commit([Put("/0", b"", 5)])


async def test_nodes_that_another_program_changed_are_read_again_by_all_after_a_commit_that_conflicts(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    witness, store = await stores.open(), await stores.open()
    names = ["/written", "/deleted", "/untouched", "/parent"]
    await store.commit([Create(path, b"0") for path in names])
    by_hand: list[Op] = [
        Put("/written", b"by hand"),
        Delete("/deleted"),
        Create("/created", b"by hand"),
        Create("/parent/child"),
    ]
    await connection_of(witness).commit(by_hand)  # without an entry in the feed
    await store.sync()
    assert (await store.get("/written")) == (await store.get("/untouched"))

    deletion: list[Op] = [Put("/written", b"1", 0), Delete("/deleted", 0), Create("/created"), Delete("/parent", 0)]
    with pytest.raises(VersionConflict):
        await store.commit(deletion)
    await witness.sync()
    for each in (store, witness):
        found = [await each.get(path) for path in ("/written", "/deleted", "/created", "/untouched", "/parent/child")]
        assert [node and (node.value, node.version) for node in found] == [
            (b"by hand", 1),
            None,
            (b"by hand", 0),
            (b"0", 0),
            (b"", 0),
        ]
    await store.commit([Put("/written", b"1", 1), Create("/deleted"), Delete("/parent/child"), Delete("/parent")])
    await witness.sync()
    assert (await witness.get("/written")) == (await store.get("/written"))
    assert await witness.get("/parent") is None
    (warning,) = (record.getMessage() for record in caplog.records if "another program" in record.getMessage())
    assert "/written, /deleted, /created, /parent" in warning


async def test_a_commit_that_conflicts_with_one_of_another_broker_announces_nothing(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await stores.open(), await stores.open()
    await first.commit([Create("/n", b"0"), Create("/alive", ephemeral=True)])
    await second.sync()
    entries = await connection_of(first).children(FEED)
    outcomes = await asyncio.gather(
        *(store.commit([Put("/n", b"1", 0)]) for store in (first, second)),
        second.commit([Create("/alive", ephemeral=True)]),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NodeExists", "VersionConflict", "list"]
    assert len(await connection_of(first).children(FEED)) == len(entries) + 1
    assert "another program" not in caplog.text


async def test_a_session_is_lost_by_the_own_clock_and_its_commit_unknown(stores: Stores) -> None:
    witness, store = await stores.open(), await stores.open(by_proxy=True)
    await store.commit([Create("/alive", ephemeral=True)])
    watch = store.watch("/")
    await anext(watch)
    stores.proxy.drops_answers = True
    writing = asyncio.ensure_future(store.commit([Create("/made")]))
    while await witness.get("/made") is None:
        await witness.sync()
    stores.proxy.refuses = True
    stores.proxy.cut()
    assert await until(store, SessionStatus.SUSPENDED) == SessionState(1, SessionStatus.SUSPENDED)
    waiting = asyncio.ensure_future(store.commit([Create("/later")]))
    assert await until(store, SessionStatus.LOST) == SessionState(1, SessionStatus.LOST)
    for attempt in (writing, waiting):
        with pytest.raises(OutcomeUnknown):
            await attempt
    with pytest.raises(SessionLost):
        await store.commit([Create("/x")])
    assert not await watch.wait()
    changes = witness.watch("/alive")
    while await witness.get("/alive") is not None:
        await changes.wait()
        changes.take()

    renewing = asyncio.ensure_future(store.renew())
    refused = stores.proxy.refused
    while stores.proxy.refused < refused + 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not renewing.done()
    stores.proxy.refuses = stores.proxy.drops_answers = False
    await renewing
    assert store.state == SessionState(2, SessionStatus.CONNECTED)
    assert await store.get("/made") is not None
    assert await store.get("/later") is None
    await store.commit([Create("/alive", ephemeral=True)])


async def test_changes_during_a_short_disconnection_are_learned_afterwards(stores: Stores) -> None:
    other, third, store = await stores.open(), await stores.open(), await stores.open(by_proxy=True)
    await third.commit([Create("/third", ephemeral=True)])
    await other.commit([Create("/n", b"0")])
    await store.sync()
    changes = store.watch("/")
    await anext(changes)
    stores.proxy.refuses = True
    stores.proxy.cut()
    await until(store, SessionStatus.SUSPENDED)
    for number in range(5):
        await other.commit([Put("/n", b"%d" % number), Create(f"/{number}")])
    await third.close()
    stores.proxy.refuses = False
    await until(store, SessionStatus.CONNECTED)
    await store.sync()
    seen = {change.path: change.node for change in changes.take()}
    assert seen.keys() == {"/n", "/third", *(f"/{number}" for number in range(5))}
    assert seen["/third"] is None
    assert seen["/n"] == await other.get("/n")


async def test_a_gap_in_the_feed_means_a_full_load(stores: Stores) -> None:
    other, store = await stores.open(), await stores.open(by_proxy=True)
    await other.commit([Create("/gone"), Create("/n", b"0")])
    await store.sync()
    changes = store.watch("/")
    await anext(changes)
    stores.proxy.refuses = True
    stores.proxy.cut()
    await until(store, SessionStatus.SUSPENDED)
    await other.commit([Delete("/gone"), Put("/n", b"1")])
    await other.commit([Create("/new")])
    connection = connection_of(other)
    for name in await connection.children(FEED):
        await connection.commit([Delete(f"{FEED}/{name}")])
    stores.proxy.refuses = False
    await until(store, SessionStatus.CONNECTED)
    await store.sync()
    assert {change.path: change.node for change in changes.take()} == {
        "/gone": None,
        "/n": await other.get("/n"),
        "/new": await other.get("/new"),
    }
    # the numbers of entries go on, although all were deleted
    await other.commit([Create("/newer")])
    await store.sync()
    assert await store.get("/newer") is not None


async def test_an_entry_that_cannot_be_decoded_means_a_full_load(stores: Stores) -> None:
    other, store = await stores.open(), await stores.open()
    await connection_of(other).commit([Create("/unseen", b"1"), Create(f"{FEED}/c_", b"?", sequential=True)])
    await other.commit([Create("/seen")])
    await store.sync()
    assert await store.children("/") == {"seen", "unseen"}


async def test_requests_of_older_tools_are_seen_although_they_are_not_in_the_feed(stores: Stores) -> None:
    tool, store = await stores.open(), await stores.open(by_proxy=True)
    await store.commit([Create("/admin")])
    watch = store.watch("/admin")
    seen: dict[str, bytes | None] = {}

    async def until_seen(path: str, value: bytes | None) -> None:
        while seen.get(path) != value:
            assert await watch.wait()
            seen.update({each.path: each.node.value if each.node else None for each in watch.take()})

    path = znodes.REASSIGN_PARTITIONS
    for value in (b"1", b"2"):
        await connection_of(tool).commit([Create(path, value)])
        await until_seen(path, value)
        await connection_of(tool).commit([Delete(path, 0)])
        await until_seen(path, None)
    stores.proxy.cut()
    await connection_of(tool).commit([Create(znodes.PREFERRED_REPLICA_ELECTION, b"3")])
    await until_seen(znodes.PREFERRED_REPLICA_ELECTION, b"3")


async def test_the_controllers_session_deletes_old_entries(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: Counter[ZooKeeperSession | None] = Counter()
    original = ZooKeeperSession._check_feed

    async def check_feed(session: ZooKeeperSession) -> None:
        await original(session)
        checks[session] += 1

    monkeypatch.setattr(zookeeper_session, "CHECK_INTERVAL_S", 0.1)
    monkeypatch.setattr(zookeeper_session, "TRIM_AFTER_MS", 0)
    monkeypatch.setattr(zookeeper_session, "_TRIM_OPS", 3)
    monkeypatch.setattr(ZooKeeperSession, "_check_feed", check_feed)
    store, reader = await stores.open(), await stores.open()
    for number in range(12):
        await store.commit([Create(f"/{number}")])
    before = checks.copy()
    while min((checks - before)[each._session] for each in (store, reader)) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert len(await connection_of(store).children(FEED)) == 12
    await store.commit([Create(znodes.CONTROLLER, ephemeral=True)])
    while len(await connection_of(store).children(FEED)) > 3:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert await connection_of(store).exists(entry_path(12)) is not None
    await store.commit([Create("/after")])
    await reader.sync()
    assert await reader.list_nodes("/") == await store.list_nodes("/")


async def test_values_too_large_for_an_entry_are_read(stores: Stores) -> None:
    store, reader = await stores.open(), await stores.open()
    large = b"x" * (VALUE_MAX + 1)
    await store.commit([Create("/large", large), Create("/small", b"1"), Create("/binary", b"\xff")])
    await store.commit([Put("/large", large + b"y"), Put("/binary", b"\xfe"), Put("/small", b"2")])
    await reader.sync()
    assert await reader.list_nodes("/") == await store.list_nodes("/")
    node = await reader.get("/large")
    assert node is not None
    assert (node.value, node.version) == (large + b"y", 1)


async def test_a_full_load_has_partitions_with_and_without_a_state(stores: Stores) -> None:
    store = await stores.open()
    paths = ["/brokers", "/brokers/topics", "/brokers/topics/t", "/brokers/topics/t/partitions"]
    paths += [f"/brokers/topics/t/partitions/{index}" for index in range(3)]
    states = [f"{path}/state" for path in paths[-3:-1]]
    await store.commit([*map(Create, paths), *(Create(path, b"{}") for path in states)])
    late = await stores.open()
    assert await late.list_nodes("/") == await store.list_nodes("/")
    assert (await late.list_nodes("/")).keys() == {*paths, *states}


async def test_many_writers_and_readers_end_with_the_same_tree(stores: Stores) -> None:
    async def write(store: ZooKeeperStore, writer: int) -> None:
        for number in range(40):
            await store.commit([Put("/shared", b"%d-%d" % (writer, number)), Create(f"/{writer}-{number}")])
            if number % 10 == 5:
                await store.commit([Delete(f"/{writer}-{number}")])
                await store.commit([Create(f"/{writer}-{number}", b"again")])

    opened = [await stores.open(), await stores.open(), await stores.open(by_proxy=True)]
    await opened[0].commit([Create("/shared")])
    for store in opened:
        await store.sync()

    async def cut() -> None:
        for _ in range(6):
            await asyncio.sleep(0.1)
            stores.proxy.cut()

    cutting = asyncio.ensure_future(cut())
    await asyncio.gather(*(write(store, writer) for writer, store in enumerate(opened)))
    await cutting
    late = await stores.open()
    for store in opened:
        await store.sync()
    expected = await late.list_nodes("/")
    assert len(expected) == 121
    assert expected["/shared"].version == 120
    for store in opened:
        assert await store.list_nodes("/") == expected
    assert {store.state.ordinal for store in opened} == {1}


async def test_the_first_session_needs_a_server() -> None:
    store = ZooKeeperStore(parse_connect("127.0.0.1:1"), session_timeout_s=3, connection_timeout_s=0.5)
    with pytest.raises(ZooKeeperUnreachable, match=r"no ZooKeeper server of 127\.0\.0\.1:1 answered within 0\.5 s"):
        await store.renew()
    await store.close()
    with pytest.raises(SessionLost):
        await store.get("/")


@pytest.mark.timeout(90)
async def test_a_session_survives_the_servers_of_an_ensemble_one_by_one(tmp_path: Path) -> None:
    ensemble = RealEnsemble(tmp_path).start()
    try:
        store = ZooKeeperStore(parse_connect(f"{ensemble.address}/e"), session_timeout_s=4, connection_timeout_s=10)
        await store.renew()
        await store.commit([Create("/alive", ephemeral=True)])
        for number, server in enumerate(ensemble.servers.values()):
            await asyncio.to_thread(server.kill)
            await store.commit([Create(f"/{number}")])
            await asyncio.to_thread(server.start)
        await store.sync()
        assert store.state == SessionState(1, SessionStatus.CONNECTED)
        assert await store.children("/") == {"alive", "0", "1", "2"}
        await store.close()
    finally:
        ensemble.stop()
