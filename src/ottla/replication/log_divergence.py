"""Finds where the log of a follower diverges from its leader's, by their leader epochs (KIP-101, KIP-279, KIP-595).

The leader compares what a fetch names with its own epochs: `diverging_end`. The follower gets that end, compares it
with its epochs and truncates: `truncation_offset`. It fetches again, until both agree on an epoch.
"""

from __future__ import annotations

from ottla.core.errors import OffsetOutOfRange
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.state.leader_epochs import UNDEFINED, EpochEnd


def diverging_end(log: PartitionLog, fetch_offset: int, last_fetched_epoch: int) -> EpochEnd | None:
    """Return where the log of a follower diverges from the leader's, or None. Raises OffsetOutOfRange."""
    if fetch_offset < log.log_start_offset:
        raise OffsetOutOfRange(f"offset {fetch_offset} is below the log start {log.log_start_offset}")
    log_end = log.end_offset
    if last_fetched_epoch == log.epochs.latest and fetch_offset <= log_end:
        return None  # as almost always
    if last_fetched_epoch != UNDEFINED:
        end = log.epoch_end_offset(last_fetched_epoch)
        if end.epoch == UNDEFINED:
            raise OffsetOutOfRange(f"epoch {last_fetched_epoch} is unknown to the leader")
        if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:
            return end
    if fetch_offset > log_end:
        raise OffsetOutOfRange(f"offset {fetch_offset} is beyond the log end {log_end}")
    return None


def truncation_offset(log: PartitionLog, leader_end: EpochEnd) -> int:
    """Return where a follower truncates, by the leader's end of its largest epoch not above the follower's."""
    ours = log.epochs.end_offset(min(leader_end.epoch, log.epochs.latest), log_end_offset=log.end_offset)
    if ours.epoch == UNDEFINED:
        return leader_end.end_offset
    return min(leader_end.end_offset, ours.end_offset) if ours.epoch == leader_end.epoch else ours.end_offset


def may_truncate(log: PartitionLog, offset: int, last_unclean_epoch: int) -> bool:
    """Return whether a follower may truncate there: never records that were replicated, which another leader kept.

    Only after an unclean election later than the last record here may records below the high watermark differ from the
    leader's. Otherwise the leader's log is corrupt, and must not erase the other replicas.
    """
    return offset >= log.high_watermark or last_unclean_epoch > log.epochs.latest
