"""Names the files in a partition's directory, as in Kafka: 20 digits of an offset and a suffix."""

from __future__ import annotations

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
CHECKSUMS_SUFFIX = ".sums"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
"""The files of one segment that Kafka has too."""


def offset_name(offset: int, suffix: str) -> str:
    """Return a file's name from an offset.

    >>> offset_name(1001, ".log")
    '00000000000000001001.log'
    """
    return f"{offset:020}{suffix}"
