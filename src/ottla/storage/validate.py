"""May this batch be appended? The checks Kafka's leader makes of what a client sends, on the header alone.

Records are looked into only where no header can answer: keys on a compacted topic, and a lower bound on time.
"""

from __future__ import annotations

from crc32c import crc32c

from ottla.core.errors import CorruptMessage, InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge
from ottla.core.settings import LONG_MAX
from ottla.records.batch import (
    CODEC_BITS,
    CONTROL,
    CRC_FROM,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    PREFIX_BYTES,
    BatchHeader,
)
from ottla.storage.config import LogConfig

_CODEC_MAX = 4


def check_batch(header: BatchHeader, records: memoryview, config: LogConfig) -> None:
    """What every appended batch must be: exactly one, whole, of magic 2, its checksum right, not too large.

    Raises CorruptMessage, InvalidRecord, MessageTooLarge or RecordListTooLarge.
    """
    size = header.batch_length + PREFIX_BYTES
    given = records.nbytes
    if header.magic != MAGIC:
        raise InvalidRecord(f"Record batches must have magic version 2, this has {header.magic}")
    if size != given:
        if size < HEADER_BYTES:
            raise CorruptMessage(f"Record batch of {size} bytes is smaller than its own header")
        if size > given:
            raise CorruptMessage(f"Record batch says it has {size} bytes, but only {given} came")
        raise InvalidRecord("Produce requests must contain exactly one record batch per partition")
    if size > config.max_message_bytes:
        raise MessageTooLarge(
            f"The record batch size in the append is {size} bytes which exceeds the maximum configured value of "
            f"{config.max_message_bytes}"
        )
    if crc32c(records[CRC_FROM:]) != header.crc:
        raise CorruptMessage("Record is corrupt: its checksum does not fit its content")
    if header.record_count != header.last_offset_delta + 1 or header.record_count <= 0:
        raise InvalidRecord(
            f"Inconsistent batch offset range: last offset delta {header.last_offset_delta} "
            f"with {header.record_count} records"
        )
    if size > config.segment_bytes:
        raise RecordListTooLarge(
            f"Append of {size} bytes exceeds the maximum configured segment size of {config.segment_bytes}"
        )


def check_client_batch(header: BatchHeader, records: memoryview, config: LogConfig, *, now_ms: int) -> None:
    """What is asked of a client's batch besides. Raises InvalidRecord or InvalidTimestamp."""
    attributes = header.attributes
    if attributes & CONTROL:
        raise InvalidRecord("Clients are not allowed to write control records")
    if header.base_offset:
        raise InvalidRecord(f"The baseOffset of the record batch should be 0, but it is {header.base_offset}")
    if attributes & CODEC_BITS > _CODEC_MAX:
        raise InvalidRecord(f"Unknown compression type id: {attributes & CODEC_BITS}")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord(
            f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id}"
        )
    if config.timestamp_type == "CreateTime":
        if attributes & LOG_APPEND_TIME:
            raise InvalidTimestamp("Producers must not set the timestamp type to LogAppendTime")
        if header.max_timestamp - now_ms > config.timestamp_after_max_ms:
            raise InvalidTimestamp(
                f"Timestamp {header.max_timestamp} of message is out of range: more than "
                f"{config.timestamp_after_max_ms} ms ahead of {now_ms}"
            )
        if config.timestamp_before_max_ms != LONG_MAX:
            _check_not_too_old(records, config, now_ms=now_ms)
    if "compact" in config.cleanup_policy:
        _check_keys(records)


def check_replicated(records: memoryview, *, end_offset: int) -> list[tuple[int, BatchHeader]]:
    """The whole batches a leader sent and where they begin; a torn last one is left out.

    Raises CorruptMessage for a wrong checksum, a wrong magic, or an offset that does not lie behind the log's end.
    """
    batches: list[tuple[int, BatchHeader]] = []
    at, room = 0, records.nbytes
    while at + HEADER_BYTES <= room:
        header = BatchHeader(records, at)
        size = header.size_bytes
        if header.magic != MAGIC or size < HEADER_BYTES or header.last_offset_delta < 0:
            raise CorruptMessage(f"The leader's answer holds no record batch at byte {at}")
        if at + size > room:
            break
        if header.base_offset < end_offset:
            raise CorruptMessage(
                f"The leader sent offset {header.base_offset}, but the log already ends at {end_offset}"
            )
        if crc32c(records[at + CRC_FROM : at + size]) != header.crc:
            raise CorruptMessage(f"The batch at offset {header.base_offset} is corrupt")
        batches.append((at, header))
        end_offset = header.last_offset + 1
        at += size
    return batches


def _check_keys(records: memoryview) -> None:
    from ottla.records.scanner import scan

    keyless = tuple(index for index, record in enumerate(scan(records)) if record.key is None)
    if keyless:
        raise InvalidRecord("Compacted topic cannot accept message without key", indexes=keyless)


def _check_not_too_old(records: memoryview, config: LogConfig, *, now_ms: int) -> None:
    from ottla.records.scanner import scan

    oldest = min((record.timestamp_ms for record in scan(records) if record.timestamp_ms >= 0), default=now_ms)
    if now_ms - oldest > config.timestamp_before_max_ms:
        raise InvalidTimestamp(
            f"Timestamp {oldest} of message is out of range: more than {config.timestamp_before_max_ms} ms "
            f"behind {now_ms}"
        )
