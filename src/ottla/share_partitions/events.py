"""Declares the events of a share partition's state machine (`machine.py`) and its outputs.

Values only. A ticket is a number that identifies a waiting request. Times are milliseconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla.core.errors import ErrorCode
from ottla.share_coordinator.states import StateBatch
from ottla.share_partitions.acknowledgements import AcknowledgementBatch, AcquireMode


class SharePartitionLimits(NamedTuple):
    """Holds the settings of the group that apply to its share partitions."""

    lock_duration_ms: int = 30_000
    delivery_count_max: int = 5
    record_locks_max: int = 2_000
    may_renew: bool = True
    has_dead_letter_queue: bool = False


class Extent(NamedTuple):
    """Holds the first and the last offset of a record batch."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquire:
    """ShareFetch: the member wants the records that were read from the log at `fetch_offset`."""

    member: str
    fetch_offset: int
    batches: Sequence[Extent]  # what was read; not empty
    max_records: int
    batch_size: int = 500  # new records are acquired in pieces of about so many
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    aborted: Sequence[Extent] = ()  # of these batches, those of aborted transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """ShareAcknowledge, or the acknowledgements of a ShareFetch. The batches are sorted and do not overlap."""

    member: str
    batches: Sequence[AcknowledgementBatch]


@dataclass(frozen=True, slots=True)
class Release:
    """The member's share session has ended: what it holds becomes available."""

    member: str


@dataclass(frozen=True, slots=True)
class LocksDue:
    """An acquisition lock may have expired."""


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """Records before this offset are deleted."""

    offset: int


@dataclass(frozen=True, slots=True)
class Persisted:
    """The write of a `Persist` is durable."""

    write: int


@dataclass(frozen=True, slots=True)
class NotPersisted:
    """The write of a `Persist` failed; it may be durable all the same."""

    write: int
    error: ErrorCode
    message: str = ""


class DeadLetters(NamedTuple):
    """Names consecutive records for the dead letter queue, and why they are archived."""

    first: int
    last: int
    delivery_count: int
    cause: str


@dataclass(frozen=True, slots=True)
class DeadLettersDone:
    """The records of a `WriteDeadLetters` are in the dead letter queue, or that was given up."""

    letters: tuple[DeadLetters, ...]


Event = Acknowledge | Release | LocksDue | LogStartMoved | Persisted | NotPersisted | DeadLettersDone


class ShareReply(NamedTuple):
    """Answers the request with this ticket."""

    ticket: int
    error: ErrorCode
    message: str = ""


class Persist(NamedTuple):
    """Writes the states of offsets to the share coordinator; `Persisted` or `NotPersisted` follows."""

    write: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class WriteDeadLetters(NamedTuple):
    """Writes records to the dead letter queue; `DeadLettersDone` follows, after which they are archived."""

    letters: tuple[DeadLetters, ...]


class AvailabilityChanged(NamedTuple):
    """Records became available or the start moved: fetches that wait may succeed now."""


Output = ShareReply | Persist | WriteDeadLetters | AvailabilityChanged
