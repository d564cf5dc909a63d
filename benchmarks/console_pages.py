"""Measures the console's pages with many partitions and groups: `python -m benchmarks.console_pages`.

The brokers are in this process, in a thread of their own; the time of a page is that of the console's thread alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import httpx

from ottla.client import groups
from ottla.client.addresses import parse_addresses
from ottla.client.admin import NewTopic, create_topics
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.producer import Producer
from ottla.console.app import application
from ottla.console.options import LOOPBACK, ConsoleOptions
from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition
from ottla.testing import kafka

PER_TOPIC = 20
PAGES = (
    "/",
    "/brokers/1",
    "/topics",
    "/topics?search=topic-1&page=2",
    "/topics/topic-7",
    "/topics/topic-7/messages",
    "/topics/topic-7/messages/0/0",
    "/topics/topic-7/settings?all=1",
    "/topics/topic-7/groups",
    "/groups",
    "/groups?order=lag&page=3",
    "/groups/group-7",
    "/transactions",
    "/reassignments",
    "/acls",
    "/users",
    "/quotas",
)
TIMES = 5


def report(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def measure(bootstrap: str, group_count: int, topic_count: int) -> None:
    """Print a row for each page."""

    async def connect() -> Cluster:
        return await Cluster.connect(parse_addresses(bootstrap), options=ClientOptions(request_timeout_s=300))

    async with await connect() as cluster:
        topics = [NewTopic(f"topic-{number}", PER_TOPIC) for number in range(topic_count)]
        for first in range(0, topic_count, 5):
            await create_topics(cluster, topics[first : first + 5])
        async with Producer(cluster, clock=SystemClock()) as producer:
            await producer.send("topic-7", value=b"{}", partition=0)
        for number in range(group_count):
            topic = f"topic-{number % topic_count}"
            offsets = {TopicPartition(topic, partition): 0 for partition in range(5)}
            await groups.commit_offsets(cluster, f"group-{number}", offsets)
    app = application(ConsoleOptions(connect=connect, hosts=LOOPBACK, sample_every_s=3600))
    console = app._app.state.console  # type: ignore[attr-defined]  # noqa: SLF001
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8080", headers={"accept": "text/html"}, timeout=60
    ) as client:
        began_s, began = time.thread_time(), time.perf_counter()
        await console.workspace.snapshot()
        report(
            f"first snapshot: {1000 * (time.thread_time() - began_s):.0f} ms of processor time, "
            f"{1000 * (time.perf_counter() - began):.0f} ms in all"
        )
        began_s, began = time.thread_time(), time.perf_counter()
        await console.workspace.sampler.sample()
        report(
            f"a sample: {1000 * (time.thread_time() - began_s):.0f} ms, {1000 * (time.perf_counter() - began):.0f} ms"
        )
        report(f"{'page':40} {'median':>8} {'most':>8}   (ms of processor time)")
        for path in PAGES:
            taken = []
            for _ in range(TIMES):
                begin_s = time.thread_time()
                response = await client.get(path)
                taken.append(1000 * (time.thread_time() - begin_s))
                assert response.status_code == 200, response.text
            report(f"{path:40} {sorted(taken)[TIMES // 2]:8.1f} {max(taken):8.1f}")
        report(f"snapshots read: {console.workspace.readings}")
    await console.close()


def main() -> None:
    """Start the brokers and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    given = parser.parse_args()
    with kafka(history=False) as brokers:
        asyncio.run(measure(brokers.bootstrap, given.groups, given.partitions // PER_TOPIC))


if __name__ == "__main__":
    main()
