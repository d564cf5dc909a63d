"""Reads the events of brokers: by their listeners for HTTP, or from the topic `__ottla_events`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from ottla.client.broker_http import LISTENER, get_json, url_of
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.metadata import BrokerNode
from ottla.client.offsets import end_offsets, list_offsets
from ottla.core.errors import KafkaError
from ottla.core.ids import EVENTS_TOPIC, TopicPartition
from ottla.diagnosis.facts import SeenEvent

TOPIC_ENABLE = "ottla.events.topic.enable"
_READ_S = 10.0
_EVENTS_MAX = 10_000


class ReadEvents(NamedTuple):
    """The events that could be read; None if no broker keeps any that can be."""

    events: list[SeenEvent] | None
    clock_skews_s: dict[int, float]  # of brokers that answered by HTTP
    unread: dict[str, str]


async def read_events(
    cluster: Cluster,
    nodes: Iterable[BrokerNode],
    configs: Mapping[int, Mapping[str, str]],
    *,
    now_ms: int,
    since_ms: int,
    token: str = "",
) -> ReadEvents:
    """Read the events since a time, of all brokers that keep them where they can be read."""
    events: list[SeenEvent] | None = None
    skews: dict[int, float] = {}
    unread: dict[str, str] = {}
    for node in nodes:
        listener = configs.get(node.node_id, {}).get(LISTENER, "")
        if not listener:
            continue
        try:
            url = f"{url_of(listener, node.host, '/events')}?since={since_ms}&limit={_EVENTS_MAX}"
            body = await asyncio.to_thread(get_json, url, token)
        except (OSError, ValueError) as error:
            unread[f"events of broker {node.node_id}"] = str(error)
            continue
        skews[node.node_id] = (_time_ms(body.get("now")) - now_ms) / 1000
        events = [*(events or []), *(seen(fields) for fields in body.get("events", []))]
    if events is None and any(config.get(TOPIC_ENABLE) == "true" for config in configs.values()):
        try:
            async with asyncio.timeout(_READ_S):
                events = await _from_topic(cluster, since_ms)
        except (KafkaError, TimeoutError) as error:
            unread["events"] = str(error) or f"the topic {EVENTS_TOPIC} was not read within {_READ_S:g} s"
            events = []
    return ReadEvents(events, skews, unread)


async def _from_topic(cluster: Cluster, since_ms: int) -> list[SeenEvent]:
    info = await cluster.topic(EVENTS_TOPIC, fresh=True)
    partitions = [TopicPartition(EVENTS_TOPIC, p.partition) for p in info.partitions if p.leader_id >= 0]
    begins = await list_offsets(cluster, dict.fromkeys(partitions, since_ms))
    ends = await end_offsets(cluster, partitions)
    positions = {tp: begins[tp].offset for tp in partitions if 0 <= begins[tp].offset < ends[tp]}
    events: list[SeenEvent] = []
    options = ConsumerOptions(max_wait_s=0.05)
    async with Consumer(cluster, positions, end={tp: ends[tp] for tp in positions}, options=options) as consumer:
        async for _, records in consumer.chunks():
            events += [seen(json.loads(record.value or b"{}")) for record in records]
    return events


def seen(fields: Mapping[str, Any]) -> SeenEvent:
    """Convert the JSON of an event."""
    return SeenEvent(
        time_ms=_time_ms(fields.get("time")),
        broker=int(fields.get("broker", -1)),
        kind=str(fields.get("kind", "")),
        cause=str(fields.get("cause", "")),
        topic=str(fields.get("topic", "")),
        partition=int(fields.get("partition", -1)),
        group=str(fields.get("group", "")),
        client=str(fields.get("client", "")),
        node=int(fields.get("node", -1)),
        error=str(fields.get("error", "")),
        count=int(fields.get("count", 1)),
        last_ms=_time_ms(fields.get("last")),
        numbers=dict(fields.get("numbers", {})),
    )


def _time_ms(text: object) -> int:
    return int(datetime.fromisoformat(str(text)).timestamp() * 1000) if text else 0
