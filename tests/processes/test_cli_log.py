"""`ottla log verify` and `ottla log dump`: what they say of a sound directory, of a corrupt one, and of anything else."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.core.ids import TopicPartition
from ottla.groups.offsets import CommittedOffset
from ottla.groups.records import offset_key, offset_value
from ottla.records.builder import NewRecord, build_batch
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import AppendOrigin
from ottla.storage.state.producer_snapshots import encode_snapshot
from ottla.storage.state.producer_state_manager import ProducerStateManager
from tests.support.ottla_process import OttlaProcess
from tests.support.storage import batch, marker

OTTLA = str(Path(sys.executable).with_name("ottla"))
CONFIG = LogConfig(index_interval_bytes=200)
EMPTY_SNAPSHOT = encode_snapshot(ProducerStateManager())


def ottla(*arguments: object, code: int = 0) -> str:
    done = subprocess.run([OTTLA, "log", *map(str, arguments)], capture_output=True, text=True, timeout=40, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory after a clean stop: two segments, a transaction, group offsets."""
    path = tmp_path_factory.mktemp("sound") / "data"
    directory = LogDirectory.open(SystemFiles(), path, SystemClock(), CONFIG, node_id=1, cluster_id="AAAA")
    now_ms = (directory.logs and 0) or SystemClock().wall_ms()
    log = directory.create_log(TopicPartition("web", 0), directory.meta.directory_id)
    for number in range(12):
        if number == 6:
            log.roll()
        log.append(
            batch(b"value %d" % number, b"\xff\x00", key=b"key", timestamp_ms=now_ms),
            leader_epoch=number // 5,
            now_ms=now_ms,
        )
    log.append(batch(b"t", producer_id=7, epoch=0, sequence=0, transactional=True), leader_epoch=2, now_ms=now_ms)
    log.append(marker(7, 0, commit=False), leader_epoch=2, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)
    offsets = directory.create_log(TopicPartition("__consumer_offsets", 3))
    key = offset_key("readers", TopicPartition("web", 0))
    for value in (offset_value(CommittedOffset(offset=17, leader_epoch=2)), None):
        records = bytearray(build_batch([NewRecord(key, value, now_ms)]))
        offsets.append(memoryview(records), leader_epoch=0, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)
    directory.close()
    return path


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "data")
    return tmp_path / "data"


