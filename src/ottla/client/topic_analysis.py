"""Analyzes the records of a topic: batches, codecs, sizes, rates, keys, and how they are spread over partitions.

`TopicAnalysis` counts what a consumer reads; its memory is bounded, whatever the topic holds. `analyze_topic` reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.core.ids import NO_TIMESTAMP, TopicPartition
from ottla.records.batch import BatchHeader
from ottla.records.codecs import CODECS
from ottla.records.record_reader import Record

_CODEC_NAMES: Final = {number: name for name, number in CODECS.items()}
_KEYS_MAX = 1000  # keys that are counted at the same time
_HASHES_MAX = 1024  # the smallest hashes of keys, by which distinct keys are estimated
_HASH_END = 1 << 32
_HOT_SHARE = 2.0  # a partition is hot with so many times its even share
_HOT_KEY_SHARE = 0.2
_SMALL_BATCH_RECORDS = 2.0
_LEAST_BATCHES = 20  # fewer say nothing about batching
_COMPRESSIBLE_BYTES = 1 << 20
# Upper bounds of classes of sizes: 1, 2, ... 16, and then 16 in each power of two: 7 % apart at most.
_BOUNDS: Final = [*range(17), *((1 << n) + (step << n - 4) for n in range(4, 40) for step in range(1, 17))]


class Sizes:
    """Counts of sizes in classes: the mean is exact, and a percentile is at most 7 % too large."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.largest = 0
        self._classes = Counter[int]()

    def add(self, size: int) -> None:
        """Count a size."""
        self.count += 1
        self.total += size
        self.largest = max(self.largest, size)
        self._classes[bisect_left(_BOUNDS, size)] += 1

    @property
    def mean(self) -> float:
        """Return the mean; 0 without sizes."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, share: float) -> int:
        """Return the size that this share of all sizes does not exceed.

        >>> sizes = Sizes()
        >>> for size in range(1, 11): sizes.add(size)
        >>> sizes.percentile(0.5), sizes.percentile(1)
        (5, 10)
        """
        left = share * self.count
        for at in sorted(self._classes):
            left -= self._classes[at]
            if left <= 0:
                return min(_BOUNDS[at] if at < len(_BOUNDS) else self.largest, self.largest)
        return self.largest


class KeyCounts:
    """The most frequent keys, and about how many different ones there are."""

    def __init__(self) -> None:
        self.without_key = 0
        self.count = 0
        self._counts = Counter[bytes]()
        self._left_out = 0  # the most that any key may have in addition to its count
        self._hashes: list[int] = []  # the smallest ones, ascending

    def add(self, key: bytes | None) -> None:
        """Count the key of a record."""
        if key is None:
            self.without_key += 1
            return
        self.count += 1
        if key in self._counts or len(self._counts) < _KEYS_MAX:
            self._counts[key] += 1
        else:  # the heavy hitters of Misra and Gries: one record of each key is taken away
            self._left_out += 1
            self._counts = Counter({known: count - 1 for known, count in self._counts.items() if count > 1})
        self._add_hash(_hash(key))

    def _add_hash(self, number: int) -> None:
        hashes = self._hashes
        if len(hashes) == _HASHES_MAX and number >= hashes[-1]:
            return
        at = bisect_left(hashes, number)
        if at == len(hashes) or hashes[at] != number:
            hashes.insert(at, number)
            del hashes[_HASHES_MAX:]

    @property
    def distinct(self) -> int:
        """Return how many keys are different: exact below about 1,000, an estimate above."""
        if len(self._hashes) < _HASHES_MAX:
            return len(self._hashes)
        return round((_HASHES_MAX - 1) * _HASH_END / self._hashes[-1])

    def most_common(self, count: int) -> list[tuple[bytes, int]]:
        """Return the most frequent keys with the records that each has at least."""
        return self._counts.most_common(count)


def _hash(key: bytes) -> int:
    """Return a number below 2^32 that depends evenly on all bytes of a key."""
    number = crc32(key)  # of keys that differ in few bits the checksums do too: mixed as in murmur's last step
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        number = ((number ^ number >> 15) * factor) & 0xFFFFFFFF
    return number ^ number >> 16


@dataclass(slots=True)
class PartitionCounts:
    """The records and batches of a partition, and the time between the first and the last record."""

    records: int = 0
    batches: int = 0
    batch_bytes: int = 0
    first_ms: int = NO_TIMESTAMP
    last_ms: int = NO_TIMESTAMP

    def add_time(self, timestamp_ms: int) -> None:
        """Extend the time by that of a record."""
        if timestamp_ms >= 0:
            self.first_ms = timestamp_ms if self.first_ms < 0 else min(self.first_ms, timestamp_ms)
            self.last_ms = max(self.last_ms, timestamp_ms)

    @property
    def seconds(self) -> float:
        """Return the time between the first and the last record."""
        return (self.last_ms - self.first_ms) / 1000


@dataclass(slots=True)
class TopicAnalysis:
    """The counts of a topic's records and batches; `partitions` has every partition that was read."""

    partitions: dict[TopicPartition, PartitionCounts]
    batch_records: Sizes = field(default_factory=Sizes)
    batch_bytes: Sizes = field(default_factory=Sizes)
    key_bytes: Sizes = field(default_factory=Sizes)
    value_bytes: Sizes = field(default_factory=Sizes)
    codecs: Counter[str] = field(default_factory=Counter)
    keys: KeyCounts = field(default_factory=KeyCounts)
    record_bytes: int = 0  # keys, values and headers, not compressed
    tombstones: int = 0
    with_headers: int = 0
    transactional: int = 0  # batches

    def add_batch(self, tp: TopicPartition, batch: BatchHeader) -> None:
        """Count a batch, unless it is of control records."""
        if batch.is_control:
            return
        counts = self.partitions[tp]
        counts.batches += 1
        counts.batch_bytes += batch.size_bytes
        self.batch_bytes.add(batch.size_bytes)
        self.batch_records.add(batch.record_count)
        self.codecs[_CODEC_NAMES.get(batch.codec, str(batch.codec))] += 1
        self.transactional += batch.is_transactional

    def add_records(self, tp: TopicPartition, records: Iterable[Record]) -> None:
        """Count records of a partition."""
        counts = self.partitions[tp]
        for _, timestamp_ms, key, value, headers in records:
            counts.records += 1
            counts.add_time(timestamp_ms)
            self.keys.add(key)
            if key is not None:
                self.key_bytes.add(len(key))
            if value is None:
                self.tombstones += 1
            else:
                self.value_bytes.add(len(value))
            self.with_headers += bool(headers)
            self.record_bytes += len(key or b"") + len(value or b"")
            self.record_bytes += sum(len(name) + len(text or b"") for name, text in headers)

    @property
    def records(self) -> int:
        """Return the number of records that were read."""
        return sum(counts.records for counts in self.partitions.values())

    @property
    def seconds(self) -> float:
        """Return the time between the first and the last record of all partitions."""
        timed = [counts for counts in self.partitions.values() if counts.first_ms >= 0]
        if not timed:
            return 0.0
        return (max(counts.last_ms for counts in timed) - min(counts.first_ms for counts in timed)) / 1000

    @property
    def compression_ratio(self) -> float | None:
        """Return the bytes of keys, values and headers by the bytes of their batches; None without batches."""
        return self.record_bytes / self.batch_bytes.total if self.batch_bytes.total else None

    def rate(self, counts: PartitionCounts) -> float | None:
        """Return the records a second of a partition; None for less than two records or no time between them."""
        return (counts.records - 1) / counts.seconds if counts.records > 1 and counts.seconds > 0 else None


