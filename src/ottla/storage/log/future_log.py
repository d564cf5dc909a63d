"""Keeps a future log equal to the log that it is copied from and will replace (`directories/log_replacement.py`)."""

from __future__ import annotations

import logging

from ottla.core.errors import CorruptMessage
from ottla.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


def truncate_to_common_prefix(future: PartitionLog, log: PartitionLog) -> None:
    """Truncate a future log where it diverges from what the log has by now.

    Batches of the same epoch and offset are the same. Raises StorageError.
    """
    if log.log_start_offset < future.log_start_offset or log.log_start_offset > future.end_offset:
        future.truncate_fully_and_start_at(log.log_start_offset)
    while future.epochs.entries:
        epoch, start_offset = future.epochs.entries[-1]
        theirs = log.epoch_end_offset(epoch)
        end_offset = theirs.end_offset if theirs.epoch == epoch else start_offset
        if end_offset > start_offset:
            if end_offset < future.end_offset:
                truncate_copy(future, end_offset)
            return
        truncate_copy(future, start_offset)
    truncate_copy(future, min(future.end_offset, future.high_watermark, log.end_offset))


def truncate_copy(future: PartitionLog, offset: int) -> None:
    """Truncate a future log; one that is corrupt there becomes empty, and is copied again. Raises StorageError."""
    try:
        future.truncate_to(offset)
    except CorruptMessage as error:
        logger.warning("the copy of %s is corrupt and is made again: %s", future.topic_partition, error)
        future.truncate_fully_and_start_at(future.log_start_offset)


def has_all_of(future: PartitionLog, log: PartitionLog) -> bool:
    """Return whether a future log has all records of the log, and all of it is on the disk."""
    return (
        future.end_offset == future.flushed_offset == log.end_offset
        and future.log_start_offset == log.log_start_offset
        and not future.is_dirty
        and not future.is_truncating
    )


def write_small_files(future: PartitionLog, log: PartitionLog) -> None:
    """Write what the batches do not show: epochs without records, and the state of producers.

    The files are pending then. Raises OSError.
    """
    future.epochs.replace_all(log.epochs)
    future.pending_flush.write_epochs(future.directory, future.epochs)
    future.pending_flush.add_files(future.snapshots.write(future.end_offset, log.producers))
