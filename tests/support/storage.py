"""Small things every test of the log needs: batches, a clock that stands still, an open directory on a simulated disk."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from pathlib import PurePosixPath

from ottla.core.files import FileRegion
from ottla.core.ids import TopicPartition
from ottla.records.builder import NewRecord, build_batch
from ottla.records.record_reader import Record, read_records
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.log.partition_log import PartitionLog
from ottla.testing.sim_disk import SimDisk

ROOT = PurePosixPath("/data")
TP = TopicPartition("web", 0)
NOW_MS = 1_700_000_000_000


class StillClock:
    """A clock that advances only on request."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


def batch(
    *values: bytes | None,
    timestamp_ms: int = NOW_MS,
    key: bytes | None = None,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    codec: int = 0,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> memoryview:
    """One batch as a client sends it, writable."""
    records = [NewRecord(key, value, timestamp_ms) for value in values]
    return memoryview(
        bytearray(
            build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                codec=codec,
                transactional=transactional,
                base_offset=base_offset,
                leader_epoch=leader_epoch,
            )
        )
    )


def marker(producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> memoryview:
    """A control batch that ends a transaction."""
    key = (0).to_bytes(2, "big") + int(commit).to_bytes(2, "big")
    value = (0).to_bytes(2, "big") + coordinator_epoch.to_bytes(4, "big")
    built = build_batch(
        [NewRecord(key, value, NOW_MS)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=-1,
        transactional=True,
        control=True,
    )
    return memoryview(bytearray(built))


def open_directory(disk: SimDisk, config: LogConfig | None = None, clock: StillClock | None = None) -> LogDirectory:
    numbers = random.Random(1)
    return LogDirectory.open(
        disk,
        ROOT,
        clock or StillClock(),
        config or LogConfig(),
        node_id=1,
        cluster_id="cluster",
        new_id=lambda: uuid.UUID(int=numbers.getrandbits(128)),
    )


def open_directories(
    disk: SimDisk, *paths: PurePosixPath, config: LogConfig | None = None, clock: StillClock | None = None
) -> LogManager:
    """Several at once, on one disk; only ROOT if none is named."""
    numbers = random.Random(1)
    return LogManager.open(
        disk,
        paths or [ROOT],
        clock or StillClock(),
        config or LogConfig(),
        node_id=1,
        cluster_id="cluster",
        new_id=lambda: uuid.UUID(int=numbers.getrandbits(128)),
    )


def open_log(disk: SimDisk, config: LogConfig | None = None, clock: StillClock | None = None) -> PartitionLog:
    """The one log most tests need."""
    return open_directory(disk, config, clock).create_log(TP, uuid.UUID(int=7))


def content(region: FileRegion | None) -> bytes:
    return b"" if region is None else region.file.read_at(region.position, region.size)


def records_in(data: bytes) -> list[Record]:
    """Every record of whole batches, one after another."""
    from ottla.records.batch import split

    return [record for at, header in split(data) for record in read_records(data[at : at + header.size_bytes])]


def everything(
    log: PartitionLog, *, max_bytes: int = 1 << 30, start: int | None = None
) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record, read as a consumer reads: on from the last offset of the answer before."""
    found: list[tuple[int, bytes | None]] = []
    offset = log.log_start_offset if start is None else start
    while offset < log.end_offset:
        data = content(log.read(offset, max_bytes=max_bytes, end_offset=log.end_offset))
        assert data, f"nothing at {offset}, although the log ends at {log.end_offset}"
        rows = [(record.offset, record.value) for record in records_in(data) if record.offset >= offset]
        found.extend(rows)
        offset = rows[-1][0] + 1
    return found


def values(rows: Sequence[tuple[int, bytes | None]]) -> list[bytes | None]:
    return [value for _, value in rows]
