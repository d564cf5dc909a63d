"""Real disks that fill up, lose what was to be synced, turn read-only or vanish; and too few file handles.

Each test runs a server as a process, makes one of its disks fail, and checks from outside: the errors
of clients, the log lines (once, and without a traceback), and the data after kill -9 and a restart.
"""

from __future__ import annotations

import re
import resource
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.processes.test_start_and_stop import make_topic, records_of, refused, send
from tests.support.batches import AT_MS, Written, batch
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until, usage
from tests.support.small_disks import CannotMount, fill, loop_disk, small_disk
from tests.support.wire_client import ConnectionEnded, Wire

STORAGE_ERROR, LEADER_NOT_AVAILABLE = 56, 5


class Server(OttlaProcess):
    """One with several log directories, the first of which is always well."""

    def __init__(self, directory: Path, *others: Path, options: tuple[str, ...] = ()) -> None:
        super().__init__(directory, options=options)
        self.first = directory / "first"
        self.data = Path(",".join(map(str, (self.first, *others))))

    def errors(self) -> list[str]:
        """What it said of its disks, without the time."""
        return [line.split(" ", 2)[2] for line in self.log.splitlines() if " WARNING " in line or " ERROR " in line]


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Those that a test starts: stopped before their disks go, and none may have had an unexpected error."""
    started: list[Server] = []
    yield started
    for server in started:
        if server.process is not None and server.process.poll() is None:
            server.kill()
        server.assert_log_is_clean()


@pytest.fixture
def disks(servers: list[Server]) -> Iterator[ExitStack]:
    """Where a test mounts its disks; they go after the servers have ended."""
    with ExitStack() as stack:
        try:
            yield stack
        finally:
            for server in servers:
                if server.process is not None and server.process.poll() is None:
                    server.kill()


def mounted(stack: ExitStack, disk: Any) -> Any:
    try:
        return stack.enter_context(disk)
    except CannotMount as error:
        pytest.skip(f"no disk of one's own here: {error}")


def state(wire: Wire, name: str) -> dict[int, tuple[int, int, list[int]]]:
    """For each partition its error, leader and offline replicas."""
    (topic,) = wire.call("metadata", 9, topics=[{"name": name}])["topics"]
    return {
        part["partition_index"]: (part["error_code"], part["leader_id"], part["offline_replicas"])
        for part in topic["partitions"]
    }


def log_dirs(wire: Wire) -> dict[str, dict[str, Any]]:
    return {each["log_dir"]: each for each in wire.call("describe_log_dirs", 4, topics=None)["results"]}


def held_by(wire: Wire, path: Path, name: str) -> list[int]:
    """The partitions of a topic that lie in a directory."""
    topics = {topic["name"]: topic["partitions"] for topic in log_dirs(wire)[str(path)]["topics"]}
    return sorted(part["partition_index"] for part in topics.get(name, []))


def assert_all_there(wire: Wire, acknowledged: dict[int, list[bytes]], name: str = "t") -> None:
    for partition, values in acknowledged.items():
        held = records_of(wire, name, partition)
        assert sorted(held) == list(range(len(held))), "offsets have a gap"
        found = iter(held[at] for at in sorted(held))
        lost = [value[:20] for value in values if not any(value in record for record in found)]
        assert not lost, f"partition {partition} has {len(held)} records and lost {lost}"


def test_a_full_disk_refuses_writes_serves_reads_and_goes_on_by_itself(
    tmp_path: Path, servers: list[Server], disks: ExitStack
) -> None:
    small = mounted(disks, small_disk(tmp_path / "small", "4m"))
    options = ("-o", "log.segment.bytes=1048576", "-o", "log.retention.ms=-1")  # the records are old
    server = Server(tmp_path / "server", small / "data", options=options)
    servers.append(server)
    server.start()
    acknowledged: dict[int, list[bytes]] = {0: [], 1: []}

    def put(wire: Wire, partition: int, number: int, *, size: int = 60_000) -> int:
        value = b"%d:%d:" % (partition, number) + b"x" * size
        code = send(wire, "t", value, partition=partition)
        if not code:
            acknowledged[partition].append(value)
        return code

    with Wire(server.port) as wire:
        make_topic(wire, "t", partitions=2)
        (well,), (full,) = held_by(wire, server.first, "t"), held_by(wire, small / "data", "t")
        fill(small, leave_bytes=1 << 20)
        codes: list[int] = []
        while STORAGE_ERROR not in codes:
            codes.append(put(wire, full, len(codes)))
        assert set(codes) == {0, STORAGE_ERROR}
        fill(small)
        for number in range(1000, 1020):
            assert put(wire, full, number) == STORAGE_ERROR
            assert put(wire, well, number) == 0, "another directory has free space"
        assert_all_there(wire, acknowledged)
        assert state(wire, "t")[full] == (0, 1, []), "a full disk is not a lost one"
        assert log_dirs(wire)[str(small / "data")]["error_code"] == 0
        make_topic(wire, "new", partitions=2)  # where there is no room for it, it goes elsewhere
        assert [send(wire, "new", b"x", partition=partition) for partition in (0, 1)] == [0, 0]

    server.kill()
    server.start()  # the disk is still full: it is recovered and read all the same
    with Wire(server.port) as wire:
        assert_all_there(wire, acknowledged)
        assert put(wire, full, 1900) == STORAGE_ERROR
        (small / "filler").unlink()
        until(lambda: put(wire, full, 2000, size=100) == 0, what="writes to go on")
        for number in range(2001, 2010):
            assert put(wire, full, number, size=100) == 0
        assert_all_there(wire, acknowledged)
    said = [line for line in server.errors() if str(small) in line]
    assert len(said) == 2, said  # one in each life
    assert all("No space left on device" in line for line in said)

    server.kill()
    server.start()
    with Wire(server.port) as wire:
        assert_all_there(wire, acknowledged)
    assert server.stop() == 0


def test_a_full_disk_with_everything_on_it_is_started_read_and_freed(
    tmp_path: Path, servers: list[Server], disks: ExitStack
) -> None:
    small = mounted(disks, small_disk(tmp_path / "small", "16m"))
    server = Server(
        tmp_path / "server",
        options=(
            "-o",
            "log.segment.bytes=1048576",
            "-o",
            "log.retention.ms=-1",  # the records are old
        ),
    )
    servers.append(server)
    server.first = small / "data"
    server.data = server.first
    reserve = server.first / "ottla-reserve"
    server.start()
    until(lambda: reserve.exists() and reserve.stat().st_size == 1 << 20, what="the reserve")
    acknowledged: dict[int, list[bytes]] = {0: []}
    with Wire(server.port) as wire:
        for name in ("t", "kept", "gone"):
            make_topic(wire, name)
        assert send(wire, "gone", b"x" * 900_000) == 0
        for number in range(5):
            acknowledged[0].append(b"%d:" % number + b"x" * 900_000)
            assert send(wire, "t", acknowledged[0][-1]) == 0
        fill(small)
        assert send(wire, "t", b"x" * 60_000) == STORAGE_ERROR
    server.kill()

    server.start()
    with Wire(server.port) as wire:
        assert_all_there(wire, acknowledged)
        assert send(wire, "t", b"x" * 60_000) == STORAGE_ERROR
        parts = [{"partition_index": 0, "offset": 2}]
        done = wire.call("delete_records", 1, topics=[{"name": "t", "partitions": parts}], timeout_ms=10_000)
        assert done["topics"][0]["partitions"][0]["error_code"] == 0
        change = {"name": "retention.bytes", "config_operation": 0, "value": "1"}
        resource = {"resource_type": 2, "resource_name": "kept", "configs": [change]}
        done = wire.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
        assert done["responses"][0]["error_code"] == 0
        assert wire.call("delete_topics", 4, topic_names=["gone"], timeout=10_000)["responses"][0]["error_code"] == 0
        until(lambda: send(wire, "t", b"again") == 0, what="free space")
        assert reserve.stat().st_size == 1 << 20, "it is filled again"
    assert server.stop() == 0


def test_a_topic_that_the_metadata_store_has_no_room_for_fails_cleanly_and_works_later(
    tmp_path: Path, servers: list[Server], disks: ExitStack
) -> None:
    small = mounted(disks, small_disk(tmp_path / "small", "1m"))
    server = Server(tmp_path / "server", options=("-o", f"metadata.log.dir={small / 'metadata'}"))
    servers.append(server)
    server.start()

    def create(wire: Wire, name: str) -> int:
        new = {"name": name, "num_partitions": 1, "replication_factor": 1}
        return int(wire.call("create_topics", 5, topics=[new], timeout=10_000)["topics"][0]["error_code"])

    with Wire(server.port) as wire:
        assert create(wire, "before") == 0
        filler = fill(small)
        number, code = 0, 0
        while not code:
            code, number = create(wire, f"t{number}"), number + 1
        assert code == STORAGE_ERROR
        gone = f"t{number - 1}"
        assert not (server.first / f"{gone}-0").exists(), "nothing is left of it"
        assert send(wire, "before", b"x") == 0, "what there is works on"
        filler.unlink()
        until(lambda: create(wire, gone) == 0, what="the topic")
        assert send(wire, gone, b"x") == 0
    assert len([line for line in server.errors() if "metadata store" in line]) == 1
    assert server.restart().stop() == 0


def test_a_sync_without_free_space_fails_and_no_write_is_acknowledged_after_it(
    tmp_path: Path, servers: list[Server], disks: ExitStack
) -> None:
    """The disk below has less than it reported, so the error comes with the sync; a second sync would "succeed"."""
    thin = mounted(disks, loop_disk(tmp_path / "thin", size_bytes=64 << 20, backed_by="8m"))
    data = thin.place / "data"
    server = Server(tmp_path / "server", data)
    servers.append(server)
    server.start()
    acknowledged: dict[int, list[bytes]] = {0: [], 1: []}
    with Wire(server.port) as wire:
        make_topic(wire, "t", partitions=2)
        (well,), (lost,) = held_by(wire, server.first, "t"), held_by(wire, data, "t")
        code = 0
        for number in range(200):
            value = b"%d:" % number + b"x" * 400_000
            code = send(wire, "t", value, partition=lost)
            if code:
                break
            acknowledged[lost].append(value)
        assert code == STORAGE_ERROR
        assert acknowledged[lost]
        assert state(wire, "t") == {well: (0, 1, []), lost: (LEADER_NOT_AVAILABLE, -1, [1])}
        for number in range(5):
            assert send(wire, "t", b"small", partition=lost) == STORAGE_ERROR
            acknowledged[well].append(b"well %d" % number)
            assert send(wire, "t", acknowledged[well][-1], partition=well) == 0
        assert log_dirs(wire)[str(data)]["error_code"] == STORAGE_ERROR
        assert log_dirs(wire)[str(server.first)]["error_code"] == 0
    said = [line for line in server.errors() if str(data) in line]
    assert len(said) == 2, said
    assert "is offline until a restart" in said[0]
    assert "1 partitions are offline" in said[1]

    server.kill()
    thin.unmount()  # what was not written back is gone with the page cache, as in a power cut
    thin.repair()
    thin.mount()
    server.start()
    with Wire(server.port) as wire:
        assert_all_there(wire, acknowledged)
        assert state(wire, "t")[lost] == (0, 1, [])


def test_a_disk_that_turns_read_only_costs_its_own_partitions(
    tmp_path: Path, servers: list[Server], disks: ExitStack
) -> None:
    disk = mounted(disks, loop_disk(tmp_path / "loop", size_bytes=32 << 20))
    data = disk.place / "data"
    server = Server(tmp_path / "server", data)
    servers.append(server)
    server.start()
    with Wire(server.port) as wire:
        make_topic(wire, "t", partitions=2)
        (well,), (lost,) = held_by(wire, server.first, "t"), held_by(wire, data, "t")
        assert [send(wire, "t", b"before", partition=partition) for partition in (0, 1)] == [0, 0]
        try:
            disk.turn_read_only()
        except CannotMount as error:
            pytest.skip(str(error))
        assert send(wire, "t", b"after", partition=lost) == STORAGE_ERROR
        assert send(wire, "t", b"after", partition=well) == 0
        assert state(wire, "t") == {well: (0, 1, []), lost: (LEADER_NOT_AVAILABLE, -1, [1])}
        part = {"partition_index": lost, "timestamp": -1, "current_leader_epoch": -1}
        found = wire.call("list_offsets", 5, replica_id=-1, topics=[{"name": "t", "partitions": [part]}])
        assert found["topics"][0]["partitions"][0]["error_code"] == STORAGE_ERROR
    server.kill()
    server.start()  # it is still read-only: the broker goes on without it
    with Wire(server.port) as wire:
        assert send(wire, "t", b"after", partition=lost) == STORAGE_ERROR
        assert send(wire, "t", b"after", partition=well) == 0
        assert not (server.first / f"t-{lost}").exists(), "an empty log in its place would have lost the records"
    server.kill()
    disk.unmount()
    disk.mount()
    server.start()
    with Wire(server.port) as wire:
        assert_all_there(wire, {lost: [b"before"], well: [b"before", b"after", b"after"]})


def test_a_directory_that_is_removed_is_noticed_before_anything_more_is_acknowledged(
    tmp_path: Path, servers: list[Server]
) -> None:
    other = tmp_path / "other"
    server = Server(tmp_path / "server", other)
    servers.append(server)
    server.start()
    with Wire(server.port) as wire:
        make_topic(wire, "t", partitions=2)
        (well,), (lost,) = held_by(wire, server.first, "t"), held_by(wire, other, "t")
        assert [send(wire, "t", b"before", partition=partition) for partition in (0, 1)] == [0, 0]
        shutil.rmtree(other)
        assert send(wire, "t", b"after", partition=lost) == STORAGE_ERROR
        assert send(wire, "t", b"after", partition=well) == 0
        assert state(wire, "t")[lost] == (LEADER_NOT_AVAILABLE, -1, [1])
        assert log_dirs(wire)[str(other)]["error_code"] == STORAGE_ERROR
    server.restart()  # its place is empty now: a new directory, but not the one that had the partition
    with Wire(server.port) as wire:
        assert send(wire, "t", b"after", partition=lost) == STORAGE_ERROR
        assert state(wire, "t") == {well: (0, 1, []), lost: (LEADER_NOT_AVAILABLE, -1, [1])}
        assert wire.call("delete_topics", 4, topic_names=["t"], timeout=10_000)["responses"][0]["error_code"] == 0
        make_topic(wire, "t", partitions=2)
        assert [send(wire, "t", b"again", partition=partition) for partition in (0, 1)] == [0, 0]
    assert server.restart().stop() == 0
    assert "is missing" not in server.log.splitlines()[-1]


def test_without_traffic_too_a_removed_directory_is_noticed(tmp_path: Path, servers: list[Server]) -> None:
    other = tmp_path / "other"
    server = Server(tmp_path / "server", other)
    servers.append(server)
    server.start()
    with Wire(server.port) as wire:
        make_topic(wire, "t", partitions=2)
        (lost,) = held_by(wire, other, "t")
        shutil.rmtree(other)
        until(lambda: state(wire, "t")[lost][0] == LEADER_NOT_AVAILABLE, what="the loss to be noticed")


def test_with_its_last_directory_the_server_ends_and_says_why(tmp_path: Path, servers: list[Server]) -> None:
    server = Server(tmp_path / "server")
    servers.append(server)
    server.start()
    with Wire(server.port) as wire:
        make_topic(wire, "t")
        assert send(wire, "t", b"before") == 0
        shutil.rmtree(server.first)
        assert send(wire, "t", b"after") == STORAGE_ERROR
    assert server.wait() == 1
    assert "no log directory can be used any more" in server.log.splitlines()[-1]


def test_impossible_log_directories_are_refused_in_one_line(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))

    def start(*paths: Path) -> str:
        return refused("--port", "0", "--data", ",".join(map(str, paths)))

    assert "twice" in start(one, tmp_path / "." / "one")
    server = OttlaProcess(tmp_path / "server")
    server.data = Path(f"{one},{two}")
    server.start()
    with Wire(server.port) as wire:
        make_topic(wire, "t", partitions=2)
    server.stop()
    assert f"metadata.log.dir={one}" in start(two, one), "the order determines the directory of the metadata store"
    said = start(three, two)
    assert str(three) in said
    assert "mount" in said
    shutil.copytree(one / "t-0", two / "t-0") if (one / "t-0").exists() else shutil.copytree(two / "t-0", one / "t-0")
    said = start(one, two)
    assert "t-0 is in two log directories" in said
    shutil.rmtree(two)
    two.write_text("a file in its place")
    (tmp_path / "file").write_text("")
    assert "no log directory is usable" in start(tmp_path / "file", two)
    one.rename(tmp_path / "moved")
    one.write_text("a file in its place")
    assert "the metadata store is in" in start(one, three)


def limited(handles: int) -> Any:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (handles, handles))

    return limit


def test_thousands_of_partitions_and_segments_are_served_with_few_file_handles(
    tmp_path: Path, servers: list[Server]
) -> None:
    server = Server(tmp_path / "server", options=("-o", "log.roll.ms=1"))
    servers.append(server)
    server.start(before_exec=limited(1024))
    every, some = range(2000), range(0, 2000, 10)
    with Wire(server.port, timeout_s=120) as wire:
        new = {"name": "t", "num_partitions": len(every), "replication_factor": 1}
        assert wire.call("create_topics", 5, topics=[new], timeout=100_000)["topics"][0]["error_code"] == 0
        for number, partitions in enumerate((every, some, some)):
            records = batch([Written(b"%d" % number)], base_timestamp_ms=AT_MS + 1000 * number)  # each rolls
            left = list(partitions)
            while left:  # without a file handle the broker returns an error, and any client retries
                parts = [{"index": at, "records": records} for at in left]
                said = wire.call(
                    "produce", 9, acks=-1, timeout=60_000, topic_data=[{"name": "t", "partition_data": parts}]
                )
                answers = said["responses"][0]["partition_responses"]
                assert {each["error_code"] for each in answers} <= {0, STORAGE_ERROR}
                left = [each["index"] for each in answers if each["error_code"]]
        assert usage(server.pid).descriptors < 1024 - 320, "what connections need is still there"
        for partition in range(0, 2000, 5):
            assert len(records_of(wire, "t", partition)) == (3 if partition in some else 1)
        assert usage(server.pid).descriptors < 1024 - 320


def test_connections_beyond_the_file_handles_are_refused_and_those_that_are_there_go_on(
    tmp_path: Path, servers: list[Server]
) -> None:
    server = Server(tmp_path / "server")
    servers.append(server)
    server.start(before_exec=limited(200))
    crowd: list[socket.socket] = []
    with Wire(server.port) as wire:
        make_topic(wire, "t")
        crowd.extend(socket.create_connection(("127.0.0.1", server.port)) for _ in range(300))
        for number in range(20):
            assert send(wire, "t", b"%d" % number) == 0
        before = usage(server.pid).cpu_s
        assert len(records_of(wire, "t", 0)) == 20
        for each in crowd:
            each.close()

        def comes_through() -> bool:
            try:
                with Wire(server.port) as another:
                    return bool(another.call("api_versions", 0)["error_code"] == 0)
            except (ConnectionEnded, OSError):
                return False

        until(comes_through, what="room for a new connection")
        assert usage(server.pid).cpu_s - before < 20, "nothing went round in circles"
    assert len([line for line in server.errors() if "refusing connections" in line]) == 1
    assert len(server.errors()) < 5, "not a line for each"


def test_nothing_is_said_of_a_disk_that_is_well(tmp_path: Path, servers: list[Server]) -> None:
    server = Server(tmp_path / "server", tmp_path / "other")
    servers.append(server)
    server.start()
    with Wire(server.port) as wire:
        make_topic(wire, "t", partitions=4)
        assert [send(wire, "t", b"x", partition=partition) for partition in range(4)] == [0] * 4
        assert [held_by(wire, path, "t") for path in (server.first, tmp_path / "other")] == [[0, 2], [1, 3]]
        dirs = log_dirs(wire)
        assert all(each["total_bytes"] > each["usable_bytes"] > 0 for each in dirs.values())
    ids = {
        re.search(r"^directory.id=(.*)$", (path / "meta.properties").read_text(), re.MULTILINE)[1]  # type: ignore[index]
        for path in (server.first, tmp_path / "other")
    }
    assert len(ids) == 2
    assert server.stop() == 0
    assert server.errors() == []
    assert all((path / ".kafka_cleanshutdown").exists() for path in (server.first, tmp_path / "other"))
