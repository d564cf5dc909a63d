"""Filters the batches of aborted transactions for read_committed consumers.

A fetch response lists the aborted transactions that overlap it, by producer id and first offset; a transaction ends at
its control batch (KIP-98). No I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ottla.records.batch import BatchHeader
from ottla.records.record_reader import read_records

_CONTROL_KEY = struct.Struct(">hh")  # version, type
_ABORT = 0


class AbortedFilter:
    """Decides for each batch of a fetch response, in order, whether it belongs to an aborted transaction."""

    __slots__ = ("_aborted", "_open")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Take `aborted`, which has (producer id, first offset) pairs; some brokers do not sort them."""
        self._aborted = sorted(aborted, key=lambda item: item[1], reverse=True)
        self._open: set[int] = set()

    def is_aborted(self, *, producer_id: int, last_offset: int, transactional: bool) -> bool:
        """Return whether the next batch belongs to an aborted transaction."""
        self._begin_up_to(last_offset)
        return transactional and producer_id in self._open

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[-1][1] <= offset:
            self._open.add(self._aborted.pop()[0])

    def end_transaction(self, *, producer_id: int, last_offset: int, control_key: bytes | None) -> None:
        """Note a control batch: an abort marker ends the producer's aborted transaction.

        The response may begin with it, and the transaction before the response.
        """
        self._begin_up_to(last_offset)
        if control_key is not None and len(control_key) >= 4 and _CONTROL_KEY.unpack_from(control_key)[1] == _ABORT:
            self._open.discard(producer_id)


def is_visible(header: BatchHeader, batch: memoryview, aborted: AbortedFilter, *, read_committed: bool) -> bool:
    """Return whether a consumer sees the records of the next batch of a response: no marker, and not aborted."""
    if header.is_control:
        key = next((record.key for record in read_records(batch)), None)
        aborted.end_transaction(producer_id=header.producer_id, last_offset=header.last_offset, control_key=key)
        return False
    is_aborted = aborted.is_aborted(
        producer_id=header.producer_id, last_offset=header.last_offset, transactional=header.is_transactional
    )
    return not (read_committed and is_aborted)
