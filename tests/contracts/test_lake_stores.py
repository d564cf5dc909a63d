"""One suite for every store of a lake: a directory, memory, and real servers of the S3 protocol."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ottla.core.runtime import new_uuid
from ottla.pipeline.lake.lake_store import PRIVATE, LakeStore, LeaseTaken, ObjectChanged, ObjectExists, UnsafeStore
from ottla.pipeline.lake.local_store import LocalStore
from ottla.pipeline.lake.object_lease import LEASE_S, hold_lease
from ottla.pipeline.lake.object_store import ObjectStore
from tests.support.processes import until
from tests.support.s3_servers import S3Server, running
from tests.support.sim_lake_store import Bucket, Fault, SimStore


@pytest.fixture(params=["local", "sim", "versitygw"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LakeStore:
    if request.param == "local":
        return LocalStore(tmp_path / "lake" / "events")
    if request.param == "sim":
        return SimStore(Bucket(), "lake/events")
    server: S3Server = request.getfixturevalue(request.param)
    return server.store(f"{new_uuid().hex}/events")


def test_an_object_is_read_as_it_was_written(store: LakeStore) -> None:
    assert store.head("a/b") is None
    tag = store.put("a/b", b"0123456789")
    found = store.head("a/b")
    assert found is not None
    assert (found.key, found.size_bytes, found.tag) == ("a/b", 10, tag)
    assert [store.get("a/b"), store.get("a/b", 3), store.get("a/b", 3, 5)] == [b"0123456789", b"3456789", b"34"]
    store.put("a/b", b"new")
    assert store.get("a/b") == b"new"


def test_a_missing_object_is_reported_and_deleting_it_is_fine(store: LakeStore) -> None:
    with pytest.raises(FileNotFoundError):
        store.get("no")
    with pytest.raises(FileNotFoundError):
        store.input("no")
    store.delete("no")


def test_a_list_has_every_key_below_a_prefix_in_order(store: LakeStore) -> None:
    keys = ["_delta_log/1.json", "a=1/b=2/x.parquet", "a=1/y.parquet", "top"]
    for key in reversed(keys):
        store.put(key, key.encode())
    assert [found.key for found in store.objects()] == keys
    assert [found.key for found in store.objects("a=1/")] == keys[1:3]
    assert list(store.objects("a=/")) == []
    assert [found.size_bytes for found in store.objects("_delta_log/")] == [len(keys[0])]
    assert store.directories() == ["_delta_log", "a=1"]


def test_a_prefix_of_a_name_is_no_prefix_of_keys(store: LakeStore) -> None:
    store.below("events").put("x", b"1")
    store.below("events_quarantine").put("x", b"2")
    assert [found.key for found in store.objects("events/")] == ["events/x"]
    assert [found.key for found in store.below("events").objects()] == ["x"]
    assert store.below("events").sibling("events_quarantine").get("x") == b"2"


def test_one_of_many_creates_an_object(store: LakeStore) -> None:
    won = at_once(8, lambda n: store.put_if_absent("new", f"writer {n}".encode()), ObjectExists)
    assert len(won) == 1
    assert store.get("new") == f"writer {won[0]}".encode()


def test_one_of_many_replaces_an_object(store: LakeStore) -> None:
    tag = store.put("x", b"before")
    won = at_once(8, lambda n: store.put_if_unchanged("x", f"writer {n}".encode(), tag), ObjectChanged)
    assert len(won) == 1 or (won and isinstance(store, ObjectStore)), "versitygw lets two at once succeed"
    assert store.get("x") in [f"writer {number}".encode() for number in won]
    with pytest.raises(ObjectChanged):
        store.put_if_unchanged("x", b"late", tag)
    with pytest.raises(ObjectChanged):
        store.put_if_unchanged("absent", b"late", tag)
    assert store.head("absent") is None


def at_once(count: int, attempt: Callable[[int], object], lost: type[Exception]) -> list[int]:
    """Return the numbers of the attempts, made at the same moment, that did not lose."""
    ready, won = threading.Barrier(count), []

    def run(number: int) -> None:
        ready.wait()
        try:
            attempt(number)
        except lost:
            return
        won.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


def test_a_renamed_object_has_its_new_name_alone(store: LakeStore) -> None:
    store.put("a", b"1")
    store.rename("a", "b/c")
    assert [found.key for found in store.objects()] == ["b/c"]
    store.delete_below("b/")
    assert list(store.objects()) == []


def test_a_file_is_seen_when_it_is_closed_and_never_if_it_is_abandoned(store: LakeStore) -> None:
    rows = pa.table({"n": pa.array(range(300_000)), "text": [f"value {n}" for n in range(300_000)]})
    output = store.output("day=1/part.parquet")
    with pq.ParquetWriter(output.sink, rows.schema, compression="none") as writer:
        writer.write_table(rows, row_group_size=100_000)
    assert store.is_remote is (store.head("day=1/part.parquet") is None)
    written = output.close()
    store.sync_names([written.key])
    found = store.head("day=1/part.parquet")
    assert found is not None
    assert (written.key, written.size_bytes) == (found.key, found.size_bytes)
    with store.input("day=1/part.parquet") as source:
        file = pq.ParquetFile(source)
        assert file.num_row_groups == 3
        assert file.read_row_group(1, columns=["n"])["n"].to_pylist() == list(range(100_000, 200_000))
    with store.input("day=1/part.parquet") as source:
        assert pq.read_table(source).equals(rows)
    other = store.output("day=1/other.parquet")
    other.sink.write(b"half")
    other.abandon()
    assert [found.key for found in store.objects("day=1/")] == ["day=1/part.parquet"]


def test_an_absolute_location_belongs_to_one_key(store: LakeStore) -> None:
    assert store.key(store.location("a/b")) == "a/b"
    assert store.key(store.sibling("other").location("a/b")) is None
    assert store.at(store.sibling("other").url).url == store.sibling("other").url


def test_a_store_is_a_value(store: LakeStore) -> None:
    if not isinstance(store, SimStore):
        assert pickle.loads(pickle.dumps(store)) == store
    assert store.below("x") == store.below("x")


def test_a_server_that_ignores_conditions_is_refused_before_anything_is_written(s3proxy: S3Server) -> None:
    """S3Proxy on a file system replaces an object that a conditional put must leave."""
    store = s3proxy.store(new_uuid().hex)
    with pytest.raises(UnsafeStore, match="does not keep the condition"):
        store.verify()
    assert all(found.key.startswith(f"{PRIVATE}probe-") for found in store.objects())


def test_a_store_that_keeps_the_conditions_is_verified(store: LakeStore) -> None:
    store.verify()
    assert list(store.objects()) == []


def test_one_at_a_time_holds_a_lease(store: LakeStore) -> None:
    with store.lease("load-t") as mine:
        assert store.held_leases() == {mine.id}
        with pytest.raises(LeaseTaken, match=f"process {mine.pid} on {mine.host}"), store.lease("load-t"):
            pass
        with store.lease("compact") as other:
            assert store.held_leases() == {mine.id, other.id}
    assert store.held_leases() == set()
    with store.lease("load-t") as again:
        assert again.id != mine.id


def test_of_many_that_take_a_lease_one_succeeds(store: LakeStore) -> None:
    over = threading.Barrier(6)

    def hold(_: int) -> None:
        try:
            with store.lease("load-t"):
                over.wait()
        except LeaseTaken:
            over.wait()
            raise

    assert len(at_once(6, hold, LeaseTaken)) == 1


class TestLeasesWithoutLocks:
    """Of a store whose clock the test owns."""

    KEY = f"{PRIVATE}load.lease"

    def test_a_lease_that_is_not_renewed_is_taken_over_and_its_owner_does_not_release_it(self) -> None:
        store = SimStore(Bucket())
        with hold_lease(store, "load", renew_s=3600) as first:
            assert store.held_leases() == {first.id}
            store.bucket.now_ms += int(LEASE_S * 1000)
            assert store.held_leases() == set()
            with hold_lease(store, "load", renew_s=3600) as second:
                assert store.held_leases() == {second.id}
                record = store.get(self.KEY)
        assert store.get(self.KEY) == record.replace(
            b'"renewals": 0, "released": false', b'"renewals": 0, "released": true'
        )

    def test_a_lease_whose_process_ended_on_this_machine_is_free_at_once(self) -> None:
        store = SimStore(Bucket())
        with hold_lease(store, "load", renew_s=3600) as mine:
            store.put(self.KEY, store.get(self.KEY).replace(b'"pid": ', b'"pid": 99999'))
            assert store.held_leases() == set()
            store.put(self.KEY, store.get(self.KEY).replace(b'"machine": "', b'"machine": "another'))
            assert store.held_leases() == {mine.id}

    def test_a_lease_is_renewed_as_long_as_it_is_held_whatever_answers_are_lost(self) -> None:
        chance = random.Random(28)
        bucket = Bucket(faults={n: Fault.LOST_ANSWER for n in range(5, 100_000) if chance.random() < 0.4})
        with hold_lease(SimStore(bucket), "load", renew_s=0.001) as mine:
            for _ in range(5):
                bucket.now_ms += int(LEASE_S * 900)
                written = bucket.written
                until(lambda: bucket.written > written + 1, what="renewals")  # noqa: B023 - called here
            assert SimStore(replace(bucket, faults={})).held_leases() == {mine.id}


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running("versitygw", tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(scope="session")
def s3proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running("s3proxy", tmp_path_factory.mktemp("s3proxy")) as server:
        yield server
