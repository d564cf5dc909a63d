"""Holds the result of a read of a partition."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.core.files import FileRegion
from ottla.storage.state.transactions import AbortedTransaction


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
