"""Measures how long the coordinator of groups takes to load many groups beside a real Kafka's, and what they cost.

A broker gets the commits of a client, is stopped and started again, and is asked for the offsets of one group of each
partition of `__consumer_offsets`, one after the other, until the last of them is answered. `--within` loads one
partition in this process and reports the longest turn of its loop.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import struct
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks import clients
from benchmarks.brokers import OTTLA, Running, kafka
from benchmarks.progress import Progress
from benchmarks.report import GROUP_LOAD_TITLE, machine, today, write_part
from ottla.core.clock import SystemClock
from ottla.core.garbage_collection import take_over
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.groups.config import GroupConfig
from ottla.groups.coordinator import GroupCoordinator
from ottla.groups.offsets import CommittedOffset
from ottla.groups.records import offset_pairs
from ottla.internal_topics.log_reader import READ_BYTES, decode_batches
from ottla.internal_topics.partitioning import partition_of
from ottla.internal_topics.topic_log import KeyValue, LoadedRecords
from ottla.records.builder import NewRecord, build_batch
from tests.support.processes import usage
from tests.support.topic_logs import MemoryTopicLog
from tests.support.wire_client import Wire, encode

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
COMMIT, LIST, FETCH = 7, 4, 5
PARTITIONS = 50  # of `__consumer_offsets`, the default of both
MIB = 1 << 20
LABELS = {
    "from the start until each partition's last group is answered, s": "all_s",
    "from the start until the first answer, s": "answers_s",
    "processor time of the broker until then, s": "cpu_s",
    "memory, MiB": "rss_mib",
}
Start = Callable[[Path], tuple[Running, float]]
CONNECTIONS = 32  # that commit at the same time
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
        yield from offset_pairs(group_id(number), change)


async def load_within(groups: int, each: int) -> None:
    """Load one partition in this process."""
    log = EncodedLog(offsets(groups, each))
    take_over()  # as a broker's process
    memory_before = usage(os.getpid()).rss_bytes // 1024
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
    memory = usage(os.getpid()).rss_bytes // 1024 - memory_before
    SAY.line(f"{len(coordinator.list_groups()):,} groups, {log.count:,} offsets of {OFFSETS_TOPIC}-0 in this process:")
    SAY.line(f"  loaded in {took:.2f} s, {turns:,} turns of the loop")
    SAY.line(f"  the longest turn {longest * 1000:.1f} ms, of the processor {most_used * 1000:.1f} ms")
    SAY.line(f"  {memory / 1024:,.0f} MiB, {memory * 1024 / log.count:,.0f} bytes an offset")
    await coordinator.close()


async def settled(coordinator: GroupCoordinator) -> None:
    """Wait until the partition is loaded, and until its offsets are compared with the topics and with their expiry."""
    await coordinator.led.wait_until_loaded()
    await coordinator.expire()


def group_id(number: int) -> str:
    """Return the id of a group."""
    return f"group-{number:06}"


class Commits:
    """Ready-made OffsetCommit requests, which differ by the group's id only."""

    def __init__(self, each: int) -> None:
        partitions = [
            {"partition_index": index, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
            for index in range(each)
        ]
        fields = {"member_id": "", "generation_id_or_member_epoch": -1}
        topics = [{"name": "measured", "partitions": partitions}]
        frame = encode("offset_commit", COMMIT, 1, {"group_id": group_id(0), **fields, "topics": topics})
        self._before, self._after = (struct.pack(">i", len(frame)) + frame).split(group_id(0).encode())
        # length, correlation id, throttle time, topics, name, partitions; then an index and an error of each
        self._good = b"".join(struct.pack(">ih", index, 0) for index in range(each))

    def request(self, number: int) -> bytes:
        """Return the request of one group."""
        return self._before + group_id(number).encode() + self._after

    def is_good(self, answer: bytes) -> bool:
        """Return whether all offsets were taken."""
        return answer.endswith(self._good)


def fill(port: int, groups: int, each: int) -> None:
    """Commit offsets in many groups; what is refused, because its coordinator is not there yet, is sent again."""
    with Wire(port, timeout_s=60) as wire:
        new = {"name": "measured", "num_partitions": each, "replication_factor": 1}
        wire.call("create_topics", 5, topics=[new], timeout=20_000)
        wire.call("find_coordinator", 3, key="any", key_type=0)
    commits, to_send = Commits(each), deque(range(groups))
    give_up = time.perf_counter() + PATIENCE_S
    with ExitStack() as stack:
        connections = [stack.enter_context(clients.connect(port)) for _ in range(CONNECTIONS)]
        while to_send and time.perf_counter() < give_up:
            asked = [(each_one, to_send.popleft()) for each_one in connections[: len(to_send)]]
            for connection, number in asked:
                connection.sendall(commits.request(number))
            refused = [number for connection, number in asked if not commits.is_good(clients.receive(connection))]
            to_send.extend(refused)
            if len(refused) == len(asked):
                time.sleep(0.1)
    assert not to_send, "the groups were not committed in time"


def list_groups(wire: Wire) -> int | None:
    """Return how many groups the broker has, None while it loads them."""
    answer = wire.call("list_groups", LIST, states_filter=[])
    return None if answer["error_code"] else len(answer["groups"])


def one_of_each_partition(groups: int) -> list[str]:
    """Return the last group of each partition of the groups' topic, the last of all at the end."""
    by_partition = {partition_of(group_id(number), PARTITIONS): group_id(number) for number in range(groups)}
    return sorted(by_partition.values())


def wait_for_offsets(port: int, waiting: list[str], each: int) -> float:
    """Fetch the offsets of groups until each is answered in full; returns the seconds until the first one was."""
    began, first = time.perf_counter(), 0.0
    with Wire(port, timeout_s=60) as wire:
        while waiting and time.perf_counter() - began < PATIENCE_S:
            answer = wire.call("offset_fetch", FETCH, group_id=waiting[0], topics=None)
            found = sum(len(topic["partitions"]) for topic in answer["topics"])
            if answer["error_code"] or found != each:
                time.sleep(0.002)
                continue
            first = first or time.perf_counter() - began
            waiting = waiting[1:]
    assert not waiting, "the groups were not loaded in time"
    return first


class Figures(NamedTuple):
    """What one start took."""

    all_s: float  # until a group of each partition was answered
    answers_s: float  # until the first answer to any request
    cpu_s: float  # of the broker's process
    rss_mib: float


def restart(name: str, start: Start, groups: int, each: int, directory: Path) -> Figures:
    """Start a broker that has the groups in its log, and wait for them."""
    expected = one_of_each_partition(groups)
    began = time.perf_counter()
    running, answers_s = start(directory)
    try:
        wait_for_offsets(running.port, expected, each)
        all_s, used = time.perf_counter() - began, usage(running.pid)
        with Wire(running.port, timeout_s=60) as wire:
            assert list_groups(wire) == groups, name
        return Figures(all_s, answers_s, used.cpu_s, used.rss_bytes / MIB)
    finally:
        running.stop()


def compare(
    programs: dict[str, Start], groups: int, each: int, rounds: int, directory: Path
) -> dict[str, list[Figures]]:
    """Fill each broker that is not filled yet, then start them in turn, with a sync before each start."""
    found: dict[str, list[Figures]] = {name: [] for name in programs}
    for name, start in programs.items():
        if not (directory / name).exists():
            SAY.status(f"{name}: {groups:,} groups are filled")
            running, _ = start(directory / name)
            fill(running.port, groups, each)
            running.stop()
    for number in range(rounds):
        for name in programs if number % 2 == 0 else reversed(programs):
            SAY.status(f"{name}: start {number + 1}")
            os.sync()
            found[name].append(restart(name, programs[name], groups, each, directory / name))
            SAY.status(f"{found[name][-1]}")
    return found


def table(found: dict[str, list[Figures]]) -> list[str]:
    """Return the medians as a table."""
    rows = [f"| | {' | '.join(found)} |", f"| --- |{' ---: |' * len(found)}"]
    for label, field in LABELS.items():
        values = (statistics.median(getattr(each, field) for each in figures) for figures in found.values())
        rows.append(f"| {label} | {' | '.join(f'{value:,.3g}' for value in values)} |")
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_load", description=__doc__)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--offsets", type=int, default=10, help="of each group")
    parser.add_argument("--within", action="store_true", help="load one partition in this process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="keep the filled brokers here, and use them again")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--no-page", action="store_true", help="write no page")
    asked = parser.parse_args(arguments)
    if asked.within:
        asyncio.run(load_within(asked.groups, asked.offsets))
        return
    page_cache = OTTLA.start
    programs: dict[str, Start] = {"Ottla": page_cache} if asked.no_kafka else {"Kafka": kafka, "Ottla": page_cache}
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as scratch:
        found = compare(programs, asked.groups, asked.offsets, asked.rounds, asked.directory or Path(scratch))
    rows = table(found)
    for row in rows:
        SAY.line(row)
    if not asked.no_page:
        text = (
            f"Measured {today()} on {machine()}. A broker with {asked.groups:,} groups of {asked.offsets} committed "
            f"offsets in {PARTITIONS} partitions is started after a clean stop, {asked.rounds} times in turns; median."
        )
        write_part(PAGE, GROUP_LOAD_TITLE, [text, "", *rows])


if __name__ == "__main__":
    main()
