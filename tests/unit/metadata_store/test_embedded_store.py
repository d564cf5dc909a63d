"""Tests the embedded store across restarts, crashes and cancellations; the contract suite has the rest."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from ottla.core.errors import StorageError
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.sqlite_file import FILE_NAME, MetadataFile, NodeRow
from ottla.metadata_store.store import Create, Delete, Node, Op, Put

WRITER = """
import asyncio, sys
from pathlib import Path
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.store import Create, Put

async def main():
    store = EmbeddedMetadataStore.open(Path(sys.argv[1])).session()
    if await store.get("/left") is None:
        await store.commit([Create("/left", b"0"), Create("/right", b"0")])
    number = int((await store.get("/left")).value)
    while True:
        number += 1
        text = str(number).encode()
        await store.commit([Put("/left", text), Create(f"/left/{number}"), Put("/right", text)])
        print(number, flush=True)

asyncio.run(main())
"""


def commit_and_close(path: Path, *commits: list[Op]) -> None:
    async def scenario() -> None:
        store = EmbeddedMetadataStore.open(path).session()
        for ops in commits:
            await store.commit(ops)
        await store.close()

    asyncio.run(scenario())


def read(path: Path, *paths: str) -> list[Node | None]:
    async def scenario() -> list[Node | None]:
        store = EmbeddedMetadataStore.open(path).session()
        found = [await store.get(wanted) for wanted in paths]
        await store.close()
        return found

    return asyncio.run(scenario())


def test_values_and_versions_survive_a_restart_and_ephemeral_nodes_do_not(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    commit_and_close(path, [Create("/a", b"x"), Create("/b", ephemeral=True), Put("/a", b"y")], [Create("/a/c")])

    a, b, c = read(path, "/a", "/b", "/a/c")

    assert a == Node(b"y", 1, 1, ephemeral=False)
    assert b is None
    assert c is not None
    assert c.created == 2


async def test_the_epoch_of_an_ephemeral_node_grows_across_restarts(tmp_path: Path) -> None:
    async def one_life() -> int:
        store = EmbeddedMetadataStore.open(tmp_path / FILE_NAME).session()
        await store.commit([Create("/me", ephemeral=True)])
        node = await store.get("/me")
        await store.close()
        assert node is not None
        return node.created

    epochs = [await one_life() for _ in range(3)]

    assert epochs == sorted(set(epochs))


def test_an_ephemeral_node_in_the_place_of_a_lasting_one_leaves_nothing_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    commit_and_close(path, [Create("/a", b"lasting")], [Delete("/a"), Create("/a", ephemeral=True)])

    assert read(path, "/a") == [None]


@pytest.mark.slow
def test_a_kill_between_any_two_operations_never_leaves_half_a_commit(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    acknowledged = 0
    for life in range(6):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(3 + 7 * life):
            acknowledged = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
        process.wait()
        process.stdout.close()

        left, right, child, beyond = read(path, "/left", "/right", f"/left/{acknowledged}", f"/left/{acknowledged + 2}")

        assert left is not None
        assert right is not None
        assert left.value == right.value
        assert left.version == right.version
        assert acknowledged <= int(left.value) <= acknowledged + 1
        assert child is not None
        assert beyond is None


def test_a_torn_write_ahead_log_loses_whole_commits_only(tmp_path: Path) -> None:
    """The file as a power cut may leave it: the log cut or garbled at any place."""
    path = tmp_path / FILE_NAME
    log = path.with_name(path.name + "-wal")

    async def write() -> tuple[bytes, bytes]:
        metadata = EmbeddedMetadataStore.open(path)
        metadata.checkpoint_delay_s = 3600
        store = metadata.session()
        await store.commit([Create("/left", b"0"), Create("/right", b"0")])
        for number in range(1, 8):
            text = str(number).encode() * 50
            await store.commit([Put("/left", text), Put("/right", text)])
        files = path.read_bytes(), log.read_bytes()
        await store.close()
        return files

    main, tail = asyncio.run(write())
    survived = set()
    for cut in range(0, len(tail) + 1, 997):
        for garbled in (False, True):
            path.write_bytes(main)
            log.write_bytes(tail[:cut] + (bytes(len(tail) - cut) if garbled else b""))
            left, right = read(path, "/left", "/right")
            assert (left and left[:2]) == (right and right[:2])
            survived.add(left and left.version)
    assert survived >= set(range(7))


async def test_a_checkpoint_soon_after_a_commit_empties_the_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME

    metadata = EmbeddedMetadataStore.open(path)
    metadata.checkpoint_delay_s = 0
    store = metadata.session()
    await store.commit([Create("/a", b"first")])
    await store.commit([Put("/a", b"last")])
    assert metadata._checkpointing is not None
    await metadata._checkpointing
    size = path.with_name(path.name + "-wal").stat().st_size
    assert b"last" in path.read_bytes()
    await store.close()
    assert size == 0


async def test_a_caller_who_gives_up_half_way_leaves_memory_and_file_agreeing(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME

    store = EmbeddedMetadataStore.open(path).session()
    for number in range(20):
        task = asyncio.ensure_future(store.commit([Create(f"/{number}")]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    names = await store.children("/")
    await store.close()
    again = EmbeddedMetadataStore.open(path).session()
    assert await again.children("/") == names
    await again.close()


async def test_a_full_disk_refuses_the_commit_and_the_next_one_works(tmp_path: Path) -> None:
    metadata = EmbeddedMetadataStore.open(tmp_path / FILE_NAME)
    store = metadata.session()
    database = metadata._file
    assert database is not None
    await store.commit([Create("/a")])
    database._connection.execute("PRAGMA max_page_count=4")

    with pytest.raises(StorageError):
        await store.commit([Create("/big", bytes(100_000))])
    assert await store.get("/big") is None

    database._connection.execute("PRAGMA max_page_count=100000")
    await store.commit([Create("/big", bytes(100_000))])
    await store.close()


def test_a_disk_that_refuses_writes_in_its_own_way_is_tried_again_too(tmp_path: Path) -> None:
    """A used-up quota is no full disk to SQLite; a limit on file sizes is the like of it that a test may set."""

    async def scenario() -> None:
        store = EmbeddedMetadataStore.open(tmp_path / FILE_NAME).session()
        await store.commit([Create("/a")])
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, before[1]))
        try:
            with pytest.raises(StorageError):
                await store.commit([Create("/big", bytes(100_000))])
            assert await store.get("/big") is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        await store.commit([Create("/small"), Create("/big", bytes(100_000))])
        await store.close()

    asyncio.run(scenario())
    small, big = read(tmp_path / FILE_NAME, "/small", "/big")
    assert small is not None
    assert big is not None


async def test_a_commit_to_a_removed_file_fails(tmp_path: Path) -> None:
    store = EmbeddedMetadataStore.open(tmp_path / FILE_NAME).session()
    await store.commit([Create("/a")])
    (tmp_path / FILE_NAME).unlink()
    for _ in range(2):
        with pytest.raises(StorageError):
            await store.commit([Create("/b")])
    assert await store.get("/a") is not None
    await store.close()


async def test_after_a_failed_commit_that_is_in_the_file_the_store_is_unusable(tmp_path: Path) -> None:
    metadata = EmbeddedMetadataStore.open(tmp_path / FILE_NAME)
    store, database = metadata.session(), metadata._file
    assert database is not None
    await store.commit([Create("/a")])
    database._last_commit_failed = True
    await store.commit([Create("/b")])  # the counter says that nothing happened
    database._connection.execute("UPDATE counter SET last_commit = last_commit + 1")
    database._last_commit_failed = True
    for _ in range(2):
        with pytest.raises(StorageError):
            await store.commit([Create("/c")])
    await store.close()


async def test_after_any_other_failure_the_store_takes_no_more_changes_but_can_be_read(tmp_path: Path) -> None:
    metadata = EmbeddedMetadataStore.open(tmp_path / FILE_NAME)
    store = metadata.session()
    database = metadata._file
    assert database is not None
    await store.commit([Create("/a")])
    database._connection.close()

    for _ in range(2):
        with pytest.raises(StorageError):
            await store.commit([Create("/b")])
    assert await store.get("/a") is not None
    assert await store.get("/b") is None
    await store.close()


def test_a_file_that_is_no_store_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"not a database, whatever its name may say" * 100)

    with pytest.raises(StorageError, match=FILE_NAME):
        EmbeddedMetadataStore.open(path)


def test_a_store_from_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()

    with pytest.raises(StorageError, match="format 99"):
        EmbeddedMetadataStore.open(path)


def filled_store(path: Path) -> None:
    created: list[Op] = [Create(f"/topics/{number}", b'{"id":"%d"}' % number * 30) for number in range(40)]
    commit_and_close(
        path,
        [Create("/config"), Create("/topics")],
        *[[op] for op in created],
        [Put("/topics/7", b"changed"), Delete("/topics/9")],
    )


def test_no_flipped_bit_of_the_file_changes_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    filled_store(path)
    sound = path.read_bytes()
    paths = ["/config", "/topics", *(f"/topics/{number}" for number in range(40))]
    truth = read(path, *paths)
    refused = 0
    rng = random.Random(4)
    for _ in range(400):
        bit = rng.randrange(len(sound) * 8)
        corrupt = bytearray(sound)
        corrupt[bit // 8] ^= 1 << bit % 8
        for leftover in tmp_path.iterdir():
            leftover.unlink()
        path.write_bytes(corrupt)
        try:
            found = read(path, *paths)
        except StorageError:
            refused += 1
        else:
            assert found == truth, f"bit {bit} went unseen"
    assert refused > 100


@pytest.mark.parametrize("corruption", ["a page gone", "zeros", "cut", "noise"])
def test_a_corrupt_file_is_refused_by_name(tmp_path: Path, corruption: str) -> None:
    path = tmp_path / FILE_NAME
    filled_store(path)
    data = path.read_bytes()
    match corruption:
        case "a page gone":
            data = data[:8192] + bytes(4096) + data[12288:]
        case "zeros":
            data = bytes(len(data))
        case "cut":
            data = data[: len(data) // 2]
        case _:
            data = random.Random(1).randbytes(len(data))
    path.write_bytes(data)

    with pytest.raises(StorageError, match=FILE_NAME):
        read(path, "/topics/7")


def test_a_row_changed_by_another_program_is_corruption(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    filled_store(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE nodes SET value = x'00' WHERE path = '/topics/8'")
    connection.close()

    with pytest.raises(StorageError, match="digest does not match"):
        read(path, "/topics/7")


def test_a_store_that_lost_its_digest_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    filled_store(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM seal")
    connection.close()

    with pytest.raises(StorageError, match="digest does not match"):
        read(path, "/topics/7")


def bytes_allocated_by_a_commit(path: Path, nodes: int) -> int:
    async def measure() -> int:
        store = EmbeddedMetadataStore.open(path).session()
        await store.commit([Create("/topics"), *(Create(f"/topics/{number}") for number in range(nodes))])
        tracemalloc.start()
        await store.commit([Create("/topics/one-more")])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await store.close()
        return peak

    return asyncio.run(measure())


def test_a_commit_costs_what_it_changes_however_many_nodes_there_are(tmp_path: Path) -> None:
    few = bytes_allocated_by_a_commit(tmp_path / "few.db", nodes=100)
    many = bytes_allocated_by_a_commit(tmp_path / "many.db", nodes=20_000)

    assert many < few + 20_000, "a copy of one pointer for each node would be 160,000 bytes"


class CountingFile(MetadataFile):
    """Counts the transactions."""

    transactions = 0

    def write(self, commit: int, changed: dict[str, NodeRow | None]) -> None:
        self.transactions += 1
        super().write(commit, changed)


def test_commits_that_arrive_during_a_write_share_the_next_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = CountingFile(tmp_path / FILE_NAME)
        store = EmbeddedMetadataStore(file).session()
        first = asyncio.ensure_future(store.commit([Create("/first")]))
        await asyncio.sleep(0)
        await asyncio.gather(*(store.commit([Create(f"/{number}")]) for number in range(50)))
        await first
        assert file.transactions == 2
        await store.close()

    asyncio.run(scenario())
    assert all(read(tmp_path / FILE_NAME, "/first", *(f"/{number}" for number in range(50))))


async def test_a_caller_who_gives_up_while_it_waits_for_its_turn_has_changed_nothing(tmp_path: Path) -> None:
    store = EmbeddedMetadataStore.open(tmp_path / FILE_NAME).session()
    first = asyncio.ensure_future(store.commit([Create("/first")]))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(store.commit([Create("/second")]))
    third = asyncio.ensure_future(store.commit([Create("/third")]))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(first, third)
    assert await store.children("/") == {"first", "third"}
    await store.close()


async def test_a_writer_who_gives_up_does_not_lose_the_commits_of_others() -> None:
    store = EmbeddedMetadataStore().session()
    many: list[Op] = [Create(f"/many{number}") for number in range(300)]  # more than are checked in one turn
    first = asyncio.ensure_future(store.commit(many))
    second = asyncio.ensure_future(store.commit([Create("/second")]))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert await store.children("/") == {"second"}


async def test_the_end_of_a_session_deletes_its_own_nodes_without_a_search() -> None:
    tree = EmbeddedMetadataStore()
    one, other = tree.session(), tree.session()
    await one.commit([Create("/mine", ephemeral=True), Create("/moved", ephemeral=True), Create("/lasting")])
    await one.commit([Delete("/moved")])
    await other.commit([Create("/moved", ephemeral=True)])
    assert {owner: list(paths) for owner, paths in tree._owned.items()} == {1: ["/mine"], 2: ["/moved"]}
    await one.close()
    assert await other.children("/") == {"moved", "lasting"}
    await other.close()
    assert tree._owned == {}
