"""Decides what compaction does with one batch: keep it byte for byte, rewrite it with fewer records, or remove it.

Kafka's rules (`MemoryRecords.filterTo`, `Cleaner`): offsets never change, and neither do a batch's base and last
offset, so that its sequence numbers are kept with its last one. Where a tombstone, or a marker that nothing is left
for, is met for the first time, the batch gets its delete horizon: attribute bit 6, the horizon in place of the base
timestamp, all time deltas moved accordingly (KIP-534). Later passes let it go once the horizon is over.

A batch stays without any record if it is the last of an active producer (its header has the producer's sequence), or
the last of the pass (the log's offsets must not seem to end before it).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ottla.core.errors import CorruptMessage
from ottla.core.files import Buffer
from ottla.core.ids import NO_TIMESTAMP
from ottla.records import compaction
from ottla.records.batch import CODEC_BITS, CRC_FROM, DELETE_HORIZON, HEADER_BYTES, PREFIX_BYTES, BatchHeader, write_crc
from ottla.records.codecs import compress, decompress
from ottla.storage.cleaning.cleaned_transactions import CleanedTransactions
from ottla.storage.cleaning.cleaning_plan import ActiveProducer, Counts
from ottla.storage.cleaning.errors import Uncleanable
from ottla.storage.cleaning.offset_map import OffsetMap
from ottla.storage.state.end_marker import read_marker

_LENGTH_AT, _COUNT_AT = 8, 57
_NUMBER = struct.Struct(">i")
_MIDDLE = struct.Struct(">hiqq")  # attributes, last offset delta, base timestamp, max timestamp
_MASK = (1 << 64) - 1


def records_of(header: BatchHeader, data: bytes, at: int) -> tuple[bytes, int, int]:
    """Return the bytes that hold a batch's records, decompressed, and where in them they begin and end.

    Raises Uncleanable where the compression does not hold what it should.
    """
    end = at + header.size_bytes
    if not header.codec:
        return data, at + HEADER_BYTES, end
    try:
        with memoryview(data) as view:
            body = decompress(header.codec, view[at + HEADER_BYTES : end])
    except CorruptMessage as error:
        raise Uncleanable(f"the batch at offset {header.base_offset}: {error.message}") from error
    return body, 0, len(body)


class BatchFilter:
    """The decisions of one pass. Fed with every batch from the log's start on."""

    __slots__ = ("_counts", "_delete_retention_ms", "_map", "_now_ms", "_producers", "_upper_bound", "transactions")

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        *,
        producers: Mapping[int, ActiveProducer],
        upper_bound: int,
        now_ms: int,
        delete_retention_ms: int,
        counts: Counts,
    ) -> None:
        self._map = offsets
        self.transactions = transactions
        self._producers = producers
        self._upper_bound = upper_bound
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self._counts = counts

    def apply(self, header: BatchHeader, data: bytes, at: int) -> Buffer | None:
        """Return what is to be written for the complete, verified batch at `at` of `data`; None for nothing.

        Raises Uncleanable for records that contradict the header.
        """
        self._counts.records_read += header.record_count
        horizon_ms = header.base_timestamp if header.attributes & DELETE_HORIZON else None
        horizon_is_over = horizon_ms is not None and horizon_ms <= self._now_ms
        if header.is_control:
            return self._control(header, data, at, horizon_ms, horizon_is_over=horizon_is_over)
        if self.transactions.data(header):  # aborted: no reader of committed records ever saw it
            return self._emptied(header, data, at)
        extents: list[int] = []
        try:
            body, begin, end = records_of(header, data, at)
            kept, tombstones, keyless, first_ms, greatest_ms = self._map.choose(
                body,
                begin,
                end,
                count=header.record_count,
                base_offset=header.base_offset,
                drops_tombstones=horizon_is_over,
                extents=extents,
            )
            self._counts.records_kept += kept
            self._counts.records_without_key += keyless
            if not kept:
                return self._emptied(header, data, at)
            new_horizon = tombstones > 0 and horizon_ms is None
            if kept == header.record_count and not new_horizon:
                return memoryview(data)[at : at + header.size_bytes]
            base_ms = header.base_timestamp
            greatest_ms += base_ms
            if new_horizon:
                base_ms = self._now_ms + self._delete_retention_ms
            elif horizon_ms is None:
                base_ms += first_ms
            return _rewritten(
                header,
                data,
                at,
                body,
                extents,
                base_ms=base_ms,
                max_ms=greatest_ms,
                count=kept,
                sets_horizon=new_horizon,
            )
        except (ValueError, IndexError, OverflowError, struct.error) as error:
            raise Uncleanable(f"the batch at offset {header.base_offset}: {error}") from error

    def _control(
        self, header: BatchHeader, data: bytes, at: int, horizon_ms: int | None, *, horizon_is_over: bool
    ) -> Buffer | None:
        with memoryview(data) as view:
            batch = view[at : at + header.size_bytes]
            decides_nothing = self.transactions.control(header, read_marker(batch) if header.record_count else None)
        if not header.record_count or (decides_nothing and horizon_is_over):
            return self._emptied(header, data, at)
        self._counts.records_kept += header.record_count
        if not decides_nothing or horizon_ms is not None:
            return memoryview(data)[at : at + header.size_bytes]
        body, begin, end = records_of(header, data, at)
        return _rewritten(
            header,
            data,
            at,
            body,
            [begin, end],
            base_ms=self._now_ms + self._delete_retention_ms,
            max_ms=header.max_timestamp,
            count=header.record_count,
            sets_horizon=True,
        )

    def _emptied(self, header: BatchHeader, data: bytes, at: int) -> Buffer | None:
        """Return the header of a batch of which no record is left, or None if it is not needed."""
        if not (self._holds_sequence(header) or header.last_offset + 1 == self._upper_bound):
            return None
        batch = bytearray(memoryview(data)[at : at + HEADER_BYTES])
        attributes = header.attributes & ~(CODEC_BITS | DELETE_HORIZON)
        _finish(batch, header, attributes, base_ms=NO_TIMESTAMP, max_ms=header.max_timestamp, count=0)
        return batch

    def _holds_sequence(self, header: BatchHeader) -> bool:
        """Return whether an active producer's state would be lost with the batch."""
        active = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if active is None:
            return False
        if active.last_data_offset >= 0:
            return header.last_offset == active.last_data_offset
        return header.is_control and header.producer_epoch == active.epoch


