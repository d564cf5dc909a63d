"""`ottla topic`: lists, creates, describes, alters, deletes and trims topics."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

import typer

from ottla.cli import completion, topic_analyze, topic_clone
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, report_failures, run_on_cluster
from ottla.cli.errors import not_found, usage_error
from ottla.cli.name_patterns import existing_topic, is_pattern, select, selected_for_deletion
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout, Yes, parse_setting
from ottla.cli.output import (
    ItemResult,
    alert,
    bytes_text,
    duration_text,
    show_fields,
    show_json,
    show_results,
    show_rows,
)
from ottla.client import admin
from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect
from ottla.client.metadata import TopicInfo
from ottla.client.offsets import available_bounds, delete_records, offset_bounds
from ottla.client.partition_health import WELL, HealthCounts, UnhealthyPartition, count_health, unhealthy_partitions
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition, id_text
from ottla.core.settings import AlterConfigOpType, ConfigResourceType

app = typer.Typer(cls=CommandGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Topics.")
Names = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics.", autocompletion=completion.topics)]
Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=completion.topics)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A topic setting, such as retention.ms=1h.",
        autocompletion=completion.topic_settings,
    ),
]


def parse_settings(texts: list[str] | None) -> dict[str, str]:
    """Parse `name=value` texts. Raises `CommandFailed` naming the invalid one."""
    return dict(parse_setting(text, option="--config", example="retention.ms=1h") for text in texts or [])


@app.command("list")
def list_topics(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATTERN]...", help="Only topics that match, such as 'ord*'.", autocompletion=completion.topics
        ),
    ] = None,
    internal: Annotated[bool, typer.Option("--internal", help="Show the broker's own topics too.")] = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the topics, all or those that match a pattern, and whether their partitions are led and in sync."""

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        topics = await admin.list_topics(cluster)
        wanted = set(select(patterns or [], [topic.name for topic in topics], what="topic"))
        listed = [t for t in topics if t.name in wanted and (internal or patterns or not t.internal)]
        unhealthy = defaultdict[str, list[UnhealthyPartition]](list)
        for partition in await unhealthy_partitions(cluster, listed):
            unhealthy[partition.tp.topic].append(partition)
        return [
            {
                "name": topic.name,
                "partitions": len(topic.partitions),
                "replicas": max((len(p.replicas) for p in topic.partitions), default=0),
                "internal": topic.internal,
                "id": id_text(topic.topic_id),
                **count_health(unhealthy[topic.name])._asdict(),
            }
            for topic in listed
        ]

    rows = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    if shape is OutputFormat.TABLE:
        for row in rows:
            row["state"] = _state(row)
    columns = ["name", "partitions", "replicas", "state"]
    show_rows(
        rows,
        columns,
        shape,
        empty="no topics; create one with `ottla topic create NAME`",
        is_alarming=lambda row: row["state"] != WELL,
    )


def _state(row: dict[str, Any]) -> str:
    """Take the counts of partitions with a problem out of a row, and return them in words."""
    return str(HealthCounts(*(row.pop(name) for name in HealthCounts._fields)))


@app.command()
def create(
    names: Names,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, metavar="N", help="Number of partitions. Default: the broker's."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", "-r", min=1, metavar="N", help="Replicas of each partition. Default: the broker's."),
    ] = None,
    config: Settings = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create topics."""
    settings = parse_settings(config)
    wanted = [admin.NewTopic(name, partitions or -1, replicas or -1, settings) for name in names]
    target = ConnectionOptions(brokers, profile, timeout)
    results = run_on_cluster(target, lambda cluster: admin.create_topics(cluster, wanted, validate_only=dry_run))
    from ottla.core.errors import TopicAlreadyExists

    outcomes, done = [], []
    for outcome, _ in results:
        existed = if_not_exists and isinstance(outcome.error, TopicAlreadyExists)
        outcomes.append((outcome.name, None if existed else outcome.error))
        if outcome.error is None:
            done.append(ItemResult(outcome.name, "would create" if dry_run else "created"))
        elif existed:
            done.append(ItemResult(outcome.name, "exists", f"{outcome.name} exists"))
    show_results(done, shape)
    report_failures(outcomes, what="topic")


@app.command()
def describe(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC...", help="Topics, or patterns such as 'ord*'.", autocompletion=completion.topics
        ),
    ],
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the partitions of topics, their offsets and sizes, and the settings that differ from their defaults."""

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        wanted = names
        if any(map(is_pattern, names)):
            wanted = select(names, [topic.name for topic in await admin.list_topics(cluster)], what="topic")
        return [await _describe(cluster, name) for name in wanted]

    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    if shape is OutputFormat.JSON:
        show_json(found[0] if len(names) == 1 and not is_pattern(names[0]) else found)
        return
    for number, described in enumerate(found):
        if number:
            print("\n")
        _show(described, shape)


