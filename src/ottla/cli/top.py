"""`ottla top`: shows topics, groups and clients by their rates, as long as it runs."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.live import INTERVAL_S, Count, Interval, Once, Screen, samples
from ottla.cli.name_patterns import select
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import duration_text, show_json
from ottla.cli.table import table
from ottla.cli.times import clock_time
from ottla.client.activity import Activity, Snapshot, activity_between, take_snapshot
from ottla.client.cluster import Cluster
from ottla.core.clock import SystemClock

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_ROWS_MAX = 10  # of each table where there is no terminal whose height decides
_LINES_AROUND = 9  # of three tables: heads, empty lines and the first two lines


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
    interval_s: Interval = INTERVAL_S,
    count: Count = None,
    once: Once = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show topics, groups and clients by their rates, until Ctrl-C.

    The rates are differences of offsets, so that every broker that speaks Kafka's protocol has them; what a group reads
    is seen when it commits. Where standard output is no terminal, each sample is printed below the one before; --format
    json prints a line for each.
    """
    target = ConnectionOptions(brokers, profile, timeout)
    limit = 1 if once else count

    async def work(cluster: Cluster) -> None:
        async def take() -> Snapshot:
            return await take_snapshot(
                cluster,
                clock=SystemClock(),
                select_topics=lambda names: select(topic or [], names, what="topic"),
                select_groups=lambda names: select(group or [], names, what="group"),
            )

        before: Snapshot | None = None
        with Screen() as screen:
            async for after in samples(take, interval_s, None if limit is None else limit + 1):
                if before is not None:
                    _show(activity_between(before, after), shape, screen, is_only=once)
                before = after

    run_on_cluster(target, work)


def _show(activity: Activity, shape: OutputFormat, screen: Screen, *, is_only: bool) -> None:
    if shape is OutputFormat.TABLE:
        screen.show(lines_of(activity, width=screen.width, height=screen.height))
    elif is_only:
        show_json(_as_json(activity))
    else:
        print(json.dumps(_as_json(activity), ensure_ascii=False), flush=True)


def _as_json(activity: Activity) -> dict[str, Any]:
    fields = dataclasses.asdict(activity)
    for row, group in zip(fields["groups"], activity.groups, strict=True):
        row["catches_up_s"] = group.catches_up_s
    return fields


def lines_of(activity: Activity, *, width: int | None, height: int | None) -> list[str]:
    """Return the lines of a sample; with a height each table has as many rows as fit."""
    rows_max = _ROWS_MAX if height is None else max(1, (height - _LINES_AROUND) // 3)
    written = sum(topic.written_per_s for topic in activity.topics)
    read = sum(group.read_per_s for group in activity.groups)
    counts = f"{activity.brokers} brokers, {len(activity.topics)} topics, {len(activity.groups)} groups"
    lines = [f"{clock_time(activity.wall_ms)}  {counts}", f"{written:,.1f} records/s written, {read:,.1f} read"]
    topics = [
        [
            t.topic,
            str(t.partitions),
            _rate(t.written_per_s),
            "-" if t.busiest_share is None else f"{t.busiest_share:.0%}",
        ]
        for t in activity.topics[:rows_max]
    ]
    groups = [
        [
            g.group,
            g.state,
            str(g.members),
            _rate(g.read_per_s),
            "-" if g.lag is None else f"{g.lag:,}",
            "-" if g.lag_change is None else f"{g.lag_change:+,}",
            duration_text(g.catches_up_s),
        ]
        for g in activity.groups[:rows_max]
    ]
    clients = [[c.client, c.host, c.group, str(c.partitions), _rate(c.read_per_s)] for c in activity.clients[:rows_max]]
    for rows, columns in (
        (topics, ["topic", "partitions", "written/s", "busiest"]),
        (groups, ["group", "state", "members", "read/s", "lag", "change", "catches_up"]),
        (clients, ["client", "host", "group", "partitions", "read/s"]),
    ):
        if rows:
            lines += ["", *table(rows, columns, width_max=width).splitlines()]
    return lines


def _rate(per_second: float) -> str:
    return f"{per_second:,.1f}"
