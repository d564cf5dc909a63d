"""`ottla group`: lists, describes and deletes groups of all types, removes members, and changes offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from ottla.cli import completion, group_clone, group_watch
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, report_failures, run_on_cluster
from ottla.cli.errors import CommandFailed, not_found, usage_error
from ottla.cli.name_patterns import existing_topic, is_pattern, select, selected_for_deletion, unknown_name
from ottla.cli.offset_options import read_offset, read_partitions
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout, Yes
from ottla.cli.output import ItemResult, alert, duration_text, show_fields, show_json, show_results, show_rows
from ottla.client import groups, share_groups
from ottla.client.admin import Outcome
from ottla.client.cluster import Cluster
from ottla.client.group_lag import GroupLag, describe_lags, lag_seconds, offsets_of
from ottla.client.offset_spec import HELP as OFFSET_HELP
from ottla.client.offset_spec import OffsetSpec, resolve
from ottla.client.offsets import available_bounds
from ottla.core.clock import SystemClock
from ottla.core.errors import GroupIdNotFound, UnknownMemberId
from ottla.core.ids import GroupType, TopicPartition

_NAMED_MAX = 5

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Groups of all types: classic, consumer and share.",
)
Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=completion.groups)]
Names = Annotated[
    list[str],
    typer.Argument(metavar="GROUP...", help="Groups, or patterns such as 'app-*'.", autocompletion=completion.groups),
]
Patterns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATTERN]...", help="Only groups that match, such as 'app-*'.", autocompletion=completion.groups
    ),
]


@app.command("list")
def list_groups(
    patterns: Patterns = None,
    kind: Annotated[
        list[GroupType] | None, typer.Option("--type", help="Only groups of this type; repeatable.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only groups in this state, such as Empty.")
    ] = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the groups of all brokers with their lag, all or those that match a pattern, a type or a state."""
    target = ConnectionOptions(brokers, profile, timeout)
    kinds, states = {group_type.value for group_type in kind or []}, {each.lower() for each in state or []}

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        listings = [
            group
            for group in await groups.list_groups(cluster)
            if (not kinds or group.kind in kinds) and (not states or group.state.lower() in states)
        ]
        return await _list(cluster, {group.group_id: group for group in listings}, patterns or [])

    rows = run_on_cluster(target, work)
    show_rows(rows, ["group", "state", "members", "lag", "type", "protocol", "coordinator"], shape, empty="no groups")


async def _list(cluster: Cluster, found: dict[str, groups.GroupListing], patterns: list[str]) -> list[dict[str, Any]]:
    names = select(patterns, found, what="group")
    lags = await describe_lags(cluster, names)
    rows = []
    for name in names:
        g, lag = found[name], lags[name]
        described = lag if isinstance(lag, GroupLag) else None
        rows.append(
            {
                "group": name,
                "state": g.state,
                "members": len(described.group.members) if described else None,
                "lag": described.lag if described else None,
                "type": g.kind,
                "protocol": g.protocol_type,
                "coordinator": g.coordinator_id,
            }
        )
    return rows


