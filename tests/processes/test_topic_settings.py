"""Settings of topics in a running server: changed live, by our command line and by Kafka's own; and what bombs cost it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.core.error_codes import ErrorCode
from ottla.records.batch import BatchHeader
from tests.processes.cli_runner import Cli, program
from tests.support.batches import Written, batch, numbered, with_payload
from tests.support.bombs import BOMBS
from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.kafka_tools import run_tool
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.wire_client import Answer, Wire

SPENT_MAX_KB = 64 << 10
OFTEN = ("-olog.retention.check.interval.ms=50", "-olog.segment.delete.delay.ms=0")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def running(path: Path, *options: str) -> Iterator[OttlaProcess]:
    server = OttlaProcess(path, options=options).start()
    try:
        yield server
    finally:
        server.stop()
        server.assert_log_is_clean()


def make(wire: Wire, name: str, *, validation: str = "full", **config: str) -> None:
    configs = [{"name": "ottla.record.validation", "value": validation}]
    configs += [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    made = wire.call("create_topics", 5, topics=[topic], timeout=20_000)
    assert made["topics"][0]["error_code"] == 0, made
    until(lambda: place(wire, name, -1)["error_code"] == 0, what=f"topic {name}")


def place(wire: Wire, name: str, timestamp: int, *, version: int = 9) -> Answer:
    """What ListOffsets says of a time or a place."""
    asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    found: Answer = wire.call(
        "list_offsets",
        version,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": name, "partitions": [asked]}],
        timeout=1000,
    )["topics"][0]["partitions"][0]
    return found


def write(wire: Wire, name: str, records: bytes) -> Answer:
    part = {"index": 0, "records": records}
    said: Answer = wire.call(
        "produce", 9, acks=-1, timeout=20_000, topic_data=[{"name": name, "partition_data": [part]}]
    )["responses"][0]["partition_responses"][0]
    return said


def read(wire: Wire, name: str, offset: int) -> Answer:
    part = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    found: Answer = wire.call(
        "fetch",
        11,
        replica_id=-1,
        max_wait=100,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[{"topic": name, "partitions": [part]}],
    )["responses"][0]["partitions"][0]
    return found


def codec_written(wire: Wire, name: str) -> int:
    """Write a plain batch; the codec it is kept in."""
    said = write(wire, name, batch(numbered(20), base_timestamp_ms=now_ms()))
    assert said["error_code"] == 0, said
    return BatchHeader(bytes(read(wire, name, said["base_offset"])["records"]), 0).codec


Set = Callable[[str], None]


def changes_take_effect(wire: Wire, name: str, change: Set) -> None:
    """One setting after the other, while the same connection goes on writing."""
    assert codec_written(wire, name) == 0
    change("compression.type=zstd,compression.zstd.level=7")
    assert codec_written(wire, name) == 4
    change("compression.type=producer,cleanup.policy=compact")
    assert codec_written(wire, name) == 0
    keyless = batch([Written(), Written(key=None)], base_timestamp_ms=now_ms())
    said = write(wire, name, keyless)
    assert (said["error_code"], [each["batch_index"] for each in said["record_errors"]]) == (
        ErrorCode.INVALID_RECORD,
        [1],
    )
    change("cleanup.policy=delete,max.message.bytes=200")
    assert write(wire, name, batch(numbered(20)))["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    change("max.message.bytes=1048588,message.timestamp.type=LogAppendTime")
    assert write(wire, name, keyless)["log_append_time"] >= now_ms() - 60_000
    change("message.timestamp.type=CreateTime,message.timestamp.before.max.ms=1000")
    old = batch([Written(timestamp_delta_ms=5000), Written()], base_timestamp_ms=now_ms() - 5000)
    said = write(wire, name, old)
    assert (said["error_code"], [each["batch_index"] for each in said["record_errors"]]) == (
        ErrorCode.INVALID_TIMESTAMP,
        [1],
    )
    change("retention.bytes=0")
    end = place(wire, name, -1)["offset"]
    until(lambda: place(wire, name, -2)["offset"] == end, what="retention of what is too much")


def test_settings_changed_by_our_command_line_count_at_once(tmp_path: Path) -> None:
    with running(tmp_path / "server", *OFTEN) as server, Wire(server.port) as wire:
        make(wire, "live")
        cli = Cli(server.bootstrap, tmp_path)

        def change(settings: str) -> None:
            cli.run("config", "set", "topic/live", *settings.split(","))

        changes_take_effect(wire, "live", change)


@pytest.mark.external
@pytest.mark.slow
def test_settings_changed_by_kafkas_own_tool_count_at_once(tmp_path: Path, kafka_jars: Path) -> None:
    with running(tmp_path / "server", *OFTEN) as server, Wire(server.port) as wire:
        make(wire, "live")

        def change(settings: str) -> None:
            run_tool(
                kafka_jars,
                CONFIG_COMMAND,
                "--bootstrap-server",
                server.bootstrap,
                "--alter",
                "--entity-type",
                "topics",
                "--entity-name",
                "live",
                "--add-config",
                settings,
            )

        changes_take_effect(wire, "live", change)


def test_the_brokers_defaults_changed_live_reach_topics_that_say_nothing_themselves(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server, Wire(server.port) as wire:
        make(wire, "follows")
        make(wire, "stays", compression_type="gzip")
        cli = Cli(server.bootstrap, tmp_path)
        assert (codec_written(wire, "follows"), codec_written(wire, "stays")) == (0, 1)
        cli.run("config", "set", "broker", "compression.type=lz4")
        until(lambda: codec_written(wire, "follows") == 3, what="the broker's default")
        assert codec_written(wire, "stays") == 1


def test_a_fetch_of_records_deleted_by_retention_returns_an_error_and_the_log_start(tmp_path: Path) -> None:
    with running(tmp_path / "server", *OFTEN) as server, Wire(server.port) as wire:
        make(wire, "short", retention_ms="1000")
        write(wire, "short", batch(numbered(5), base_timestamp_ms=now_ms() - 60_000))
        until(lambda: place(wire, "short", -2)["offset"] == 5, what="retention")
        assert read(wire, "short", 0)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        found = read(wire, "short", 5)
        assert (found["error_code"], found["log_start_offset"], found["high_watermark"]) == (0, 5, 5)
        places = {
            name: place(wire, "short", at)["offset"]
            for name, at in (("earliest", -2), ("earliest local", -4), ("latest tiered", -5))
        }
        assert places == {"earliest": 5, "earliest local": 5, "latest tiered": -1}
        assert not [path for path in (server.data / "short-0").glob("*.log") if path.stat().st_size]


def test_records_deleted_by_offset_stay_deleted_after_kill_9(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path / "server").start()
    with Wire(server.port) as wire:
        make(wire, "cut")
        write(wire, "cut", batch(numbered(10), base_timestamp_ms=now_ms()))
        asked = {"name": "cut", "partitions": [{"partition_index": 0, "offset": 7}]}
        said = wire.call("delete_records", 2, topics=[asked], timeout=20_000)["topics"][0]["partitions"][0]
        assert (said["error_code"], said["low_watermark"]) == (0, 7)
    server.kill()
    server.start()
    with Wire(server.port) as wire:
        until(lambda: place(wire, "cut", -2)["error_code"] == 0, what="the topic")
        assert (place(wire, "cut", -2)["offset"], place(wire, "cut", -1)["offset"]) == (7, 10)
        assert read(wire, "cut", 6)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    server.stop()


# ---- Bombs


def resident_kb(pid: int, key: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(key)).split()[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is measured through Linux's /proc")
def test_each_bomb_costs_the_server_one_error_and_less_than_64_mb(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server, Wire(server.port) as wire:
        large = {"max_message_bytes": "100000000"}
        kinds: dict[str, dict[str, Any]] = {
            "compact": {"cleanup_policy": "compact"},
            "bounded": {"message_timestamp_before_max_ms": "1000000"},
            "recompressed": {"compression_type": "uncompressed"},
        }
        for kind, config in kinds.items():
            make(wire, kind, **config, **large)
            write(wire, kind, batch([Written(bytes(100_000))], base_timestamp_ms=now_ms()))
        for name, (codec, made) in BOMBS.items():
            at_ms = now_ms()
            bomb = with_payload(made(), count=9, attributes=codec, base_timestamp_ms=at_ms, newest_ms=at_ms)
            for kind in kinds:
                write(wire, kind, bomb)  # a buffer of its size is the connection's from now on
                Path(f"/proc/{server.pid}/clear_refs").write_text("5")
                before_kb = resident_kb(server.pid, "VmHWM")
                assert write(wire, kind, bomb)["error_code"] == ErrorCode.INVALID_RECORD, (name, kind)
                spent_kb = resident_kb(server.pid, "VmHWM") - before_kb
                assert spent_kb < SPENT_MAX_KB, f"{name} in {kind} spent {spent_kb} KB"
        assert all(place(wire, kind, -1)["offset"] == 1 for kind in kinds)


@pytest.mark.slow
def test_a_bomb_in_a_log_ends_a_consumer_with_one_line_and_less_than_64_mb(tmp_path: Path) -> None:
    """A topic without record validation stores the bomb; every reader must withstand it."""
    with running(tmp_path / "server") as server, Wire(server.port) as wire:
        for topic in ("good", "bomb"):
            make(wire, topic, max_message_bytes="100000000", validation="header")
        write(wire, "good", batch(base_timestamp_ms=now_ms()))
        codec, made = BOMBS["zstd with the largest window"]
        at_ms = now_ms()
        said = write(
            wire, "bomb", with_payload(made(), count=9, attributes=codec, base_timestamp_ms=at_ms, newest_ms=at_ms)
        )
        assert said["error_code"] == 0
        cli = Cli(server.bootstrap, tmp_path)
        peaks = {}
        for topic, code in (("good", 0), ("bomb", 1)):
            # wait4 reports the greatest size of a child
            wrapped = [program()[0], *program()[1:], "consume", topic, "--from", "start", "--to", "end"]
            script = (
                "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True); "
                "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); "
                "sys.stderr.buffer.write(done.stderr)"
            )
            done = subprocess.run(
                ["python3", "-c", script, *wrapped],
                capture_output=True,
                text=True,
                env=cli.environment,
                timeout=60,
                check=True,
            )
            returned, peaks[topic] = (int(word) for word in done.stdout.split())
            assert returned == code, done.stderr
            assert "Traceback" not in done.stderr
            if code:
                assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert peaks["bomb"] - peaks["good"] < SPENT_MAX_KB, peaks
