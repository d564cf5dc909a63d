"""`ottla cluster`: shows brokers, log directories and API versions, moves replicas, exports data to Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli import cluster_events, cluster_health, cluster_reassign
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import CommandFailed
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import bytes_text, show_fields, show_json, show_rows
from ottla.client import admin
from ottla.client.cluster import ANY_BROKER, Cluster
from ottla.client.cluster_health import missing_brokers
from ottla.client.partition_health import running_moves

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The cluster and its brokers.",
)
app.command()(cluster_health.health)
app.command()(cluster_events.events)
app.add_typer(cluster_reassign.reassign, name="reassign")
app.command()(cluster_reassign.drain)
app.command()(cluster_reassign.leaders)
BrokerId = Annotated[int | None, typer.Option("--broker", metavar="ID", help="Only this broker.")]


@app.command("brokers")
def list_brokers(
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the cluster's id, its brokers and its controller, and brokers that are missing."""

    async def work(cluster: Cluster) -> tuple[admin.ClusterDescription, list[int]]:
        described = await admin.describe_cluster(cluster)
        topics, moves = await admin.list_topics(cluster), await running_moves(cluster)
        return described, missing_brokers(described, topics, moves)

    description, missing = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    rows: list[dict[str, Any]] = [
        {
            "id": node.node_id,
            "address": str(node.address),
            "rack": node.rack,
            "controller": node.node_id == description.controller_id,
            "state": "registered",
        }
        for node in description.nodes
    ]
    rows += [{"id": each, "address": None, "rack": None, "controller": False, "state": "missing"} for each in missing]
    rows.sort(key=lambda row: int(row["id"]))
    if shape is OutputFormat.JSON:
        show_json({"cluster_id": description.cluster_id, "controller_id": description.controller_id, "brokers": rows})
        return
    show_fields({"cluster_id": description.cluster_id}, shape)
    print()
    columns = ["id", "address", "rack", "controller", "state"]
    show_rows(rows, columns, shape, is_alarming=lambda row: row["state"] != "registered")


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

    dirs = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    rows: list[dict[str, Any]] = [
        {
            "broker": d.node_id,
            "directory": d.path,
            "online": not d.is_offline,
            "full": d.is_full,
            "partitions": d.partitions,
            "log_bytes": d.log_bytes,
            "total_bytes": d.total_bytes,
            "usable_bytes": d.usable_bytes,
        }
        for d in dirs
    ]
    if shape is OutputFormat.TABLE:
        for row in rows:
            row |= {name: bytes_text(row[f"{name}_bytes"]) for name in ("log", "usable", "total")}
    columns = ["broker", "directory", "online", "full", "partitions", "log", "usable", "total"]
    show_rows(rows, columns, shape, is_alarming=lambda row: row["full"] or not row["online"])


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
    api_version_ranges = run_on_cluster(
        ConnectionOptions(brokers, profile, timeout), lambda cluster: admin.api_versions(cluster, node)
    )
    rows = [
        {"key": a.key, "api": a.name, "min": a.min_version, "max": a.max_version, "used": a.usable_version}
        for a in api_version_ranges
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
    from ottla.broker.migration.export_to_kafka import CannotExport, export
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
