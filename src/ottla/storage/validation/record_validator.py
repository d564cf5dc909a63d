"""Validates the records of a client's batch where its header does not suffice, and changes its codec.

Most batches need no validation of records (docs/decisions/0031). Three settings require it: compaction (each record
needs a key), a bound on timestamps that the header does not decide, and a `compression.type` that is not the batch's.
The records are parsed without creating objects. Errors name each invalid record (KIP-467).

Everything here is a function of its arguments: heavy work can run in a thread (`broker/record_validation_queue.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.core.errors import CorruptMessage, InvalidRecord, InvalidTimestamp, RecordFault
from ottla.core.settings import LONG_MAX
from ottla.records.batch import HEADER_BYTES, BatchHeader, set_max_timestamp, with_payload
from ottla.storage.config import LogConfig

FAULTS_MAX = 1000
"""How many wrong records of a batch are named; a batch may hold millions."""

_WALKED_ON_LOOP_MAX, _RECODED_ON_LOOP_MAX = 256 << 10, 32 << 10  # within 5 ms, measured (docs/decisions/0031)
_CHUNK_RECORDS = 4096  # the compiled walk holds the interpreter that long: a quarter of a millisecond
_LZ4_SLOW, _ZSTD_SLOW = 10, 10  # from these levels on a megabyte takes 100 ms and more


class RecordValidation(NamedTuple):
    """The checks that the records of one batch need, and its target codec."""

    codec: int  # that it is kept in
    recodes: bool  # which is not its producer's
    level: int | None
    keyed: bool  # each record must have a key
    oldest_ms: int
    newest_ms: int

    @property
    def loop_bytes_max(self) -> int:
        """How many decompressed bytes may be done on the loop, where everybody waits; the rest is for a thread."""
        if not self.recodes:
            return _WALKED_ON_LOOP_MAX
        level = self.level or 0
        is_slow = (self.codec == 3 and level >= _LZ4_SLOW) or (self.codec == 4 and level >= _ZSTD_SLOW)
        return 0 if is_slow else _RECODED_ON_LOOP_MAX


def required_validation(
    header: BatchHeader, config: LogConfig, *, now_ms: int, from_client: bool = True
) -> RecordValidation | None:
    """Return the validation that a batch's records need; None if its header suffices.

    The broker's own batches (`from_client` false) are only given the topic's codec, and its markers not even that.
    """
    codec, target = header.codec, config.target_codec
    if target is None or header.is_control:
        target = codec
    keyed = from_client and config.is_compacted
    timed = from_client and not config.uses_log_append_time
    if timed:
        ahead = header.max_timestamp - now_ms > config.timestamp_after_max_ms
        timed = ahead or config.timestamp_before_max_ms != LONG_MAX
    if target == codec and not keyed and not timed:
        return None
    bounded = from_client and not config.uses_log_append_time
    return RecordValidation(
        codec=target,
        recodes=target != codec,
        level=config.compression_level if target != codec else None,
        keyed=keyed,
        oldest_ms=now_ms - config.timestamp_before_max_ms if bounded else -LONG_MAX,
        newest_ms=min(now_ms + config.timestamp_after_max_ms, LONG_MAX) if bounded else LONG_MAX,
    )


def validate_records(records: memoryview, task: RecordValidation, *, limit: int | None = None) -> memoryview:
    """Validate the records; returns the batch to append: the same buffer, or a new one if its codec changes.

    Corrects the greatest time in the header if it is wrong. Raises InvalidRecord or InvalidTimestamp. With a `limit` in
    bytes `codecs.TooMuch` is raised where more would be decompressed; without, such a batch is invalid.
    """
    from ottla.records import codecs  # not at a start: cramjam is needed by few brokers at once

    header = BatchHeader(records, 0)
    most = codecs.decompressed_max(records.nbytes) if limit is None else limit
    try:
        data = codecs.decompress_within(header.codec, records[HEADER_BYTES:], most)
    except CorruptMessage as error:
        raise InvalidRecord(f"the records cannot be decompressed: {error.message}") from error
    except codecs.TooMuch as error:
        if limit is not None:
            raise
        raise InvalidRecord(f"the records {error}") from error
    greatest_ms = _walk(data, header, task)
    if task.recodes:
        payload = codecs.compress(task.codec, data, level=task.level)
        return memoryview(with_payload(header, payload, codec=task.codec, max_timestamp=greatest_ms))
    if greatest_ms != header.max_timestamp:
        set_max_timestamp(records, header, greatest_ms)
    return records


def _walk(data: bytes, header: BatchHeader, task: RecordValidation) -> int:
    """The greatest time in a batch, whose records are all as they must be."""
    from ottla.records.record_reader import LOOP

    faults: list[tuple[int, int, int]] = []
    count, at, greatest_ms = header.record_count, 0, -1
    try:
        for first in range(0, count, _CHUNK_RECORDS):
            at, greatest_ms = LOOP.check_into(
                data,
                at,
                first,
                min(_CHUNK_RECORDS, count - first),
                header.base_timestamp,
                task.oldest_ms,
                task.newest_ms,
                task.keyed,
                greatest_ms,
                faults,
                FAULTS_MAX,
            )
    except ValueError as error:
        raise InvalidRecord(f"the batch holds {error}") from error
    if at != len(data):
        raise InvalidRecord("the batch holds bytes after its last record")
    if faults:
        raise _refusal(faults, task)
    return greatest_ms


def _refusal(faults: list[tuple[int, int, int]], task: RecordValidation) -> InvalidRecord | InvalidTimestamp:
    """One error for all: a wrong time gives its code, as in Kafka, even beside records without a key."""
    keyless = "a compacted topic takes no record without a key"
    named = tuple(
        RecordFault(
            place, f"the time {time_ms} is not within {task.oldest_ms} to {task.newest_ms}" if kind else keyless
        )
        for place, kind, time_ms in faults
    )
    many = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
    message = f"record {named[0].place}: {named[0].message}{many}"
    if any(kind for _, kind, _ in faults):
        return InvalidTimestamp(message, records=named)
    return InvalidRecord(message, records=named)
