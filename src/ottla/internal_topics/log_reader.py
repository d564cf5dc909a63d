"""Reads the log of an internal topic's partition, for the coordinator that loads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ottla.internal_topics.topic_log import RECORDS_ON_LOOP_MAX, LoadedRecords, ProducerIdentity
from ottla.records.batch import split
from ottla.records.record_reader import read_columns
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.state.end_marker import MarkerType, read_marker

READ_BYTES = 1 << 20


async def read_all(log: PartitionLog, end_offset: int) -> AsyncIterator[LoadedRecords]:
    """Yield everything from the start of the log to an offset, replicated or not. Raises KafkaError."""
    offset = log.log_start_offset
    while offset < end_offset:
        region = log.read(offset, max_bytes=READ_BYTES, end_offset=end_offset, at_least_one=True)
        if region is None:
            return
        offset, found = await asyncio.to_thread(decode_batches, region.read())
        for part in found:
            yield part


def decode_batches(data: bytes) -> tuple[int, list[LoadedRecords]]:
    """Decode complete batches; returns the offset after the last one too."""
    view = memoryview(data)
    found: list[LoadedRecords] = []
    next_offset = 0
    for at, header in split(view):
        next_offset = header.last_offset + 1
        batch = view[at : at + header.size_bytes]
        producer = ProducerIdentity(header.producer_id, header.producer_epoch) if header.is_transactional else None
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None:
                found.append(LoadedRecords((), producer, marker.type is MarkerType.COMMIT, header.base_offset))
            continue
        columns = read_columns(batch, want=("key", "value"))
        pairs = [(key, value) for key, value in zip(columns.keys, columns.values, strict=True) if key is not None]
        firsts = range(0, len(pairs), RECORDS_ON_LOOP_MAX)
        found.extend(
            LoadedRecords(pairs[first : first + RECORDS_ON_LOOP_MAX], producer, base_offset=header.base_offset)
            for first in firsts
        )
    return next_offset, found
