"""Logs of keyed records, made without a broker: what there is to compact, the same for everybody who compacts it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path

from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.core.ids import TopicPartition
from ottla.records.batch import HEADER_BYTES, PREFIX_BYTES, write_crc
from ottla.records.builder import NewRecord, build_batch, varint
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import PartitionLog

BATCH_RECORDS = 150  # about 16 KiB, a producer's batch.size
SEGMENT_BYTES = 128 << 20
CONFIG = LogConfig(segment_bytes=SEGMENT_BYTES, durability="page-cache")
Progress = Callable[[int], None]


def write_keyed(path: Path, topic: str, *, records: int, keys: int, cluster_id: str, value_bytes: int = 100) -> int:
    """A directory with one partition of `records` records over `keys` keys in random order; its bytes.

    The last segment holds one record: all the others can be compacted.
    """
    directory = LogDirectory.open(SystemFiles(), path, SystemClock(), CONFIG, node_id=1, cluster_id=cluster_id)
    log = directory.create_log(TopicPartition(topic, 0), uuid.uuid4(), CONFIG)
    fill(log, records=records, keys=keys, value_bytes=value_bytes)
    log.roll()
    log.append(memoryview(build_batch([NewRecord(b"the end")])), leader_epoch=0, now_ms=SystemClock().wall_ms())
    size = log.size_bytes
    directory.close(broker_epoch=0)
    return size


def fill(log: PartitionLog, *, records: int, keys: int, value_bytes: int, seed: int = 1) -> None:
    """Append the records, batch by batch."""
    rng = random.Random(seed)
    now_ms = SystemClock().wall_ms()
    filler = rng.randbytes(1 << 20)
    tails = [_tail(filler[at * 997 % 900_000 :][:value_bytes]) for at in range(64)]
    heads = [_head(delta, len(tails[0])) for delta in range(BATCH_RECORDS)]
    empty = build_batch([NewRecord(b"", b"", now_ms)])[:HEADER_BYTES]
    for first in range(0, records, BATCH_RECORDS):
        count = min(BATCH_RECORDS, records - first)
        numbers = rng.choices(range(keys), k=count)
        body = b"".join(
            [head + b"key-%08d" % number + tails[number & 63] for head, number in zip(heads, numbers, strict=False)]
        )
        batch = bytearray(empty) + body
        batch[8:12] = (len(batch) - PREFIX_BYTES).to_bytes(4, "big")
        batch[23:27] = (count - 1).to_bytes(4, "big")
        batch[57:61] = count.to_bytes(4, "big")
        write_crc(batch, 0, len(batch))
        log.append(memoryview(batch), leader_epoch=0, now_ms=now_ms)


def _head(delta: int, tail_bytes: int) -> bytes:
    """A record up to its key of twelve bytes."""
    inner = b"\0\0" + varint(delta) + varint(12)
    return varint(len(inner) + 12 + tail_bytes) + inner


def _tail(value: bytes) -> bytes:
    """A record from its value on, without headers."""
    return varint(len(value)) + value + b"\0"
