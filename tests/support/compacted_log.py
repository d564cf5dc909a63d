"""Builds a log to be compacted, on a simulated disk and a clock that the test moves."""

from __future__ import annotations

import uuid

from ottla.core.settings import LONG_MAX
from ottla.records.builder import NewRecord, build_batch
from ottla.storage.cleaning.cleaning_pass import CleaningPass
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.support.cleaning import begin_pass, clean_once, records_in_log
from tests.support.storage import NOW_MS, ROOT, TP, StillClock, marker, open_directory

CONFIG = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=600,
    index_interval_bytes=150,
    timestamp_after_max_ms=LONG_MAX,
    delete_retention_ms=1000,
)
PARTITION = ROOT / "web-0"


class CompactedLog:
    """A compacted log on a simulated disk."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.disk, self.clock = SimDisk(), StillClock()
        self.directory: LogDirectory = open_directory(self.disk, config, self.clock)
        self.log: PartitionLog = self.directory.create_log(TP, uuid.UUID(int=7), config)

    def append(
        self, *records: tuple[bytes | None, bytes | None], origin: AppendOrigin = AppendOrigin.COORDINATOR, **more: int
    ) -> None:
        made = build_batch([NewRecord(key, value, NOW_MS + at) for at, (key, value) in enumerate(records)], **more)  # type: ignore[arg-type]
        self.log.append(memoryview(made), leader_epoch=0, now_ms=self.clock.now_ms, origin=origin)

    def end(self, producer_id: int, *, commit: bool) -> None:
        made = marker(producer_id, 0, commit=commit)
        self.log.append(made, leader_epoch=0, now_ms=self.clock.now_ms, origin=AppendOrigin.COORDINATOR)

    def settle(self, *, roll: bool = True) -> None:
        if roll:
            self.log.roll()
        self.log.flush()
        self.log.update_high_watermark(self.log.end_offset)

    def clean(self, **more: int) -> None:
        self.settle()
        assert clean_once(self.directory, self.log, self.clock, **more) is not None

    def begin(self, **more: int) -> CleaningPass:
        self.settle()
        cleaning = begin_pass(self.log, self.clock, **more)
        assert cleaning is not None
        return cleaning

    def kept(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.offset, record.key, record.value) for record in records_in_log(self.log)]

    def files(self) -> dict[str, bytes]:
        return {name: self.disk.open(PARTITION / name).read_at(0, 1 << 20) for name in self.disk.names_in(PARTITION)}
