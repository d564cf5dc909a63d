"""What an analysis counts, and that its memory is bounded."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ottla.client.topic_analysis import KeyCounts, PartitionCounts, Sizes, TopicAnalysis, findings
from ottla.core.ids import TopicPartition
from ottla.records.batch import BatchHeader
from ottla.records.builder import NewRecord, build_batch
from ottla.records.record_reader import Record


@given(st.lists(st.integers(0, 1 << 30), min_size=1))
def test_a_percentile_is_at_most_7_percent_too_large_and_the_mean_is_exact(values: list[int]) -> None:
    sizes = Sizes()
    for value in values:
        sizes.add(value)
    ordered = sorted(values)
    for share in (0.01, 0.5, 0.99, 1.0):
        exact = ordered[max(0, -(-int(share * 100) * len(values) // 100) - 1)]
        assert exact <= sizes.percentile(share) <= exact * 1.07
    assert sizes.mean == sum(values) / len(values)


@given(st.lists(st.binary(max_size=2), max_size=200))
def test_few_keys_are_counted_exactly(keys: list[bytes]) -> None:
    counts = KeyCounts()
    for key in (*keys, None):
        counts.add(key)
    assert counts.distinct == len(set(keys))
    assert dict(counts.most_common(500)) == Counter(keys)
    assert (counts.count, counts.without_key) == (len(keys), 1)


def test_many_keys_take_bounded_memory_and_the_frequent_one_is_found() -> None:
    counts = KeyCounts()
    for n in range(50_000):
        counts.add(b"often" if n % 4 == 0 else b"k%d" % n)
    assert 0.9 * 37_501 < counts.distinct < 1.1 * 37_501
    assert counts.most_common(1)[0][0] == b"often"
    assert len(counts._counts) <= 1000
    assert len(counts._hashes) <= 1024


def analysis_of(*batches: tuple[int, list[bytes]], partitions: int = 4, codec: int = 0) -> TopicAnalysis:
    """The analysis of batches with these keys, each for a partition."""
    analysis = TopicAnalysis({TopicPartition("t", n): PartitionCounts() for n in range(partitions)})
    for partition, keys in batches:
        tp = TopicPartition("t", partition)
        batch = build_batch([NewRecord(key, b"v" * 1000, 1000) for key in keys], codec=codec)
        analysis.add_batch(tp, BatchHeader(batch))
        analysis.add_records(tp, [Record(n, 1000 + n, key, b"v" * 1000, []) for n, key in enumerate(keys)])
    return analysis


def test_an_even_topic_with_full_and_compressed_batches_has_no_findings() -> None:
    assert (
        findings(analysis_of(*((n % 4, [b"k%d" % (n * 40 + i) for i in range(40)]) for n in range(40)), codec=3)) == []
    )


def test_small_batches_hot_partitions_hot_keys_and_missing_compression_are_found() -> None:
    found = findings(analysis_of(*((n % 5 % 4 and 2, [b"hot" if n % 2 else b"k%d" % n]) for n in range(2000))))
    assert [sentence.split(":")[0] for sentence in found] == [
        "small batches",
        "nothing is compressed",
        "hot partition",
        "hot key",
    ]
    assert "t-2 has 60% of the records" in found[2]
    assert "'hot' has 50%" in found[3]


def test_an_empty_topic_has_no_findings_and_no_rates() -> None:
    empty = analysis_of()
    assert findings(empty) == []
    assert (empty.records, empty.seconds, empty.compression_ratio) == (0, 0.0, None)
