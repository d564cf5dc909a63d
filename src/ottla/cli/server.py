"""`ottla server`: runs a broker until SIGTERM or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.errors import usage_error
from ottla.core import collector

STDIN = 0
_CHUNK = 4096


class ReadyFormat(StrEnum):
    """The format of the ready line, and of the result of --check."""

    TEXT = "text"
    JSON = "json"


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
        max=64,
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
        typer.Option("--port", "-p", min=0, max=65535, metavar="PORT", help="Port to listen on; 0 picks a free one."),
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
    options = parse_options(option or [])
    if host is not None:
        if "listeners" in options:
            raise usage_error("--host and -o listeners=... contradict each other", "use one of them")
        options["listeners"] = f"PLAINTEXT://{f'[{host}]' if ':' in host else host}:{9092 if port is None else port}"

    with collector.paused():
        from ottla.broker import server as broker_server

    is_json = shape is ReadyFormat.JSON
    if check:
        raise typer.Exit(
            broker_server.check(config_file=config, options=options, port=port, data=data, is_dev=dev, is_json=is_json)
        )
    if while_stdin_open:
        threading.Thread(target=_stop_at_end_of, args=(STDIN,), daemon=True).start()  # noqa: TID251  # of a command, never simulated
    process = broker_server.ProcessOptions(log_file, ready_file, is_json, workers if workers > 1 else 0, store_socket)
    raise typer.Exit(
        broker_server.run(config_file=config, options=options, port=port, data=data, is_dev=dev, process=process)
    )


def _stop_at_end_of(descriptor: int) -> None:
    """Send SIGTERM to this process when the other end of a pipe is closed.

    A process that starts a broker gives it a pipe for standard input: when that process ends, even by SIGKILL, the
    system closes the pipe. (Read by descriptor: a thread blocked in `sys.stdin` would hold its lock while the
    interpreter shuts down.)
    """
    with contextlib.suppress(OSError):
        while os.read(descriptor, _CHUNK):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def parse_options(texts: list[str]) -> dict[str, str]:
    """Parse `name=value` texts; the last value of a name wins. Raises `CommandFailed`.

    >>> parse_options(["log.segment.bytes=1048576", "a=b=c"])
    {'log.segment.bytes': '1048576', 'a': 'b=c'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise usage_error(f"-o {text}: write name=value, such as -o log.segment.bytes=1048576")
        found[name.strip()] = value.strip()
    return found
