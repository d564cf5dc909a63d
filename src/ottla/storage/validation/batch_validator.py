"""Validates a client's batch before its append, as Kafka's leader does: its framing, its checksum and its header.

Its records are validated by `record_validator.py`.
"""

from __future__ import annotations

from typing import Final

from ottla.core.errors import CorruptMessage, InvalidRecord, KafkaError, MessageTooLarge, RecordListTooLarge
from ottla.records.batch import (
    CODEC_BITS,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_END_OFFSET,
    PREFIX_BYTES,
    BatchHeader,
)
from ottla.records.batch_faults import (
    INCOMPLETE,
    WRONG_LENGTH,
    WRONG_MAGIC,
    framing_fault,
    is_checksum_right,
    order_fault,
)
from ottla.storage.config import LogConfig
from ottla.storage.validation.record_validator import (
    NOT_PLAIN,
    required_validation,
    validate_in_place,
    validate_records,
)

_CODEC_MAX: Final = 4
_CHECKED_ATTRIBUTES: Final = CONTROL | CODEC_BITS
_MAGIC_AT: Final = 16
NO_EPOCH_LIMIT: Final = (1 << 31) - 1
_OLD_RECORD_BYTES: Final = 14  # Kafka's LegacyRecord.RECORD_OVERHEAD_V0: no batch of any format has a smaller length
_ONE_BATCH: Final = "Produce requests must contain exactly one record batch per partition"


def read_header(records: memoryview) -> BatchHeader:
    """Read the header of a client's batch. Raises InvalidRecord or CorruptMessage for too few bytes."""
    if records.nbytes < HEADER_BYTES:
        raise _incomplete_batch(records)
    return BatchHeader(records, 0)


def _incomplete_batch(records: memoryview) -> KafkaError:
    """Return the error for bytes that are too few for a record batch.

    As in Kafka they are INVALID_RECORD, which producers do not retry, unless a length or a magic shows corruption.
    """
    size = records.nbytes
    if size >= PREFIX_BYTES:
        length = int.from_bytes(records[PREFIX_BYTES - 4 : PREFIX_BYTES], "big", signed=True)
        if length < _OLD_RECORD_BYTES or PREFIX_BYTES + length <= size:
            return CorruptMessage(f"Record batch of {length} bytes is smaller than its own header")
        if size > _MAGIC_AT and records[_MAGIC_AT] > MAGIC:
            return CorruptMessage(f"Record batch has the unknown magic {records[_MAGIC_AT]}")
    return InvalidRecord(f"{_ONE_BATCH}; {size} bytes are no whole batch")


def validate_batch(header: BatchHeader, records: memoryview, config: LogConfig) -> None:
    """Refuse bytes that are not exactly one whole batch of magic 2 with a right checksum, and not too large.

    Raises CorruptMessage, InvalidRecord, MessageTooLarge or RecordListTooLarge.
    """
    size = header.size_bytes
    if header.magic != MAGIC or size != records.nbytes:
        raise _framing_error(header, records.nbytes)
    if size > config.max_message_bytes:
        raise MessageTooLarge(
            f"The record batch size in the append is {size} bytes which exceeds the maximum configured value of "
            f"{config.max_message_bytes}"
        )
    if not is_checksum_right(records, header):
        raise CorruptMessage("Record is corrupt: its checksum does not match")
    if header.record_count != header.last_offset_delta + 1 or header.record_count <= 0:
        raise InvalidRecord(
            f"Inconsistent batch offset range: last offset delta {header.last_offset_delta} "
            f"with {header.record_count} records"
        )
    if size > config.segment_bytes:
        raise RecordListTooLarge(
            f"Append of {size} bytes exceeds the maximum configured segment size of {config.segment_bytes}"
        )


def _framing_error(header: BatchHeader, given: int) -> KafkaError:
    """Return the error for bytes that are not exactly one batch of magic 2."""
    size, fault = header.size_bytes, framing_fault(header, given)
    if fault == WRONG_MAGIC:
        if not 0 <= header.magic < MAGIC or header.batch_length < _OLD_RECORD_BYTES:
            return CorruptMessage(f"Record batch has the unknown magic {header.magic}, or no possible length")
        return InvalidRecord(f"Record batches must have magic version 2, this has {header.magic}")
    if fault == WRONG_LENGTH:
        return CorruptMessage(f"Record batch of {size} bytes is smaller than its own header")
    if size > given:
        return InvalidRecord(f"{_ONE_BATCH}; this one has {size} bytes, and {given} came")
    return InvalidRecord(_ONE_BATCH)


