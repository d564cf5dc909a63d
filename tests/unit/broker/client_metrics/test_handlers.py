"""Clients ask what to push and push it, as with Kafka 4.4; the last values are at /metrics."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from ottla.broker.client_metrics import instances
from ottla.core.error_codes import ErrorCode
from ottla.metrics.reader import MetricsReader
from ottla.metrics.request_times import RequestTimes
from ottla.records.codecs import Codec, compress
from ottla.testing.cluster import BrokerHandlers
from ottla.wire.generated import api_versions
from tests.support.scrapes import scrape
from tests.support.telemetry import counter, gauge, point, pushed
from tests.support.telemetry_client import NO_ID, NONE, Client, subscribe

pytestmark = [pytest.mark.simulated_time, pytest.mark.options({"ottla.client.metrics.enable": "true"})]

ID = uuid.UUID(int=0xABCDEF)
INTERVAL_S = 1.0
THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


async def listed(broker: BrokerHandlers) -> set[int]:
    request = api_versions.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    return {api.api_key for api in (await broker.call("api_versions", 3, request)).api_keys}


async def test_the_apis_are_offered_where_the_setting_asks_for_it(broker: BrokerHandlers) -> None:
    assert {71, 72} <= await listed(broker)


@pytest.mark.options({"ottla.client.metrics.enable": "false"})
async def test_by_default_the_apis_are_answered_and_not_offered_and_a_push_is_dropped(broker: BrokerHandlers) -> None:
    assert not {71, 72} & await listed(broker)
    client = Client(broker)
    assert (await client.get()).error_code == NONE
    assert await client.push(b"no metrics at all") == NONE
    other = Client(broker)
    await other.get()
    assert await other.push(b"not compressed", Codec.GZIP) == ErrorCode.INVALID_RECORD


async def test_a_client_is_asked_what_to_push(broker: BrokerHandlers) -> None:
    assert await subscribe(broker, metrics="org.apache.kafka.producer.,b", interval_ms="1000") == (NONE, None)
    client = Client(broker)
    answer = await client.get()
    assert answer.client_instance_id not in (NO_ID, uuid.UUID(int=1))
    assert answer.requested_metrics == ["b", "org.apache.kafka.producer."]
    assert answer.accepted_compression_types == [Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY]
    assert (answer.push_interval_ms, answer.telemetry_max_bytes, answer.delta_temporality) == (1000, 1 << 20, True)
    again = Client(broker, instance_id=ID)
    first, second = (await again.get()), (await Client(broker, instance_id=uuid.UUID(int=9)).get())
    assert first.client_instance_id == ID and first.subscription_id != second.subscription_id


async def test_a_client_without_a_subscription_is_asked_for_nothing(broker: BrokerHandlers) -> None:
    answer = await Client(broker).get()
    assert (answer.error_code, answer.requested_metrics, answer.push_interval_ms) == (NONE, [], 300_000)


@pytest.mark.parametrize(
    ("match", "does"),
    [
        ("client_id=app", True),
        ("client_id=ap", False),
        ("client_id=a.*,client_software_name=librdkafka", True),
        ("client_id=a.*,client_software_name=apache-kafka-java", False),
        ("client_software_version=2\\.1[0-9]\\..*", True),
        ("client_source_address=10\\.1\\..*", True),
        ("client_source_port=1", False),
        ("client_instance_id=AAAAAAAAAAAAAAAAAKvN7w", True),
    ],
)
async def test_a_subscription_is_for_the_clients_that_match(broker: BrokerHandlers, match: str, does: bool) -> None:
    assert await subscribe(broker, metrics="m", match=match) == (NONE, None)
    answer = await Client(broker, instance_id=ID).get()
    assert answer.requested_metrics == (["m"] if does else [])


async def test_several_subscriptions_are_one_with_the_shortest_interval(broker: BrokerHandlers) -> None:
    await subscribe(broker, "a", metrics="x,y", interval_ms="5000")
    await subscribe(broker, "b", metrics="y,z", interval_ms="2000")
    await subscribe(broker, "c", metrics="*", interval_ms="100", match="client_id=other")
    answer = await Client(broker).get()
    assert (answer.requested_metrics, answer.push_interval_ms) == (["x", "y", "z"], 2000)
    answer = await Client(broker, "other").get()
    assert (answer.requested_metrics, answer.push_interval_ms) == (["*"], 100)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"metrics": "a", "interval_ms": "99"}, ErrorCode.INVALID_REQUEST),
        ({"interval_ms": "3600001"}, ErrorCode.INVALID_REQUEST),
        ({"interval_ms": "soon"}, ErrorCode.INVALID_CONFIG),
        ({"unknown": "a"}, ErrorCode.INVALID_REQUEST),
        ({"match": "client_id"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id="}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=a=b"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_name=a"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=("}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=(a)\\1"}, ErrorCode.INVALID_CONFIG),
    ],
)
async def test_a_subscription_is_checked(broker: BrokerHandlers, settings: dict[str, Any], error: ErrorCode) -> None:
    assert (await subscribe(broker, **settings))[0] == error


async def test_requests_before_the_interval_are_throttled(broker: BrokerHandlers) -> None:
    await subscribe(broker, metrics="*", interval_ms="1000")
    client = Client(broker)
    assert (await client.get()).error_code == NONE
    assert (await client.get()).error_code == THROTTLED
    assert await client.push() == NONE, "the first push may come at once"
    assert await client.push() == THROTTLED
    assert (await client.get()).error_code == THROTTLED
    await asyncio.sleep(INTERVAL_S)
    assert await client.push() == NONE
    await asyncio.sleep(INTERVAL_S)
    assert (await client.get()).error_code == NONE


async def test_a_push_is_refused_as_kafka_refuses_it(broker: BrokerHandlers) -> None:
    await subscribe(broker, metrics="*", interval_ms="100")
    client = Client(broker)
    await client.get()

    async def refused(data: bytes = b"", codec: int = 0, **fields: Any) -> ErrorCode:
        await asyncio.sleep(INTERVAL_S)
        return await client.push(data, codec, **fields)

    assert await refused(client_instance_id=NO_ID) == ErrorCode.INVALID_REQUEST
    assert await refused(client_instance_id=uuid.UUID(int=1)) == ErrorCode.INVALID_REQUEST
    assert await refused(subscription_id=client.subscription_id + 1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert await refused(codec=5) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert await refused(codec=-1) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert await refused(bytes((1 << 20) + 1)) == ErrorCode.TELEMETRY_TOO_LARGE
    assert await refused(b"\xff\xff") == ErrorCode.INVALID_RECORD
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        assert await refused(b"not compressed", codec) == ErrorCode.INVALID_RECORD, codec
    assert await refused() == NONE


@pytest.mark.parametrize("wrong", [{"subscription_id": 1}, {"codec": 5}], ids=["subscription", "codec"])
async def test_a_client_asks_again_at_once_after_a_push_for_other_subscriptions(
    broker: BrokerHandlers, wrong: dict[str, Any]
) -> None:
    client = Client(broker)
    await client.get()
    assert await client.push(**wrong) in (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    assert (await client.get()).error_code == NONE
    assert (await client.get()).error_code == THROTTLED
    assert await client.push() == THROTTLED
    await asyncio.sleep(300)
    assert await client.push() == NONE


async def test_a_changed_subscription_makes_the_old_id_unknown_and_may_be_asked_for_at_once(
    broker: BrokerHandlers,
) -> None:
    await subscribe(broker, metrics="a", interval_ms="1000")
    client = Client(broker)
    await client.get()
    await subscribe(broker, metrics="a,b")
    assert await client.push() == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert (await client.get()).requested_metrics == ["a", "b"]
    await asyncio.sleep(INTERVAL_S)
    assert await client.push() == NONE
    await subscribe(broker, metrics=None, interval_ms=None)
    assert (await client.get()).requested_metrics == []


async def test_the_last_push_may_come_early_and_is_the_last(broker: BrokerHandlers) -> None:
    await subscribe(broker, metrics="*", interval_ms="1000")
    client = Client(broker)
    await client.get()
    assert await client.push() == NONE
    assert await client.push(terminating=True) == NONE
    await asyncio.sleep(INTERVAL_S)
    assert await client.push(terminating=True) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("codec", list(Codec))
async def test_the_last_values_are_shown(broker: BrokerHandlers, codec: Codec) -> None:
    await subscribe(broker, metrics="*", interval_ms="1000")
    client = Client(broker, instance_id=ID)
    await client.get()
    for latency, sent in ((1.5, 2), (2.5, 5)):
        data = pushed(
            gauge("latency", point(latency, {"topic": 'a "t"'})), counter("sent", point(sent), point(float("nan")))
        )
        assert await client.push(compress(codec, data), codec) == NONE
        await asyncio.sleep(INTERVAL_S)
    reader = MetricsReader(broker.cluster.brokers[1], RequestTimes(broker.clock.monotonic))
    page = await scrape(reader)
    labels = {"client_id": "app", "software": "librdkafka 2.16.0", "client_instance_id": "AAAAAAAAAAAAAAAAAKvN7w"}
    assert page.value("ottla_client_metric", metric="latency", attributes='topic=a "t"', **labels) == 2.5
    assert page.value("ottla_client_counter_total", metric="sent", attributes="", **labels) == 7
    assert page.value("ottla_client_metrics_instances") == 1
    assert page.value("ottla_client_metrics_pushes_total", error="NONE") == 2
    await reader.close()


async def test_an_instance_goes_with_its_connection_and_after_three_intervals_of_silence(
    broker: BrokerHandlers,
) -> None:
    await subscribe(broker, metrics="*", interval_ms="30000")
    kept, closed = Client(broker), Client(broker)
    await kept.get()
    await closed.get()
    clients = broker.services.client_metrics
    assert clients is not None and len(clients) == 2
    clients.lost(id(closed.connection))
    assert [each.instance_id for each in clients.shown()] == [kept.instance_id]
    await asyncio.sleep(89)
    assert len(list(clients.shown())) == 1
    await asyncio.sleep(2)
    assert not list(clients.shown()) and not clients._of_connection


@pytest.mark.options({"ottla.client.metrics.enable": "true", "ottla.client.metrics.series.max": "5"})
async def test_only_so_many_instances_and_values_are_kept(
    broker: BrokerHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "INSTANCES_MAX", 2)
    monkeypatch.setattr(instances, "SERIES_OF_INSTANCE_MAX", 3)
    await subscribe(broker, metrics="*", interval_ms="1000")
    data = pushed(*(gauge(str(number), point(number)) for number in range(4)))
    made = [Client(broker) for _ in range(3)]
    for client in made:
        await client.get()
        assert await client.push(data) == NONE
    clients = broker.services.client_metrics
    assert clients is not None
    assert {each.instance_id: len(each.series) for each in clients.shown()} == {
        made[1].instance_id: 2,
        made[2].instance_id: 3,
    }
    assert clients.left_out == 1 + 2 + 1
