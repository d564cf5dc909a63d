"""When a segment is closed, and which segments may go: decisions only, no file is touched here."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from ottla.core.ids import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.segment import Segment


def roll_is_due(topic_partition: TopicPartition, segment: Segment, config: LogConfig, newest_ms: int) -> bool:
    """Whether a segment has lived `segment.ms`, by its records' own time as in Kafka: `newest_ms` is about to come."""
    first = segment.roll_timestamp
    if first is None or first < 0 or newest_ms - first <= config.segment_ms - config.segment_jitter_ms:
        return False
    return newest_ms - first > config.segment_ms - jitter_ms(topic_partition, segment.base_offset, config)


def jitter_ms(topic_partition: TopicPartition, base_offset: int, config: LogConfig) -> int:
    """How much earlier than `segment.ms` this segment rolls: different for each, the same each time it is asked."""
    most = min(config.segment_jitter_ms, config.segment_ms)
    return crc32(f"{topic_partition}/{base_offset}".encode()) % most if most > 0 else 0


def deletable(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    end_offset: int,
    now_ms: int,
) -> int:
    """How many of the oldest segments may be deleted now.

    A segment goes when it lies wholly below the log's start (DeleteRecords), or, where the policy deletes, when its
    newest record is older than `retention.ms` or the log without it still has `retention.bytes`. Only the oldest may
    go, one after another, and never one that reaches the high watermark or behind it.
    """
    too_many = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        is_active = segment is segments[-1]
        if is_active and not segment.size_bytes:
            break
        ends = end_offset if is_active else segments[count + 1].base_offset
        if ends > high_watermark:
            break
        by_size = config.deletes and config.retention_bytes >= 0 and too_many >= segment.size_bytes
        if not (
            ends <= log_start_offset or by_size or (config.deletes and _too_old(segment, config, is_active, now_ms))
        ):
            break
        too_many -= segment.size_bytes
        count += 1
    return count


def _too_old(segment: Segment, config: LogConfig, is_active: bool, now_ms: int) -> bool:
    if config.retention_ms < 0:
        return False
    newest = segment.greatest_timestamp(active=is_active).timestamp
    # Records without a time count as old as their segment has been known here.
    return now_ms - (newest if newest >= 0 else segment.created_ms) > config.retention_ms
