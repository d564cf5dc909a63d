"""Declares `ottla server` for typer: the help, the completion, and the messages about options that are wrong.

`server_start.py` has the options and their help, reads complete command lines without typer, and runs the broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.server_start import BROKERS_MAX, HELP, OPTIONS, PORT_MAX, WORKERS_MAX, ReadyFormat, ServerOptions, start

_DECLARED = {option.field: option for option in OPTIONS}
app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _option(field: str, **more: Any) -> Any:
    """Return an option of `OPTIONS` as typer declares it."""
    option = _DECLARED[field]
    return typer.Option(*option.names, metavar=option.metavar or None, help=option.help, hidden=not option.help, **more)


Options = Annotated[list[str] | None, _option("option", autocompletion=completion.broker_settings)]


@app.command(help=HELP)
def server(
    port: Annotated[int | None, _option("port", min=0, max=PORT_MAX)] = None,
    host: Annotated[str | None, _option("host")] = None,
    data: Annotated[Path | None, _option("data")] = None,
    config: Annotated[Path | None, _option("config")] = None,
    option: Options = None,
    dev: Annotated[bool, _option("dev")] = False,
    check: Annotated[bool, _option("check")] = False,
    log_file: Annotated[Path | None, _option("log_file")] = None,
    ready_file: Annotated[Path | None, _option("ready_file")] = None,
    shape: Annotated[ReadyFormat, _option("shape")] = ReadyFormat.TEXT,
    while_stdin_open: Annotated[bool, _option("while_stdin_open")] = False,
    workers: Annotated[int, _option("workers", min=1, max=WORKERS_MAX)] = 1,
    memory: Annotated[bool, _option("memory")] = False,
    brokers: Annotated[int, _option("brokers", min=1, max=BROKERS_MAX)] = 1,
    control_port: Annotated[int | None, _option("control_port", min=0, max=PORT_MAX)] = None,
    control_token: Annotated[str | None, _option("control_token")] = None,
    store_socket: Annotated[Path | None, _option("store_socket")] = None,
    insecure_listeners: Annotated[bool, _option("insecure_listeners")] = False,
    init_user: Annotated[str | None, _option("init_user")] = None,
    init_password_file: Annotated[Path | None, _option("init_password_file")] = None,
    console: Annotated[bool, _option("console")] = False,
) -> None:
    """Run a broker with these options."""
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
        insecure_listeners,
        init_user,
        init_password_file,
        console,
    )
    raise typer.Exit(start(given))
