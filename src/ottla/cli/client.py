"""`ottla client`: shows what clients have pushed of their own metrics (KIP-714)."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ottla.cli.cluster_events import broker_configs
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import CommandFailed, show_notice
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import show_rows
from ottla.client.broker_http import TOKEN_VARIABLE
from ottla.client.cluster import Cluster
from ottla.diagnosis.client_metrics import PushedMetrics, read_client_metrics

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show what clients have pushed of their own metrics.",
)


@app.callback()
def of_clients() -> None:
    """Show what clients have pushed of their own metrics."""


@app.command()
def metrics(
    name: Annotated[str, typer.Argument(metavar="CLIENT-ID", help="Its client.id.")],
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the metrics that the clients with this id have pushed (KIP-714).

    Brokers keep them with `ottla.client.metrics.enable=true`, and show them at their listeners for HTTP
    (`ottla.http.listener`). What clients push is a setting of the cluster: docs/metrics.md.
    """
    read = run_on_cluster(ConnectionOptions(brokers, profile, timeout), lambda cluster: _read(cluster, name))
    for what, why in read.unread.items():
        show_notice(f"could not read {what}: {why}")
    if read.metrics is None:
        raise CommandFailed(
            "the brokers show no metrics of clients",
            advice="set ottla.http.listener and ottla.client.metrics.enable=true on them",
        )
    rows = [
        {**metric._asdict(), "is_counter": str(metric.is_counter).lower(), "value": f"{metric.value:g}"}
        for metric in sorted(read.metrics)
    ]
    columns = ["client_instance_id", "software", "metric", "attributes", "value"]
    show_rows(rows, columns, shape, empty=f"no client {name} has pushed metrics")


async def _read(cluster: Cluster, name: str) -> PushedMetrics:
    nodes, configs = await broker_configs(cluster)
    return await read_client_metrics(nodes, configs, name, token=os.environ.get(TOKEN_VARIABLE, ""))
