"""`ottla group`: lists, describes and deletes consumer groups, and changes their offsets."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

import typer

from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, report_failures, run_on_cluster
from ottla.cli.errors import CommandFailed, not_found
from ottla.cli.offset_options import read_offset, read_partitions
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import duration_text, show_fields, show_json, show_rows
from ottla.client import groups
from ottla.client.admin import Outcome
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.offset_spec import HELP as OFFSET_HELP
from ottla.client.offset_spec import OffsetSpec, resolve
from ottla.client.offsets import OffsetBounds, offset_bounds
from ottla.core.clock import SystemClock
from ottla.core.errors import GroupIdNotFound, UnknownMemberId
from ottla.core.ids import TopicPartition

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Consumer groups.")
Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
_FIRST_RECORD_S = 5.0  # how long to read the first unread record; after that its age is unknown


@app.command("list")
def list_groups(
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the groups of all brokers."""
    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), groups.list_groups)
    rows = [
        {
            "group": g.group_id,
            "state": g.state,
            "type": g.kind,
            "protocol": g.protocol_type,
            "coordinator": g.coordinator_id,
        }
        for g in found
    ]
    show_rows(rows, ["group", "state", "type", "protocol", "coordinator"], shape, empty="no groups")


@app.command()
def describe(
    name: Name,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a group's members and its lag, in messages and in seconds.

    The lag in seconds is the age of the first record that the group has not read. It is unknown ("-") for a partition
    without a committed offset, or if that record has no timestamp.
    """
    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), lambda cluster: _describe(cluster, name))
    if shape is OutputFormat.JSON:
        show_json(found)
        return
    parts, members = found.pop("partitions"), found.pop("members")
    show_fields({**found, "lag_seconds": duration_text(found["lag_seconds"]), "members": len(members)}, shape)
    if parts:
        print()
        for part in parts:
            part["lag time"] = duration_text(part["lag_seconds"])
        show_rows(parts, ["topic", "partition", "committed", "end_offset", "lag", "lag time", "member"], shape)
    if members:
        print()
        show_rows(members, ["member", "instance", "client", "host", "partitions"], shape)


async def _describe(cluster: Cluster, name: str) -> dict[str, Any]:
    group = await groups.describe_group(cluster, name)
    committed = await groups.committed_offsets(cluster, name)
    owners = {tp: member.member_id for member in group.members for tp in member.partitions}
    wanted = sorted({*committed, *owners})
    known = await _existing(cluster, wanted)
    bounds = await offset_bounds(cluster, known, read_committed=True)
    lagging = {
        tp: max(committed[tp].offset, bounds[tp].start_offset)
        for tp in known
        if tp in committed and committed[tp].offset < bounds[tp].end_offset
    }
    ages_s = await _ages_s(cluster, lagging, bounds)
    parts = [_part(tp, committed.get(tp), bounds.get(tp), ages_s, owners.get(tp)) for tp in wanted]
    lags = [part["lag"] for part in parts if part["lag"] is not None]
    times = [part["lag_seconds"] for part in parts if part["lag_seconds"] is not None]
    return {
        "group": name,
        "state": group.state,
        "type": group.kind,
        "assignor": group.protocol,
        "coordinator": group.coordinator_id,
        "lag": sum(lags) if lags else None,
        "lag_seconds": max(times) if times else None,
        "partitions": parts,
        "members": [
            {
                "member": m.member_id,
                "instance": m.instance_id,
                "client": m.client_id,
                "host": m.client_host,
                "partitions": [str(tp) for tp in m.partitions],
            }
            for m in group.members
        ],
    }


def _part(
    tp: TopicPartition,
    committed: groups.OffsetAndMetadata | None,
    bounds: OffsetBounds | None,
    ages_s: dict[TopicPartition, float],
    member: str | None,
) -> dict[str, Any]:
    lag = None
    if committed is not None and bounds is not None:
        lag = max(0, bounds.end_offset - max(committed.offset, bounds.start_offset))
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "committed": committed.offset if committed else None,
        "end_offset": bounds.end_offset if bounds else None,
        "lag": lag,
        "lag_seconds": 0.0 if lag == 0 else ages_s.get(tp),
        "member": member,
    }


async def _existing(cluster: Cluster, wanted: list[TopicPartition]) -> list[TopicPartition]:
    """Filter out the partitions of deleted topics; they may still have committed offsets."""
    info = await cluster.refresh({tp.topic for tp in wanted})
    led = {
        TopicPartition(topic.name, p.partition)
        for topic in info.topics.values()
        for p in topic.partitions
        if p.leader_id >= 0
    }
    return [tp for tp in wanted if tp in led]


async def _ages_s(
    cluster: Cluster, lagging: dict[TopicPartition, int], bounds: dict[TopicPartition, OffsetBounds]
) -> dict[TopicPartition, float]:
    """The age of the first unread record of each partition, in seconds."""
    now_ms = SystemClock().wall_ms()
    ages: dict[TopicPartition, float] = {}
    ends = {tp: bounds[tp].end_offset for tp in lagging}
    left = set(lagging)
    options = ConsumerOptions(read_committed=True, partition_max_bytes=64 << 10, max_wait_s=0.1)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FIRST_RECORD_S), Consumer(cluster, lagging, end=ends, options=options) as consumer:
            async for tp, records in consumer.chunks():
                if tp in left and records[0].timestamp_ms >= 0:
                    ages[tp] = max(0.0, (now_ms - records[0].timestamp_ms) / 1000)
                left.discard(tp)
                if not left:
                    break
    return ages


@app.command(epilog=f"\b\nOffsets:\n{OFFSET_HELP}")
def seek(
    name: Name,
    to: Annotated[str, typer.Option("--to", metavar="OFFSET", help="start, end, 100, -10, -1h, @time.")],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only this topic; repeatable. Default: all with commits.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="0,2,5-7", help="Only these partitions.")
    ] = None,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set the committed offsets of a group. The group must have no members.

    With --topic this creates a group that does not exist yet.
    """
    spec = read_offset("--to", to, now_ms=SystemClock().wall_ms())
    numbers = None if partition is None else read_partitions("--partition", partition)

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        return await _seek(cluster, name, spec, topic or [], numbers, dry_run=dry_run)

    rows = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    show_rows(rows, ["topic", "partition", "committed", "new_offset"], shape)


async def _seek(
    cluster: Cluster, name: str, spec: OffsetSpec, topics: list[str], numbers: tuple[int, ...] | None, *, dry_run: bool
) -> list[dict[str, Any]]:
    try:
        group = await groups.describe_group(cluster, name)
    except GroupIdNotFound:
        if not topics:
            raise
        group = None
    if group is not None and group.members:
        hosts = ", ".join(sorted({f"{m.client_id}@{m.client_host.lstrip('/')}" for m in group.members}))
        raise CommandFailed(
            f"group {name} has {len(group.members)} members: {hosts}", advice="stop them before seeking"
        )
    committed = await groups.committed_offsets(cluster, name)
    wanted = [tp for tp in committed if not topics or tp.topic in topics]
    for topic in topics:
        known = (await cluster.topic(topic, fresh=True)).partitions
        wanted += [TopicPartition(topic, p.partition) for p in known]
    wanted = sorted({tp for tp in wanted if numbers is None or tp.partition in numbers})
    if not wanted:
        raise not_found(f"group {name} has no committed offsets there", "select a topic with --topic")
    targets = await resolve(cluster, spec, await offset_bounds(cluster, wanted, read_committed=True))
    if not dry_run:
        try:
            await groups.commit_offsets(cluster, name, targets)
        except UnknownMemberId:
            raise CommandFailed(f"group {name} has members", advice="stop them before seeking") from None
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "committed": committed[tp].offset if tp in committed else None,
            "new_offset": targets[tp],
        }
        for tp in wanted
    ]


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="The groups.")],
    dry_run: DryRun = False,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups that have no members, with their committed offsets."""

    async def work(cluster: Cluster) -> list[Any]:
        if not dry_run:
            return await groups.delete_groups(cluster, names)
        known = {group.group_id for group in await groups.list_groups(cluster)}
        unknown = GroupIdNotFound("there is no such group")
        return [Outcome(name, None if name in known else unknown) for name in names]

    outcomes = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    for outcome in outcomes:
        if outcome.error is None:
            print(f"{'would delete' if dry_run else 'deleted'} {outcome.name}")
    report_failures([(outcome.name, outcome.error) for outcome in outcomes], what="group")
