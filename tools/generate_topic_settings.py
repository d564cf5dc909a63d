"""docs/topic-settings.md: every topic setting, what it does, and the test that shows it.

A setting that works has a test here that fails if it stops working; one that does not says why where it is declared
(`no_effect`). tests/tidy/test_topic_settings.py holds both, and that each test is there.
"""

from __future__ import annotations

from ottla.broker.config_resources import HIDDEN
from ottla.core.settings import default_of, text_of
from ottla.storage.config import LogConfig, topic_settings

INSPECTION = "tests/unit/storage/validation/test_record_validator.py"
RETENTION = "tests/unit/storage/log/test_retention.py"
DIRECTORY = "tests/unit/storage/directories/test_log_directory.py"
FLUSHING = "tests/unit/replication/test_flush_rules.py"
COMPACTING = "tests/unit/storage/cleaning/test_compaction_settings.py"

PROOFS: dict[str, tuple[str, str]] = {
    "cleanup.policy": (RETENTION, "a_topic_with_both_policies_loses_old_segments_and_one_with_neither_keeps_all"),
    "compression.gzip.level": (INSPECTION, "the_level_of_a_codec_is_the_topics"),
    "compression.lz4.level": (INSPECTION, "the_level_of_a_codec_is_the_topics"),
    "compression.type": (INSPECTION, "a_batch_is_kept_in_the_topics_codec_with_all_that_its_producer_said"),
    "compression.zstd.level": (INSPECTION, "the_level_of_a_codec_is_the_topics"),
    "delete.retention.ms": ("tests/properties/test_cleaner_against_dict.py", "TestCleanerAgainstDict"),
    "durability": (FLUSHING, "without_a_rule_nothing_is_flushed"),
    "errors.deadletterqueue.group.enable": (
        "tests/unit/broker/test_dead_letters.py",
        "what_may_not_be_written_is_archived_and_logged",
    ),
    "file.delete.delay.ms": (RETENTION, "a_segment_that_was_deleted_is_read_on_until_its_files_go"),
    "flush.messages": (FLUSHING, "after_flush_messages_records_all_of_them_are_flushed"),
    "flush.ms": (FLUSHING, "after_flush_ms_all_that_was_written_is_flushed"),
    "follower.replication.throttled.replicas": (
        "tests/unit/replication/test_fetcher.py",
        "a_throttled_follower_waits_for_its_rate",
    ),
    "leader.replication.throttled.replicas": (
        "tests/unit/replication/test_replication.py",
        "a_leader_holds_back_throttled_replicas_until_they_are_in_sync",
    ),
    "index.interval.bytes": (RETENTION, "the_index_has_an_entry_for_about_each_interval_of_bytes"),
    "max.compaction.lag.ms": (
        COMPACTING,
        "a_record_older_than_the_greatest_lag_makes_its_log_due_however_little_is_new",
    ),
    "max.decompressed.message.bytes": (
        INSPECTION,
        "a_record_that_is_larger_than_the_topic_takes_once_decompressed_is_refused",
    ),
    "max.message.bytes": (
        INSPECTION,
        "a_batch_that_another_codec_makes_too_large_is_refused_and_one_that_was_too_large_before_is_too",
    ),
    "message.timestamp.after.max.ms": (
        INSPECTION,
        "each_record_is_held_to_the_bounds_on_its_time_and_one_without_a_time_is_not",
    ),
    "message.timestamp.before.max.ms": (
        INSPECTION,
        "each_record_is_held_to_the_bounds_on_its_time_and_one_without_a_time_is_not",
    ),
    "message.timestamp.type": (INSPECTION, "arrival_time_knows_no_bounds"),
    "min.cleanable.dirty.ratio": (COMPACTING, "a_log_is_compacted_once_that_share_of_it_is_new"),
    "min.compaction.lag.ms": (COMPACTING, "a_record_younger_than_the_lag_is_not_compacted"),
    "unclean.leader.election.enable": (
        "tests/unit/controller/test_elections.py",
        "a_replica_that_is_not_complete_waits_unless_unclean_elections_are_allowed",
    ),
    "min.insync.replicas": (
        "tests/unit/replication/test_partition.py",
        "with_fewer_replicas_in_sync_than_the_topic_asks_for_only_acks_of_all_are_refused",
    ),
    "ottla.record.validation": (
        INSPECTION,
        "with_validation_of_the_header_alone_records_are_validated_only_where_another_setting_needs_it",
    ),
    "retention.bytes": (DIRECTORY, "size_keeps_at_least_what_is_asked"),
    "retention.ms": (DIRECTORY, "segments_wholly_older_than_retention_go_and_the_start_moves"),
    "segment.bytes": (RETENTION, "sizes_that_are_changed_count_from_the_next_batch"),
    "segment.index.bytes": (DIRECTORY, "a_full_index_closes_the_segment"),
    "segment.jitter.ms": (DIRECTORY, "a_segment_spans_at_most_segment_ms_of_record_time_less_its_own_jitter"),
    "segment.ms": (RETENTION, "a_segment_closes_when_its_records_span_segment_ms_of_their_own_time"),
}
"""For each setting that works: the file and the test that show it."""