def flip(path: Path, byte: int, bit: int = 0) -> None:
    """As a disk does it: the time of modification stays."""
    import os

    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(byte)
        was = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([was ^ 1 << bit]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def verified(*paths: Path, code: int = 0) -> list[dict[str, Any]]:
    done = subprocess.run(
        [OTTLA, "log", "verify", *map(str, paths), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def test_verify_finds_nothing_in_a_valid_directory_and_does_not_change_it(sound: Path) -> None:
    before = {path: path.read_bytes() for path in sound.rglob("*") if path.is_file()}

    said = ottla("verify", sound)

    assert "2 partitions, 3 segments" in said
    assert "no findings" in said
    assert {path: path.read_bytes() for path in sound.rglob("*") if path.is_file()} == before


def test_verify_names_a_corrupt_file_with_the_position_and_the_next_action(copy: Path) -> None:
    log = copy / "web-0" / "00000000000000000000.log"
    flip(log, 300)

    said = ottla("verify", copy, code=1)

    assert "web-0/00000000000000000000.log" in said
    assert "its checksum does not match" in said
    assert "seek past these offsets" in said
    [result] = verified(copy, code=1)
    [finding] = result["findings"]
    assert (finding["file"], finding["costs_records"]) == (str(log), True)
    assert finding["position"] <= 300 < finding["position"] + finding["size_bytes"]
    assert (finding["first_offset"], finding["last_offset"]) == (6, 7)


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "meta.properties",
        "ottla-copies",
        "web-0/leader-epoch-checkpoint",
        "web-0/partition.metadata",
        "web-0/00000000000000000000.index",
        "web-0/00000000000000000000.timeindex",
        "web-0/00000000000000000012.timeindex",
        "web-0/00000000000000000012.txnindex",
        "web-0/00000000000000000012.snapshot",
    ],
)
@pytest.mark.parametrize("target", ["the directory", "the file"])
def test_verify_covers_every_type_of_file(copy: Path, name: str, target: str) -> None:
    path = copy / name
    flip(path, path.stat().st_size - 2)

    [result] = verified(copy if target == "the directory" else path, code=1)

    assert {finding["file"] for finding in result["findings"]} == {str(path)}


def test_verify_works_on_the_directory_of_a_running_broker(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path).start()
    try:
        said = ottla("verify", server.data)
        assert "no findings" in said
    finally:
        server.stop()
    with (server.data / "ottla-metadata.db").open("r+b") as file:
        file.seek(4096 + 4000)
        file.write(b"\x55" * 64)
    assert "ottla-metadata.db" in ottla("verify", server.data, code=1)


def test_a_path_without_logs_is_refused_in_one_line(tmp_path: Path) -> None:
    ottla("verify", tmp_path / "nothing", code=4)
    assert "neither a log directory nor" in ottla("verify", tmp_path, code=5)
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    assert "no file of a log directory" in ottla("verify", other, code=5)
    assert "not a file of a log directory" in ottla("dump", other, code=5)
    ottla("dump", tmp_path / "nothing.log", code=4)
    ottla("dump", tmp_path, code=4)


def dumped(path: Path, *options: str, code: int = 0) -> list[dict[str, Any]]:
    done = subprocess.run(
        [OTTLA, "log", "dump", str(path), "--format", "json", *options],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def test_dump_prints_batches_and_on_request_their_records(sound: Path) -> None:
    items = dumped(sound / "web-0" / "00000000000000000012.log", "--records")

    batches = [item for item in items if "first_offset" in item]
    assert [(item["first_offset"], item["last_offset"]) for item in batches] == [
        (12 + 2 * n, 13 + 2 * n) for n in range(6)
    ] + [(24, 24), (25, 25)]
    assert batches[6]["producer_id"] == 7
    assert items[1] == {"record": 12, "timestamp_ms": batches[0]["max_timestamp_ms"], "key": "key", "value": "value 6"}
    assert items[2]["value_base64"] == "/wA="
    assert items[-1] == {"record": 25, "marker": "abort", "coordinator_epoch": 0}
    assert [
        item["first_offset"] for item in dumped(sound / "web-0" / "00000000000000000000.log", "--offsets", "4:7")
    ] == [4, 6]


def test_dump_decodes_committed_offsets_of_groups(sound: Path) -> None:
    items = dumped(sound / "__consumer_offsets-3" / "00000000000000000000.log", "--records")

    records = [item for item in items if "record" in item]
    assert (records[0]["group"], records[0]["partition"], records[0]["committed"]) == ("readers", "web-0", 17)
    assert (records[1]["group"], records[1]["deleted"]) == ("readers", True)
    said = ottla("dump", sound / "__consumer_offsets-3" / "00000000000000000000.log", "--records")
    assert "group readers  partition web-0  committed 17" in said


def test_dump_parses_every_file_of_a_directory(sound: Path) -> None:
    seen = set()
    for path in sound.rglob("*"):
        if path.is_file() and path.stat().st_size:
            items = dumped(path)
            assert items or path.read_bytes() in {b"0\n0\n", EMPTY_SNAPSHOT}, path
            seen.add(path.suffix or path.name)
    assert {".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", "ottla-copies"} <= seen


def test_dump_prints_the_batches_around_a_corrupt_one(copy: Path) -> None:
    log = copy / "web-0" / "00000000000000000000.log"
    flip(log, 300)

    items = dumped(log, code=1)

    assert [item.get("first_offset", "problem") for item in items] == [0, 2, 4, "problem", 8, 10]


def test_no_corruption_ends_in_a_traceback(sound: Path) -> None:
    from ottla.cli.log_dump import dump, line_of
    from ottla.testing.sim_disk import SimDisk
    from tests.support.storage import ROOT

    rng = random.Random(7)
    paths = [path for path in sorted(sound.rglob("*")) if path.is_file() and path.stat().st_size]
    for _ in range(1500):
        path = rng.choice(paths)
        data = bytearray(path.read_bytes())
        match rng.randrange(3):
            case 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 1:
                del data[rng.randrange(len(data)) :]
            case _:
                at = rng.randrange(len(data))
                data[at : at + 40] = rng.randbytes(40)
        disk = SimDisk()
        place = ROOT / path.parent.name / path.name
        disk.make_directory(place.parent)
        disk.open(place, create=True).append(bytes(data))
        for item in dump(disk, place, records=True, first_offset=0, end_offset=1 << 62):
            json.dumps(item)
            line_of(item)


def test_directories_of_unknown_topics_are_listed_and_removed(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path)
    server.start()
    server.stop()
    unknown = server.data / "web-0"
    unknown.mkdir()
    (unknown / "00000000000000000000.log").write_bytes(bytes(2048))

    listed = ottla("remove-unknown", server.data)
    assert str(unknown) in listed
    assert "1 directory of unknown topics, 2.0 KB; --yes removes them" in listed
    server.start()
    assert f"{unknown} (" in server.log
    assert "Stop its broker first" in ottla("remove-unknown", server.data, "--yes", code=1)
    server.stop()
    removed = json.loads(ottla("remove-unknown", server.data, "--yes", "--format", "json"))
    assert removed["removed"]
    assert [each["topic"] for each in removed["directories"]] == ["web"]
    assert not unknown.exists()
    assert "no directories of unknown topics" in ottla("remove-unknown", server.data)
    server.start()
    assert server.stop() == 0
