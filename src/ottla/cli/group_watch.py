"""`ottla group watch`: shows the lag of a group over time, as a plot on a terminal."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.live import INTERVAL_S, Count, Interval, Once, Screen, samples
from ottla.cli.name_patterns import unknown_name
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import duration_text
from ottla.cli.plot import plot
from ottla.cli.table import table
from ottla.cli.times import clock_time
from ottla.client.activity import GroupActivity, Snapshot
from ottla.client.activity_rates import activity_between
from ottla.client.cluster import Cluster
from ottla.client.group_lag import GroupLag, describe_lags, lag_seconds
from ottla.client.groups import list_groups
from ottla.core.clock import SystemClock
from ottla.core.errors import GroupIdNotFound

EPILOG = "\b\nExample:\nottla group watch readers --interval 5"
_HISTORY = 1000
_PLOT_HEIGHT = 8
_WIDTH = 80
_PARTITIONS_MAX = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The lag of a group at a time, and the rates since the sample before."""

    wall_ms: int
    lag: GroupLag
    lag_seconds: float | None
    activity: GroupActivity | None  # None for the first sample


def watch(
    name: Annotated[str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=completion.groups)],
    interval_s: Interval = INTERVAL_S,
    count: Count = None,
    once: Once = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the lag of a group over time, with its rates, until Ctrl-C.

    On a terminal the lag is a plot; elsewhere each sample is a line. What the group reads is seen when it commits.
    """
    history = deque[float](maxlen=_HISTORY)

    async def work(cluster: Cluster) -> None:
        before: Snapshot | None = None

        async def take() -> Sample:
            nonlocal before
            lag = await _lag_of(cluster, name)
            ages_s = await lag_seconds(cluster, lag)
            clock = SystemClock()
            after = Snapshot(clock.monotonic(), clock.wall_ms(), len(cluster.info.nodes), {}, {name: lag})
            rates = None if before is None else activity_between(before, after).groups[0]
            before = after
            return Sample(after.wall_ms, lag, max(ages_s.values(), default=None), rates)

        with Screen() as screen:
            async for sample in samples(take, interval_s, 1 if once else count):
                history.append(sample.lag.lag or 0)
                if shape is OutputFormat.JSON:
                    print(json.dumps(_as_json(name, sample), ensure_ascii=False), flush=True)
                elif screen.is_terminal:
                    screen.show(lines_of(name, sample, history, width=screen.width or _WIDTH))
                else:
                    screen.show([line_of(sample)])

    run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)


async def _lag_of(cluster: Cluster, name: str) -> GroupLag:
    lag = (await describe_lags(cluster, [name]))[name]
    if isinstance(lag, GroupIdNotFound):
        raise unknown_name(name, [group.group_id for group in await list_groups(cluster)], what="group")
    if not isinstance(lag, GroupLag):
        raise lag
    return lag


def _as_json(name: str, sample: Sample) -> dict[str, Any]:
    rates = sample.activity
    return {
        "group": name,
        "time_ms": sample.wall_ms,
        "state": sample.lag.group.state,
        "members": len(sample.lag.group.members),
        "lag": sample.lag.lag,
        "lag_seconds": sample.lag_seconds,
        "read_per_s": None if rates is None else rates.read_per_s,
        "written_per_s": None if rates is None else rates.written_per_s,
        "catches_up_s": None if rates is None else rates.catches_up_s,
    }


def line_of(sample: Sample) -> str:
    """Return a sample in one line."""
    lag, rates = sample.lag.lag, sample.activity
    parts = [
        clock_time(sample.wall_ms),
        sample.lag.group.state,
        f"{len(sample.lag.group.members)} members",
        f"lag {'-' if lag is None else f'{lag:,}'}",
        f"lag time {duration_text(sample.lag_seconds)}",
    ]
    if rates is not None:
        parts += [f"read {rates.read_per_s:,.1f}/s", f"written {rates.written_per_s:,.1f}/s"]
        if lag:
            until = rates.catches_up_s
            parts.append("does not catch up" if until is None else f"catches up in {duration_text(until)}")
    return "  ".join(parts)


def lines_of(name: str, sample: Sample, history: Sequence[float], *, width: int) -> list[str]:
    """Return a sample with the plot of the lag, and the partitions with the most lag."""
    lag = sample.lag
    lags = sorted(((lag.lag_of(tp) or 0, tp) for tp in lag.partitions), key=lambda item: (-item[0], item[1]))
    rows = [
        [str(tp), f"{unread:,}", lag.owners.get(tp, "-")] for unread, tp in lags[:_PARTITIONS_MAX] if tp in lag.bounds
    ]
    lines = [
        f"group {name}",
        *_folded(line_of(sample), width),
        "",
        *plot(list(history), width=width, height=_PLOT_HEIGHT),
    ]
    return [*lines, "", *table(rows, ["partition", "lag", "member"], width_max=width).splitlines()] if rows else lines


def _folded(line: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(line, width) if len(line) > width else [line]
