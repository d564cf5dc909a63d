"""What a broker serves at /metrics is true, complete, and there once in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.client.groups import commit_offsets
from ottla.client.producer import Producer
from ottla.core.ids import TopicPartition
from ottla.metrics.page import FAMILIES
from ottla.metrics.reader import MetricsReader
from ottla.metrics.request_times import RequestTimes
from ottla.testing.cluster import TestCluster
from tests.support.scrapes import OPENMETRICS, Scraped, scrape, together

pytestmark = [pytest.mark.simulated_time, pytest.mark.brokers(3)]

PARTITIONS = 6
GROUP = "billing"


@pytest.fixture
async def readers(cluster: TestCluster) -> AsyncIterator[dict[int, MetricsReader]]:
    made = {
        node_id: MetricsReader(broker, RequestTimes(cluster.clock.monotonic))
        for node_id, broker in cluster.brokers.items()
    }
    yield made
    for reader in made.values():
        await reader.close()


async def _pages(readers: dict[int, MetricsReader]) -> list[Scraped]:
    return [await scrape(reader) for reader in readers.values()]


async def _produce(cluster: TestCluster, topic: str, partition: int, *values: bytes) -> None:
    async with await cluster.client() as client, Producer(client, clock=cluster.clock) as producer:
        for value in values:
            await (await producer.send(topic, value=value, partition=partition))


async def _commit(cluster: TestCluster, topic: str, offsets: dict[int, int]) -> None:
    async with await cluster.client() as client:
        committed = {TopicPartition(topic, index): offset for index, offset in offsets.items()}
        await commit_offsets(client, GROUP, committed)


async def test_both_formats_are_valid_and_have_the_same_samples(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    await cluster.create_topic("orders", PARTITIONS)
    await _produce(cluster, "orders", 0, b"a", b"b")
    await _commit(cluster, "orders", {0: 1})
    for reader in readers.values():
        plain, openmetrics = await scrape(reader), await scrape(reader, OPENMETRICS)
        own = {name for name in plain.names if name.startswith(("kafka_", "kminion_", "ottla_"))}
        assert own == {name for name in openmetrics.names if name.startswith(("kafka_", "kminion_", "ottla_"))}
        known = {f"{name}{suffix}" for name in FAMILIES for suffix in ("", "_total", "_bucket", "_count", "_sum")}
        assert own <= known


async def test_each_series_of_the_cluster_is_there_once(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    await cluster.create_topic("orders", PARTITIONS)
    await _produce(cluster, "orders", 3, b"a", b"b", b"c")
    await _commit(cluster, "orders", {0: 0, 3: 1})
    pages = await _pages(readers)
    for index in range(PARTITIONS):
        end = 3.0 if index == 3 else 0.0
        where = {"topic": "orders", "partition": index}
        assert together(pages, "kafka_topic_partition_current_offset", **where) == [end]
        assert together(pages, "kafka_topic_partition_in_sync_replica", **where) == [3.0]
        assert together(pages, "kafka_log_log_logendoffset", **where) == [end] * 3
        lag = together(pages, "kafka_consumergroup_lag", consumergroup=GROUP, **where)
        assert lag == [2.0 if index == 3 else 0.0]
    assert together(pages, "kafka_brokers") == [3.0]
    assert together(pages, "kafka_topic_partitions", topic="orders") == [PARTITIONS]
    assert sum(together(pages, "kafka_controller_kafkacontroller_activecontrollercount")) == 1
    assert sum(together(pages, "kminion_kafka_topic_high_water_mark_sum", topic_name="orders")) == 3
    assert sum(together(pages, "kafka_server_brokertopicmetrics_messagesin_total", topic="orders")) == 3


async def test_a_lag_in_seconds_is_the_age_of_the_first_unread_record(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    """The partitions have leaders on all brokers, so that the coordinator asks others for most of them."""
    await cluster.create_topic("orders", PARTITIONS)
    produced_at: dict[int, list[float]] = {}
    for index in range(PARTITIONS):
        for _ in range(3):
            produced_at.setdefault(index, []).append(cluster.clock.wall_ms() / 1000)
            await _produce(cluster, "orders", index, b"v")
            await asyncio.sleep(17)
    offsets = {index: index % 4 for index in range(PARTITIONS)}
    await _commit(cluster, "orders", offsets)
    for pause_s in (0, 100, 1000):
        await asyncio.sleep(pause_s)
        pages, now = await _pages(readers), cluster.clock.wall_ms() / 1000
        for index, offset in offsets.items():
            truth = 0.0 if offset == 3 else now - produced_at[index][offset]
            where = {"group": GROUP, "topic": "orders", "partition": index}
            (found,) = together(pages, "ottla_group_lag_seconds", **where)
            assert abs(found - truth) < 1, where
        (largest,) = together(pages, "ottla_group_lag_seconds_max", group=GROUP)
        assert abs(largest - (now - produced_at[0][0])) < 1
    await _commit(cluster, "orders", dict.fromkeys(range(PARTITIONS), 3))
    assert set(together(await _pages(readers), "ottla_group_lag_seconds", group=GROUP)) == {0.0}


async def test_a_lag_in_seconds_is_exact_within_a_batch(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    await cluster.create_topic("orders", 1)
    now_ms = cluster.clock.wall_ms()
    async with await cluster.client() as client, Producer(client, clock=cluster.clock) as producer:
        ages_s = (500, 400, 300)
        sent = [
            await producer.send("orders", value=b"v", partition=0, timestamp_ms=now_ms - age_s * 1000)
            for age_s in ages_s
        ]
        await asyncio.gather(*sent)
    for offset, age_s in enumerate(ages_s):
        await _commit(cluster, "orders", {0: offset})
        found = together(await _pages(readers), "ottla_group_lag_seconds", group=GROUP)
        assert [round(each) for each in found] == [age_s]


async def test_what_topics_got_is_counted_over_rolled_and_deleted_segments(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    await cluster.create_topic("orders", 1, configs={"segment.bytes": "1048576"})
    value, sizes = b"x" * 300_000, list[float]()
    for _ in range(4):
        await _produce(cluster, "orders", 0, value, value)
        pages = await _pages(readers)
        sizes.append(sum(together(pages, "kafka_server_brokertopicmetrics_bytesin_total", topic="orders")))
    assert sizes == sorted(sizes)
    assert 8 * len(value) <= sizes[-1] < 8 * len(value) + 8 * 200
    assert sum(together(pages, "kafka_server_brokertopicmetrics_messagesin_total", topic="orders")) == 8


@pytest.mark.options({"ottla.metrics.partitions.max": "4"})
async def test_series_are_bounded_and_sums_are_not(cluster: TestCluster, readers: dict[int, MetricsReader]) -> None:
    await cluster.create_topic("orders", 20)
    for page in await _pages(readers):
        assert len(page.having("kafka_log_log_size")) == 4
        assert page.value("ottla_metrics_partitions_left_out") == 16
        assert page.value("kafka_server_replicamanager_partitioncount") == 20


@pytest.mark.options({"ottla.metrics.partitions.max": "4"})
async def test_groups_and_topics_with_series_are_bounded(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    for number in range(6):
        await cluster.create_topic(f"orders-{number}", 1)
    async with await cluster.client() as client:
        for number in range(20):
            await commit_offsets(client, f"group-{number}", {TopicPartition("orders-0", 0): 0})
    pages = await _pages(readers)
    shown = [len(page.having("kminion_kafka_consumer_group_members")) for page in pages]
    left_out = [page.value("ottla_metrics_groups_left_out") for page in pages]
    assert max(shown) == 4
    assert sum(shown) + sum(left_out) == 20
    assert sum(page.value("kafka_coordinator_group_groupmetadatamanager_numgroups") for page in pages) == 20
    assert len(together(pages, "kafka_topic_partitions")) == 4


async def test_label_values_are_escaped(cluster: TestCluster, readers: dict[int, MetricsReader]) -> None:
    await cluster.create_topic("orders", 1)
    async with await cluster.client() as client:
        name = 'a "quoted\\" group of 100 %d\n'
        await commit_offsets(client, name, {TopicPartition("orders", 0): 0})
    for accept in ("", OPENMETRICS):
        pages = [await scrape(reader, accept) for reader in readers.values()]
        assert together(pages, "kafka_consumergroup_lag", consumergroup=name) == [0.0]