@app.command()
def describe(
    names: Names,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show groups with their members and their lag, in messages and in seconds.

    The lag in seconds is the age of the first record that the group has not read. It is unknown ("-") if that record
    has no timestamp. A partition without a committed offset counts from its first record, if the group has committed
    offsets in another partition of the topic or a member to which the partition is assigned.
    """
    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), lambda cluster: _describe(cluster, names))
    if shape is OutputFormat.JSON:
        show_json(found[0] if len(names) == 1 and not is_pattern(names[0]) else found)
        return
    for number, described in enumerate(found):
        if number:
            print("\n")
        _show(described, shape)


def _show(found: dict[str, Any], shape: OutputFormat) -> None:
    parts, members = found.pop("partitions"), found.pop("members")
    lag_time = duration_text(found.pop("lag_seconds"))
    show_fields({**found, "lag time": lag_time, "members": len(members)}, shape)
    if parts:
        print()
        for part in parts:
            part["lag time"] = duration_text(part["lag_seconds"])
        show_rows(
            parts,
            ["topic", "partition", "committed", "end_offset", "lag", "lag time", "member"],
            shape,
            is_alarming=_is_unknown,
        )
        _show_unknown(parts)
    if members:
        print()
        show_rows(members, ["member", "instance", "client", "host", "partitions"], shape)


def _is_unknown(part: Mapping[str, Any]) -> bool:
    return part["unknown_because"] is not None


def _show_unknown(parts: Sequence[dict[str, Any]]) -> None:
    """Print why the ends of some partitions are unknown, in a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for part in parts:
        if part["unknown_because"] is not None:
            by_reason.setdefault(part["unknown_because"], []).append(f"{part['topic']}-{part['partition']}")
    for reason, names in by_reason.items():
        more = ", ..." if len(names) > _NAMED_MAX else ""
        print(alert(f"  unknown: {', '.join(names[:_NAMED_MAX])}{more}: {reason}"))


async def _describe(cluster: Cluster, texts: list[str]) -> list[dict[str, Any]]:
    names = texts
    if any(map(is_pattern, texts)):
        names = select(texts, [group.group_id for group in await groups.list_groups(cluster)], what="group")
    described = []
    for name, lag in (await describe_lags(cluster, names)).items():
        if isinstance(lag, GroupIdNotFound):
            raise unknown_name(name, [group.group_id for group in await groups.list_groups(cluster)], what="group")
        if not isinstance(lag, GroupLag):
            raise lag
        described.append(await _described(cluster, name, lag))
    return described


async def _described(cluster: Cluster, name: str, lag: GroupLag) -> dict[str, Any]:
    ages_s = await lag_seconds(cluster, lag)
    group, owners = lag.group, lag.owners
    return {
        "group": name,
        "state": group.state,
        "type": group.kind,
        "assignor": group.protocol,
        "coordinator": group.coordinator_id,
        "lag": lag.lag,
        "lag_seconds": max(ages_s.values(), default=None),
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": lag.committed[tp].offset if tp in lag.committed else None,
                "end_offset": lag.bounds[tp].end_offset if tp in lag.bounds else None,
                "lag": lag.lag_of(tp),
                "lag_seconds": ages_s.get(tp),
                "member": owners.get(tp),
                "unknown_because": lag.unknown.get(tp),
            }
            for tp in lag.partitions
        ],
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


@app.command()
def members(
    names: Names,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the members of groups and the partitions assigned to each."""
    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), lambda cluster: _describe(cluster, names))
    rows = [{"group": group["group"], **member} for group in found for member in group["members"]]
    show_rows(rows, ["group", "member", "instance", "client", "host", "partitions"], shape, empty="no members")


@app.command()
def lag(
    names: Names,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the lag of groups by partition, in messages and in seconds."""
    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), lambda cluster: _describe(cluster, names))
    rows = [{"group": group["group"], **part} for group in found for part in group["partitions"]]
    if shape is OutputFormat.TABLE:
        for row in rows:
            row["lag time"] = duration_text(row["lag_seconds"])
    columns = ["group", "topic", "partition", "committed", "end_offset", "lag", "lag time", "member"]
    show_rows(rows, columns, shape, empty="no partitions", is_alarming=_is_unknown)
    if shape is OutputFormat.TABLE:
        _show_unknown(rows)


