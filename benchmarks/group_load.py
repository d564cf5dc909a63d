"""Measures how long the coordinator of groups takes to load many groups, what they cost, and how long the loop is held.

`--within` loads one partition in this process and reports the longest turn of its loop. Otherwise a broker gets the
commits of a client, is stopped and started again, and is asked for its groups until it has all of them; `--kafka` does
the same with Apache Kafka. Print only: the figures belong to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.brokers import Running, kafka, ottla
from benchmarks.progress import Progress
from ottla.core.clock import SystemClock
from ottla.core.garbage_collection import take_over
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.groups.config import GroupConfig
from ottla.groups.coordinator import GroupCoordinator
from ottla.groups.offsets import CommittedOffset
from ottla.groups.records import offset_pairs
from ottla.internal_topics.log_reader import READ_BYTES, decode_batches
from ottla.internal_topics.topic_log import KeyValue, LoadedRecords
from ottla.records.builder import NewRecord, build_batch
from tests.support.topic_logs import MemoryTopicLog
from tests.support.wire_client import Wire

COMMIT, LIST = 7, 4
IN_FLIGHT = 200
PATIENCE_S = 600.0
SAY = Progress()


class EncodedLog(MemoryTopicLog):
    """One partition with the batches of a log, which a thread decodes as those of a file."""

    def __init__(self, records: Iterator[KeyValue]) -> None:
        super().__init__(1)
        self.regions = [bytearray()]
        self.count = 0
        batch: list[NewRecord] = []
        for key, value in records:
            batch.append(NewRecord(key=key, value=value, timestamp_ms=1))
            self.count += 1
            if len(batch) == 50:
                self._add(batch)
                batch = []
        self._add(batch)
        self.ends[0] = self.count

    def _add(self, batch: list[NewRecord]) -> None:
        if batch:
            if len(self.regions[-1]) > READ_BYTES:
                self.regions.append(bytearray())
            self.regions[-1] += build_batch(batch)

    async def read_all(self, partition: int, end_offset: int) -> AsyncIterator[LoadedRecords]:  # noqa: ARG002  # the port
        """Yield everything."""
        for region in self.regions:
            _, parts = await asyncio.to_thread(decode_batches, bytes(region))
            for part in parts:
                yield part


def offsets(groups: int, each: int) -> Iterator[KeyValue]:
    """Yield the records of the commits of many groups."""
    committed = CommittedOffset(7, committed_wall_ms=SystemClock().wall_ms())
    for number in range(groups):
        change = dict.fromkeys((TopicPartition("measured", index) for index in range(each)), committed)
        yield from offset_pairs(f"group-{number:06}", change)


async def load_within(groups: int, each: int) -> None:
    """Load one partition in this process."""
    log = EncodedLog(offsets(groups, each))
    take_over()  # as a broker's process
    memory_before = resident_kib("self")
    coordinator = GroupCoordinator(GroupConfig(), clock=SystemClock(), log=log, node_id=1)
    began = last = time.perf_counter()
    last_used = time.thread_time()
    longest = most_used = 0.0
    turns = 0
    coordinator.led.lead(0)
    loaded = asyncio.ensure_future(settled(coordinator))
    while not loaded.done():
        await asyncio.sleep(0)
        now, used = time.perf_counter(), time.thread_time()
        longest, most_used, turns = max(longest, now - last), max(most_used, used - last_used), turns + 1
        last, last_used = now, used
    took = time.perf_counter() - began
    memory = resident_kib("self") - memory_before
    SAY.line(f"{len(coordinator.list_groups()):,} groups, {log.count:,} offsets of {OFFSETS_TOPIC}-0 in this process:")
    SAY.line(f"  loaded in {took:.2f} s, {turns:,} turns of the loop")
    SAY.line(f"  the longest turn {longest * 1000:.1f} ms, of the processor {most_used * 1000:.1f} ms")
    SAY.line(f"  {memory / 1024:,.0f} MiB, {memory * 1024 / log.count:,.0f} bytes an offset")
    await coordinator.close()


async def settled(coordinator: GroupCoordinator) -> None:
    """Wait until the partition is loaded, and until its offsets are compared with the topics and with their expiry."""
    await coordinator.led.wait_until_loaded()
    await coordinator.expire()


def resident_kib(pid: int | str) -> int:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


def fill(port: int, groups: int, each: int) -> None:
    """Commit offsets in many groups."""
    partitions = [
        {"partition_index": index, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
        for index in range(each)
    ]
    with Wire(port, timeout_s=60) as wire:
        new = {"name": "measured", "num_partitions": each, "replication_factor": 1}
        wire.call("create_topics", 5, topics=[new], timeout=20_000)
        wire.call("find_coordinator", 3, key="any", key_type=0)
        give_up = time.perf_counter() + PATIENCE_S
        while list_groups(wire) is None and time.perf_counter() < give_up:
            time.sleep(0.2)
        waiting: list[int] = []
        for number in range(groups):
            waiting.append(
                wire.send(
                    "offset_commit",
                    COMMIT,
                    group_id=f"group-{number:06}",
                    member_id="",
                    generation_id_or_member_epoch=-1,
                    topics=[{"name": "measured", "partitions": partitions}],
                )
            )
            if len(waiting) == IN_FLIGHT:
                receive(wire, waiting)
        receive(wire, waiting)


def receive(wire: Wire, waiting: list[int]) -> None:
    """Wait for the answers of commits."""
    for sent in waiting:
        answer: dict[str, Any] = wire.receive("offset_commit", COMMIT, sent)
        errors = {part["error_code"] for topic in answer["topics"] for part in topic["partitions"]}
        assert errors == {0}, errors
    waiting.clear()


def list_groups(wire: Wire) -> int | None:
    """Return how many groups the broker has, None while it loads them."""
    answer = wire.call("list_groups", LIST, states_filter=[])
    return None if answer["error_code"] else len(answer["groups"])


def measure(name: str, start: Callable[[Path], tuple[Running, float]], groups: int, each: int) -> None:
    """Fill a broker, start it again and wait for all groups."""
    with tempfile.TemporaryDirectory() as scratch:
        running, _ = start(Path(scratch) / name)
        fill(running.port, groups, each)
        running.stop()
        began = time.perf_counter()
        running, until_answer_s = start(Path(scratch) / name)
        try:
            with Wire(running.port, timeout_s=60) as wire:
                while list_groups(wire) != groups and time.perf_counter() - began < PATIENCE_S:
                    time.sleep(0.05)
            SAY.line(f"{name}: {groups:,} groups, {groups * each:,} offsets:")
            SAY.line(f"  {time.perf_counter() - began:.2f} s from the start until all groups are listed")
            SAY.line(
                f"  {until_answer_s:.2f} s until the first answer, {resident_kib(running.pid) / 1024:,.0f} MiB resident"
            )
        finally:
            running.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_load", description=__doc__)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--offsets", type=int, default=10, help="of each group")
    parser.add_argument("--within", action="store_true", help="load one partition in this process")
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka too")
    asked = parser.parse_args(arguments)
    if asked.within:
        asyncio.run(load_within(asked.groups, asked.offsets))
        return
    measure("Ottla", ottla, asked.groups, asked.offsets)
    if asked.kafka:
        measure("Kafka", kafka, asked.groups, asked.offsets)


if __name__ == "__main__":
    main()
