"""Declares how records are acquired and acknowledged, with the numbers of the protocol (KIP-932)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class AcknowledgeType(IntEnum):
    """Lists what a consumer may do with an acquired record."""

    GAP = 0  # the log has no record at this offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4  # v2 and newer (KIP-1222): the lock starts again


class AcquireMode(IntEnum):
    """Lists how the limit on the number of records applies (KIP-1206)."""

    BATCH_OPTIMIZED = 0  # whole record batches are acquired, which may exceed the limit
    RECORD_LIMIT = 1  # never more than the limit


class AcquiredRecords(NamedTuple):
    """Holds consecutive offsets that were acquired with one fetch."""

    first: int
    last: int
    delivery_count: int


class AcknowledgementBatch(NamedTuple):
    """Holds the acknowledgement of consecutive offsets: one type for all of them, or one each."""

    first: int
    last: int
    types: tuple[int, ...]
