"""Decides when a segment is closed, and which segments are deleted. Changes no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from ottla.core.clock import Clock
from ottla.core.ids import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.file_names import LOG_SUFFIX
from ottla.storage.log.segment import Segment


def roll_is_due(
    topic_partition: TopicPartition,
    segment: Segment,
    config: LogConfig,
    size_bytes: int,
    newest_ms: int,
    *,
    clock: Clock,
) -> bool:
    """Return whether a segment is closed before a batch of this size and greatest time is written."""
    held = segment.size_bytes
    if held and held > config.segment_bytes - size_bytes:
        return True
    if segment.indexes_full(config.segment_index_bytes):
        return True
    return bool(held) and _is_too_old(topic_partition, segment, config, newest_ms, clock=clock)


def roll_limits(topic_partition: TopicPartition, segment: Segment, config: LogConfig) -> tuple[int, int]:
    """Return the size and the greatest time up to which `roll_is_due` need not be asked; -1: it is always asked."""
    first_ms = segment.roll_timestamp
    if segment.size_bytes and first_ms is not None and first_ms >= 0:
        return config.segment_bytes, first_ms + config.roll_ms - jitter_ms(topic_partition, segment.base_offset, config)
    return -1, -1  # an empty segment does not roll; the age of records without a time depends on the clock


def _is_too_old(
    topic_partition: TopicPartition, segment: Segment, config: LogConfig, newest_ms: int, *, clock: Clock
) -> bool:
    """Return whether a segment has lived `segment.ms`: `newest_ms` is the greatest time of a batch about to come.

    By its records' own times; where the first batch has none, by how long the segment has been known here. Both are
    Kafka's rules, and so is that nothing happens while nothing is written: an idle log keeps its segment.
    """
    first = segment.roll_timestamp
    if first is None:
        return False
    lived_ms = newest_ms - first if first >= 0 else clock.wall_ms() - segment.created_ms
    if lived_ms <= config.roll_ms - config.segment_jitter_ms:
        return False
    return lived_ms > config.roll_ms - jitter_ms(topic_partition, segment.base_offset, config)


def jitter_ms(topic_partition: TopicPartition, base_offset: int, config: LogConfig) -> int:
    """Return by how many ms before `segment.ms` this segment rolls: different for each, the same at each call."""
    most = min(config.segment_jitter_ms, config.roll_ms)
    return crc32(f"{topic_partition}/{base_offset}".encode()) % most if most > 0 else 0


class LogEnds(NamedTuple):
    """Holds the offsets between which a log has records."""

    log_start_offset: int
    high_watermark: int
    end_offset: int


def deletable(segments: Sequence[Segment], config: LogConfig, log: LogEnds, *, now_ms: int) -> int:
    """Count the oldest segments that may be deleted now.

    A segment goes when it is wholly below the log's start (DeleteRecords), or, where the policy deletes, when its
    newest record is older than `retention.ms` or the log without it still has `retention.bytes`. Only the oldest may
    go, one after another, and never one that reaches the high watermark or after it.
    """
    too_many = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        is_active = segment is segments[-1]
        if is_active and not segment.size_bytes:
            break
        ends = log.end_offset if is_active else segments[count + 1].base_offset
        if ends > log.high_watermark:
            break
        by_size = config.deletes_by_retention and config.retention_bytes >= 0 and too_many >= segment.size_bytes
        if not (
            ends <= log.log_start_offset
            or by_size
            or (config.deletes_by_retention and _too_old(segment, config, is_active, now_ms))
        ):
            break
        too_many -= segment.size_bytes
        count += 1
    return count


def _too_old(segment: Segment, config: LogConfig, is_active: bool, now_ms: int) -> bool:
    if config.retention_ms < 0:
        return False
    newest_ms = segment.greatest_timestamp(active=is_active).timestamp
    if not 0 <= newest_ms <= now_ms:
        newest_ms = _last_write_ms(segment) if newest_ms < 0 else min(newest_ms, _last_write_ms(segment))
    return now_ms - newest_ms > config.retention_ms


def _last_write_ms(segment: Segment) -> int:
    """Return when the file was last written: the age of records without a time, and of records from the future.

    Those would otherwise keep their segment, and all after it, until their time has come. No restart moves it. It is
    asked only then: a record's own time counts, even where the clock was wrong when it was written.
    """
    return segment.files.modified_ns(segment.path(LOG_SUFFIX)) // 1_000_000
