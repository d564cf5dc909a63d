"""Measures a scrape of /metrics: 10,000 partitions, 2,000 groups and 5,000 clients; or other numbers.

    python -m benchmarks.scrape [PARTITIONS GROUPS CLIENTS]

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
from itertools import pairwise

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

TOPIC_PARTITIONS = 10
RECORDS = 4


async def measure(partitions: int, groups: int, clients: int) -> None:
    """Set up the broker and scrape it."""
    machines = SimulatedMachines()
    machines.loop.limit_s = 1e9
    async with TestCluster(machines, has_shared_store=False) as cluster:
        await cluster.start(1)
        topics = [f"topic-{number}" for number in range(partitions // TOPIC_PARTITIONS)]
        for topic in topics:
            await cluster.create_topic(topic, TOPIC_PARTITIONS)
        async with await cluster.client() as client:
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
                    for number in range(groups):
                        topic = topics[number % len(topics)]
                        await commit_offsets(
                            client, f"group-{number}", {TopicPartition(topic, number % TOPIC_PARTITIONS): offset}
                        )
                await _scrape(reader, name)
            await reader.close()
            broker.listeners.connections.clear()


async def _scrape(reader: MetricsReader, name: str) -> None:
    turns: list[float] = []
    watching = asyncio.ensure_future(_watch(turns))
    await asyncio.sleep(0)
    gc.collect(1)
    began, processor = time.perf_counter(), time.process_time()
    scrape, size = await reader.scrape(""), 0
    while piece := await scrape.next_piece():
        size += len(piece)
    took, used = time.perf_counter() - began, time.process_time() - processor
    watching.cancel()
    longest = max(after - before for before, after in pairwise(turns))
    sys.stdout.write(
        f"{name}: {took * 1000:.0f} ms ({used * 1000:.0f} ms of processor time), {size / 1e6:.1f} MB, "
        f"{len(turns)} turns, the longest {longest * 1000:.1f} ms\n"
    )


async def _watch(turns: list[float]) -> None:
    while True:
        turns.append(time.perf_counter())
        await asyncio.sleep(0)


def main() -> None:
    """Read the arguments and measure."""
    partitions, groups, clients = map(int, sys.argv[1:] or ("10000", "2000", "5000"))
    loop = SimLoop(random.Random(1), limit_s=1e9)
    asyncio.set_event_loop(loop)
    loop.run_until_complete(measure(partitions, groups, clients))
    loop.close()


if __name__ == "__main__":
    main()
