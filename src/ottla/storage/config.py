"""Declares the settings of the log: the broker's defaults, and what a topic may override.

Names, defaults and limits are Apache Kafka 4.4's, of `LogConfig` for topics and of the `log.*` settings for the broker;
`durability` is Ottla's own: a record counts only once it is on the disk (docs/design/durability.md). Each field of
`LogConfig` with a `topic_key` is the default of that topic setting; `topic_config` lays a topic's overrides over the
broker's values and gives another `LogConfig`, which is what a `PartitionLog` works with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from ottla.core.errors import InvalidConfig
from ottla.core.settings import (
    DAY_MS,
    GIB,
    HOUR_MS,
    LONG_MAX,
    MINUTE_MS,
    SECOND_MS,
    Content,
    Setting,
    Type,
    parse,
    setting,
    settings_of,
)
from ottla.records.codecs import CODECS

# Of the values of `compression.type`; `producer` is none of its own.
_CODECS = {"uncompressed" if name == "none" else name: number for name, number in CODECS.items()}
COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
RECORD_BYTES_MAX = (1 << 31) - 9
"""The default of `max.decompressed.message.bytes`: no limit, because a Java array could not hold more."""
_SEGMENT_BYTES_MIN = 1 << 20  # KIP-1030: smaller segments only cost file handles
NO_TIERS = "there is no tiered storage, and without it this means nothing in Kafka either"
_THROTTLED = re.compile(r"([0-9]+:[0-9]+)?")  # partition:broker
_THROTTLED_FIELDS = ("leader_throttled_replicas", "follower_throttled_replicas")
_RETENTION_SCALE = {"log.retention.minutes": MINUTE_MS, "log.retention.hours": HOUR_MS}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The settings of a log on disk."""

    durability: str = setting(
        "durability", default="fsync", kind=Type.STRING, choices=("fsync", "page-cache"), topic_key="durability",
        doc="fsync: an acknowledged record is on the disk, shared by one group commit. page-cache: the system writes "
            "it out when it likes, as in Kafka.",
    )  # fmt: skip
    segment_bytes: int = setting(
        "log.segment.bytes", default=GIB, kind=Type.INT, unit="bytes", at_least=_SEGMENT_BYTES_MIN, live=True,
        topic_key="segment.bytes", doc="Maximum size of a segment; a new one is rolled before it is exceeded.",
    )  # fmt: skip
    segment_ms: int = setting(
        "log.roll.ms", default=7 * DAY_MS, kind=Type.LONG, unit="ms", at_least=1, live=True, topic_key="segment.ms",
        synonyms=("log.roll.hours",), scale={"log.roll.hours": HOUR_MS},
        doc="A segment is closed once its records span this much time, so that retention and compaction reach it.",
    )  # fmt: skip
    segment_jitter_ms: int = setting(
        "log.roll.jitter.ms", default=0, kind=Type.LONG, unit="ms", at_least=0, live=True,
        topic_key="segment.jitter.ms", synonyms=("log.roll.jitter.hours",), scale={"log.roll.jitter.hours": HOUR_MS},
        doc="Maximum random reduction of segment.ms, different for each log, so that not all logs "
        "roll at the same time.",
    )  # fmt: skip
    segment_index_bytes: int = setting(
        "log.index.size.max.bytes", default=10 << 20, kind=Type.INT, unit="bytes", at_least=4, live=True,
        topic_key="segment.index.bytes", doc="A segment is closed when one of its indexes has grown to this.",
    )  # fmt: skip
    index_interval_bytes: int = setting(
        "log.index.interval.bytes", default=4096, kind=Type.INT, unit="bytes", at_least=0, live=True,
        topic_key="index.interval.bytes", doc="One index entry for about this many bytes of log.",
    )  # fmt: skip
    max_message_bytes: int = setting(
        "message.max.bytes", default=1_048_588, kind=Type.INT, unit="bytes", at_least=0, live=True,
        topic_key="max.message.bytes", doc="Maximum size of a record batch as it arrives (compressed).",
    )  # fmt: skip
    max_decompressed_message_bytes: int = setting(
        "max.decompressed.message.bytes", default=RECORD_BYTES_MAX, kind=Type.INT, unit="bytes", at_least=1,
        at_most=RECORD_BYTES_MAX, live=True, topic_key="max.decompressed.message.bytes",
        doc="Maximum size of a single record of a compressed batch, decompressed. Larger ones are refused on arrival; "
            "those that are stored already are compacted and found by time as before.",
    )  # fmt: skip
    timestamp_type: str = setting(
        "log.message.timestamp.type", default="CreateTime", kind=Type.STRING, live=True,
        choices=("CreateTime", "LogAppendTime"), topic_key="message.timestamp.type",
        doc="Whether a record's time is the producer's or that of its arrival.",
    )  # fmt: skip
    timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms", default=LONG_MAX, kind=Type.LONG, unit="ms", at_least=0, live=True,
        topic_key="message.timestamp.before.max.ms",
        doc="A record older than this on arrival is refused (CreateTime only).",
    )  # fmt: skip
    timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms", default=HOUR_MS, kind=Type.LONG, unit="ms", at_least=0, live=True,
        topic_key="message.timestamp.after.max.ms",
        doc="A record further in the future than this on arrival is refused (CreateTime only).",
    )  # fmt: skip
    compression_type: str = setting(
        "compression.type", default="producer", kind=Type.STRING, choices=COMPRESSION_TYPES, live=True,
        topic_key="compression.type", doc="The codec records are kept in; `producer` keeps what the producer chose.",
    )  # fmt: skip
    record_validation: str = setting(
        "ottla.record.validation", default="full", kind=Type.STRING, choices=("full", "header"), live=True,
        topic_key="ottla.record.validation",
        doc="full: the records of a batch are validated before it is appended, as in Kafka. header: only its header "
            "and checksum are, and its records where another setting of the topic needs it; consumers may then meet "
            "batches that they cannot read.",
    )  # fmt: skip
    gzip_level: int = setting(
        "compression.gzip.level", default=-1, kind=Type.INT, at_least=-1, at_most=9, never=0, live=True,
        topic_key="compression.gzip.level", doc="The level if compression.type is gzip; -1 is the codec's default.",
    )  # fmt: skip
    lz4_level: int = setting(
        "compression.lz4.level", default=9, kind=Type.INT, at_least=1, at_most=17, live=True,
        topic_key="compression.lz4.level", doc="The level if compression.type is lz4.",
    )  # fmt: skip
    zstd_level: int = setting(
        "compression.zstd.level", default=3, kind=Type.INT, at_least=-131_072, at_most=22, live=True,
        topic_key="compression.zstd.level", doc="The level if compression.type is zstd.",
    )  # fmt: skip
    cleanup_policy: tuple[str, ...] = setting(
        "log.cleanup.policy", default=("delete",), kind=Type.LIST, choices=("compact", "delete"), live=True,
        topic_key="cleanup.policy",
        doc="delete: old segments go by age and size. compact: the last value of each key stays. Both may be given.",
    )  # fmt: skip
    retention_ms: int = setting(
        "log.retention.ms", default=7 * DAY_MS, kind=Type.LONG, unit="ms", at_least=-1, live=True,
        topic_key="retention.ms", synonyms=("log.retention.minutes", "log.retention.hours"), scale=_RETENTION_SCALE,
        doc="A segment whose newest record is older than this is deleted; -1 keeps all.",
    )  # fmt: skip
    retention_bytes: int = setting(
        "log.retention.bytes", default=-1, kind=Type.LONG, unit="bytes", live=True, topic_key="retention.bytes",
        doc="The oldest segments of a partition are deleted while it is larger than this; -1 keeps all.",
    )  # fmt: skip
    local_retention_ms: int = setting(
        "log.local.retention.ms", default=-2, kind=Type.LONG, unit="ms", at_least=-2, live=True,
        topic_key="local.retention.ms", no_effect=NO_TIERS,
        doc="How long segments stay on this disk that are kept elsewhere too; -2 is retention.ms.",
    )  # fmt: skip
    local_retention_bytes: int = setting(
        "log.local.retention.bytes", default=-2, kind=Type.LONG, unit="bytes", at_least=-2, live=True,
        topic_key="local.retention.bytes", no_effect=NO_TIERS,
        doc="How much stays on this disk that is kept elsewhere too; -2 is retention.bytes.",
    )  # fmt: skip
    remote_copy_lag_ms: int = setting(
        "log.remote.copy.lag.ms", default=0, kind=Type.LONG, unit="ms", at_least=-1, live=True,
        topic_key="remote.copy.lag.ms", no_effect=NO_TIERS,
        doc="How old a segment is before it is copied to the other tier; -1 is the time that it stays on this disk.",
    )  # fmt: skip
    remote_copy_lag_bytes: int = setting(
        "log.remote.copy.lag.bytes", default=-1, kind=Type.LONG, unit="bytes", at_least=-1, live=True,
        topic_key="remote.copy.lag.bytes", no_effect=NO_TIERS,
        doc="How much follows a segment before it is copied to the other tier; -1 is the size that stays on this disk.",
    )  # fmt: skip
    delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms", default=DAY_MS, kind=Type.LONG, unit="ms", at_least=0, live=True,
        topic_key="delete.retention.ms", doc="How long a compacted topic keeps tombstones.",
    )  # fmt: skip
    min_compaction_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms", default=0, kind=Type.LONG, unit="ms", at_least=0, live=True,
        topic_key="min.compaction.lag.ms", doc="A record younger than this is never compacted away.",
    )  # fmt: skip
    max_compaction_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms", default=LONG_MAX, kind=Type.LONG, unit="ms", at_least=1, live=True,
        topic_key="max.compaction.lag.ms", doc="A record older than this makes its log due for compaction.",
    )  # fmt: skip
    min_cleanable_dirty_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio", default=0.5, kind=Type.DOUBLE, at_least=0, at_most=1, live=True,
        topic_key="min.cleanable.dirty.ratio", doc="A log is compacted once this share of it is new.",
    )  # fmt: skip
    file_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms", default=60 * SECOND_MS, kind=Type.LONG, unit="ms", at_least=0, live=True,
        topic_key="file.delete.delay.ms",
        doc="Deleted files are renamed at once and removed after this time, so that readers "
        "can finish.",
    )  # fmt: skip
    flush_messages: int = setting(
        "log.flush.interval.messages", default=LONG_MAX, kind=Type.LONG, unit="records", at_least=1, live=True,
        topic_key="flush.messages", doc="With durability=page-cache: fsync after this many records.",
    )  # fmt: skip
    flush_ms: int = setting(
        "log.flush.interval.ms", default=LONG_MAX, kind=Type.LONG, unit="ms", at_least=0, live=True,
        topic_key="flush.ms", synonyms=("log.flush.scheduler.interval.ms",),
        doc="With durability=page-cache: fsync after this much time.",
    )  # fmt: skip
    preallocate: bool = setting(
        "log.preallocate", default=False, kind=Type.BOOLEAN, live=True, topic_key="preallocate",
        doc="Give a new segment its full size at once.",
        no_effect="with fsync, space is reserved in small steps instead (docs/design/durability.md)",
    )  # fmt: skip
    min_insync_replicas: int = setting(
        "min.insync.replicas", default=1, kind=Type.INT, unit="replicas", at_least=1, live=True,
        topic_key="min.insync.replicas",
        doc="With acks=all, the number of replicas that must have a record before it is "
        "acknowledged. A number above the replication factor counts as the replication factor.",
    )  # fmt: skip
    unclean_leader_election: bool = setting(
        "unclean.leader.election.enable", default=False, kind=Type.BOOLEAN, live=True,
        topic_key="unclean.leader.election.enable",
        doc="Whether a replica that is not in sync may become the leader if no other can. Records are "
        "lost if it does.",
    )  # fmt: skip
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms", default=DAY_MS, kind=Type.INT, unit="ms", at_least=1, live=True,
        doc="The state of a producer that has written nothing to a partition for this long is "
        "deleted.",
    )  # fmt: skip
    producer_id_expiration_check_interval_ms: int = setting(
        "producer.id.expiration.check.interval.ms", default=10 * MINUTE_MS, kind=Type.INT, unit="ms", at_least=1,
        doc="Interval between checks for expired producers.",
    )  # fmt: skip
    retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms", default=5 * MINUTE_MS, kind=Type.LONG, unit="ms", at_least=1,
        doc="Interval between checks for segments to delete.",
    )  # fmt: skip
    initial_task_delay_ms: int = setting(
        "log.initial.task.delay.ms", default=30 * SECOND_MS, kind=Type.LONG, unit="ms", at_least=0,
        doc="Delay of the first background tasks after the start.",
        no_effect="each task first runs after its own interval",
    )  # fmt: skip
    recovery_point_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms", default=MINUTE_MS, kind=Type.INT, unit="ms", at_least=0,
        doc="Interval between checkpoints of the recovery points, which shorten recovery.",
    )  # fmt: skip
    start_offset_checkpoint_interval_ms: int = setting(
        "log.flush.start.offset.checkpoint.interval.ms", default=MINUTE_MS, kind=Type.INT, unit="ms", at_least=0,
        doc="Interval between checkpoints of the log start offsets (moved by DeleteRecords).",
        no_effect="they are written with the recovery points, and before DeleteRecords is answered",
    )  # fmt: skip
    recovery_threads: int = setting(
        "num.recovery.threads.per.data.dir", default=2, kind=Type.INT, unit="threads", at_least=1,
        doc="Threads that recover logs at the start.",
        no_effect="logs are recovered one after another; two threads of a Python process took as long for two logs",
    )  # fmt: skip

    # What follows from the above, worked out once because each batch asks for it.
    target_codec: int | None = field(init=False, repr=False, compare=False)  # None: as the producer chose
    compression_level: int | None = field(init=False, repr=False, compare=False)
    roll_ms: int = field(init=False, repr=False, compare=False)  # segment.ms, or sooner for what must be compacted
    uses_log_append_time: bool = field(init=False, repr=False, compare=False)
    """Whether records carry the time they arrived instead of the producer's."""
    is_compacted: bool = field(init=False, repr=False, compare=False)
    """Whether the last value of each key must stay."""
    leader_throttled_replicas: tuple[str, ...] = ()  # these two are settings of topics alone: `TopicOnlyConfig`
    follower_throttled_replicas: tuple[str, ...] = ()
    flushes_by_rule: bool = field(init=False, repr=False, compare=False)
    """Whether `flush_messages` or `flush_ms` has a limit."""
    requires_record_validation: bool = field(init=False, repr=False, compare=False)
    """Whether the records of clients' batches are validated (storage/validation/record_validator.py)."""

    def __post_init__(self) -> None:
        levels = {"gzip": self.gzip_level, "lz4": self.lz4_level, "zstd": self.zstd_level}
        log_append_time = self.timestamp_type == "LogAppendTime"
        is_compacted = "compact" in self.cleanup_policy
        bounded = self.timestamp_before_max_ms != LONG_MAX and not log_append_time
        sized = self.max_decompressed_message_bytes < RECORD_BYTES_MAX
        by_other_settings = is_compacted or bounded or sized or self.compression_type in _CODECS
        derived = {
            "target_codec": _CODECS.get(self.compression_type),
            "compression_level": levels.get(self.compression_type),
            "roll_ms": min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms,
            "uses_log_append_time": log_append_time,
            "is_compacted": is_compacted,
            "flushes_by_rule": self.flush_messages != LONG_MAX or self.flush_ms != LONG_MAX,
            "requires_record_validation": self.record_validation == "full" or by_other_settings,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def deletes_by_retention(self) -> bool:
        """Whether segments go by age and size."""
        return "delete" in self.cleanup_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOnlyConfig:
    """Topic settings that have no default at the broker."""

    leader_throttled_replicas: tuple[str, ...] = setting(
        "leader.replication.throttled.replicas", default=(), kind=Type.LIST, live=True, content=Content.NAME,
        topic_key="leader.replication.throttled.replicas",
        doc="Replicas whose leader holds back followers that are not in sync: partition:broker, ... or *.",
    )  # fmt: skip
    follower_throttled_replicas: tuple[str, ...] = setting(
        "follower.replication.throttled.replicas", default=(), kind=Type.LIST, live=True, content=Content.NAME,
        topic_key="follower.replication.throttled.replicas",
        doc="Followers that fetch slowly until they are in sync: partition:broker, ... or *.",
    )  # fmt: skip
    remote_storage: bool = setting(
        "remote.storage.enable", default=False, kind=Type.BOOLEAN, live=True, topic_key="remote.storage.enable",
        doc="Tiered storage: only false is taken.", no_effect=NO_TIERS,
    )  # fmt: skip
    remote_copy_disable: bool = setting(
        "remote.log.copy.disable", default=False, kind=Type.BOOLEAN, live=True, topic_key="remote.log.copy.disable",
        doc="Copy no further segments to the other tier.", no_effect=NO_TIERS,
    )  # fmt: skip
    remote_delete_on_disable: bool = setting(
        "remote.log.delete.on.disable", default=False, kind=Type.BOOLEAN, live=True,
        topic_key="remote.log.delete.on.disable", doc="Delete the data in the other tier when it is switched off.",
        no_effect=NO_TIERS,
    )  # fmt: skip
    dead_letter_topic: bool = setting(
        "errors.deadletterqueue.group.enable", default=False, kind=Type.BOOLEAN, live=True,
        topic_key="errors.deadletterqueue.group.enable",
        doc="Whether share groups may write their dead letters to the topic.",
    )  # fmt: skip
    internal_segment_bytes: int = setting(
        "internal.segment.bytes", default=0, kind=Type.INT, unit="bytes", at_least=0, live=True,
        topic_key="internal.segment.bytes",
        doc="segment.bytes without its lower limit, for tests; 0 leaves segment.bytes in charge.",
    )  # fmt: skip


class TopicSetting(NamedTuple):
    """Locates the declaration of a topic setting."""

    section: type[Any]  # LogConfig or TopicOnlyConfig
    field_name: str
    spec: Setting


@cache
def topic_settings() -> Mapping[str, TopicSetting]:
    """Return every topic setting by its topic-level name, sorted."""
    settings = {
        spec.topic_key: TopicSetting(section, name, spec)
        for section in (LogConfig, TopicOnlyConfig)
        for name, spec in settings_of(section).items()
        if spec.topic_key
    }
    return dict(sorted(settings.items()))


def topic_config(defaults: LogConfig, overrides: Mapping[str, str]) -> LogConfig:
    """Return the broker's values with a topic's overrides laid over them.

    Raises `InvalidConfig` for a name Kafka 4.4 does not have, a value of the wrong kind or beyond its limits, and
    combinations that cannot work.
    """
    if not overrides:
        return defaults
    known = topic_settings()
    values: dict[str, Any] = {}
    for key, text in overrides.items():
        if key not in known:
            raise InvalidConfig(f"Unknown topic config name: {key}")
        section, name, spec = known[key]
        value = _parsed(spec, key, text)
        if section is LogConfig or name in _THROTTLED_FIELDS:
            values[name] = value
        elif name == "internal_segment_bytes" and value:
            values["segment_bytes"] = value
    config = replace(defaults, **values)
    _check_together(config)
    return config


def _parsed(spec: Setting, key: str, text: str) -> Any:
    try:
        value = parse(spec, text)
    except ValueError as error:
        raise InvalidConfig(f"Invalid value {text} for configuration {key}: {error}") from None
    if spec.kind is Type.LIST:
        _check_items(key, text)
    if key == "remote.storage.enable" and value:
        raise InvalidConfig("Invalid value true for configuration remote.storage.enable: there is no tiered storage")
    return value


def _check_items(key: str, text: str) -> None:
    """Raise InvalidConfig for a list that Kafka refuses.

    Kafka takes an empty list, but no empty item, and of throttled replicas each alone or all of them.
    """
    items = [item.strip() for item in text.split(",")] if text.strip() else []
    if not key.endswith(".throttled.replicas"):
        if "" in items:
            raise InvalidConfig(f"Invalid value {text} for configuration {key}: an item is empty")
    elif items != ["*"] and not all(_THROTTLED.fullmatch(item) for item in items):
        raise InvalidConfig(
            f"Invalid value {text} for configuration {key}: must be *, or a list of partition:broker, as in 0:1,1:2"
        )


def _check_together(config: LogConfig) -> None:
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfig(
            f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) must not be above max.compaction.lag.ms "
            f"({config.max_compaction_lag_ms})"
        )
