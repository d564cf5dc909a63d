"""KAFKA-20723 (no CVE published): a small batch decompresses to gigabytes wherever a broker reads records.

That is at produce, where `max.decompressed.message.bytes` bounds one record besides; and, since a follower's log may
have such a batch already, in compaction, in the search by time and in the copies for dead letters.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from functools import partial

import pytest

from ottla.core.errors import CorruptMessage, InvalidRecord, KafkaError
from ottla.metadata_store.cluster_view import PartitionView
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.share_partitions.dead_letters import Copies, OneLetter, read_copies
from ottla.storage.cleaning.errors import Uncleanable
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.testing.sim_disk import SimDisk
from tests.support.batches import Written, with_payload
from tests.support.batches import batch as client_batch
from tests.support.bombs import BOMBS, MEASURABLE, SPENT_MAX_KB, peak_kb, spent_kb
from tests.support.compacted_log import CONFIG, CompactedLog
from tests.support.storage import NOW_MS, TP, StillClock, batch, open_directory
from tests.support.waiting import thread_executor

pytestmark = pytest.mark.skipif(not MEASURABLE, reason="peak memory is measured through Linux's /proc")
CODECS = ["gzip", "xerial", "lz4", "zstd"]
LARGE = LogConfig(max_message_bytes=1 << 30)
SETTING = r"max\.decompressed\.message\.bytes"


def bomb(name: str) -> memoryview:
    """A batch that says it has two records, and becomes a gigabyte (64 MiB with snappy)."""
    codec, make = BOMBS[name]
    return memoryview(
        bytearray(with_payload(make(), count=2, attributes=codec, base_timestamp_ms=NOW_MS, newest_ms=NOW_MS + 1))
    )


def replicated(name: str) -> PartitionLog:
    """A log with such a batch, whose records were not read, as in a follower's."""
    log = open_directory(SimDisk(), LARGE).create_log(TP, uuid.UUID(int=7), LARGE)
    log.append(bomb(name), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.end_offset)
    return log


@pytest.mark.parametrize("name", CODECS)
def test_a_produced_batch_is_refused(name: str) -> None:
    log = open_directory(SimDisk(), LARGE).create_log(TP, uuid.UUID(int=7), LARGE)
    sent = bomb(name)
    refused = partial(log.append, sent, leader_epoch=0, now_ms=NOW_MS)
    assert spent_kb(refused, error=InvalidRecord) < SPENT_MAX_KB
    assert log.end_offset == 0


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_produced_record_is_refused_by_its_decompressed_size(codec: int) -> None:
    config = LogConfig(max_decompressed_message_bytes=1000, record_validation="header")
    log = open_directory(SimDisk(), config).create_log(TP, uuid.UUID(int=7), config)
    sent = client_batch([Written(b"small"), Written(b"x" * 1000)], attributes=codec, base_timestamp_ms=NOW_MS)
    with pytest.raises(InvalidRecord, match=SETTING):
        log.append(memoryview(bytearray(sent)), leader_epoch=0, now_ms=NOW_MS)
    small = client_batch([Written(b"x" * 900)] * 3, attributes=codec, base_timestamp_ms=NOW_MS)
    log.append(memoryview(bytearray(small)), leader_epoch=0, now_ms=NOW_MS)


@pytest.mark.parametrize("name", CODECS)
def test_compaction_leaves_the_log_as_it_is(name: str) -> None:
    compacted = CompactedLog(replace(CONFIG, max_message_bytes=1 << 30, segment_bytes=1 << 30))
    compacted.log.append(bomb(name), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    compacted.append((b"a", b"1"))
    compacted.append((b"a", b"2"))
    assert spent_kb(compacted.clean, error=Uncleanable) < SPENT_MAX_KB
    assert compacted.log.log_start_offset == 0


@pytest.mark.parametrize("name", CODECS)
def test_a_search_by_time_fails(name: str) -> None:
    log = replicated(name)
    search = partial(log.offset_for_timestamp, NOW_MS, end_offset=log.end_offset)
    assert spent_kb(search, error=CorruptMessage) < SPENT_MAX_KB


async def _copies(log: PartitionLog) -> Copies:
    commit = GroupCommit(log.health, executor=thread_executor(), clock=StillClock())
    view = PartitionView(0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), partition_epoch=0)
    source = Partition(log, view, node_id=1, commit=commit)
    letters = [OneLetter(offset, 1, "rejected") for offset in range(3)]
    found = await read_copies(source, letters, max_bytes=1 << 20)
    await commit.close()
    return found


@pytest.mark.parametrize("name", CODECS)
def test_a_dead_letter_has_no_copy(name: str) -> None:
    log = replicated(name)
    log.append(batch(b"v"), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(log.end_offset)
    spent = -peak_kb()
    found = asyncio.run(_copies(log))
    spent += peak_kb()
    assert spent < SPENT_MAX_KB
    assert not found.by_offset
    assert issubclass(CorruptMessage, KafkaError)  # which is why the letters are written without copies
