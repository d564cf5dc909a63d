"""The page of the clients that push their own metrics, of a broker whose page of metrics can be read."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.client.broker_metrics import OF_CLIENTS, BrokerPages, parse_page
from ottla.console.pages.clients import instances_of, selected, throttled_of
from ottla.testing import kafka
from tests.support.console import browsing, options_for
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port
from tests.support.wire_client import Wire

CLIENT_METRICS, TOKEN = 16, "s3cret"
PAGE = r"""
ottla_client_metric{metric="a.latency",attributes="node=1",client_id="shop",software="librdkafka 2.6",client_instance_id="i1"} 2.5
ottla_client_counter_total{metric="a.bytes",attributes="",client_id="shop",software="librdkafka 2.6",client_instance_id="i1"} 70
ottla_client_metric{metric="a.latency",attributes="",client_id="<script>alert(1)</script>",software="java",client_instance_id="i2"} 1
"""


def test_values_are_gathered_by_client() -> None:
    found = instances_of(BrokerPages({1: parse_page(PAGE, OF_CLIENTS)}, {}))
    assert [(client.client_id, client.broker, len(client.values)) for client in found] == [
        ("<script>alert(1)</script>", 1, 1),
        ("shop", 1, 2),
    ]
    assert [(value.metric, value.value, value.is_counter) for value in found[1].shown] == [
        ("a.bytes", 70, True),
        ("a.latency", 2.5, False),
    ]
    assert [client.client_id for client in selected(found, "RDKAFKA")] == ["shop"]


def test_clients_that_waited_for_quotas_are_listed_over_all_brokers() -> None:
    page = parse_page(
        'ottla_client_throttle_seconds_total{user="User:a",client_id="shop"} 2\n'
        'ottla_client_throttle_seconds_total{user="User:a",client_id="idle"} 0\n',
        OF_CLIENTS,
    )
    (waited,) = throttled_of(BrokerPages({1: page, 2: page}, {}))
    assert (waited.client_id, waited.user, waited.seconds) == ("shop", "User:a", 4)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OttlaProcess]:
    settings = (
        f"ottla.http.listener=127.0.0.1:{free_port()}",
        f"ottla.http.token={TOKEN}",
        "ottla.client.metrics.enable=true",
    )
    process = OttlaProcess(tmp_path, options=[word for text in settings for word in ("-o", text)]).start()
    try:
        yield process
    finally:
        process.stop()


async def test_the_page_reads_brokers_with_the_token_of_the_console(server: OttlaProcess) -> None:
    async with browsing(options_for(server.bootstrap, http_token=TOKEN)) as browser:
        assert "No client pushes metrics" in await browser.get("/clients")
    async with browsing(options_for(server.bootstrap)) as browser:
        page = html.unescape(await browser.get("/clients"))
        assert "Not shown of broker" in page
        assert "401" in page


@pytest.mark.external
async def test_what_a_client_pushes_is_shown(server: OttlaProcess) -> None:
    settings = [{"name": "metrics", "config_operation": 0, "value": "*"}]
    settings.append({"name": "interval.ms", "config_operation": 0, "value": "200"})
    with Wire(server.port) as wire:
        resource = {"resource_type": CLIENT_METRICS, "resource_name": "all", "configs": settings}
        wire.call("incremental_alter_configs", 1, resources=[resource])
    producer = Producer({"bootstrap.servers": server.bootstrap, "client.id": "shop"})
    producer.produce("orders", b"a")
    assert producer.flush(20) == 0
    async with browsing(options_for(server.bootstrap, http_token=TOKEN)) as browser:
        async with asyncio.timeout(60):
            while "org.apache.kafka.producer." not in (page := await browser.get("/clients?search=SHOP")):
                producer.poll(0.1)  # it pushes each 0.2 s
        assert "librdkafka" in page or "confluent" in page
        assert "No client matches" in await browser.get("/clients?search=other")


async def test_without_pages_of_brokers_the_page_says_so() -> None:
    with kafka(topics={"orders": 1}) as k:
        async with browsing(options_for(k.bootstrap)) as browser:
            assert "No broker here has a page of metrics" in await browser.get("/clients")
