"""Holds the results of an audit as values, and their sums. Reads nothing.

A line is one bucket of record time in one partition:

    produced     what producers that report say was acknowledged (`client/audit.py`)
    in_log       records the log holds
    loaded       rows of the table            (late: those of them that are late)
    quarantined  rows of the quarantine
    skipped      offsets that a load skipped, for they were deleted from the log before (`on_loss = "skip"`)
    replaced     records that a later one of their key replaced, and deletions, where rows change
    deleted      offsets without a row whose rows were deleted on purpose, as declared
    missing      other records the log holds and neither table does, below the table's position
    duplicated   rows whose offset another row has
    waiting      records after the table's position: the lag, which is no fault
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum

from ottla.pipeline.lake.rowless_offsets import Deletion
from ottla.pipeline.offset_range import OffsetRange, offsets_text

NO_TIME = -1
"""The bucket of records that carry no time."""


class DiscrepancyKind(Enum):
    """Names the kinds of discrepancy."""

    MISSING = "missing"
    DUPLICATED = "duplicated"
    FOREIGN = "foreign"
    LOST = "lost"
    UNREAD = "unread"
    STALE = "stale"
    CHANGED = "changed"
    NOT_AS_LOADED = "not_as_loaded"
    LOG_CHANGED = "log_changed"
    NOT_AS_PRODUCED = "not_as_produced"

    @property
    def of_content(self) -> bool:
        """Return whether the records are complete, and the content of some is another."""
        return self in _OF_CONTENT


_OF_CONTENT = {
    DiscrepancyKind.CHANGED,
    DiscrepancyKind.NOT_AS_LOADED,
    DiscrepancyKind.LOG_CHANGED,
    DiscrepancyKind.NOT_AS_PRODUCED,
}


_TEXTS = {
    DiscrepancyKind.MISSING: "{count} records of the log are in neither table",
    DiscrepancyKind.DUPLICATED: "{count} rows repeat an offset",
    DiscrepancyKind.FOREIGN: "{count} rows have an offset that the log holds no record for",
    DiscrepancyKind.LOST: "{count} records that producers had acknowledged are not in the log",
    DiscrepancyKind.STALE: "{count} rows are not as the last record of their key says: it replaced or deleted them",
    DiscrepancyKind.UNREAD: "{count} offsets were deleted from the log before they were loaded",
    DiscrepancyKind.CHANGED: "{count} rows have another content than the records of the log",
    DiscrepancyKind.NOT_AS_LOADED: "{count} rows have another checksum than was loaded",
    DiscrepancyKind.LOG_CHANGED: "{count} records of the log have another checksum than was loaded",
    DiscrepancyKind.NOT_AS_PRODUCED: "{count} records of the log have another checksum than was produced",
}


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """An imbalance, and where: offsets from `first_offset` up to, not including, `end_offset`."""

    kind: DiscrepancyKind
    partition: int
    first_offset: int
    end_offset: int
    count: int
    bucket_ms: int | None = None
    """Of faults that belong to one bucket."""
    key: bytes | None = None
    """The key at the first offset, of tables whose rows change."""

    @property
    def text(self) -> str:
        """In words.

        >>> Discrepancy(DiscrepancyKind.MISSING, 2, 10, 14, 3).text
        'partition 2, offsets 10 to 13: 3 records of the log are in neither table'
        """
        offsets = offsets_text(self.first_offset, self.end_offset)
        key = "" if self.key is None else f", key {self.key.decode('utf-8', 'backslashreplace')}"
        return f"partition {self.partition}, {offsets}{key}: {_TEXTS[self.kind].format(count=f'{self.count:,}')}"


@dataclass(slots=True)
class AuditCounts:
    """Counts the offsets of one line of the audit, by outcome."""

    produced: int = 0
    in_log: int = 0
    loaded: int = 0
    quarantined: int = 0
    late: int = 0
    replaced: int = 0
    skipped: int = 0
    deleted: int = 0
    missing: int = 0
    duplicated: int = 0
    waiting: int = 0
    expired: int = 0
    """Rows whose record retention or compaction has since taken from the log: loaded in time, and no fault."""

    def add(self, other: AuditCounts) -> None:
        """Add every column of another line."""
        for column in fields(self):
            setattr(self, column.name, getattr(self, column.name) + getattr(other, column.name))


@dataclass(slots=True)
class ContentCounts:
    """Counts what the content of rows and records was compared with."""

    rows: int = 0
    """Rows that were compared with their records, or with the checksums of their load."""
    unproven_rows: int = 0
    """Rows without a record in the log whose load recorded no checksum, or with others than were loaded."""
    remade: int = 0
    """Rows that are as they were loaded, where the job file makes others of the same records today."""
    records: int = 0
    """Records of the log that were compared with what their producers reported."""
    unproven_records: int = 0
    """Other records in the ranges that producers reported."""

    def add(self, other: ContentCounts) -> None:
        """Add the counts of another partition."""
        for column in fields(self):
            setattr(self, column.name, getattr(self, column.name) + getattr(other, column.name))


@dataclass(slots=True)
class PartitionAudit:
    """One partition: its lines by bucket, and what is wrong."""

    partition: int
    first_offset: int
    """The beginning of the first load of the partition."""
    position: int
    """Up to here, exclusive, the table says it is loaded."""
    log_start: int
    log_end: int
    lines: dict[int, AuditCounts] = field(default_factory=dict)
    faults: list[Discrepancy] = field(default_factory=list)
    newest_ms: int = NO_TIME
    """The newest record time in the log."""
    waiting_from_ms: int | None = None
    """The oldest record time after the position; None if all is loaded."""
    skipped: Sequence[OffsetRange] = ()
    """The offsets that loads skipped, below the position."""
    content: ContentCounts | None = None
    """None if only offsets were compared."""

    def line(self, bucket_ms: int) -> AuditCounts:
        """Return the line of a bucket, made if it is not there."""
        return self.lines.setdefault(bucket_ms, AuditCounts())

    @property
    def total(self) -> AuditCounts:
        """Return the sum of all lines."""
        return total(self.lines.values())


@dataclass(frozen=True, slots=True)
class RecreatedTopic:
    """A topic that was deleted and created again: its offsets mean other records than the table's."""

    table_topic_id: str
    """The id of the topic that the table was loaded from."""
    topic_id: str


