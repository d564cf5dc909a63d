"""What `ottla top` adds for a broker whose page /metrics can be read."""

from __future__ import annotations

from pathlib import Path

from ottla.client.activity import take_snapshot
from ottla.client.activity_rates import activity_between
from ottla.client.addresses import parse_addresses
from ottla.client.admin import NewTopic, create_topics
from ottla.client.broker_metrics import listeners_of
from ottla.client.cluster import Cluster
from ottla.client.groups import commit_offsets
from ottla.client.producer import Producer
from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port

TOKEN = "s3cret"


async def test_a_broker_with_a_page_adds_processor_memory_requests_and_the_lag_in_seconds(tmp_path: Path) -> None:
    settings = (f"ottla.http.listener=127.0.0.1:{free_port()}", f"ottla.http.token={TOKEN}")
    server = OttlaProcess(tmp_path, options=[word for text in settings for word in ("-o", text)]).start()
    clock = SystemClock()
    try:
        async with await Cluster.connect(parse_addresses(server.bootstrap)) as cluster:
            await create_topics(cluster, [NewTopic("orders", 2)])
            listeners = await listeners_of(cluster, cluster.info.nodes.values())
            async with Producer(cluster, clock=clock) as producer:
                await producer.send("orders", value=b"x", partition=0)
                await producer.flush()
                await commit_offsets(cluster, "billing", {TopicPartition("orders", 0): 0})
                before = await take_snapshot(cluster, clock=clock, token=TOKEN, listeners=listeners)
                for number in range(100):
                    await producer.send("orders", value=b"x" * 100, partition=number % 2)
                await producer.flush()
            after = await take_snapshot(cluster, clock=clock, token=TOKEN, listeners=listeners)
            refused = await take_snapshot(cluster, clock=clock, token="wrong", listeners=listeners)
    finally:
        server.stop()
    activity = activity_between(before, after)
    (broker,) = activity.broker_activity
    assert broker.unread == ""
    assert broker.memory_bytes is not None
    assert broker.memory_bytes > 1 << 20
    assert broker.requests_per_s
    assert broker.processor is not None
    assert broker.loop_stalls is not None
    assert broker.connections
    (produced,) = (api for api in activity.apis if api.api == "Produce")
    assert produced.bytes_per_s > 10_000 / activity.seconds
    assert produced.mean_ms is not None
    orders = next(topic for topic in activity.topics if topic.topic == "orders")
    assert orders.written_per_s * activity.seconds == 100
    assert orders.bytes_per_s is not None
    assert orders.bytes_per_s * activity.seconds > 10_000
    billing = next(group for group in activity.groups if group.group == "billing")
    assert billing.lag is not None
    assert billing.lag > 1
    assert billing.lag_s is not None
    (other,) = activity_between(before, refused).broker_activity
    assert "401" in other.unread
    assert other.memory_bytes is None