def _show(described: dict[str, Any], shape: OutputFormat) -> None:
    parts = described.pop("partitions")
    settings = described.pop("configs")
    size = bytes_text(described.pop("size_bytes"))
    state, refusing = _state(described), described.pop("refusing_writes")
    if refusing:
        refused = f"{refusing} refusing writes (full disk)"
        state = refused if state == WELL else f"{state}, {refused}"
    state = state if state == WELL else alert(state)
    show_fields({**described, "size": size, "state": state, "settings": "" if settings else "all defaults"}, shape)
    for key, value in settings.items():
        print(f"  {key}={value}")
    print()
    for part in parts:
        part["size"] = bytes_text(part["size_bytes"])
    columns = ["partition", "leader", "epoch", "replicas", "isr", "start_offset", "end_offset", "records", "size"]
    show_rows(parts, columns, shape)


async def _describe(cluster: Cluster, name: str) -> dict[str, Any]:
    topic = await existing_topic(cluster, name)
    bounds, _ = await available_bounds(cluster, [TopicPartition(name, p.partition) for p in topic.partitions])
    logs = await admin.leader_logs(cluster, name)
    entries = await admin.describe_configs(cluster, ConfigResourceType.TOPIC, name)
    parts = []
    for p in topic.partitions:
        have = bounds.get(TopicPartition(name, p.partition))
        parts.append(
            {
                "partition": p.partition,
                "leader": p.leader_id if p.leader_id >= 0 else None,
                "epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "start_offset": have.start_offset if have else None,
                "end_offset": have.end_offset if have else None,
                "records": have.end_offset - have.start_offset if have else None,
                "size_bytes": logs[p.partition].size_bytes if p.partition in logs else None,
            }
        )
    return {
        "name": name,
        "id": id_text(topic.topic_id),
        "internal": topic.internal,
        "records": sum(p["records"] or 0 for p in parts),
        "size_bytes": sum(log.size_bytes for log in logs.values()) if logs else None,
        **count_health(await unhealthy_partitions(cluster, [topic]))._asdict(),
        "refusing_writes": sum(log.is_full for log in logs.values()),
        "configs": {entry.name: entry.value for entry in entries if entry.source == _DYNAMIC_TOPIC_CONFIG},
        "partitions": parts,
    }


_DELETE_DELAY, _RETENTION_CHECK = "file.delete.delay.ms", "log.retention.check.interval.ms"
_DYNAMIC_TOPIC_CONFIG = 1  # DescribeConfigs' source "dynamic topic config"


