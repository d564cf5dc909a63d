"""Logs what happens to the replicas of a partition."""

from __future__ import annotations

import logging

from ottla.core.ids import TopicPartition
from ottla.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


def log_isr_change(
    change: str, topic_partition: TopicPartition, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    """Log a change of in-sync replicas."""
    logger.info("the ISR of %s %s from %s to %s", topic_partition, change, list(before), list(after))


def log_truncation(log: PartitionLog, offset: int, leader_epoch: int) -> None:
    """Log that a follower removes records which its leader does not have."""
    logger.info(
        "truncating %s to offset %d in leader epoch %d; log start %d, high watermark %d, log end %d",
        log.topic_partition,
        offset,
        leader_epoch,
        log.log_start_offset,
        log.high_watermark,
        log.end_offset,
    )


def log_removal(topic_partition: TopicPartition, leader: int) -> None:
    """Log that a follower removes all of its records, because they are corrupt."""
    logger.warning(
        "the log of %s is corrupt: its records are removed and fetched again from leader %d", topic_partition, leader
    )


def log_repair(topic_partition: TopicPartition, leader: int, first_offset: int, end_offset: int) -> None:
    """Log that a follower fetches a faulty part of its log again."""
    logger.warning(
        "offsets %d to %d of %s are corrupt or missing: they are fetched again from leader %d",
        first_offset,
        end_offset - 1,
        topic_partition,
        leader,
    )


def log_repaired(topic_partition: TopicPartition) -> None:
    """Log that nothing of a replica is faulty any more."""
    logger.warning("the log of %s is whole again", topic_partition)


def log_refused_truncation(log: PartitionLog, offset: int, leader: int, leader_epoch: int) -> None:
    """Log that a follower keeps records which its leader has lost."""
    logger.error(
        "%s is not truncated to offset %d below its high watermark %d, as leader %d asks: there was no unclean "
        "election since, so the leader has lost records. The replica does not follow it in epoch %d. Check the disk of "
        "the leader",
        log.topic_partition,
        offset,
        log.high_watermark,
        leader,
        leader_epoch,
    )


def log_contradiction(log: PartitionLog, replicas: tuple[int, ...]) -> str:
    """Log that the offsets of a replica contradict each other; returns the message."""
    text = (
        f"offsets of {log.topic_partition} contradict each other: log start {log.log_start_offset}, "
        f"high watermark {log.high_watermark}, flushed {log.flushed_offset}, log end {log.end_offset}. "
    )
    text += _advice(replicas)
    logger.critical(text)
    return text


def log_failed_truncation(topic_partition: TopicPartition, error: Exception, replicas: tuple[int, ...]) -> str:
    """Log that a follower's log is neither as before nor truncated: it is corrupt there; returns the message."""
    text = f"{topic_partition} cannot be truncated, its log is corrupt or half truncated: {error}. "
    text += _advice(replicas)
    logger.critical(text)
    return text


def _advice(replicas: tuple[int, ...]) -> str:
    if len(replicas) > 1:
        return "It is fetched again once it is out of the in-sync replicas; if it stays in them, restart the broker"
    return "Restart the broker"
