"""Removes what an append wrote before it failed unexpectedly.

The batch may be in the file while the log's end, its epochs or its producers do not know it: the next append would
write the same offsets after it. A truncation to the offset where the batch began removes it and reads that state from
the rest of the log again.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from ottla.core.errors import StorageError

if TYPE_CHECKING:
    from ottla.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


def undo_append(log: PartitionLog, first_offset: int, last_offset: int, error: Exception) -> None:
    """Restore the log as it was before the append of these offsets.

    Raises StorageError, and the directory is offline, where that fails too.
    """
    times = log.failed_appends = log.failed_appends + 1
    if not times & (times - 1):  # the 1st, 2nd, 4th: not at every attempt of a client
        text = "append to %s at offset %d failed, %d times now; what it wrote is removed. Please report this as a bug"
        logger.error(text, log.topic_partition, first_offset, times, exc_info=error)
    log.end_offset = max(log.end_offset, last_offset + 1)
    try:
        log.truncate_to(first_offset)
    except StorageError:
        raise
    except Exception as broken:
        what = f"removing what a failed append wrote to {log.topic_partition}"
        raise log.health.fail(what, OSError(errno.EIO, repr(broken))) from broken
