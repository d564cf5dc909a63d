"""A log directory: one owner, one broker, logs that come and go, and retention."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.core.errors import InvalidConfig, OffsetOutOfRange, StorageError
from ottla.core.files import SystemFiles, read_file
from ottla.core.ids import TopicPartition
from ottla.storage.config import LogConfig, topic_config, topic_settings
from ottla.storage.directories.log_directory import DirectoryInUse, ForeignDirectory, LogDirectory, cluster_id_of
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.retention import jitter_ms
from ottla.testing.sim_disk import SimDisk, Survival
from tests.support.storage import NOW_MS, ROOT, TP, StillClock, batch, everything, open_directory, values

SMALL = LogConfig(segment_bytes=200)


def fill(log: PartitionLog, count: int, *, timestamp_ms: int = NOW_MS) -> None:
    for at in range(count):
        log.append(batch(b"v%d" % at, timestamp_ms=timestamp_ms), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(log.end_offset)


def test_two_processes_cannot_share_a_directory(tmp_path: Path) -> None:
    first = LogDirectory.open(SystemFiles(), tmp_path, StillClock(), SMALL, node_id=1, cluster_id="c")
    with pytest.raises(DirectoryInUse, match="in use"):
        LogDirectory.open(SystemFiles(), tmp_path, StillClock(), SMALL, node_id=1, cluster_id="c")
    first.close()
    LogDirectory.open(SystemFiles(), tmp_path, StillClock(), SMALL, node_id=1, cluster_id="c").close()


@pytest.mark.parametrize(("node_id", "cluster_id"), [(2, "cluster"), (1, "other")])
def test_another_brokers_directory_is_refused_and_left_alone(node_id: int, cluster_id: str) -> None:
    disk = SimDisk()
    open_directory(disk).close()
    before = read_file(disk, ROOT / "meta.properties")
    with pytest.raises(ForeignDirectory):
        LogDirectory.open(disk, ROOT, StillClock(), SMALL, node_id=node_id, cluster_id=cluster_id)
    assert read_file(disk, ROOT / "meta.properties") == before
    assert cluster_id_of(disk, ROOT) == "cluster"
    open_directory(disk)


def test_meta_properties_are_as_kafka_writes_them() -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    lines = read_file(disk, ROOT / "meta.properties").decode().splitlines()
    assert lines[:2] == ["#", "#Tue Nov 14 22:13:20 UTC 2023"]
    assert [line.split("=")[0] for line in lines[2:]] == ["node.id", "directory.id", "version", "cluster.id"]
    log = directory.create_log(TP, uuid.UUID(int=1))
    assert read_file(disk, log.directory / "partition.metadata") == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


def test_a_deleted_log_is_gone_at_once_its_files_later_and_a_new_one_of_its_name_starts_empty() -> None:
    disk, clock = SimDisk(), StillClock()
    directory = open_directory(disk, SMALL, clock)
    log = directory.create_log(TP, uuid.UUID(int=7))
    fill(log, 9)
    log.flush()
    directory.checkpoint()
    region = log.read(0, max_bytes=1000, end_offset=9)
    directory.delete_log(TP)
    assert TP not in directory.logs and not disk.exists(ROOT / "web-0")
    assert region is not None and region.file.read_at(region.position, region.size), "a reader was cut off"
    new = directory.create_log(TP, uuid.UUID(int=8))
    assert (new.end_offset, new.topic_id) == (0, uuid.UUID(int=8))
    assert directory.purge_deleted(clock.now_ms + 59_999) == 0
    assert directory.purge_deleted(clock.now_ms + 60_000) > 0
    assert [name for name in disk.names_in(ROOT) if name.endswith("-delete")] == []
    fill(new, 3)
    new.flush()
    fill(new, 3)
    disk.power_cut(random.Random(1), Survival.LOST)
    assert open_directory(disk, SMALL).logs[TP].end_offset == 3


def test_a_deletion_cut_short_is_finished_at_the_next_start() -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    directory.create_log(TopicPartition("x" * 249, 3), uuid.UUID(int=7))
    directory.delete_log(TopicPartition("x" * 249, 3))
    (deleted,) = [name for name in disk.names_in(ROOT) if name.endswith("-delete")]
    assert len(deleted) == 255
    disk.power_cut(random.Random(1), Survival.KEPT)
    again = open_directory(disk)
    assert again.logs == {} and again.purge_deleted(NOW_MS) == 1
    assert not disk.exists(ROOT / deleted)


def test_creating_a_log_twice_gives_the_same_one_unless_the_topic_id_differs() -> None:
    directory = open_directory(SimDisk())
    log = directory.create_log(TP, uuid.UUID(int=7))
    assert directory.create_log(TP, uuid.UUID(int=7)) is log
    with pytest.raises(StorageError):
        directory.create_log(TP, uuid.UUID(int=8))


class TestRetention:
    def test_segments_wholly_older_than_retention_go_and_the_start_moves(self) -> None:
        disk, clock = SimDisk(), StillClock()
        log = open_directory(disk, replace(SMALL, retention_ms=1000), clock).create_log(TP, uuid.UUID(int=7))
        fill(log, 6, timestamp_ms=NOW_MS - 2000)
        fill(log, 2, timestamp_ms=NOW_MS)
        assert log.delete_old_segments(NOW_MS) == 3
        assert log.log_start_offset == log.segments[0].base_offset == 6
        with pytest.raises(OffsetOutOfRange):
            log.read(5, max_bytes=1, end_offset=8)
        assert len(everything(log)) == 2

    def test_when_all_is_old_the_active_segment_goes_too_and_offsets_go_on(self) -> None:
        log = open_directory(SimDisk(), replace(SMALL, retention_ms=1000)).create_log(TP, uuid.UUID(int=7))
        fill(log, 5, timestamp_ms=NOW_MS - 2000)
        log.delete_old_segments(NOW_MS)
        assert (log.log_start_offset, log.end_offset, log.size_bytes) == (5, 5, 0)
        assert log.append(batch(b"x"), leader_epoch=0, now_ms=NOW_MS).first_offset == 5

    def test_size_keeps_at_least_what_is_asked(self) -> None:
        log = open_directory(SimDisk(), replace(SMALL, retention_bytes=300)).create_log(TP, uuid.UUID(int=7))
        fill(log, 20)
        log.delete_old_segments(NOW_MS)
        assert 300 <= log.size_bytes < 500

    def test_nothing_at_or_above_the_high_watermark_goes(self) -> None:
        log = open_directory(SimDisk(), replace(SMALL, retention_bytes=0)).create_log(TP, uuid.UUID(int=7))
        fill(log, 6)
        log.high_watermark = 3
        log.delete_old_segments(NOW_MS)
        assert log.log_start_offset <= 3 and log.end_offset == 6

    def test_a_topic_that_only_compacts_loses_nothing(self) -> None:
        config = replace(SMALL, retention_bytes=0, retention_ms=1, cleanup_policy=("compact",))
        log = open_directory(SimDisk(), config).create_log(TP, uuid.UUID(int=7))
        for at in range(6):
            log.append(batch(b"v", key=b"%d" % at, timestamp_ms=1), leader_epoch=0, now_ms=NOW_MS)
        log.update_high_watermark(6)
        assert log.delete_old_segments(NOW_MS) == 0

    def test_deleted_records_stay_deleted_after_a_clean_restart(self) -> None:
        disk = SimDisk()
        directory = open_directory(disk)
        log = directory.create_log(TP, uuid.UUID(int=7))
        fill(log, 6)
        log.delete_records(4)
        directory.close()
        again = open_directory(disk).logs[TP]
        assert again.log_start_offset == 4
        assert values(everything(again)) == [b"v4", b"v5"]


class TestRolling:
    def test_a_segment_spans_at_most_segment_ms_of_record_time_less_its_own_jitter(self) -> None:
        config = LogConfig(segment_ms=1000, segment_jitter_ms=500)
        log = open_directory(SimDisk(), config).create_log(TP, uuid.UUID(int=7))
        for at in range(20):
            fill(log, 1, timestamp_ms=NOW_MS + at * 100)
        assert len(log.segments) >= 2
        spans = [b.base_offset - a.base_offset for a, b in zip(log.segments, log.segments[1:], strict=False)]
        for segment, span in zip(log.segments, spans, strict=False):
            allowed = 1000 - jitter_ms(TP, segment.base_offset, config)
            assert span == allowed // 100 + 1
        assert jitter_ms(TP, 0, config) != jitter_ms(TP, 1, config)

    def test_a_full_index_closes_the_segment(self) -> None:
        config = LogConfig(segment_index_bytes=24, index_interval_bytes=1)
        log = open_directory(SimDisk(), config).create_log(TP, uuid.UUID(int=7))
        fill(log, 12)
        assert len(log.segments) > 2
        assert all(len(segment.offset_index.entries()) <= 3 for segment in log.segments)

    def test_offsets_too_far_for_an_index_entry_close_the_segment(self) -> None:
        log = open_directory(SimDisk()).create_log(TP, uuid.UUID(int=7))
        far = 1 << 32
        log.append_as_follower(batch(b"a", leader_epoch=0), now_ms=NOW_MS)
        log.append_as_follower(batch(b"b", base_offset=far, leader_epoch=0), now_ms=NOW_MS)
        assert [segment.base_offset for segment in log.segments] == [0, far]
        assert log.end_offset == far + 1
        log.segment_list.forget_positions()
        assert log.read(5, max_bytes=1000, end_offset=far + 1) is not None


class TestConfig:
    def test_overrides_are_laid_over_the_defaults(self) -> None:
        config = topic_config(LogConfig(), {"retention.ms": "-1", "cleanup.policy": "compact,delete"})
        assert (config.retention_ms, config.is_compacted, config.deletes_by_retention) == (-1, True, True)
        assert config.segment_bytes == LogConfig().segment_bytes

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            ("no.such.setting", "1"),
            ("segment.bytes", "1000"),
            ("cleanup.policy", "shred"),
            ("retention.ms", "-2"),
            ("max.message.bytes", "many"),
            ("remote.storage.enable", "true"),
            ("compression.gzip.level", "0"),
            ("min.compaction.lag.ms", str((1 << 63) - 1) + "0"),
            ("durability", "maybe"),
            ("ottla.record.validation", "none"),
        ],
    )
    def test_a_wrong_override_is_named(self, key: str, text: str) -> None:
        with pytest.raises(InvalidConfig, match=key):
            topic_config(LogConfig(), {key: text})

    def test_a_refusal_names_the_setting_the_value_and_what_would_be_right(self) -> None:
        checked = 0
        for key, (_, _, spec) in topic_settings().items():
            for wrong, right in (
                (spec.at_least - 1 if spec.at_least is not None else None, spec.at_least),
                (spec.at_most + 1 if spec.at_most is not None else None, spec.at_most),
                ("no such choice" if spec.choices else None, spec.choices[0] if spec.choices else None),
                ("many" if spec.kind.name in {"INT", "LONG", "DOUBLE", "BOOLEAN"} else None, "must be"),
            ):
                if wrong is None:
                    continue
                text = str(wrong)
                with pytest.raises(InvalidConfig) as refused:
                    topic_config(LogConfig(), {key: text})
                said = refused.value.message
                assert all(part in said for part in (key, text, str(right))), said
                checked += 1
        assert checked > 50
        with pytest.raises(InvalidConfig) as refused:
            topic_config(LogConfig(), {"min.compaction.lag.ms": "7", "max.compaction.lag.ms": "6"})
        assert all(part in refused.value.message for part in ("min.compaction.lag.ms (7)", "max.compaction.lag.ms (6)"))

    @pytest.mark.parametrize(
        ("key", "text", "taken"),
        [
            ("cleanup.policy", "", True),
            ("cleanup.policy", "compact , delete", True),
            ("cleanup.policy", "delete,", False),
            ("leader.replication.throttled.replicas", "*", True),
            ("leader.replication.throttled.replicas", "0:1,1:2", True),
            ("leader.replication.throttled.replicas", "0:1,", True),
            ("follower.replication.throttled.replicas", "0", False),
            ("follower.replication.throttled.replicas", "*,0:1", False),
            ("follower.replication.throttled.replicas", "", True),
        ],
    )
    def test_a_list_may_be_empty_but_its_items_may_not(self, key: str, text: str, taken: bool) -> None:
        if taken:
            topic_config(LogConfig(), {key: text})
        else:
            with pytest.raises(InvalidConfig, match=key):
                topic_config(LogConfig(), {key: text})
