"""Validates the records of a client's batch as Kafka's LogValidator does, and changes the batch's codec.

Every batch of a client is validated, unless its topic has `ottla.record.validation=header` and no other setting needs
the records (docs/design/storage.md): the payload decompresses, and holds as many well-formed records as the header
says, with offsets that follow one another, with a key where the topic compacts, and with timestamps within the topic's
bounds. The records are parsed in place without creating objects. Errors name each invalid record (KIP-467).

Everything here is a function of its arguments: heavy work can run in a thread (`broker/record_validation_queue.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.compiled import fastest
from ottla.core.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordFault,
    RecordListTooLarge,
)
from ottla.core.settings import INT_MAX, LONG_MAX
from ottla.records import _record_validator
from ottla.records.batch import CODEC_BITS, HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, stamp_create_time, with_payload
from ottla.storage.config import RECORD_BYTES_MAX, LogConfig

LOOP: Final = fastest(_record_validator)
"""The module with the loop over records: `_record_validator`, or its compiled twin."""
_validate_into: Final = LOOP.validate_into
COMPILED: Final = LOOP is not _record_validator
"""Whether the loop over records runs as machine code here."""

FAULTS_MAX: Final = 1000
"""Maximum number of invalid records of a batch that are named; a batch may hold millions."""
LOOP_RECORDS_MAX: Final = 16_384 if COMPILED else 256
"""Maximum number of records validated on the event loop: about a millisecond. Batches of more are for a thread."""

_WALKED_ON_LOOP_MAX: Final = 256 << 10  # within 5 ms, measured (docs/design/storage.md)
_RECODED_ON_LOOP_MAX: Final = 32 << 10
_CHUNK_RECORDS = 4096  # the compiled loop holds the interpreter that long: a quarter of a millisecond
_LZ4_SLOW: Final = 10  # from these levels on a megabyte takes 100 ms and more
_ZSTD_SLOW: Final = 10
_ANY_OLDEST_MS: Final = -LONG_MAX - 1
_ANY_NEWEST_MS: Final = LONG_MAX
NOT_PLAIN: Final = CODEC_BITS | LOG_APPEND_TIME
"""A batch with none of these attributes, for a topic without a codec of its own, is one for `validate_in_place`."""


class RecordValidation(NamedTuple):
    """The checks that the records of one batch need, and its target codec."""

    config: LogConfig  # the topic's settings, from which the rest follows
    codec: int  # that it is kept in
    recodes: bool  # which is not its producer's
    keyed: bool  # each record must have a key
    oldest_ms: int
    newest_ms: int

    def loop_bytes_max(self, record_count: int) -> int:
        """Return how many decompressed bytes may be validated on the event loop; the rest is for a thread."""
        if record_count > LOOP_RECORDS_MAX:
            return 0
        if not self.recodes:
            return _WALKED_ON_LOOP_MAX
        level = self.config.compression_level or 0
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
    bounded = from_client and not config.uses_log_append_time
    needed = target != codec or (
        from_client
        and (
            config.record_validation == "full"
            or config.is_compacted
            or (codec and config.max_decompressed_message_bytes < RECORD_BYTES_MAX)
            or header.log_append_time
            or (bounded and is_time_undecided(header, config, now_ms))
        )
    )
    if not needed:
        return None
    return RecordValidation(
        config=config,
        codec=target,
        recodes=target != codec,
        keyed=from_client and config.is_compacted,
        oldest_ms=now_ms - config.timestamp_before_max_ms if bounded else _ANY_OLDEST_MS,
        newest_ms=min(now_ms + config.timestamp_after_max_ms, LONG_MAX) if bounded else _ANY_NEWEST_MS,
    )


def is_time_undecided(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    """Return whether the topic's bounds on timestamps cannot be decided by a batch's header."""
    ahead = header.max_timestamp - now_ms > config.timestamp_after_max_ms
    return ahead or config.timestamp_before_max_ms != LONG_MAX


def validate_in_place(records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Validate the records of a client's uncompressed batch; corrects the greatest time in its header if it is wrong.

    The same as `validate_records` in one step, for the batches that almost every request carries. Raises InvalidRecord
    or InvalidTimestamp.
    """
    faults: list[tuple[int, int, int]] = []
    oldest_ms, newest_ms = _ANY_OLDEST_MS, _ANY_NEWEST_MS
    if not config.uses_log_append_time:
        oldest_ms = now_ms - config.timestamp_before_max_ms
        newest_ms = min(now_ms + config.timestamp_after_max_ms, LONG_MAX)
    try:
        found: tuple[int, int] = _validate_into(
            records,
            HEADER_BYTES,
            0,
            header.record_count,
            header.base_timestamp,
            oldest_ms,
            newest_ms,
            config.is_compacted,
            -1,
            faults,
            FAULTS_MAX,
            INT_MAX,
        )
    except ValueError as error:
        raise InvalidRecord(f"The batch holds {error}") from None
    end, greatest_ms = found
    if end != len(records):
        raise InvalidRecord("The batch holds bytes after its last record")
    if faults:
        raise _refusal(faults, oldest_ms, newest_ms)
    if greatest_ms != header.max_timestamp and not config.uses_log_append_time:
        stamp_create_time(records, header, greatest_ms)


