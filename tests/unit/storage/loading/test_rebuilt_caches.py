"""Tests that each cache file is rebuilt to the byte when it is missing, after a clean stop and after a crash."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.core.files import SystemFiles
from ottla.core.ids import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from tests.support.storage import NOW_MS, StillClock, batch, everything, marker

TP = TopicPartition("web", 0)
KINDS = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot", "leader-epoch-checkpoint")
CONFIG = LogConfig(segment_bytes=30_000)


def opened(path: Path) -> LogDirectory:
    return LogDirectory.open(SystemFiles(), path, StillClock(), CONFIG, node_id=1, cluster_id="cluster")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some segments of every kind of batch over several epochs, cleanly stopped."""
    path = tmp_path_factory.mktemp("log") / "data"
    directory = opened(path)
    log = directory.create_log(TP, uuid.UUID(int=7))
    for at in range(150):
        timestamp = NOW_MS + 10 * at - 35 * (at % 3)
        plain = batch(b"x" * 500, timestamp_ms=timestamp, producer_id=at % 3, epoch=0, sequence=at // 3)
        log.append(plain, leader_epoch=at // 40, now_ms=NOW_MS)
        one = batch(b"t" * 50, timestamp_ms=timestamp, producer_id=9, epoch=0, sequence=at, transactional=True)
        log.append(one, leader_epoch=at // 40, now_ms=NOW_MS)
        ended = marker(9, 0, commit=at % 4 > 0)
        log.append(ended, leader_epoch=at // 40, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    directory.close()
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted((path / str(TP)).iterdir()) if each.suffix != ".sums"}


def use_all(log: PartitionLog) -> None:
    """Ask for everything an index may be asked for: one that is missing is made when it is first needed."""
    everything(log, max_bytes=3000)
    for timestamp in range(NOW_MS, NOW_MS + 1600, 100):
        log.offset_for_timestamp(timestamp, end_offset=log.end_offset)
    log.aborted_transactions(0, log.end_offset)
    for segment in log.segments:
        segment.find(segment.base_offset + 1)
        segment.first_batch_reaching(NOW_MS)


def test_there_is_something_of_each_kind_to_lose(written: Path) -> None:
    assert len(list((written / str(TP)).glob("*.log"))) >= 3
    for kind in KINDS:
        files = list((written / str(TP)).glob(kind))
        assert len(files) >= (1 if kind == "leader-epoch-checkpoint" else 3), kind
        assert all(file.stat().st_size for file in files), kind


def lose_one(directory: Path, kind: str) -> None:
    """Remove the newest file of a kind: that of the active segment."""
    max(directory.glob(kind)).unlink()


def lose_all(directory: Path, kind: str) -> None:
    for file in directory.glob(kind):
        file.unlink()


CASES = [
    (kind, lose, stop)
    for kind in KINDS
    for lose in (lose_one, lose_all)
    for stop in ("clean", "crash")
    # After a clean stop nothing shows that a sealed segment ever had an index of aborted transactions (as in Kafka).
    if (kind, lose, stop) != ("*.txnindex", lose_all, "clean")
]


@pytest.mark.parametrize(("kind", "lose", "stop"), CASES)
def test_a_missing_cache_is_rebuilt_to_the_byte(
    written: Path, tmp_path: Path, kind: str, lose: Callable[[Path, str], None], stop: str
) -> None:
    path = tmp_path / "data"
    shutil.copytree(written, path)
    before = contents(path)
    if stop == "crash":
        (path / ".kafka_cleanshutdown").unlink()
        for name in ("recovery-point-offset-checkpoint", "ottla-copies"):
            (path / name).unlink(missing_ok=True)
    lose(path / str(TP), kind)

    directory = opened(path)
    use_all(directory.logs[TP])
    directory.close()

    after = contents(path)
    if kind == "*.snapshot":  # older ones are of use only until the newest is written
        newest = max(name for name in before if name.endswith(".snapshot"))
        before = {name: data for name, data in before.items() if not name.endswith(".snapshot") or name == newest}
        after = {name: data for name, data in after.items() if not name.endswith(".snapshot") or name == newest}
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] != before[name]} == set()
