"""Reads what clients have pushed of their own metrics (KIP-714), from the brokers' listeners for HTTP."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.broker_http import LISTENER, get_json, url_of
from ottla.client.metadata import BrokerNode

PATH = "/client-metrics"


class PushedMetric(NamedTuple):
    """One value, as its client pushed it to a broker."""

    broker: int
    client_id: str
    client_instance_id: str
    software: str
    metric: str
    attributes: str
    is_counter: bool  # then the value is the sum of what was pushed
    value: float


class PushedMetrics(NamedTuple):
    """The metrics that could be read; None if no broker has a listener for HTTP."""

    metrics: list[PushedMetric] | None
    unread: dict[str, str]


async def read_client_metrics(
    nodes: Iterable[BrokerNode], configs: Mapping[int, Mapping[str, str]], client_id: str, *, token: str = ""
) -> PushedMetrics:
    """Read the last values of the clients with an id, from all brokers: each pushes to one of them."""
    metrics: list[PushedMetric] | None = None
    unread: dict[str, str] = {}
    for node in nodes:
        listener = configs.get(node.node_id, {}).get(LISTENER, "")
        if not listener:
            continue
        url = f"{url_of(listener, node.host, PATH)}?{urllib.parse.urlencode({'client_id': client_id})}"
        try:
            body = await asyncio.to_thread(get_json, url, token)
        except (OSError, ValueError) as error:
            unread[f"clients' metrics of broker {node.node_id}"] = str(error)
            continue
        metrics = metrics or []
        for client in body.get("clients", []):
            metrics += [
                PushedMetric(
                    broker=node.node_id,
                    client_id=str(client.get("client_id", "")),
                    client_instance_id=str(client.get("client_instance_id", "")),
                    software=str(client.get("software", "")),
                    metric=str(metric["metric"]),
                    attributes=str(metric["attributes"]),
                    is_counter=bool(metric["is_counter"]),
                    value=float(metric["value"]),
                )
                for metric in client.get("metrics", [])
            ]
    return PushedMetrics(metrics, unread)
