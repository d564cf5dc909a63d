"""`ottla cluster`: shows brokers, health, log directories and API versions, moves replicas, exports data to Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli import cluster_reassign
from ottla.cli.connection import DEFAULT_TIMEOUT_S, STORE_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import CommandFailed, ExitCode
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import bytes_text, show_fields, show_json, show_rows
from ottla.client import admin
from ottla.client.cluster import ANY_BROKER, Cluster
from ottla.client.partition_health import count_health, judge_partitions, required_replicas, running_moves
from ottla.core.errors import ErrorCode

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="The cluster and its brokers."
)
app.add_typer(cluster_reassign.reassign, name="reassign")
app.command()(cluster_reassign.drain)
app.command()(cluster_reassign.leaders)
BrokerId = Annotated[int | None, typer.Option("--broker", metavar="ID", help="Only this broker.")]


@app.command()
def info(
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the cluster's id, its brokers and its controller."""
    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), admin.describe_cluster)
    rows = [
        {
            "id": node.node_id,
            "address": str(node.address),
            "rack": node.rack,
            "controller": node.node_id == found.controller_id,
        }
        for node in found.nodes
    ]
    if shape is OutputFormat.JSON:
        show_json({"cluster_id": found.cluster_id, "controller_id": found.controller_id, "brokers": rows})
        return
    show_fields({"cluster_id": found.cluster_id}, shape)
    print()
    show_rows(rows, ["id", "address", "rack", "controller"], shape)


@app.command()
def health(
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Check that brokers are reachable, partitions have leaders and are in sync, log directories are online.

    Ends with exit code 1 if a check fails, so that a script can wait for a healthy cluster.
    """
    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), _health)
    if shape is OutputFormat.JSON:
        show_json(found)
    else:
        show_fields({key: value for key, value in found.items() if key != "problems"}, shape)
        for problem in found["problems"]:
            print(f"  {problem}")
    if found["problems"]:
        raise CommandFailed("the cluster is not healthy", code=ExitCode.FAILED)


async def _health(cluster: Cluster) -> dict[str, Any]:
    described = await admin.describe_cluster(cluster)
    topics = await admin.list_topics(cluster)
    unreachable = {
        node.node_id: why for node in described.nodes if (why := await admin.unreachable_reason(cluster, node))
    }
    dirs = await admin.log_dirs(cluster, [n.node_id for n in described.nodes if n.node_id not in unreachable])
    problems = [
        f"broker {node_id} cannot be reached at its advertised listener: {why}" for node_id, why in unreachable.items()
    ]
    required = await required_replicas(cluster, topics)
    has_controller = described.controller_id >= 0 and described.controller_id not in unreachable
    moving = await running_moves(cluster) if has_controller else None
    unhealthy = judge_partitions(topics, required, moving or ())
    problems += [f"{each.tp} has no leader" for each in unhealthy if each.is_offline]
    problems += [
        f"{each.tp} has {each.in_sync} of {each.replicas} replicas in sync"
        + (", too few for acks=all" if each.is_under_min_isr else "")
        for each in unhealthy
        if not each.is_offline
    ]
    problems += [f"broker {d.node_id}: {d.path} is offline" for d in dirs if d.error_code != ErrorCode.NONE]
    problems += await admin.store_troubles(cluster, within_s=STORE_TIMEOUT_S)
    if moving is None:
        problems.append("the controller does not answer" if has_controller else "the cluster has no controller")
    return {
        "healthy": not problems,
        "brokers": len(described.nodes),
        "controller": described.controller_id,
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics),
        **count_health(unhealthy)._asdict(),
        "moving": None if moving is None else len(moving),
        "log_directories": len(dirs),
        "problems": problems,
    }


@app.command("log-dirs")
def log_dirs(
    broker: BrokerId = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the log directories of every broker, with their sizes."""

    async def work(cluster: Cluster) -> list[admin.LogDir]:
        nodes = [n.node_id for n in (await admin.describe_cluster(cluster)).nodes] if broker is None else [broker]
        return await admin.log_dirs(cluster, nodes)

    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    rows: list[dict[str, Any]] = [
        {
            "broker": d.node_id,
            "directory": d.path,
            "online": d.error_code == ErrorCode.NONE,
            "partitions": d.partitions,
            "log_bytes": d.log_bytes,
            "total_bytes": d.total_bytes,
            "usable_bytes": d.usable_bytes,
        }
        for d in found
    ]
    if shape is OutputFormat.TABLE:
        for row in rows:
            row |= {name: bytes_text(row[f"{name}_bytes"]) for name in ("log", "usable", "total")}
    show_rows(rows, ["broker", "directory", "online", "partitions", "log", "usable", "total"], shape)


@app.command("api-versions")
def api_versions(
    broker: BrokerId = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the APIs and versions that a broker supports, and the version that this client would use."""
    node = ANY_BROKER if broker is None else broker
    found = run_on_cluster(
        ConnectionOptions(brokers, profile, timeout), lambda cluster: admin.api_versions(cluster, node)
    )
    rows = [
        {"key": a.key, "api": a.name, "min": a.min_version, "max": a.max_version, "used": a.usable_version}
        for a in found
    ]
    show_rows(rows, ["key", "api", "min", "max", "used"], shape)


@app.command("export-kafka")
def export_kafka(
    data: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="All data directories: log.dirs and metadata.log.dir.")
    ],
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Convert the data directory of a stopped broker for Apache Kafka, which can then start on it.

    Topics keep their ids, settings, records and offsets; groups keep their committed offsets. To go back, start Ottla
    on the directory (docs/migration.md).
    """
    from ottla.broker.migration.export import CannotExport, export
    from ottla.core.clock import SystemClock
    from ottla.core.errors import KafkaError
    from ottla.core.files import SystemFiles

    directories = [path.expanduser().absolute() for path in data]
    try:
        done = export(SystemFiles(), directories, now_ms=SystemClock().wall_ms(), dry_run=dry_run)
    except (CannotExport, KafkaError) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"{error.strerror or error}: {error.filename or directories[0]}") from error
    fields = {
        "exported": not dry_run,
        "cluster_id": done.cluster_id,
        "node_id": done.node_id,
        "topics": done.topics,
        "partitions": done.partitions,
        "carried_records": done.carried,
        "left_out": done.left_out,
    }
    if shape is OutputFormat.JSON:
        show_json(fields)
        return
    show_fields({key: value for key, value in fields.items() if key != "left_out"}, shape)
    for item in done.left_out:
        print(f"  not exported: {item}")
    if not dry_run:
        print("\nStart Kafka with these in its server.properties:")
        print(
            f"  process.roles=broker,controller\n  node.id={done.node_id}\n  log.dirs={','.join(map(str, directories))}"
        )
