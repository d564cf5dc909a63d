"""Checks what a leader sent in one go, and collects what the log of the follower notes of it. No record is decoded.

The loop is that of recovery (`records/_batch_scan.py`): it reads and compares headers and checksums, and determines the
entries of the indexes. Where it stops before the end, `validate_follower_batches` says what is wrong.
"""

from __future__ import annotations

from typing import Final

from ottla.core.checksums import crc32c
from ottla.core.settings import LONG_MAX
from ottla.records.batch_scan import LOOP

_check_into: Final = LOOP.check_into
_OFFSET_MAX: Final = LONG_MAX - 1  # an offset follows it


class FollowerBatches:
    """The whole batches at the start of a leader's answer, as far as they are valid.

    What is noted of the greatest time and of the bytes since the last index entry continues that of a segment.
    """

    __slots__ = (
        "bytes_since_index",
        "end_offset",
        "entries",
        "epoch",
        "epochs",
        "is_stopped",
        "max_timestamp",
        "max_timestamp_offset",
        "producers",
        "size_bytes",
    )

    def __init__(
        self,
        records: memoryview,
        *,
        end_offset: int,
        last_epoch: int,
        may_have_gaps: bool,
        index_interval_bytes: int,
        bytes_since_index: int,
        max_timestamp: int,
        max_timestamp_offset: int,
    ) -> None:
        self.entries: list[tuple[int, int, int, int]] = []  # last offset, place, greatest time and its offset
        self.epochs: list[tuple[int, int]] = []  # each that begins, and its first offset
        self.producers: list[tuple[int, int, bool]] = []  # id and place of each batch that has one
        self.size_bytes: int
        self.end_offset: int
        self.epoch: int
        self.bytes_since_index: int
        self.max_timestamp: int
        self.max_timestamp_offset: int
        self.is_stopped: bool  # at a batch that is not valid, or where offsets are missing
        (
            self.size_bytes,
            self.end_offset,
            self.epoch,
            self.bytes_since_index,
            self.max_timestamp,
            self.max_timestamp_offset,
            self.is_stopped,
        ) = _check_into(
            records,
            0,
            LONG_MAX,  # the last batch may be incomplete
            end_offset,
            last_epoch,
            may_have_gaps,
            _OFFSET_MAX,
            index_interval_bytes,
            bytes_since_index,
            max_timestamp,
            max_timestamp_offset,
            crc32c,
            self.entries,
            self.epochs,
            self.producers,
        )
