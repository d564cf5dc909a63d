"""Counts the records that producers produced, by partition and time, as records of the compacted topic `__audit`.

With these counts an audit compares the tables with what the producers sent, not only with what the log contains. A
producer counts a record when the broker has acknowledged it, in the bucket of the timestamp that the log has for it.
It reports totals: a later report replaces the earlier one under the same key. So a report need not be sent exactly
once, and compaction keeps the last report of each producer.

    key     topic|partition|producer|bucket     `web-access|3|9f0c...|1431856800000`
    value   the same as JSON, with the count and the first and last offset of the records

A report has the checksums of its records' content (`client/content.py`) by runs of offsets, short ones as long as they
are few. They are of the records as the program gave them to its producer, before these were put into batches: so an
audit finds a producer that sent another record's bytes, or sent them to another partition (CVE-2026-35554).

The audit trail of tiers and time buckets is from KAFKA-260; the offsets make it exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from ottla.client.content import ContentSum, content_sum

AUDIT_TOPIC = "__audit"
AUDIT_CONFIG = {"cleanup.policy": "compact"}
AUDIT_PARTITIONS = 1
"""One is enough: the topic has few records."""
BUCKET_MS = 10 * 60 * 1000
_VERSION = 2
_VERSIONS = (1, _VERSION)
"""Reports of version 1 have no runs."""
RUN_RECORDS = 256
"""Records that are summed up in one run at most, unless there are too many runs."""
RUNS_MAX = 1024
"""Runs of one report: a report is one record."""


class ContentRun(NamedTuple):
    """The checksums of a producer's records in a range of offsets, in which other producers may have records too."""

    first_offset: int
    end_offset: int
    sums: ContentSum


@dataclass(frozen=True, slots=True, order=True)
class ProducedCount:
    """The total of one producer for one bucket of one partition."""

    topic: str
    partition: int
    producer: str
    """Identifies one run of one producer; every run counts from zero under keys of its own."""
    bucket_ms: int
    """The start of the bucket in ms since 1970; -1 for records without a timestamp."""
    count: int
    first_offset: int
    last_offset: int
    runs: tuple[ContentRun, ...] = ()

    @property
    def key(self) -> bytes:
        """The key of the record in `__audit`; a later report replaces an earlier one with the same key."""
        return f"{self.topic}|{self.partition}|{self.producer}|{self.bucket_ms}".encode()

    @property
    def value(self) -> bytes:
        """The value of the record in `__audit`: JSON that repeats all fields of the key."""
        return json.dumps({"version": _VERSION, "tier": "producer", **self._fields()}, separators=(",", ":")).encode()

    def _fields(self) -> dict[str, object]:
        runs = [[run.first_offset, run.end_offset, *run.sums] for run in self.runs]
        return asdict(self) | {"runs": runs}


def parse_count(value: bytes) -> ProducedCount | None:
    """Parse the value of a record in `__audit`; None for another tier, a newer version, or invalid JSON.

    >>> parse_count(ProducedCount("web", 0, "me", 0, 3, 7, 9).value)
    ProducedCount(topic='web', partition=0, producer='me', bucket_ms=0, count=3, first_offset=7, last_offset=9, runs=())
    >>> parse_count(b"hello") is None
    True
    """
    try:
        fields = json.loads(value)
        if fields.pop("version") not in _VERSIONS or fields.pop("tier") != "producer":
            return None
        runs = tuple(_parse_run(*run) for run in fields.pop("runs", ()))
        count = ProducedCount(**fields, runs=runs)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    numbers = (count.partition, count.bucket_ms, count.count, count.first_offset, count.last_offset)
    whole = all(type(number) is int for number in numbers) and type(count.topic) is type(count.producer) is str
    return count if whole else None


def _parse_run(first_offset: int, end_offset: int, *sums: int) -> ContentRun:
    if not all(type(number) is int for number in (first_offset, end_offset, *sums)):
        raise ValueError("not a number")
    return ContentRun(first_offset, end_offset, ContentSum(*sums))


class _Bucket(NamedTuple):
    topic: str
    partition: int
    bucket_ms: int


@dataclass(slots=True)
class _Sum:
    count: int = 0
    first_offset: int = -1
    last_offset: int = -1
    runs: list[ContentRun] = field(default_factory=list)

    def add_run(self, run: ContentRun) -> None:
        """Add a run, to the last one if it continues it and stays short."""
        last = self.runs[-1] if self.runs else None
        continues = last is not None and last.end_offset == run.first_offset
        if last is not None and continues and last.sums.records + run.sums.records <= RUN_RECORDS:
            self.runs[-1] = _joined(last, run)
            return
        self.runs.append(run)
        if len(self.runs) > RUNS_MAX:
            ordered = sorted(self.runs)
            pairs = zip_longest(ordered[::2], ordered[1::2])
            self.runs = [one if other is None else _joined(one, other) for one, other in pairs]


def _joined(one: ContentRun, other: ContentRun) -> ContentRun:
    end = max(one.end_offset, other.end_offset)
    return ContentRun(one.first_offset, end, one.sums.plus(other.sums))


class ProducedCounter:
    """Counts acknowledged records. `reports` returns the totals so far; sending them twice changes nothing."""

    def __init__(self, producer: str) -> None:
        self.producer = producer
        self._sums: dict[_Bucket, _Sum] = {}

    def acknowledged(
        self, topic: str, partition: int, offset: int, timestamp_ms: int, checksum: int | None = None
    ) -> None:
        """Count a record that the broker acknowledged; see `acknowledged_run`."""
        self.acknowledged_run(topic, partition, offset, timestamp_ms, 1, () if checksum is None else (checksum,))

    def acknowledged_run(
        self,
        topic: str,
        partition: int,
        first_offset: int,
        timestamp_ms: int,
        count: int,
        checksums: Sequence[int] = (),
    ) -> None:
        """Count acknowledged records with consecutive offsets and timestamps of the same bucket.

        `checksums` are those of their content (`content.record_checksum`), if it is to be audited too.

        `timestamp_ms` is the one in the log, -1 if there is none. A response without an offset (acks=0, or a duplicate
        that the broker no longer remembers) is not counted: it does not prove that the records are in the log.
        """
        if first_offset < 0:
            return
        total = self._sums.setdefault(_Bucket(topic, partition, bucket_of(timestamp_ms)), _Sum())
        total.first_offset = first_offset if total.count == 0 else min(total.first_offset, first_offset)
        total.last_offset = max(total.last_offset, first_offset + count - 1)
        total.count += count
        for at in range(0, len(checksums), RUN_RECORDS):
            part = checksums[at : at + RUN_RECORDS]
            start = first_offset + at
            total.add_run(ContentRun(start, start + len(part), content_sum(start, part)))

    def reports(self) -> Iterator[ProducedCount]:
        """Yield the totals so far, sorted by partition and bucket."""
        for (topic, partition, bucket_ms), total in sorted(self._sums.items()):
            yield ProducedCount(
                topic,
                partition,
                self.producer,
                bucket_ms,
                total.count,
                total.first_offset,
                total.last_offset,
                tuple(sorted(total.runs)),
            )


def bucket_of(timestamp_ms: int) -> int:
    """Return the start of the bucket that contains a timestamp, in ms since 1970; -1 for no timestamp.

    >>> bucket_of(1_431_857_299_999), bucket_of(-1)
    (1431856800000, -1)
    """
    return timestamp_ms - timestamp_ms % BUCKET_MS if timestamp_ms >= 0 else -1