@app.command()
def alter(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, metavar="N", help="Increase the number of partitions to this."),
    ] = None,
    config: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="NAME",
            help="A topic setting to reset to its default.",
            autocompletion=completion.topic_setting_names,
        ),
    ] = None,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Change the settings of a topic, or increase the number of its partitions."""
    changes = [admin.AlterConfigOp(key, AlterConfigOpType.SET, value) for key, value in parse_settings(config).items()]
    changes += [admin.AlterConfigOp(key, AlterConfigOpType.DELETE) for key in unset or []]
    if not changes and partitions is None:
        raise usage_error("nothing to alter", "use --config NAME=VALUE, --unset NAME or --partitions N")

    async def work(cluster: Cluster) -> TopicInfo:
        topic = await existing_topic(cluster, name)
        if changes:
            await admin.alter_configs(cluster, ConfigResourceType.TOPIC, name, changes, validate_only=dry_run)
        if partitions is not None and partitions != len(topic.partitions):
            outcome = await admin.create_partitions(cluster, name, partitions, validate_only=dry_run)
            if outcome.error is not None:
                raise outcome.error
        return topic

    run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    show_results([ItemResult(name, "would alter" if dry_run else "altered")], shape)


@app.command()
def delete(
    names: Names,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if the topic does not exist.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete topics and their records; the topics that a pattern selects only with --yes."""
    from ottla.core.errors import UnknownTopicOrPartition

    async def work(cluster: Cluster) -> list[admin.Outcome]:
        wanted = names
        if dry_run or any(map(is_pattern, names)):
            known = {topic.name for topic in await admin.list_topics(cluster)}
            wanted = selected_for_deletion(names, known, what="topic", is_allowed=yes or dry_run)
        if not dry_run:
            return await admin.delete_topics(cluster, wanted)
        unknown = UnknownTopicOrPartition("there is no such topic")
        return [admin.Outcome(name, None if name in known else unknown) for name in wanted]

    outcomes, done = [], []
    for outcome in run_on_cluster(ConnectionOptions(brokers, profile, timeout), work):
        missing = if_exists and isinstance(outcome.error, UnknownTopicOrPartition)
        outcomes.append((outcome.name, None if missing else outcome.error))
        if outcome.error is None:
            done.append(ItemResult(outcome.name, "would delete" if dry_run else "deleted"))
    show_results(done, shape)
    report_failures(outcomes, what="topic")


@app.command()
def trim(
    name: Name,
    to: Annotated[
        str, typer.Option("--to", metavar="OFFSET", help="Delete the records before: 100, -10, -1h, end, ...")
    ],
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete the records before an offset, in every partition.

    Disk space is freed by whole segments: on a disk that is full, or nearly, within seconds, elsewhere after the
    interval and the delay that are printed.
    """
    from ottla.cli.offset_options import read_offset
    from ottla.client.offset_spec import resolve
    from ottla.core.clock import SystemClock

    spec = read_offset("--to", to, now_ms=SystemClock().wall_ms())
    free_after_s: float | None = None

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        topic = await existing_topic(cluster, name)
        if not topic.partitions:
            raise not_found(f"topic {name} has no partitions")
        bounds = await offset_bounds(cluster, [TopicPartition(name, p.partition) for p in topic.partitions])
        before = await resolve(cluster, spec, bounds)
        begins = before if dry_run else await delete_records(cluster, before)
        nonlocal free_after_s
        free_after_s = None if dry_run else await _free_after_s(cluster, topic)
        return [
            {
                "partition": tp.partition,
                "start_offset": bounds[tp].start_offset,
                "new_start_offset": begins[tp],
                "records": max(0, begins[tp] - bounds[tp].start_offset),
            }
            for tp in sorted(begins)
        ]

    rows = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    show_rows(rows, ["partition", "start_offset", "new_start_offset", "records"], shape)
    if shape is OutputFormat.TABLE:
        count = sum(row["records"] for row in rows)
        print(
            f"would delete {count} offsets of {name}; nothing was changed"
            if dry_run
            else f"deleted {count} offsets of {name}"
        )
        if free_after_s is not None and count:
            print(
                f"the space of whole segments is free within {duration_text(free_after_s)} ({_RETENTION_CHECK} and "
                f"{_DELETE_DELAY}), within seconds on a disk that is full, or nearly"
            )


async def _free_after_s(cluster: Cluster, topic: TopicInfo) -> float | None:
    """Return after how many seconds deleted segments are removed at the latest; None if unknown."""
    leader = next((p.leader_id for p in topic.partitions if p.leader_id >= 0), None)
    if leader is None:
        return None
    try:
        of_topic = await admin.describe_configs(cluster, ConfigResourceType.TOPIC, topic.name, keys=[_DELETE_DELAY])
        of_broker = await admin.describe_configs(
            cluster, ConfigResourceType.BROKER, str(leader), keys=[_RETENTION_CHECK]
        )
    except (KafkaError, CannotConnect):
        return None
    values = [int(entry.value) for entry in (*of_topic, *of_broker) if entry.value is not None]
    return sum(values) / 1000 if len(values) == 2 else None


app.command(epilog=topic_analyze.EPILOG)(topic_analyze.analyze)
app.command(epilog=topic_clone.EPILOG)(topic_clone.clone)