def validate_records(records: memoryview, task: RecordValidation, *, limit: int | None = None) -> memoryview:
    """Validate the records; returns the batch to append: the same buffer, or a new one if its codec changes.

    Corrects the greatest time in the header if it is wrong. Raises InvalidRecord or InvalidTimestamp, and
    MessageTooLarge or RecordListTooLarge where the new codec makes the batch too large. With a `limit` in bytes
    `codecs.TooMuch` is raised where more would be decompressed; without, such a batch is invalid.
    """
    from ottla.records import codecs  # not at a start: cramjam is needed by few brokers at once

    header = BatchHeader(records, 0)
    most = codecs.decompressed_max(records.nbytes) if limit is None else limit
    try:
        payload = records[HEADER_BYTES:]
        if header.codec == codecs.Codec.LZ4:
            codecs.check_lz4_frame(payload)
        data = codecs.decompress_view(header.codec, payload, most)
    except CorruptMessage as error:
        raise InvalidRecord(f"The records cannot be decompressed: {error.message}") from None
    except codecs.TooMuch as error:
        if limit is not None:
            raise
        raise InvalidRecord(f"The records hold too much: {error}") from None
    try:
        greatest_ms = _walk(data, header, task)
        recoded = codecs.compress(task.codec, data, level=task.config.compression_level) if task.recodes else b""
    finally:
        codecs.release(data)
    if task.recodes:
        batch = with_payload(header, recoded, codec=task.codec, max_timestamp=greatest_ms)
        check_size(len(batch), task.config)
        return memoryview(batch)
    if greatest_ms != header.max_timestamp or header.log_append_time:
        stamp_create_time(records, header, greatest_ms)
    return records


def check_size(size_bytes: int, config: LogConfig) -> None:
    """Refuse a batch that is larger than the topic takes. Raises MessageTooLarge or RecordListTooLarge."""
    if size_bytes > config.max_message_bytes:
        raise MessageTooLarge(
            f"The record batch size in the append is {size_bytes} bytes which exceeds the maximum configured value of "
            f"{config.max_message_bytes}"
        )
    if size_bytes > config.segment_bytes:
        raise RecordListTooLarge(
            f"Append of {size_bytes} bytes exceeds the maximum configured segment size of {config.segment_bytes}"
        )


def _walk(data: memoryview, header: BatchHeader, task: RecordValidation) -> int:
    """Return the greatest time in a batch, whose records are all valid."""
    faults: list[tuple[int, int, int]] = []
    count, at, greatest_ms = header.record_count, 0, -1
    oldest_ms, newest_ms = task.oldest_ms, task.newest_ms
    size_max = task.config.max_decompressed_message_bytes if header.codec else INT_MAX
    if header.log_append_time:  # the times of the records do not count
        oldest_ms, newest_ms = _ANY_OLDEST_MS, _ANY_NEWEST_MS
    try:
        for first in range(0, count, _CHUNK_RECORDS):
            at, greatest_ms = _validate_into(
                data,
                at,
                first,
                min(_CHUNK_RECORDS, count - first),
                header.base_timestamp,
                oldest_ms,
                newest_ms,
                task.keyed,
                greatest_ms,
                faults,
                FAULTS_MAX,
                size_max,
            )
    except ValueError as error:
        raise InvalidRecord(f"The batch holds {error}") from None
    if at != len(data):
        raise InvalidRecord("The batch holds bytes after its last record")
    if header.log_append_time:
        greatest_ms = header.max_timestamp
        if fault := _fault_of_append_time(header, task):
            raise InvalidTimestamp(fault, records=_named_alike(count, fault, faults))
    if faults:
        raise _refusal(faults, task.oldest_ms, task.newest_ms)
    return greatest_ms


def _fault_of_append_time(header: BatchHeader, task: RecordValidation) -> str:
    """Return why a client's batch may not be of the timestamp type LogAppendTime; empty if it may.

    Where the topic keeps the times of producers, its one time is taken for the time of every record, as in Kafka.
    """
    time_ms = header.max_timestamp
    if task.config.uses_log_append_time or time_ms == -1:
        return "Producers must not set the timestamp type to LogAppendTime"
    if not task.oldest_ms <= time_ms <= task.newest_ms:
        return _outside(time_ms, task.oldest_ms, task.newest_ms)
    return ""


def _named_alike(count: int, message: str, keyless: list[tuple[int, int, int]]) -> tuple[RecordFault, ...]:
    """Name all records of a batch with one message, except those that have no key."""
    places = {place for place, _, _ in keyless}
    return tuple(
        RecordFault(place, _KEYLESS if place in places else message) for place in range(min(count, FAULTS_MAX))
    )


_KEYLESS: Final = "a compacted topic takes no record without a key"


def _outside(time_ms: int, oldest_ms: int, newest_ms: int) -> str:
    return f"the time {time_ms} is not within {oldest_ms} to {newest_ms}"


def _refusal(faults: list[tuple[int, int, int]], oldest_ms: int, newest_ms: int) -> InvalidRecord | InvalidTimestamp:
    """Return one error for all: a wrong time gives its code, as in Kafka, even beside records without a key."""
    named = tuple(
        RecordFault(place, _outside(time_ms, oldest_ms, newest_ms) if kind else _KEYLESS)
        for place, kind, time_ms in faults
    )
    many = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
    message = f"record {named[0].place}: {named[0].message}{many}"
    if any(kind for _, kind, _ in faults):
        return InvalidTimestamp(message, records=named)
    return InvalidRecord(message, records=named)
