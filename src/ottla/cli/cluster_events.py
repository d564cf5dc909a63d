"""`ottla cluster events`: lists what brokers have recorded, such as who was the leader when."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import CommandFailed, show_notice, usage_error
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout, parse_seconds
from ottla.cli.output import show_rows
from ottla.client import admin
from ottla.client.broker_http import TOKEN_VARIABLE
from ottla.client.cluster import Cluster
from ottla.client.metadata import BrokerNode
from ottla.core.clock import SystemClock
from ottla.core.events import EventKind, time_text
from ottla.core.settings import ConfigResourceType
from ottla.diagnosis.events import ReadEvents, read_events
from ottla.diagnosis.facts import SeenEvent

_HOUR_S = 3_600.0


def events(
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="Only this kind, as election; repeatable.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="NAME", help="Only of this topic.", autocompletion=completion.topics),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="NAME", help="Only of this group.", autocompletion=completion.groups),
    ] = None,
    since_s: Annotated[
        float, typer.Option("--since", parser=parse_seconds, metavar="TIME", help="Since so long: 30m, 12h, 7d.")
    ] = _HOUR_S,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List events of brokers, the oldest first: elections, rebalances, refused requests, disks (docs/why.md).

    Brokers of Ottla have them at their listeners for HTTP (`ottla.http.listener`), or in a topic
    (`ottla.events.topic.enable`).
    """
    kinds = set(kind or ())
    if unknown := kinds.difference(EventKind):
        raise usage_error(f"{', '.join(sorted(unknown))}: no such kind", f"there are {', '.join(sorted(EventKind))}")
    read = run_on_cluster(ConnectionOptions(brokers, profile, timeout), lambda cluster: _read(cluster, since_s))
    for what, why in read.unread.items():
        show_notice(f"could not read {what}: {why}")
    if read.events is None:
        raise CommandFailed(
            "the brokers have no events that can be read",
            advice="set ottla.http.listener or ottla.events.topic.enable=true on them",
        )
    chosen = [
        event
        for event in read.events
        if (not kinds or event.kind in kinds) and topic in {None, event.topic} and group in {None, event.group}
    ]
    show_rows(rows_of(chosen), ["time", "broker", "kind", "what", "count", "cause"], shape, empty="no events")


async def broker_configs(cluster: Cluster) -> tuple[Sequence[BrokerNode], dict[int, dict[str, str]]]:
    """Return the brokers, and the settings of each."""
    nodes = (await admin.describe_cluster(cluster)).nodes
    described = await asyncio.gather(
        *(admin.describe_configs(cluster, ConfigResourceType.BROKER, str(node.node_id)) for node in nodes)
    )
    configs = {
        node.node_id: {entry.name: entry.value or "" for entry in entries}
        for node, entries in zip(nodes, described, strict=True)
    }
    return nodes, configs


async def _read(cluster: Cluster, since_s: float) -> ReadEvents:
    nodes, configs = await broker_configs(cluster)
    now_ms = SystemClock().wall_ms()
    token = os.environ.get(TOKEN_VARIABLE, "")
    return await read_events(cluster, nodes, configs, now_ms=now_ms, since_ms=now_ms - int(since_s * 1000), token=token)


def rows_of(chosen: Sequence[SeenEvent]) -> list[dict[str, Any]]:
    """Return the rows, the oldest first."""
    rows = []
    for event in sorted(chosen, key=lambda event: event.time_ms):
        place = f"{event.topic}-{event.partition}" if event.topic and event.partition >= 0 else event.topic
        what = " ".join(filter(None, (place, event.group, event.client)))
        row = {**asdict(event), "time": time_text(event.time_ms), "what": what}
        del row["time_ms"], row["last_ms"]
        rows.append(row)
    return rows
