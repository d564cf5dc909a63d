"""The server as a process: how it refuses to start, how it stops, and what kill -9 may cost (no acknowledged record)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.batches import Written, batch
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.wire_client import ConnectionEnded, Wire

OTTLA = str(Path(sys.executable).with_name("ottla"))
TIMEOUT_S = 30


def refused(*arguments: str, prefix: tuple[str, ...] = ()) -> str:
    """Start a server that must not start; the one line it says."""
    done = subprocess.run(
        [*prefix, OTTLA, "server", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode > 0, done
    assert "ottla ready" not in done.stdout
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_second_server_on_the_same_directory_is_refused_in_one_line(ottla_server: OttlaProcess) -> None:
    said = refused("--port", "0", "--data", str(ottla_server.data))
    assert str(ottla_server.data) in said
    with Wire(ottla_server.port) as wire:
        assert wire.call("api_versions", 0)["error_code"] == 0


def test_a_port_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--port", str(port), "--data", str(tmp_path / "data"))
    assert str(port) in said


def test_a_port_in_use_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused("--port", str(taken.getsockname()[1]), "--data", str(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_a_second_server_with_the_same_settings_is_refused_for_the_directory(ottla_server: OttlaProcess) -> None:
    said = refused("--port", str(ottla_server.port), "--data", str(ottla_server.data))
    assert f"{ottla_server.data} is in use by a running broker" in said


def test_a_wrong_advertised_address_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    advertised = "advertised.listeners=OUTSIDE://broker.example:9092"
    said = refused("--port", "0", "--data", str(tmp_path / "data"), "-o", advertised)
    assert "there is no listener of that name" in said
    assert not (tmp_path / "data").exists()


def test_all_addresses_of_ipv6_are_those_of_ipv4_too_and_the_advertised_one_is_reached(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path)
    server.options = ("-o", f"listeners=PLAINTEXT://[::]:{server.port}", "--insecure-listeners")
    server.start()
    assert f"ottla ready: [::]:{server.port} " in server.ready_line
    for host in ("127.0.0.1", "::1"):
        with Wire(server.port, host=host) as wire:
            (advertised,) = wire.call("metadata", 9, topics=[])["brokers"]
        with Wire(advertised["port"], host=advertised["host"]) as wire:
            assert wire.call("metadata", 9, topics=[])["brokers"] == [advertised]
    server.stop()


def test_a_directory_that_may_not_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    forbidden = tmp_path / "forbidden"
    forbidden.mkdir()
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:  # root may write everywhere, so the server is started without that right
        if not shutil.which("setpriv"):
            pytest.skip("running as root and no setpriv to drop the right to write everywhere")
        prefix = ("setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override")
    forbidden.chmod(0o555)
    said = refused("--port", "0", "--data", str(forbidden), prefix=prefix)
    assert str(forbidden) in said


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_refused_in_one_line(tiny_disk: Path) -> None:
    with (tiny_disk / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
    said = refused("--port", "0", "--data", str(tiny_disk / "data"))
    assert "full" in said or "space" in said
    assert str(tiny_disk) in said


def test_a_disk_that_fills_up_while_running_gives_errors_and_not_an_end(tiny_disk: Path, tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path / "server")
    server.data = tiny_disk / "data"
    server.start()
    with Wire(server.port) as wire:
        make_topic(wire, "t")
        acknowledged = 0
        for _ in range(40):
            code = send(wire, "t", b"x" * 60_000)
            if code:
                break
            acknowledged += 1
        assert code == 56, code  # KAFKA_STORAGE_ERROR
        assert acknowledged > 1
        assert wire.call("api_versions", 0)["error_code"] == 0
    assert server.process is not None
    assert server.process.poll() is None
    server.kill()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    server = OttlaProcess(tmp_path).start()
    with Wire(server.port) as wire:
        make_topic(wire, "t")
        assert send(wire, "t", b"before") == 0
        part = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000, "current_leader_epoch": -1}
        wire.send(
            "fetch",
            12,
            max_wait=60_000,
            min_bytes=1,
            max_bytes=1000,
            replica_id=-1,
            session_epoch=-1,
            topics=[{"topic": "t", "partitions": [part]}],
        )
        began = time.monotonic()
        assert server.stop(how) == 0
        assert time.monotonic() - began < 10
    assert (server.data / ".kafka_cleanshutdown").exists()
    server.assert_log_is_clean()
    server.start()
    assert not (server.data / ".kafka_cleanshutdown").exists()
    with Wire(server.port) as wire:
        assert end_of(wire, "t") == 1
    server.stop()


def test_the_ready_line_says_port_node_directory_and_time(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path).start()
    assert f"ottla ready: 127.0.0.1:{server.port} node 1 data {server.data} in " in server.ready_line
    server.stop()


def test_dev_logs_what_it_sets_in_one_line(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path, options=["--dev", "-o", "auto.create.topics.enable=true"]).start()
    lines = [line for line in server.log.splitlines() if "--dev" in line]
    assert len(lines) == 1
    assert lines[0].endswith("--dev sets group.initial.rebalance.delay.ms=0")
    server.stop()


def make_topic(wire: Wire, name: str, partitions: int = 1) -> None:
    new = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    assert wire.call("create_topics", 5, topics=[new], timeout=10_000)["topics"][0]["error_code"] in {0, 36}


def send(wire: Wire, name: str, value: bytes, *, partition: int = 0) -> int:
    part = {"index": partition, "records": batch([Written(value)])}
    said = wire.call("produce", 9, acks=-1, timeout=10_000, topic_data=[{"name": name, "partition_data": [part]}])
    return int(said["responses"][0]["partition_responses"][0]["error_code"])


def end_of(wire: Wire, name: str, partition: int = 0) -> int:
    part = {"partition_index": partition, "timestamp": -1, "current_leader_epoch": -1}
    said = wire.call("list_offsets", 5, replica_id=-1, topics=[{"name": name, "partitions": [part]}])
    return int(said["topics"][0]["partitions"][0]["offset"])


class Load(threading.Thread):
    """One synchronous producer that remembers what was acknowledged, at which offset."""

    def __init__(self, port: int, partition: int, start: int) -> None:
        super().__init__(daemon=True)
        self.port, self.partition, self.number = port, partition, start
        self.acknowledged: dict[int, bytes] = {}

    def run(self) -> None:
        try:
            with Wire(self.port, timeout_s=10) as wire:
                while True:
                    value = b"%d:%d:" % (self.partition, self.number) + b"." * 150
                    part = {"index": self.partition, "records": batch([Written(value)])}
                    said = wire.call(
                        "produce", 9, acks=-1, timeout=10_000, topic_data=[{"name": "load", "partition_data": [part]}]
                    )
                    answer = said["responses"][0]["partition_responses"][0]
                    assert answer["error_code"] == 0, answer
                    self.acknowledged[answer["base_offset"]] = value
                    self.number += 1
        except (OSError, ConnectionEnded, struct.error):
            return  # the broker was killed: what is not acknowledged may be there or not


def records_of(wire: Wire, name: str, partition: int) -> dict[int, bytes]:
    """Every record's value by offset, read to the end of the partition."""
    found: dict[int, bytes] = {}
    next_offset, end = 0, end_of(wire, name, partition)
    while next_offset < end:
        part = {
            "partition": partition,
            "fetch_offset": next_offset,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
        }
        said = wire.call(
            "fetch",
            11,
            max_wait=100,
            min_bytes=1,
            max_bytes=1 << 20,
            replica_id=-1,
            session_epoch=-1,
            isolation_level=0,
            rack_id="",
            topics=[{"topic": name, "partitions": [part]}],
        )
        answer = said["responses"][0]["partitions"][0]
        assert answer["error_code"] == 0, answer
        data, at = answer["records"], 0
        while at < len(data):
            base, length = struct.unpack_from(">qi", data, at)
            found[base] = data[at + 61 : at + 12 + length]
            at += 12 + length
            next_offset = base + 1
    return found


@pytest.mark.slow
def test_kill_9_under_load_loses_no_acknowledged_record(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path).start()
    with Wire(server.port) as wire:
        make_topic(wire, "load", partitions=4)
    acknowledged: list[dict[int, bytes]] = [{} for _ in range(4)]
    for round_number in range(5):
        loads = [Load(server.port, partition, len(acknowledged[partition])) for partition in range(4)]
        for load in loads:
            load.start()
        wanted = 40 + 60 * round_number
        until(lambda: min(len(load.acknowledged) for load in loads) >= wanted, what="the load")  # noqa: B023
        server.kill()
        for load in loads:
            load.join(20)
            acknowledged[load.partition] |= load.acknowledged
        server.start()
        with Wire(server.port) as wire:
            for partition in range(4):
                held = records_of(wire, "load", partition)
                lost = {
                    offset for offset, value in acknowledged[partition].items() if value not in held.get(offset, b"")
                }
                assert not lost, (
                    f"round {round_number}, partition {partition}: {len(lost)} acknowledged records are gone"
                )
                assert sorted(held) == list(range(len(held))), "offsets have a gap"
    assert sum(map(len, acknowledged)) > 4 * 500
    server.stop()
    server.assert_log_is_clean()
