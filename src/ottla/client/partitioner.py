"""Chooses a record's partition: by the hash of its key, or without a key one partition for a whole batch.

The hash is the 32-bit Murmur2 of Kafka's Java clients with their seed, so that this producer and a Java or librdkafka
(`murmur2_random`) producer choose the same partition for the same key.
"""

from __future__ import annotations

import random
from functools import lru_cache
from struct import unpack_from

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash as an unsigned 32-bit number (Java prints the same bits as a signed number).

    >>> murmur2(b"21")  # Java: -973932308
    3321034988
    """
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for word in unpack_from(f"<{whole >> 2}I", data):
        k = word * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


@lru_cache(maxsize=4096)  # keys repeat
def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key as in Kafka's producers: the hash without its sign bit, modulo the partitions."""
    assert partitions > 0
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitions:
    """Chooses the partition of records without a key: the same one until `batch_bytes` were written to it.

    A new partition for each record would make many small batches (KIP-480, KIP-794). One per topic; not thread-safe.
    """

    __slots__ = ("_batch_bytes", "_current", "_left_bytes", "_rng")

    def __init__(self, *, batch_bytes: int, rng: random.Random) -> None:
        self._batch_bytes = batch_bytes
        self._rng = rng
        self._current = -1
        self._left_bytes = 0

    def choose(self, partitions: int, size_bytes: int) -> int:
        """Return the partition for a record of this size."""
        assert partitions > 0
        if self._left_bytes <= 0 or self._current >= partitions:
            others = [p for p in range(partitions) if p != self._current] or [0]
            self._current = self._rng.choice(others)
            self._left_bytes = self._batch_bytes
        self._left_bytes -= size_bytes
        return self._current
