"""What producers say they produced: counts by partition and time, as records of the compacted topic `__audit`.

A producer that reports lets the books begin at its own end instead of at the broker's log. It counts a record when the
broker has acknowledged it, in the bucket of the timestamp that the log holds for it, and reports sums, not steps: a
report sent again, or after more was counted, replaces the one before under the same key. So nothing has to be sent
exactly once, and compaction keeps the last word of each producer.

    key     topic|partition|producer|bucket     `web-access|3|9f0c...|1431856800000`
    value   the same as JSON, with the count and the offsets between which the records lie

The idea is that of an audit trail of tiers and time buckets (KAFKA-260); offsets make it exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

AUDIT_TOPIC = "__audit"
AUDIT_CONFIG = {"cleanup.policy": "compact"}
AUDIT_PARTITIONS = 1
"""Few records, and one place to read them from."""
BUCKET_MS = 10 * 60 * 1000
_VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class ProducedCount:
    """One producer's sum for one bucket of one partition."""

    topic: str
    partition: int
    producer: str
    """One run of one producer: it counts from nothing and never shares a key with another."""
    bucket_ms: int
    """The bucket's first moment, ms since 1970; -1 for records without a time."""
    count: int
    first_offset: int
    last_offset: int

    @property
    def key(self) -> bytes:
        """What a later report replaces."""
        return f"{self.topic}|{self.partition}|{self.producer}|{self.bucket_ms}".encode()

    @property
    def value(self) -> bytes:
        """JSON, understood without its key."""
        return json.dumps({"version": _VERSION, "tier": "producer", **asdict(self)}, separators=(",", ":")).encode()


def parse_count(value: bytes) -> ProducedCount | None:
    """A report from its record's value; None for what is none: another tier, a newer version, or no JSON.

    >>> parse_count(ProducedCount("web", 0, "me", 0, 3, 7, 9).value)
    ProducedCount(topic='web', partition=0, producer='me', bucket_ms=0, count=3, first_offset=7, last_offset=9)
    >>> parse_count(b"hello") is None
    True
    """
    try:
        fields = json.loads(value)
        if fields.pop("version") != _VERSION or fields.pop("tier") != "producer":
            return None
        found = ProducedCount(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    numbers = (found.partition, found.bucket_ms, found.count, found.first_offset, found.last_offset)
    whole = all(type(number) is int for number in numbers) and type(found.topic) is type(found.producer) is str
    return found if whole else None


class _Bucket(NamedTuple):
    topic: str
    partition: int
    bucket_ms: int


@dataclass(slots=True)
class _Sum:
    count: int = 0
    first_offset: int = -1
    last_offset: int = -1


class ProducedCounter:
    """Counts acknowledgements. `reports` gives the sums so far; sending them again is harmless."""

    def __init__(self, producer: str) -> None:
        self.producer = producer
        self._sums: dict[_Bucket, _Sum] = {}

    def acknowledged(self, topic: str, partition: int, offset: int, timestamp_ms: int) -> None:
        """The broker has the record. `timestamp_ms` as the log holds it, -1 if it has none.

        An answer without an offset (acks=0, or a repeat the broker no longer remembers) is not counted: nothing says
        that the record is there.
        """
        if offset < 0:
            return
        found = self._sums.setdefault(_Bucket(topic, partition, bucket_of(timestamp_ms)), _Sum())
        found.first_offset = offset if found.count == 0 else min(found.first_offset, offset)
        found.last_offset = max(found.last_offset, offset)
        found.count += 1

    def reports(self) -> Iterator[ProducedCount]:
        """The sums so far, sorted."""
        for (topic, partition, bucket_ms), found in sorted(self._sums.items()):
            yield ProducedCount(
                topic, partition, self.producer, bucket_ms, found.count, found.first_offset, found.last_offset
            )


def bucket_of(timestamp_ms: int) -> int:
    """The first moment of the bucket a time lies in, counted from 1970; -1 for no time.

    >>> bucket_of(1_431_857_299_999), bucket_of(-1)
    (1431856800000, -1)
    """
    return timestamp_ms - timestamp_ms % BUCKET_MS if timestamp_ms >= 0 else -1
