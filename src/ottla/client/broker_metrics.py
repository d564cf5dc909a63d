"""Reads what brokers of Ottla count, at their pages /metrics: memory, loop, requests by API, lag in seconds, clients.

Only the families that are used are parsed: with 10,000 partitions a page has many others. A broker without a page, or
whose page cannot be read, is left out; the reason is kept.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.admin import describe_configs
from ottla.client.broker_http import LISTENER, get, url_of
from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect
from ottla.client.metadata import BrokerNode
from ottla.core.errors import KafkaError
from ottla.core.settings import ConfigResourceType

_TIMEOUT_S: Final = 5.0
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")

MEMORY: Final = "process_resident_memory_bytes"
PROCESSOR: Final = "process_cpu_seconds_total"
LOOP_DELAY: Final = "ottla_loop_delay_seconds_sum"
LOOP_MEASURED: Final = "ottla_loop_delay_seconds_count"
LOOP_STALLS: Final = "ottla_loop_stalls_total"
BYTES_IN: Final = "kafka_server_brokertopicmetrics_bytesin_total"
BYTES_OUT: Final = "kafka_server_brokertopicmetrics_bytesout_total"
CONNECTIONS: Final = "kafka_server_socket_server_metrics_connection_count"
REQUESTS: Final = "kafka_network_requestmetrics_requests_total"
REQUEST_BYTES: Final = "ottla_request_bytes_total"
REQUEST_SECONDS: Final = "ottla_request_seconds_sum"
GROUP_LAG_SECONDS: Final = "ottla_group_lag_seconds_max"
CLIENT_VALUE: Final = "ottla_client_metric"
CLIENT_COUNTER: Final = "ottla_client_counter_total"
CLIENT_THROTTLED: Final = "ottla_client_throttle_seconds_total"
FAMILIES: Final = (
    MEMORY,
    PROCESSOR,
    LOOP_DELAY,
    LOOP_MEASURED,
    LOOP_STALLS,
    BYTES_IN,
    BYTES_OUT,
    CONNECTIONS,
    REQUESTS,
    REQUEST_BYTES,
    REQUEST_SECONDS,
    GROUP_LAG_SECONDS,
)
OF_CLIENTS: Final = (CLIENT_VALUE, CLIENT_COUNTER, CLIENT_THROTTLED)


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class BrokerPage:
    """The page of one broker."""

    samples: Mapping[str, list[Sample]] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples with these labels; None without any."""
        values = [
            sample.value
            for sample in self.samples.get(name, ())
            if all(sample.labels.get(label) == value for label, value in labels.items())
        ]
        return sum(values) if values else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of the samples by a label."""
        sums: dict[str, float] = {}
        for sample in self.samples.get(name, ()):
            value = sample.labels.get(label)
            if value is not None:
                sums[value] = sums.get(value, 0.0) + sample.value
        return sums


@dataclass(frozen=True, slots=True)
class BrokerPages:
    """The pages of the brokers that have one; `unread` has the reason of each that could not be read."""

    pages: Mapping[int, BrokerPage]
    unread: Mapping[int, str]


def parse_page(text: str, families: Iterable[str] = FAMILIES) -> BrokerPage:
    r"""Parse the samples of some families.

    >>> parse_page('# TYPE a gauge\nprocess_resident_memory_bytes 5\nother{x="y"} 1\n').total(MEMORY)
    5.0
    """
    family_names, samples = frozenset(families), dict[str, list[Sample]]()
    for line in text.split("\n"):
        name = line.partition("{")[0].partition(" ")[0]
        if name not in family_names or (parts := _SAMPLE.match(line)) is None:
            continue
        try:
            value = float(parts[3])
        except ValueError:
            continue
        samples.setdefault(name, []).append(Sample(name, dict(_labels(parts[2] or "")), value))
    return BrokerPage(samples)


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for name, value in _LABEL.findall(text):
        yield name, _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value) if "\\" in value else value


async def listeners_of(cluster: Cluster, nodes: Iterable[BrokerNode]) -> dict[int, str]:
    """Return the setting of the listener for HTTP of the brokers that have one; no other Kafka has."""

    async def one(node: BrokerNode) -> tuple[int, str]:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                entries = await describe_configs(cluster, ConfigResourceType.BROKER, str(node.node_id), keys=[LISTENER])
        except (KafkaError, CannotConnect, TimeoutError):
            return node.node_id, ""
        return node.node_id, next((entry.value or "" for entry in entries if entry.name == LISTENER), "")

    return {node_id: text for node_id, text in await asyncio.gather(*map(one, nodes)) if text}


async def read_pages(
    listeners: Mapping[int, str], nodes: Iterable[BrokerNode], *, token: str = "", families: Iterable[str] = FAMILIES
) -> BrokerPages:
    """Read the pages of these brokers."""
    asked = [
        (node.node_id, url_of(listeners[node.node_id], node.host, "/metrics"))
        for node in nodes
        if node.node_id in listeners
    ]
    kept = tuple(families)

    def read(url: str) -> BrokerPage:
        return parse_page(get(url, token, timeout_s=_TIMEOUT_S).decode("utf-8", "replace"), kept)

    results = await asyncio.gather(*(asyncio.to_thread(read, url) for _, url in asked), return_exceptions=True)
    pages, unread = dict[int, BrokerPage](), dict[int, str]()
    for (node_id, _), result in zip(asked, results, strict=True):
        if isinstance(result, BrokerPage):
            pages[node_id] = result
        elif isinstance(result, OSError | ValueError):
            unread[node_id] = str(result)
        else:
            raise result
    return BrokerPages(pages, unread)
