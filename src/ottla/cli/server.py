"""Declares `ottla server` for typer: the help, the completion, and the messages about options that are wrong.

`server_start.py` reads complete command lines without typer, and runs the broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.server_start import PORT_MAX, WORKERS_MAX, ReadyFormat, ServerOptions, start

Dev = Annotated[
    bool,
    typer.Option("--dev", help="Defaults for one developer: groups start at once, topics are created on first use."),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        "-w",
        min=1,
        max=WORKERS_MAX,
        metavar="N",
        help="Run N brokers, each a process with a port of its own, to use the machine's cores.",
    ),
]
StoreSocket = Annotated[Path | None, typer.Option("--store-socket", hidden=True)]
app = typer.Typer(add_completion=False, rich_markup_mode=None)
Options = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        help="One setting; may be repeated.",
        autocompletion=completion.broker_settings,
    ),
]


@app.command()
def server(
    port: Annotated[
        int | None,
        typer.Option(
            "--port", "-p", min=0, max=PORT_MAX, metavar="PORT", help="Port to listen on; 0 picks a free one."
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="Address to listen on. Default: 127.0.0.1.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The data directory (log.dirs).")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A server.properties with Kafka's names.")
    ] = None,
    option: Options = None,
    dev: Dev = False,
    check: Annotated[
        bool, typer.Option("--check", help="Validate settings and directories, start nothing. Exit code 0 if valid.")
    ] = False,
    log_file: Annotated[
        Path | None,
        typer.Option("--log-file", metavar="FILE", help="Log to this file; SIGHUP reopens it. Default: stderr."),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", metavar="FILE", help="A JSON file that exists while the broker serves."),
    ] = None,
    shape: Annotated[
        ReadyFormat, typer.Option("--format", "-f", help="Print the ready line as text, or as JSON for programs.")
    ] = ReadyFormat.TEXT,
    while_stdin_open: Annotated[
        bool, typer.Option("--while-stdin-open", help="Stop when standard input is closed, or its writer has ended.")
    ] = False,
    workers: Workers = 1,
    store_socket: StoreSocket = None,
) -> None:
    """Start a broker.

    Without options it listens on 127.0.0.1:9092. The value of a setting comes from the first of: the options of this
    command, environment variables (OTTLA_LOG_SEGMENT_BYTES for log.segment.bytes), the --config file, the default
    (docs/configuration.md). --dev changes only defaults. Signals, logs and running it as a service: docs/operating.md.
    """
    given = ServerOptions(
        port,
        host,
        data,
        config,
        tuple(option or ()),
        dev,
        check,
        log_file,
        ready_file,
        shape,
        while_stdin_open,
        workers,
        store_socket,
    )
    raise typer.Exit(start(given))