KAFKA_SETTINGS = frozenset(
    {
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "internal.segment.bytes",
        "leader.replication.throttled.replicas",
        "errors.deadletterqueue.group.enable",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.decompressed.message.bytes",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.copy.lag.bytes",
        "remote.copy.lag.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
"""The topic settings that Apache Kafka lists; any other is one of Ottla's own, and named on the page."""

HEAD = """# Topic settings

Generated from the declarations in the code by `make generate`; `make check` compares.

These are all the topic settings that Apache Kafka 4.4 lists, and Ottla's own: {own}.

They are set when a topic is created, and changed at any time by `ottla config set topic/NAME name=value`,
`kafka-configs`, or any client's AlterConfigs. A change needs no restart. It applies from the next batch, the next
retention check (every `log.retention.check.interval.ms`) or the next pass of the cleaner; `flush.*` and `durability`
also apply to records written before. A topic without its own value uses the broker's setting in the third column.

A value is accepted or refused as by Kafka, with INVALID_CONFIG and the allowed range; a test sends the values at the
limits of every setting to both brokers and compares the answers
([`tests/differential/scenarios_settings.py`](../tests/differential/scenarios_settings.py)).

The records of every batch are validated before it is appended, as in Kafka: the payload decompresses, the record
count is right, and every record is well-formed, so that a consumer can read what was acknowledged
([why](design/storage.md#what-is-validated-at-an-append); its cost is in [benchmarks](benchmarks.md)). A batch may
decompress to 24 MiB, or to eight times its size if that is more, up to 256 MiB; a larger one is refused with
INVALID_RECORD before it uses more memory than that. `ottla.record.validation=header` switches this off for a topic
whose producers are known, if you have measured that it matters: then only the header and the checksum of a batch are
validated, and its records only if another setting requires it (`cleanup.policy` with compact,
`message.timestamp.before.max.ms`, a timestamp too far ahead, or a `compression.type` other than the batch's).

| Setting | Default | Broker's setting | What it does | Shown by |
| --- | --- | --- | --- | --- |
"""

NOT_APPLICABLE = """
## Without effect

Accepted, validated and shown, so that tools and scripts work, but without effect:

| Setting | Default | What it does in Kafka | Why not here |
| --- | --- | --- | --- |
"""


def generate() -> dict[str, str]:
    """The page by its path from the root of the repository."""
    working, others = [], []
    for key, (section, field_name, spec) in topic_settings().items():
        if key in HIDDEN:
            continue
        default = text_of(default_of(section, field_name)) or "(empty)"
        doc = spec.doc + (f" One of: {', '.join(spec.choices)}." if spec.choices else "")
        unit = f" {spec.unit}" if spec.unit else ""
        if spec.no_effect:
            others.append(f"| `{key}` | {default}{unit} | {doc} | {spec.no_effect} |\n")
            continue
        broker = f"`{spec.key}`" if section is LogConfig else ""
        path, test = PROOFS[key]
        working.append(f"| `{key}` | {default}{unit} | {broker} | {doc} | [{test.replace('_', ' ')}](../{path}) |\n")
    own = ", ".join(f"`{key}`" for key in sorted(set(topic_settings()) - KAFKA_SETTINGS))
    return {"docs/topic-settings.md": HEAD.replace("{own}", own) + "".join(working) + NOT_APPLICABLE + "".join(others)}
