"""Declares `ottla server` for typer: the help, the completion, and the messages about options that are wrong.

`server_start.py` reads complete command lines without typer, and runs the broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.server_start import BROKERS_MAX, PORT_MAX, WORKERS_MAX, ReadyFormat, ServerOptions, start

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
Memory = Annotated[
    bool, typer.Option("--memory", help="Keep all files in memory, and serve a control API for tests of clients.")
]
Brokers = Annotated[
    int, typer.Option("--brokers", "-n", min=1, max=BROKERS_MAX, metavar="N", help="With --memory: so many brokers.")
]
ControlPort = Annotated[
    int | None,
    typer.Option(
        "--control-port",
        min=0,
        max=PORT_MAX,
        metavar="PORT",
        help="With --memory: the port of the control API. Default: a free one.",
    ),
]
ControlToken = Annotated[
    str | None,
    typer.Option(
        "--control-token",
        metavar="TOKEN",
        help="With --memory: the token of the control API. Default: OTTLA_CONTROL_TOKEN, or a random one.",
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


Port = Annotated[
    int | None,
    typer.Option("--port", "-p", min=0, max=PORT_MAX, metavar="PORT", help="Port to listen on; 0 picks a free one."),
]
Host = Annotated[str | None, typer.Option("--host", metavar="HOST", help="Address to listen on. Default: 127.0.0.1.")]
Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The data directory (log.dirs).")]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="A server.properties with Kafka's names.")
]
Check = Annotated[
    bool, typer.Option("--check", help="Validate settings and directories, start nothing. Exit code 0 if valid.")
]
LogFile = Annotated[
    Path | None,
    typer.Option("--log-file", metavar="FILE", help="Log to this file; SIGHUP reopens it. Default: stderr."),
]
Ready = Annotated[
    Path | None, typer.Option("--ready-file", metavar="FILE", help="A JSON file that exists while the broker serves.")
]
Shape = Annotated[
    ReadyFormat, typer.Option("--format", "-f", help="Print the ready line as text, or as JSON for programs.")
]
WhileStdinOpen = Annotated[
    bool, typer.Option("--while-stdin-open", help="Stop when standard input is closed, or its writer has ended.")
]


@app.command()
def server(
    port: Port = None,
    host: Host = None,
    data: Data = None,
    config: Config = None,
    option: Options = None,
    dev: Dev = False,
    check: Check = False,
    log_file: LogFile = None,
    ready_file: Ready = None,
    shape: Shape = ReadyFormat.TEXT,
    while_stdin_open: WhileStdinOpen = False,
    workers: Workers = 1,
    memory: Memory = False,
    brokers: Brokers = 1,
    control_port: ControlPort = None,
    control_token: ControlToken = None,
    store_socket: StoreSocket = None,
) -> None:
    """Start a broker.

    Without options it listens on 127.0.0.1:9092. The value of a setting comes from the first of: the options of this
    command, environment variables (OTTLA_LOG_SEGMENT_BYTES for log.segment.bytes), the --config file, the default
    (docs/configuration.md). --dev changes only defaults. Signals, logs and running it as a service: docs/operating.md.

    With --memory nothing is read from files or the environment, and nothing is written: docs/control-api.md.
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
        memory,
        brokers,
        control_port,
        control_token,
        store_socket,
    )
    raise typer.Exit(start(given))
