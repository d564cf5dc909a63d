"""Measures a scrape of /metrics: 10,000 partitions, 2,000 groups and 5,000 clients; or other numbers.

    python -m benchmarks.scrape [PARTITIONS GROUPS CLIENTS] [--no-page]

The broker is simulated, its loop and its metrics are not: what is measured is the processor time of reading and
formatting, the size of the page, and the longest time for which others had to wait. The second scrape is like the first
but for what is kept of it; before the third all groups have moved, so that the age of each lag is looked up again.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import SCRAPE_TITLE, machine, today, write_part
from ottla.client.admin import NewTopic, create_topics
from ottla.client.cluster import Cluster
from ottla.client.groups import commit_offsets
from ottla.client.producer import Producer
from ottla.core import garbage_collection
from ottla.core.ids import TopicPartition
from ottla.metrics.reader import MetricsReader
from ottla.metrics.request_times import RequestTimes
from ottla.testing.cluster import TestCluster
from ottla.testing.requests import connection_without_socket
from ottla.testing.sim_loop import SimLoop
from ottla.testing.sim_machine import SimulatedMachines

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
TOPIC_PARTITIONS = 10
RECORDS = 2
AT_ONCE = 100


class Scraped(NamedTuple):
    """Holds what one scrape took."""

    name: str
    seconds: float
    processor_s: float
    size_bytes: int
    held_bytes: int  # of memory while it was read and sent, at its peak
    turns: list[tuple[float, float]]  # when turns of the loop began, and the processor time until then

    @property
    def longest_turn_s(self) -> float:
        """Return how long others had to wait at most."""
        return max(after - before for (before, _), (after, _) in pairwise(self.turns))

    @property
    def longest_turn_processor_s(self) -> float:
        """Return the same in processor time, which other processes do not lengthen."""
        return max(after - before for (_, before), (_, after) in pairwise(self.turns))


async def measure(partitions: int, groups: int, clients: int) -> list[Scraped]:
    """Set up the broker and scrape it."""
    found = []
    machines = SimulatedMachines()
    machines.loop.limit_s = 1e9
    async with TestCluster(machines, has_shared_store=False) as cluster:
        await cluster.start(1)
        topics = [f"topic-{number}" for number in range(partitions // TOPIC_PARTITIONS)]
        async with await cluster.client() as client:
            for first in range(0, len(topics), AT_ONCE):
                await create_topics(
                    client, [NewTopic(topic, TOPIC_PARTITIONS) for topic in topics[first : first + AT_ONCE]]
                )
            async with Producer(client, clock=cluster.clock) as producer:
                for topic in topics:
                    for index in range(TOPIC_PARTITIONS):
                        for _ in range(RECORDS):
                            await producer.send(topic, value=b"v", partition=index)
            broker = cluster.brokers[1]
            assert broker.listeners is not None
            for number in range(clients):
                connection = connection_without_socket()
                connection.software = ("a-client", str(number % 100))
                broker.listeners.connections[connection] = None
            reader = MetricsReader(broker, RequestTimes(cluster.clock.monotonic))
            garbage_collection.take_over()
            sys.stdout.write(f"{partitions} partitions, {groups} groups, {clients} clients\n")
            for offset, name in ((0, "first scrape"), (0, "second scrape"), (1, "all groups have moved")):
                if name != "second scrape":
                    for first in range(0, groups, AT_ONCE):
                        numbers = range(first, min(first + AT_ONCE, groups))
                        await asyncio.gather(*(_commit(client, number, topics, offset) for number in numbers))
                found.append(await _scrape(reader, name))
                sys.stdout.write(f"{_row(found[-1])}\n")
            await reader.close()
            broker.listeners.connections.clear()
    return found


async def _commit(client: Cluster, number: int, topics: Sequence[str], offset: int) -> None:
    where = TopicPartition(topics[number % len(topics)], number % TOPIC_PARTITIONS)
    await commit_offsets(client, f"group-{number}", {where: offset})


async def _scrape(reader: MetricsReader, name: str) -> Scraped:
    turns: list[tuple[float, float]] = []
    watching = asyncio.ensure_future(_watch(turns))
    await asyncio.sleep(0)
    gc.collect(1)
    began, processor = time.perf_counter(), time.process_time()
    scrape, size_bytes = await reader.scrape(""), 0
    while piece := await scrape.next_piece():
        size_bytes += len(piece)
    took, used = time.perf_counter() - began, time.process_time() - processor
    watching.cancel()
    return Scraped(name, took, used, size_bytes, await _held_bytes(reader), turns)


async def _held_bytes(reader: MetricsReader) -> int:
    """Return the memory that a scrape holds at its peak: by one of its own, since counting takes time."""
    tracemalloc.start()
    scrape = await reader.scrape("")
    while await scrape.next_piece():
        pass
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak_bytes


def _row(scraped: Scraped) -> str:
    return (
        f"| {scraped.name} | {scraped.seconds * 1000:.0f} | {scraped.processor_s * 1000:.0f} | "
        f"{scraped.size_bytes / 1e6:.1f} | {scraped.held_bytes / 1e6:.1f} | {scraped.longest_turn_s * 1000:.1f} | "
        f"{scraped.longest_turn_processor_s * 1000:.1f} |"
    )


async def _watch(turns: list[tuple[float, float]]) -> None:
    while True:
        turns.append((time.perf_counter(), time.thread_time()))
        await asyncio.sleep(0)


def main() -> None:
    """Read the arguments and measure."""
    numbers = [int(argument) for argument in sys.argv[1:] if argument != "--no-page"]
    partitions, groups, clients = numbers or (10_000, 2_000, 5_000)
    loop = SimLoop(random.Random(1), limit_s=1e9)
    asyncio.set_event_loop(loop)
    found = loop.run_until_complete(measure(partitions, groups, clients))
    loop.close()
    if "--no-page" in sys.argv:
        return
    text = (
        f"Measured {today()} on {machine()}: {partitions:,} partitions, {groups:,} groups of "
        f"{groups * TOPIC_PARTITIONS:,} partitions with lag, {clients:,} clients on one broker. The first scrape looks "
        "up the age of each lag in the logs, the second has them; before the third all groups have moved. Asked for "
        "were 300 ms, 20 MB, and no turn of the loop above 20 ms. Memory is what a scrape holds at its peak."
    )
    heading = [
        "| | ms | processor, ms | page, MB | memory, MB | longest turn, ms | its processor time, ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    write_part(PAGE, SCRAPE_TITLE, [text, "", *heading, *map(_row, found)])


if __name__ == "__main__":
    main()
