"""Keys go where Kafka's own producers send them."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.partitioner import StickyPartitions, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "signed"),
    # the vectors of Kafka's own UtilsTest.testMurmur2, as signed 32-bit numbers
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_java_client(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_a_key_has_one_partition_and_it_exists(key: bytes, partitions: int) -> None:
    assert 0 <= partition_for_key(key, partitions) < partitions
    assert partition_for_key(key, partitions) == partition_for_key(bytes(key), partitions)


def test_records_without_a_key_stay_together_for_a_batch_and_then_move_on() -> None:
    sticky = StickyPartitions(batch_bytes=100, rng=random.Random(7))
    chosen = [sticky.choose(4, 25) for _ in range(400)]
    runs = [chosen[at : at + 4] for at in range(0, 400, 4)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(before[0] != after[0] for before, after in itertools.pairwise(runs))
    assert set(chosen) == {0, 1, 2, 3}


def test_a_topic_of_one_partition_always_uses_it() -> None:
    sticky = StickyPartitions(batch_bytes=1, rng=random.Random(7))
    assert {sticky.choose(1, 10) for _ in range(10)} == {0}
