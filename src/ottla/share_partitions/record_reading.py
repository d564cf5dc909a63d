"""Reads record batches for a share fetch: their extents are acquired; some belong to aborted transactions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.client.isolation import AbortedFilter
from ottla.records.batch import split
from ottla.records.record_reader import read_records
from ottla.replication.partition import Partition
from ottla.share_partitions.acknowledgements import AcquiredRecords
from ottla.share_partitions.events import Extent
from ottla.storage.state.aborted_index import AbortedTransaction

READ_BYTES_MAX = 1 << 20
"""Bound on what one share fetch reads of a partition, on the event loop; a first batch may be larger."""


class ReadBatches(NamedTuple):
    """Holds whole batches of one partition."""

    offset: int  # from which on was read
    data: bytes
    batches: Sequence[Extent]
    places: Sequence[int]  # where each batch begins in `data`
    aborted: Sequence[Extent]

    def holding(self, acquired: Sequence[AcquiredRecords]) -> memoryview:
        """Return the batches from the first to the last acquired record."""
        first, last = acquired[0].first, acquired[-1].last
        inside = [at for at, batch in enumerate(self.batches) if batch.last >= first and batch.first <= last]
        end = self.places[inside[-1] + 1] if inside[-1] + 1 < len(self.places) else len(self.data)
        return memoryview(self.data)[self.places[inside[0]] : end]


def read_batches(partition: Partition, offset: int, *, max_bytes: int, committed_only: bool) -> ReadBatches | None:
    """Read whole batches from the one that holds `offset`; None if there are none yet. Raises KafkaError."""
    log_end = partition.last_stable_offset if committed_only else partition.high_watermark
    if offset >= log_end:
        return None
    found = partition.read(
        max(offset, partition.log.log_start_offset),
        max_bytes=min(max_bytes, READ_BYTES_MAX),
        committed_only=committed_only,
        at_least_one=True,
    )
    if found.region is None:
        return None
    try:
        data = found.region.read()
    except OSError as error:
        raise partition.not_readable(error) from error
    batches, places = [], []
    for at, header in split(memoryview(data)):
        batches.append(Extent(header.base_offset, header.last_offset))
        places.append(at)
    return ReadBatches(offset, data, batches, places, _aborted(data, found.aborted or ())) if batches else None


def _aborted(data: bytes, transactions: Iterable[AbortedTransaction]) -> list[Extent]:
    """Return the batches of aborted transactions."""
    known = [(one.producer_id, one.first_offset) for one in transactions]
    if not known:
        return []
    judge, found = AbortedFilter(known), []
    view = memoryview(data)
    for at, header in split(view):
        if header.is_control:
            key = next((record.key for record in read_records(view[at : at + header.size_bytes])), None)
            judge.end_transaction(producer_id=header.producer_id, last_offset=header.last_offset, control_key=key)
        elif judge.is_aborted(
            producer_id=header.producer_id, last_offset=header.last_offset, transactional=header.is_transactional
        ):
            found.append(Extent(header.base_offset, header.last_offset))
    return found