@dataclass(frozen=True, slots=True)
class TopicAudit:
    """The audit of one topic and its tables."""

    topic: str
    bucket_ms: int
    partitions: Sequence[PartitionAudit]
    producers: int
    """The number of producers that reported."""
    started_ms: int
    """The time at which the audit started."""
    deletions: Sequence[Deletion] = ()
    """The declarations of deleted rows."""
    recreated: RecreatedTopic | None = None
    """Set if the table's rows are another topic's: then nothing was compared."""
    by_key: bool = False
    """Whether the table's rows change: it was compared with the last record of each key."""

    @property
    def faults(self) -> list[Discrepancy]:
        """All that is wrong, by partition and offset."""
        discrepancies = [fault for partition in self.partitions for fault in partition.faults]
        return sorted(discrepancies, key=lambda fault: (fault.partition, fault.first_offset, fault.kind.value))

    @property
    def balanced(self) -> bool:
        """Nothing lost and nothing twice. What waits to be loaded is no imbalance."""
        return not self.faults and self.recreated is None

    @property
    def total(self) -> AuditCounts:
        """Return the sum over all partitions."""
        return total(partition.total for partition in self.partitions)

    @property
    def content(self) -> ContentCounts | None:
        """Return the sum over all partitions; None if only offsets were compared."""
        contents = [partition.content for partition in self.partitions if partition.content is not None]
        counts = ContentCounts()
        for one in contents:
            counts.add(one)
        return counts if contents else None

    @property
    def complete_until_ms(self) -> int | None:
        """The completeness watermark: every record with an earlier time that the log had is in the tables.

        The first moment of the earliest bucket that has a fault or a record still waiting; if none has, of the newest
        bucket, which may still be filling, or of that of the audit itself: a record with a time to come says nothing
        about the records until then. None while there is no record with a time, or a fault without one.
        """
        newest = min(self.started_ms, max((partition.newest_ms for partition in self.partitions), default=NO_TIME))
        if newest < 0:
            return None
        limits = [newest - newest % self.bucket_ms]
        for partition in self.partitions:
            if partition.waiting_from_ms is not None:
                limits.append(partition.waiting_from_ms - partition.waiting_from_ms % self.bucket_ms)
            incomplete = [fault for fault in partition.faults if not fault.kind.of_content]
            limits += [NO_TIME if fault.bucket_ms is None else fault.bucket_ms for fault in incomplete]
        return min(limits) if min(limits) >= 0 else None

    def by_bucket(self) -> Mapping[int, AuditCounts]:
        """Return the lines of all partitions added up, in order of time."""
        countses: dict[int, AuditCounts] = {}
        for partition in self.partitions:
            for bucket_ms, counts in partition.lines.items():
                countses.setdefault(bucket_ms, AuditCounts()).add(counts)
        return dict(sorted(countses.items()))


def total(lines: Iterable[AuditCounts]) -> AuditCounts:
    """Add up lines."""
    counts = AuditCounts()
    for line in lines:
        counts.add(line)
    return counts
