"""Tests which logs the cleaner takes."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import PurePosixPath

from ottla.broker.maintenance.log_cleaner import LogCleaner
from ottla.storage.cleaning.cleaner_config import CleanerConfig
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, TP, StillClock, batch, open_directories

COMPACTED = replace(LogConfig(), cleanup_policy=("compact",), segment_bytes=300, min_cleanable_dirty_ratio=0.0)


async def test_the_next_pass_over_a_log_waits_until_the_log_has_moved() -> None:
    """Otherwise a tombstone may be removed that the copy, which has the value already, does not have yet."""
    directories = open_directories(SimDisk(), PurePosixPath("/a"), PurePosixPath("/b"), config=COMPACTED)
    a, b = directories.opened
    log = a.create_log(TP, uuid.UUID(int=7), COMPACTED)
    for value in range(8):
        log.append(batch(b"%d" % value * 100, key=b"key"), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    log.update_high_watermark(log.end_offset)
    cleaner = LogCleaner(lambda: directories.opened, config=CleanerConfig, clock=StillClock())
    try:
        assert cleaner._candidate(a, log) is not None
        b.create_future_log(log)
        assert cleaner._candidate(a, log) is None
        b.delete_future_log(TP)
        assert cleaner._candidate(a, log) is not None
    finally:
        await cleaner.stop()
