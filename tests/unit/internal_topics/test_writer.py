"""The writer of a partition of an internal topic: writes of one turn of the loop share a batch, and need no task."""

from __future__ import annotations

import asyncio

import pytest

from ottla.core.errors import ErrorCode
from ottla.internal_topics.writer import PartitionWriter
from tests.support.topic_logs import MemoryTopicLog


async def test_writes_of_one_turn_are_one_batch_and_their_results_come_in_the_next_turn_without_a_task() -> None:
    log = MemoryTopicLog()
    writer = PartitionWriter(log, 0, leader_epoch=0)
    writer.begin(0)
    results: list[tuple[str, ErrorCode]] = []
    for name in ("a", "b"):
        writer.write([(name.encode(), b"")], lambda error, name=name: results.append((name, error)))  # type: ignore[misc]
    assert results == []
    assert asyncio.all_tasks() == {asyncio.current_task()}

    await asyncio.sleep(0)

    assert results == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]
    assert [len(batch.records) for batch in log.batches[0]] == [2]


@pytest.mark.simulated_time
async def test_close_waits_for_the_writes() -> None:
    log = MemoryTopicLog()
    log.replicated.clear()
    writer = PartitionWriter(log, 0, leader_epoch=0)
    writer.begin(0)
    results: list[ErrorCode] = []
    writer.write([(b"a", b"")], results.append)
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    log.replicated.set()
    await closing
    assert results == [ErrorCode.NONE]


@pytest.mark.simulated_time
async def test_after_a_batch_whose_replication_failed_the_state_is_loaded_again_and_nothing_more_is_written() -> None:
    log = MemoryTopicLog()
    log.replicated.clear()
    diverged, results = list[str](), list[ErrorCode]()
    writer = PartitionWriter(log, 0, leader_epoch=0, on_diverged=lambda: diverged.append("load again"))
    writer.begin(0)
    writer.write([(b"a", b"")], results.append)
    await asyncio.sleep(0.01)
    log.epoch = 1  # the batch stays in the log
    log.replicated.set()
    await writer.close()
    assert (results, diverged) == ([ErrorCode.FENCED_LEADER_EPOCH], ["load again"])
    assert not writer.has_reached(log.end_offset(0)), "the state lacks what the log may keep"
    writer.write([(b"b", b"")], results.append)
    await writer.close()
    assert results[1:] == [ErrorCode.NOT_COORDINATOR]
