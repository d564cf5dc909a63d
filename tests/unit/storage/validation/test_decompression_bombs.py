"""Tests a decompression bomb in a log that is compacted later: the log stays unchanged, with one error."""

from __future__ import annotations

import uuid

import pytest

from ottla.core.errors import CorruptMessage
from ottla.storage.cleaning.errors import Uncleanable
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import SimDisk
from tests.support.batches import with_payload
from tests.support.bombs import BOMBS, MEASURABLE, SPENT_MAX_KB, spent_kb
from tests.support.cleaning import clean_once
from tests.support.storage import NOW_MS, TP, StillClock, batch, open_directory


@pytest.mark.skipif(not MEASURABLE, reason="peak memory is measured through Linux's /proc")
@pytest.mark.parametrize("name", BOMBS)
def test_a_cleaner_and_a_search_by_time_meet_a_bomb_and_spend_less_than_64_mb(name: str) -> None:
    codec, make = BOMBS[name]
    clock = StillClock()
    config = LogConfig(max_message_bytes=100 << 20, record_validation="header")
    directory = open_directory(SimDisk(), config, clock)
    log = directory.create_log(TP, uuid.UUID(int=7), config)
    bomb = with_payload(make(), count=1000, attributes=codec, base_timestamp_ms=NOW_MS, newest_ms=NOW_MS)
    log.append(memoryview(bytearray(bomb)), leader_epoch=0, now_ms=NOW_MS)
    log.reconfigure(LogConfig(max_message_bytes=100 << 20, cleanup_policy=("compact",)))
    log.roll()
    log.append(batch(b"v", key=b"k"), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    log.update_high_watermark(log.end_offset)
    before = log.size_bytes

    assert spent_kb(lambda: clean_once(directory, log, clock), error=Uncleanable) < SPENT_MAX_KB
    assert spent_kb(lambda: log.offset_for_timestamp(NOW_MS, end_offset=1000), error=CorruptMessage) < SPENT_MAX_KB
    assert log.size_bytes == before
