"""Holds the result of a read of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from ottla.core.files import FileRegion
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.state.aborted_index import AbortedTransaction


class FetchDataInfo:
    """The result of a read: a region of a file, not bytes, and the partition's offsets at that moment."""

    __slots__ = ("aborted", "high_watermark", "last_stable_offset", "log_start_offset", "region")

    def __init__(
        self,
        region: FileRegion | None,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        aborted: Sequence[AbortedTransaction] | None,
    ) -> None:
        self.region = region
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.aborted = aborted  # for readers of committed records: the transactions to skip


def aborted_in(log: PartitionLog, offset: int, region: FileRegion | None, stable: int) -> Sequence[AbortedTransaction]:
    """Return the aborted transactions that the region, which was read just now, may have records of.

    By their first offset: some clients stop at the first one that begins after the batch at hand.
    """
    if region is None or not log.may_have_aborted_transactions():
        return ()
    transactions = log.aborted_transactions(offset, min(stable, log.segment_list.region_end_offset))
    return sorted(transactions, key=attrgetter("first_offset")) if len(transactions) > 1 else transactions
