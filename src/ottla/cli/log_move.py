"""`ottla log move` and `ottla log moves`: move replicas between the log directories of a running broker."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, report_failures, run_on_cluster
from ottla.cli.errors import not_found, usage_error
from ottla.cli.offset_options import read_partitions
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import ItemResult, ProgressBar, bytes_text, show_results, show_rows
from ottla.client import admin, log_dirs
from ottla.client.cluster import Cluster
from ottla.client.log_dirs import Replica
from ottla.core.ids import TopicPartition

_POLL_S = 0.5
_COLUMNS = ["broker", "topic", "partition", "directory", "size", "target", "copied", "lag"]


def move(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)],
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A log directory, as `ottla cluster log-dirs` shows it.")
    ],
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="0,2,5-7", help="Only these partitions.")
    ] = None,
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", help="The broker with the directory, if there are several.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all are moved.")] = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move the replicas of a topic to another log directory of a broker, while they are written and read.

    A move to the directory where a replica is already cancels the move that is under way.
    """
    wanted = None if partition is None else set(read_partitions("--partition", partition))

    async def work(cluster: Cluster) -> None:
        node = await _broker(cluster, broker)
        held = {
            replica.tp: replica for replica in await log_dirs.replicas(cluster, [node]) if replica.tp.topic == topic
        }
        if not held:
            raise not_found(f"broker {node} has no replica of topic {topic}")
        if wanted is not None and (missing := wanted - {tp.partition for tp in held}):
            raise not_found(f"broker {node} has no replica of {topic}-{min(missing)}")
        moving = {tp for tp in held if wanted is None or tp.partition in wanted}
        outcomes = await log_dirs.alter_log_dirs(cluster, {(node, tp): directory for tp in moving})
        report_failures([(outcome.name, outcome.error) for outcome in outcomes], what="replica")
        is_text = shape is OutputFormat.TABLE
        if is_text:
            print(f"moving {len(moving)} replicas to {directory}", flush=True)
        if wait:
            await _wait(cluster, node, moving)
        if not is_text:
            show_results([ItemResult(str(tp), "moved" if wait else "moving") for tp in sorted(moving)], shape)
        elif wait:
            print(f"moved {len(moving)} replicas")

    run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)


def moves(
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the replicas that move between log directories, and how much of each is copied."""

    async def work(cluster: Cluster) -> list[Replica]:
        nodes = [node.node_id for node in (await admin.describe_cluster(cluster)).nodes]
        return [replica for replica in await log_dirs.replicas(cluster, nodes) if replica.target is not None]

    rows: list[dict[str, Any]] = [
        {
            "broker": replica.node_id,
            "topic": replica.tp.topic,
            "partition": replica.tp.partition,
            "directory": replica.path,
            "size_bytes": replica.size_bytes,
            "target": replica.target,
            "copied_bytes": replica.copied_bytes,
            "lag": replica.offset_lag,
        }
        for replica in run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    ]
    if shape is OutputFormat.TABLE:
        for row in rows:
            row |= {"size": bytes_text(row["size_bytes"]), "copied": bytes_text(row["copied_bytes"])}
    show_rows(rows, _COLUMNS, shape, empty="no replicas are being moved")


async def _broker(cluster: Cluster, broker: int | None) -> int:
    nodes = sorted(node.node_id for node in (await admin.describe_cluster(cluster)).nodes)
    if broker is None and len(nodes) != 1:
        raise usage_error(f"the cluster has the brokers {', '.join(map(str, nodes))}", "name one: --broker ID")
    node = nodes[0] if broker is None else broker
    if node not in nodes:
        raise not_found(f"there is no broker {node}")
    return node


async def _wait(cluster: Cluster, node: int, moving: set[TopicPartition]) -> None:
    """Wait until none of these is moved any more."""
    with ProgressBar("bytes", total=None) as progress:
        while True:
            running = [
                replica
                for replica in await log_dirs.replicas(cluster, [node])
                if replica.tp in moving and replica.target is not None
            ]
            if not running:
                return
            progress.update(sum(replica.copied_bytes for replica in running))
            await asyncio.sleep(_POLL_S)
