"""The probe measures what clients see, and finds records that were lost."""

from __future__ import annotations

import asyncio

import pytest

from ottla.core.ids import TopicPartition
from ottla.metrics.probe import TOPIC
from ottla.metrics.reader import MetricsReader
from ottla.metrics.request_times import RequestTimes
from ottla.testing.cluster import TestCluster
from tests.support.scrapes import scrape

INTERVAL_S = 1.0
pytestmark = [
    pytest.mark.simulated_time,
    pytest.mark.brokers(1),
    pytest.mark.options({"ottla.metrics.probe.interval.ms": "1000"}),
]


async def test_the_probe_finds_a_planted_loss_and_nothing_before(cluster: TestCluster) -> None:
    reader = MetricsReader(cluster.brokers[1], RequestTimes(cluster.clock.monotonic))
    reader.start()
    try:
        await asyncio.sleep(20 * INTERVAL_S)
        page = await scrape(reader)
        received = page.value("kminion_end_to_end_messages_received_total")
        assert received == page.value("kminion_end_to_end_messages_produced_total") >= 15
        assert page.value("kminion_end_to_end_messages_lost_total", partition_id=0) == 0
        assert page.value("kminion_end_to_end_roundtrip_latency_seconds_count", partitionId=0) == received

        log = cluster.services(1).replicas.partitions[TopicPartition(TOPIC, 0)].log
        log.truncate_to(log.end_offset - 1)
        await asyncio.sleep(5 * INTERVAL_S)
        page = await scrape(reader)
        assert page.value("kminion_end_to_end_messages_lost_total", partition_id=0) == 1
        assert page.value("kminion_end_to_end_messages_received_total") > received
    finally:
        await reader.close()
