"""`ottla server`: run a broker until SIGTERM or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.errors import usage_error

STDIN = 0
_CHUNK = 4096

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def server(
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", min=0, max=65535, metavar="PORT", help="Port to listen on; 0 picks a free one."),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="Address to listen on; without it 127.0.0.1.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Directory of the log.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A server.properties with Kafka's names.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("-o", "--option", metavar="NAME=VALUE", help="One setting; may be repeated.")
    ] = None,
    while_stdin_open: Annotated[
        bool,
        typer.Option("--while-stdin-open", hidden=True, help="Stop when standard input ends: for who starts it."),
    ] = False,
) -> None:
    """Start a broker.

    With nothing given it listens on 127.0.0.1:9092. A setting comes from, first wins: the options here, environment
    variables (OTTLA_LOG_SEGMENT_BYTES for log.segment.bytes), the --config file, the default (docs/configuration.md).
    """
    options = parse_options(option or [])
    if host is not None:
        if "listeners" in options:
            raise usage_error("--host and -o listeners=... both say where to listen", "give one of them")
        options["listeners"] = f"PLAINTEXT://{f'[{host}]' if ':' in host else host}:{9092 if port is None else port}"

    from ottla.broker.server import run

    if while_stdin_open:
        threading.Thread(target=_stop_at_end_of, args=(STDIN,), daemon=True).start()
    code = run(config_file=config, options=options, port=port, data=data)
    raise typer.Exit(code)


def _stop_at_end_of(descriptor: int) -> None:
    """Stop this process as SIGTERM does once nobody holds the other end of a pipe.

    A process that starts a broker gives it a pipe for standard input and need not do anything more: when it ends, even
    by a kill that it cannot see, the system closes the pipe. (Read by descriptor: a thread that waits in `sys.stdin`
    would hold its lock while the interpreter shuts down.)
    """
    with contextlib.suppress(OSError):
        while os.read(descriptor, _CHUNK):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def parse_options(texts: list[str]) -> dict[str, str]:
    """`name=value` texts as a table; the last one of a name wins. Raises `CommandFailed`.

    >>> parse_options(["log.segment.bytes=1048576", "a=b=c"])
    {'log.segment.bytes': '1048576', 'a': 'b=c'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise usage_error(f"-o {text}: a setting is written name=value, like -o log.segment.bytes=1048576")
        found[name.strip()] = value.strip()
    return found
