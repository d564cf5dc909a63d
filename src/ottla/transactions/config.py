"""Declares the settings of the transaction coordinator, with Kafka's names, limits and defaults."""

from __future__ import annotations

from ottla.core.settings import MIB, MINUTE_MS, Section, Type, setting

DAY_MS = 24 * 60 * MINUTE_MS


class TransactionConfig(Section):
    """Section `transactions` of the broker's settings."""

    max_timeout_ms: int = setting(
        "transaction.max.timeout.ms", default=15 * MINUTE_MS, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Longest transaction.timeout.ms that a producer may request: an open transaction holds back readers of"
        " committed records.",
    )  # fmt: skip
    id_expiration_ms: int = setting(
        "transactional.id.expiration.ms", default=7 * DAY_MS, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="A transactional id is forgotten when it had no transaction for so long.",
    )  # fmt: skip
    topic_partitions: int = setting(
        "transaction.state.log.num.partitions", default=50, kind=Type.INT, at_least=1,
        doc="Partitions of `__transaction_state` when it is created. Must not change afterwards: a transactional id's"
        " partition is its hash modulo this number.",
    )  # fmt: skip
    topic_replication_factor: int = setting(
        "transaction.state.log.replication.factor", default=3, kind=Type.SHORT, at_least=1,
        doc="Replicas of `__transaction_state` when it is created; in a smaller cluster the number of brokers.",
    )  # fmt: skip
    topic_min_insync_replicas: int = setting(
        "transaction.state.log.min.isr", default=2, kind=Type.INT, at_least=1,
        doc="`min.insync.replicas` of `__transaction_state` when it is created.",
    )  # fmt: skip
    topic_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes", default=100 * MIB, kind=Type.INT, unit="bytes", at_least=1,
        doc="Segment size of `__transaction_state`: small segments are compacted sooner and load faster.",
    )  # fmt: skip
    abort_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", default=10_000, kind=Type.INT,
        unit="milliseconds", at_least=1,
        doc="Interval between checks for transactions that are open for longer than their timeout.",
    )  # fmt: skip
    expiry_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms", default=60 * MINUTE_MS, kind=Type.INT,
        unit="milliseconds", at_least=1,
        doc="Interval between checks for expired transactional ids.",
    )  # fmt: skip
    add_partitions_retry_max_ms: int = setting(
        "add.partitions.to.txn.retry.backoff.max.ms", default=100, kind=Type.INT, unit="milliseconds", at_least=0,
        doc="How long a partition that is to be added to a transaction waits until the previous transaction of its"
        " producer is completed, before the producer has to try again.",
    )  # fmt: skip
