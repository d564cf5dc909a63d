"""Lists which ranges of a log are to be fetched again from another replica, and replays what depended on them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ottla.core.errors import CorruptMessage
from ottla.storage.integrity.corruption import Corruption
from ottla.storage.log.log_faults import FaultyRange, faulty_from
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.producer_replay import replay_producers


def note_fault(log: PartitionLog, reports: Sequence[Corruption]) -> bool:
    """Note what a start has reported of a log; return False if it has lost records at its end."""
    bases = {segment.base_offset for segment in log.segments}
    is_whole = True
    for report in reports:
        if report.first_offset >= log.end_offset:
            is_whole = False  # truncated: what followed is as if it were writes that were never acknowledged
            continue
        first_offset = faulty_from(report)
        if first_offset in bases or log.segment_list.first_base_offset < first_offset < log.end_offset:
            log.faults.note_at_start(first_offset)
    if not log.may_have_gaps:
        for segment in log.segments[:-1]:
            if not segment.size_bytes:
                log.faults.note_at_start(segment.base_offset)
    return is_whole


def keep_lost_start(log: PartitionLog) -> None:
    """Begin the log where its lost segments began: other replicas may have them. Reads of them are refused."""
    if log.faults.lost_start is not None and not log.faults.is_start_uncertain:
        log.log_start_offset, log.faults.lost_start = log.faults.lost_start, None


def accept_lost_start(log: PartitionLog) -> None:
    """Begin the log after its lost segments: no other replica has them."""
    log.faults.lost_start, log.faults.is_start_uncertain = None, False


def follow_leader_start(log: PartitionLog, leader_start: int) -> None:
    """Begin a follower's log where the leader's begins, if its own first segments may be lost. Raises StorageError."""
    if log.faults.is_start_uncertain:
        log.faults.is_start_uncertain, log.faults.lost_start = False, None
        if leader_start < log.log_start_offset:
            log.log_start_offset = leader_start
            log.checkpoint()  # its files have the start that moved: a restart would take it again
    log.delete_records(min(leader_start, log.high_watermark))


def is_faulty(log: PartitionLog) -> bool:
    """Return whether something of a log is to be fetched again."""
    faults = log.faults
    has_lost_start = faults.lost_start is not None or faults.is_start_uncertain
    return bool(faults.first_offsets) or has_lost_start or _lacks_start(log)


def _lacks_start(log: PartitionLog) -> bool:
    return log.log_start_offset < log.segment_list.first_base_offset


def faulty_ranges(log: PartitionLog) -> list[FaultyRange]:
    """List what is to be fetched again, by offset; forgets what retention or a truncation has removed.

    The active segment is closed, if it is faulty. Raises StorageError.
    """
    faults, found = log.faults, list[FaultyRange]()
    if _lacks_start(log):
        found.append(FaultyRange(log.log_start_offset, log.segment_list.first_base_offset, is_segment=False))
    for first_offset in sorted(faults.first_offsets):
        bases = [segment.base_offset for segment in log.segments]
        at = bisect_right(bases, first_offset)
        is_segment = at > 0 and bases[at - 1] == first_offset
        if is_segment and at == len(bases) and first_offset < log.end_offset:
            log.roll()
            bases.append(log.active.base_offset)
        if not at or at == len(bases) or bases[at] <= log.log_start_offset:
            faults.note_repaired(first_offset)
        else:
            found.append(FaultyRange(first_offset, bases[at], is_segment))
    return found


def refetch_from(log: PartitionLog, offset: int) -> None:
    """Remove all from an offset on. Raises StorageError.

    If nothing is left the log begins at 0: its leader refuses that, and says where its own begins.
    """
    if log.segment_list.first_base_offset < offset:
        try:
            log.truncate_to(offset)
        except CorruptMessage:
            pass
        else:
            return
    log.truncate_fully_and_start_at(0)


def replace_producers(log: PartitionLog) -> None:
    """Replay producers and transactions again, if a start has done so with corrupt batches. Raises CorruptMessage."""
    offset = log.faults.producers_from
    if offset is None:
        return
    log.snapshots.drop_above(offset)
    log.pending_flush.forget_aborted(0)
    rewritten = replay_producers(
        log.segments, log.producers, log.snapshots, end_offset=log.end_offset, now_ms=log.clock.wall_ms()
    )
    log.pending_flush.add_files(*rewritten)
    log.update_high_watermark(log.high_watermark)
    log.faults.producers_from = None
