"""Pages /metrics of brokers: parsing, and what brokers with a listener for HTTP say of themselves."""

from __future__ import annotations

import socket

from ottla.client import broker_metrics
from ottla.client.addresses import parse_addresses
from ottla.client.broker_metrics import listeners_of, parse_page, read_pages
from ottla.client.cluster import Cluster
from ottla.testing import kafka

PAGE = r"""
# HELP ottla_request_bytes_total Bytes
# TYPE ottla_request_bytes_total counter
ottla_request_bytes_total{request="Fetch"} 10
ottla_request_bytes_total{request="Produce"} 2.5e3
kafka_network_requestmetrics_requests_total{request="Fetch",version="17"} 3
kafka_network_requestmetrics_requests_total{request="Fetch",version="16"} 4
ottla_group_lag_seconds_max{group="a \"b\" \\ } x\n",type="consumer"} 12.5
process_resident_memory_bytes 1000
ottla_loop_stalls_total NaNs
something_else{group="x"} 1
"""


def test_families_that_are_asked_for_are_parsed_with_escaped_labels() -> None:
    page = parse_page(PAGE)
    assert page.total(broker_metrics.MEMORY) == 1000
    assert page.by(broker_metrics.REQUEST_BYTES, "request") == {"Fetch": 10, "Produce": 2500}
    assert page.by(broker_metrics.REQUESTS, "request") == {"Fetch": 7}
    assert page.total(broker_metrics.REQUESTS, version="16") == 4
    assert page.by(broker_metrics.GROUP_LAG_SECONDS, "group") == {'a "b" \\ } x\n': 12.5}
    assert page.total(broker_metrics.LOOP_STALLS) is None
    assert "something_else" not in page.samples


async def test_a_page_that_cannot_be_read_is_a_reason_and_no_failure() -> None:
    with kafka() as k:
        async with await Cluster.connect(parse_addresses(k.bootstrap)) as cluster:
            nodes = list(cluster.info.nodes.values())
            assert await listeners_of(cluster, nodes) == {}
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
            pages = await read_pages({1: f"127.0.0.1:{port}"}, nodes)
            assert not pages.pages
            assert "refused" in pages.unread[1]
