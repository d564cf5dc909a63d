"""`ottla up`: runs a cluster on this machine, ZooKeeper and several brokers."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli.errors import CommandFailed, ExitCode, not_found, usage_error
from ottla.cli.options import Format, OutputFormat
from ottla.cli.output import show_json, show_rows
from ottla.cli.server import Options
from ottla.cli.server_start import parse_options

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Node = Annotated[int | None, typer.Option(min=1, metavar="ID")]

Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        "-p",
        min=1,
        max=65535,
        metavar="PORT",
        help="Port of the first broker; the others have the next ones. Default: 9092, or as before.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=1,
        max=65535,
        metavar="PORT",
        help="Serve the metrics of the first broker at this port, those of the others at the next ones.",
    ),
]


@app.command()
def up(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The directory of the whole cluster.")],
    brokers: Annotated[
        int | None,
        typer.Option(
            "-n", "--brokers", min=1, max=100, metavar="N", help="Number of brokers. Default: 3, or as before."
        ),
    ] = None,
    port: Port = None,
    metrics_port: MetricsPort = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="With TLS, sign-in by SCRAM and ACLs; its files are in the directory.")
    ] = False,
    option: Options = None,
    kill: Annotated[
        int | None, typer.Option("--kill", min=1, metavar="ID", help="Kill a broker of the running cluster (SIGKILL).")
    ] = None,
    stop: Annotated[
        int | None, typer.Option("--stop", min=1, metavar="ID", help="Stop a broker of the running cluster (SIGTERM).")
    ] = None,
    start: Annotated[
        int | None, typer.Option("--start", min=1, metavar="ID", help="Start a broker of the running cluster again.")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="List the processes of the running cluster.")] = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Run a cluster on this machine: ZooKeeper and several brokers.

    It runs until Ctrl-C or SIGTERM. When all brokers serve, it prints `cluster ready:` and their addresses. Started
    again with the same directory, it goes on with the data. -o sets a setting of all brokers. Topics have 3 replicas if
    there are 3 brokers.

    --secure makes certificates and passwords, and admin.properties, with which a client signs in as the administrator.

    --stop, --kill, --start and --status are for another shell, while the cluster runs.
    """
    directory = data.expanduser().absolute()
    if sum((stop is not None, kill is not None, start is not None, status)) > 1:
        raise usage_error("--stop, --kill, --start and --status are different commands", "use one of them")
    if stop is not None:
        _command(directory, {"command": "stop", "node": stop}, shape)
        return
    if kill is not None:
        _command(directory, {"command": "kill", "node": kill}, shape)
    elif start is not None:
        _command(directory, {"command": "start", "node": start}, shape)
    elif status:
        _command(directory, {"command": "status"}, shape)
    else:
        _run(directory, brokers, port, parse_options(option or []), metrics_port=metrics_port, secured=secure)


def _run(
    directory: Path,
    brokers: int | None,
    port: int | None,
    options: dict[str, str],
    *,
    metrics_port: int | None,
    secured: bool,
) -> None:
    from ottla.local_cluster.cluster import CannotRun, LocalCluster, make_plan
    from ottla.local_cluster.secured import MissingLibrary
    from ottla.pipeline.jars import JarsNotFound
    from ottla.pipeline.java import JavaNotFound

    async def run() -> None:
        cluster = LocalCluster(
            directory,
            make_plan(directory, brokers=brokers, port=port, secured=secured),
            options=options,
            metrics_port=metrics_port,
            environment=os.environ,
            notify=_notify,
            report_ready=lambda line: print(line, flush=True),
        )
        await cluster.run()

    try:
        asyncio.run(run())
    except (CannotRun, JarsNotFound, JavaNotFound, MissingLibrary) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"the cluster cannot run in {directory}: {error}") from error


def _notify(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _command(directory: Path, command: dict[str, Any], shape: OutputFormat) -> None:
    from ottla.local_cluster.control import NotRunning, send_command

    try:
        answer = send_command(directory, command)
    except NotRunning as error:
        raise not_found(f"{error}", f"start it: ottla up --data {directory}") from error
    if "error" in answer:
        raise CommandFailed(answer["error"], code=ExitCode.FAILED)
    if shape is OutputFormat.JSON:
        show_json(answer)
    elif "message" in answer:
        print(answer["message"])
    else:
        show_rows(answer["processes"], ["process", "address", "state", "pid", "log"], shape)