@app.command("remove-members")
def remove_members(
    name: Name,
    instance: Annotated[
        list[str] | None, typer.Option("--instance", metavar="ID", help="A static member's instance id; repeatable.")
    ] = None,
    member: Annotated[list[str] | None, typer.Option("--member", metavar="ID", help="A member id; repeatable.")] = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Remove members of a group: its partitions are assigned to the others.

    A static member stays in its group when its consumer stops, until its session times out. A consumer that still runs
    joins again; a static one is fenced.
    """
    if not instance and not member:
        raise usage_error(
            "name the members to remove: --instance ID or --member ID", f"see `ottla group members {name}`"
        )

    async def work(cluster: Cluster) -> list[Outcome]:
        removed = await groups.remove_members(cluster, name, instance, static=True) if instance else []
        return removed + (await groups.remove_members(cluster, name, member, static=False) if member else [])

    outcomes = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    show_results([ItemResult(outcome.name, "removed") for outcome in outcomes if outcome.error is None], shape)
    report_failures([(outcome.name, outcome.error) for outcome in outcomes], what="member")


@app.command(epilog=f"\b\nOffsets:\n{OFFSET_HELP}")
def seek(
    name: Name,
    to: Annotated[str, typer.Option("--to", metavar="OFFSET", help="start, end, 100, -10, -1h, @time.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="Only this topic; repeatable. Default: all with commits.",
            autocompletion=completion.topics,
        ),
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
    if shape is OutputFormat.TABLE:
        changed = f"the offsets of {len(rows)} partitions of group {name}"
        print(f"would set {changed}; nothing was changed" if dry_run else f"set {changed}")


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
    is_share = group is not None and group.kind is GroupType.SHARE
    committed = await groups.committed_offsets(cluster, name) if group is None else await offsets_of(cluster, group)
    topic_partitions = [tp for tp in committed if not topics or tp.topic in topics]
    for topic in topics:
        known = (await existing_topic(cluster, topic)).partitions
        topic_partitions += [TopicPartition(topic, p.partition) for p in known]
    topic_partitions = sorted({tp for tp in topic_partitions if numbers is None or tp.partition in numbers})
    if not topic_partitions:
        raise not_found(f"group {name} has no committed offsets there", "select a topic with --topic")
    bounds, unknown = await available_bounds(cluster, topic_partitions, read_committed=True)
    if unknown:
        raise CommandFailed(
            f"the offsets of {len(unknown)} partitions are unknown, and none was changed: "
            + "; ".join(f"{tp}: {why}" for tp, why in sorted(unknown.items())[:_NAMED_MAX]),
            advice="try again later, or choose others with --topic and --partition",
        )
    targets = await resolve(cluster, spec, bounds)
    if not dry_run:
        try:
            if is_share:
                await share_groups.alter_start_offsets(cluster, name, targets)
            else:
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
        for tp in topic_partitions
    ]


@app.command()
def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="GROUP...", help="Groups, or patterns (with --yes).", autocompletion=completion.groups),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups that have no members, with their committed offsets."""

    async def work(cluster: Cluster) -> list[Any]:
        wanted = names
        if dry_run or any(map(is_pattern, names)):
            known = {group.group_id for group in await groups.list_groups(cluster)}
            wanted = selected_for_deletion(names, known, what="group", is_allowed=yes or dry_run)
        if not dry_run:
            return await groups.delete_groups(cluster, wanted)
        unknown = GroupIdNotFound("there is no such group")
        return [Outcome(name, None if name in known else unknown) for name in wanted]

    outcomes = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    result = "would delete" if dry_run else "deleted"
    show_results([ItemResult(outcome.name, result) for outcome in outcomes if outcome.error is None], shape)
    report_failures([(outcome.name, outcome.error) for outcome in outcomes], what="group")


@app.command("delete-offsets")
def delete_offsets(
    name: Name,
    topic: Annotated[
        list[str], typer.Option("--topic", "-t", help="The topic; may be repeated.", autocompletion=completion.topics)
    ],
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="0,2,5-7", help="Only these partitions.")
    ] = None,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete the committed offsets of a group in topics that none of its members reads."""
    numbers = None if partition is None else read_partitions("--partition", partition)

    async def work(cluster: Cluster) -> list[Outcome]:
        group = await groups.describe_group(cluster, name)
        committed = await offsets_of(cluster, group)
        topic_partitions = [
            tp for tp in committed if tp.topic in topic and (numbers is None or tp.partition in numbers)
        ]
        if not topic_partitions:
            raise not_found(f"group {name} has no committed offsets there", f"see `ottla group describe {name}`")
        if dry_run:
            return [Outcome(str(tp), None) for tp in sorted(topic_partitions)]
        if group.kind is GroupType.SHARE:
            if numbers is not None:
                raise usage_error("the offsets of a share group are deleted by topic", "leave --partition out")
            return await share_groups.delete_start_offsets(cluster, name, sorted({tp.topic for tp in topic_partitions}))
        return await groups.delete_offsets(cluster, name, sorted(topic_partitions))

    outcomes = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    result = "would delete" if dry_run else "deleted"
    done = [outcome.name for outcome in outcomes if outcome.error is None]
    show_results([ItemResult(each, result, f"{result} the offset of {each}") for each in done], shape)
    report_failures([(outcome.name, outcome.error) for outcome in outcomes], what="offset of")


app.command(epilog=group_watch.EPILOG)(group_watch.watch)
app.command(epilog=group_clone.EPILOG)(group_clone.clone)