def check_client_batch(header: BatchHeader) -> None:
    """Refuse what only clients may not write, by a batch's header. Raises InvalidRecord."""
    attributes = header.attributes
    if attributes & _CHECKED_ATTRIBUTES:
        if attributes & CONTROL:
            raise InvalidRecord("Clients are not allowed to write control records")
        if attributes & CODEC_BITS > _CODEC_MAX:
            raise InvalidRecord(f"Unknown compression type id: {attributes & CODEC_BITS}")
    if header.base_offset:
        raise InvalidRecord(f"The baseOffset of the record batch should be 0, but it is {header.base_offset}")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord(
            f"Invalid sequence number {header.base_sequence} in record batch with producerId {header.producer_id}"
        )


def validate_for_append(
    header: BatchHeader, records: memoryview, config: LogConfig, *, now_ms: int, from_client: bool
) -> tuple[memoryview, BatchHeader]:
    """Validate a batch, and its records where the settings require it; returns what is to be written and its header.

    Raises the errors of `validate_batch` and of `validated`.
    """
    validate_batch(header, records, config)
    if from_client and (header.attributes & _CHECKED_ATTRIBUTES or header.base_offset or header.producer_id >= 0):
        check_client_batch(header)  # most batches have nothing that it could refuse
    if not (
        config.requires_record_validation
        or header.max_timestamp > now_ms + config.timestamp_after_max_ms
        or header.attributes & LOG_APPEND_TIME
    ):
        return records, header
    if from_client and not header.attributes & NOT_PLAIN and not config.target_codec:
        validate_in_place(records, header, config, now_ms)
        return records, header
    return validated(records, header, config, now_ms=now_ms, from_client=from_client)


def validated(
    records: memoryview, header: BatchHeader, config: LogConfig, *, now_ms: int, from_client: bool
) -> tuple[memoryview, BatchHeader]:
    """Validate the records of a batch that was not validated for this log's settings yet; returns it and its header.

    Runs on the loop, however long it takes: `broker/record_validation_queue.py` validates long ones in a thread before.
    Raises InvalidRecord, InvalidTimestamp, MessageTooLarge or RecordListTooLarge.
    """
    task = required_validation(header, config, now_ms=now_ms, from_client=from_client)
    if task is None:
        return records, header
    records = validate_records(records, task)
    return records, BatchHeader(records, 0)


def validate_follower_batches(
    records: memoryview, *, end_offset: int, last_epoch: int, leader_epoch: int = NO_EPOCH_LIMIT
) -> list[tuple[int, BatchHeader]]:
    """Return the whole batches a leader sent and where they begin; a torn last one is left out.

    Raises CorruptMessage for a wrong checksum, a wrong magic, an offset below the log's end, or an epoch that is lower
    than `last_epoch`, the last one of the log, or than that of the batch before, or higher than `leader_epoch`.
    """
    batches: list[tuple[int, BatchHeader]] = []
    at, size = 0, records.nbytes
    while at + HEADER_BYTES <= size:
        header = BatchHeader(records, at)
        fault = framing_fault(header, size - at)
        if fault == INCOMPLETE and header.last_offset_delta >= 0:
            break
        if fault:
            raise CorruptMessage(f"The leader's answer holds no record batch at byte {at}")
        if order_fault(header, end_offset, NO_END_OFFSET):
            raise CorruptMessage(
                f"The leader sent offset {header.base_offset}, but the log already ends at {end_offset}"
            )
        if not is_checksum_right(records, header, at):
            raise CorruptMessage(f"The batch at offset {header.base_offset} is corrupt")
        epoch = header.partition_leader_epoch
        if not last_epoch <= epoch <= leader_epoch:
            raise CorruptMessage(
                f"The batch at offset {header.base_offset} has leader epoch {epoch}, which is not within {last_epoch} "
                f"to {leader_epoch}"
            )
        last_epoch = epoch
        batches.append((at, header))
        end_offset = header.last_offset + 1
        at += header.size_bytes
    return batches