def _rewritten(
    header: BatchHeader,
    data: bytes,
    at: int,
    body: bytes,
    extents: list[int],
    *,
    base_ms: int,
    max_ms: int,
    count: int,
    sets_horizon: bool,
) -> bytearray:
    """Return the batch with the records of `extents` alone, under its own codec."""
    shift_ms = header.base_timestamp - base_ms
    if shift_ms:
        records: Buffer = compaction.LOOP.shifted(body, extents, shift_ms & _MASK)
    else:
        records = b"".join([body[extents[i] : extents[i + 1]] for i in range(0, len(extents), 2)])
    batch = bytearray(memoryview(data)[at : at + HEADER_BYTES])
    batch += compress(header.codec, records) if header.codec else records
    attributes = header.attributes | (DELETE_HORIZON if sets_horizon else 0)
    _finish(
        batch,
        header,
        attributes,
        base_ms=base_ms,
        max_ms=header.max_timestamp if header.log_append_time else max_ms,
        count=count,
    )
    return batch


def _finish(batch: bytearray, header: BatchHeader, attributes: int, *, base_ms: int, max_ms: int, count: int) -> None:
    """Put into the copied header what has changed."""
    _NUMBER.pack_into(batch, _LENGTH_AT, len(batch) - PREFIX_BYTES)
    _MIDDLE.pack_into(batch, CRC_FROM, attributes, header.last_offset_delta, base_ms, max_ms)
    _NUMBER.pack_into(batch, _COUNT_AT, count)
    write_crc(batch, 0, len(batch))
