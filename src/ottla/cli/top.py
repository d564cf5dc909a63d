"""`ottla top`: shows brokers, topics, groups, clients and requests by their rates, as long as it runs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import usage_error
from ottla.cli.live import INTERVAL_S, Count, Interval, Once, Screen, keys, samples
from ottla.cli.name_patterns import select
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import show_json
from ottla.cli.top_tables import COLUMNS, KEYS, Kind, View
from ottla.client.activity import Activity, Snapshot, take_snapshot
from ottla.client.activity_rates import activity_between
from ottla.client.broker_http import TOKEN_VARIABLE
from ottla.client.broker_metrics import listeners_of
from ottla.client.cluster import Cluster
from ottla.core.clock import SystemClock

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="\b\nExample:\nottla top --topic 'orders*' --interval 5")
def top(
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="PATTERN", help="Only these topics; repeatable.", autocompletion=completion.topics
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group", "-g", metavar="PATTERN", help="Only these groups; repeatable.", autocompletion=completion.groups
        ),
    ] = None,
    show: Annotated[
        str | None,
        typer.Option(
            "--show", metavar="TABLES", help="brokers, topics, partitions, groups, clients, requests. Default: most."
        ),
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="COLUMN", help="Sort by this column, as bytes/s or lag_time.")
    ] = None,
    interval_s: Interval = INTERVAL_S,
    count: Count = None,
    once: Once = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show brokers, topics, partitions, groups, clients and requests by their rates, until q or Ctrl-C.

    Rates are differences of offsets and of the sizes of logs, so that every broker that speaks Kafka's protocol has
    them; what a group reads is seen when it commits. Brokers of Ottla with ottla.http.listener add processor, memory,
    the event loop and requests. Where standard output is no terminal, each sample is printed below the one before;
    --format json prints a line for each.
    """
    target = ConnectionOptions(brokers, profile, timeout)
    limit = 1 if once else count
    kinds = _kinds_of(show)
    view = View(kinds, _check_sort(sort, kinds))
    token = os.environ.get(TOKEN_VARIABLE, "")

    async def take(cluster: Cluster, listeners: Mapping[int, str]) -> Snapshot:
        return await take_snapshot(
            cluster,
            clock=SystemClock(),
            select_topics=lambda names: select(topic or [], names, what="topic"),
            select_groups=lambda names: select(group or [], names, what="group"),
            token=token,
            listeners=listeners,
        )

    run_on_cluster(target, lambda cluster: _watch(cluster, take, view, shape, interval_s, limit, is_only=once))


async def _watch(
    cluster: Cluster,
    take: Callable[[Cluster, Mapping[int, str]], Awaitable[Snapshot]],
    view: View,
    shape: OutputFormat,
    interval_s: float,
    limit: int | None,
    *,
    is_only: bool,
) -> None:
    """Show what happened between each two snapshots, and take keys meanwhile."""
    before: Snapshot | None = None
    last: Activity | None = None
    running = asyncio.current_task()
    listeners = await listeners_of(cluster, cluster.info.nodes.values())

    def pressed(key: str) -> None:
        if view.press(key) and running is not None:
            running.cancel()
        elif last is not None:
            _show(last, shape, screen, view, is_only=is_only)

    with Screen() as screen, keys(pressed), contextlib.suppress(asyncio.CancelledError):
        async for after in samples(lambda: take(cluster, listeners), interval_s, None if limit is None else limit + 1):
            if before is not None:
                last = activity_between(before, after)
                _show(last, shape, screen, view, is_only=is_only)
            before = after


def _show(activity: Activity, shape: OutputFormat, screen: Screen, view: View, *, is_only: bool) -> None:
    if shape is OutputFormat.TABLE:
        screen.show(view.lines(activity, width=screen.width, height=screen.height, has_keys=screen.has_keys))
    elif is_only:
        show_json(_as_json(activity))
    else:
        print(json.dumps(_as_json(activity), ensure_ascii=False), flush=True)


def _as_json(activity: Activity) -> dict[str, Any]:
    fields = dataclasses.asdict(activity)
    for row, group in zip(fields["groups"], activity.groups, strict=True):
        row["catches_up_s"] = group.catches_up_s
    return fields


def _kinds_of(words: str | None) -> tuple[Kind, ...]:
    """Read --show. Raises CommandFailed."""
    if words is None:
        return KEYS["a"]
    try:
        return tuple(Kind(word.strip()) for word in words.split(","))
    except ValueError:
        known = ", ".join(kind.value for kind in Kind)
        raise usage_error(f"--show {words}: use some of {known}, separated by commas") from None


def _check_sort(sort: str | None, kinds: Sequence[Kind]) -> str:
    """Check --sort: it is a column of a table that is shown. Raises CommandFailed."""
    if sort is None:
        return ""
    column_name = sort.lower().replace(" ", "_")
    heads = [column.head for kind in kinds for column in COLUMNS[kind]]
    column_head = next((head for head in heads if head.replace(" ", "_") == column_name), None)
    if column_head is None:
        raise usage_error(f"--sort {sort}: use one of {', '.join(dict.fromkeys(heads))}")
    return column_head