def findings(analysis: TopicAnalysis) -> list[str]:
    """Return a sentence for each property of a topic that costs throughput or balance, with what to do."""
    sentences = []
    batches, compression = analysis.batch_records, analysis.codecs
    if batches.count >= _LEAST_BATCHES and batches.mean < _SMALL_BATCH_RECORDS:
        sentences.append(
            f"small batches: {batches.mean:.1f} records each; raise the producers' linger.ms and batch.size"
        )
    if analysis.record_bytes >= _COMPRESSIBLE_BYTES and set(compression) == {"none"}:
        sentences.append("nothing is compressed: set the producers' compression.type to lz4 or zstd")
    even = analysis.records / max(len(analysis.partitions), 1)
    for tp, counts in analysis.partitions.items():
        if len(analysis.partitions) > 1 and analysis.records >= 100 and counts.records >= _HOT_SHARE * even:
            share = counts.records / analysis.records
            sentences.append(
                f"hot partition: {tp} has {share:.0%} of the records; look at the keys, or at the partitioner"
            )
    keys = analysis.keys
    for key, count in keys.most_common(1):
        if keys.count >= 100 and keys.distinct > 1 and count >= _HOT_KEY_SHARE * keys.count:
            name = key.decode("utf-8", "replace")[:40]
            sentences.append(f"hot key: {name!r} has {count / keys.count:.0%} of the records with a key")
    return sentences


async def analyze_topic(
    cluster: Cluster, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> TopicAnalysis:
    """Read the records between these offsets and analyze them, those of open and aborted transactions too."""
    analysis = TopicAnalysis({tp: PartitionCounts() for tp in sorted(starts)})
    options = ConsumerOptions(read_committed=False)
    async with Consumer(cluster, starts, end=ends, options=options, on_batch=analysis.add_batch) as consumer:
        async for tp, records in consumer.chunks():
            analysis.add_records(tp, records)
    return analysis
