"""`ottla bundle`: packs what a maintainer needs into one file."""

from __future__ import annotations

import os
import platform
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.base_commands import version_line
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import CommandFailed, not_found, show_notice
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import show_fields
from ottla.client.broker_http import TOKEN_VARIABLE
from ottla.core.clock import SystemClock
from ottla.diagnosis.bundle import collect, log_tail, pack

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_STATE_S, _POLL_S = 3.0, 0.05


@app.command()
def bundle(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, as ottla-bundle.tar.gz.")],
    log: Annotated[
        list[Path] | None, typer.Option("--log", metavar="PATH", help="A broker's log on this machine; repeatable.")
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option("--pid", metavar="PID", help="A broker here that first writes its state and tasks into its log."),
    ] = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Pack settings, health, log directories, groups, events, logs and versions into one file, without secrets.

    Nothing is sent anywhere. Read the file before you give it away: names of topics, groups, clients and hosts are
    in it.
    """
    logs = log or []
    for path in logs:
        if not path.is_file():
            raise not_found(f"there is no file {path}")
    if pid is not None:
        _write_state(pid, logs)
    token = os.environ.get(TOKEN_VARIABLE, "")
    versions = {"ottla": version_line(), "python": platform.python_version(), "system": platform.platform()}
    texts = run_on_cluster(
        ConnectionOptions(brokers, profile, timeout), lambda cluster: collect(cluster, versions=versions, token=token)
    )
    try:
        texts |= {f"logs/{number}-{path.name}": log_tail(path) for number, path in enumerate(logs)}
        pack(file, texts, now_ms=SystemClock().wall_ms())
    except FileExistsError:
        raise CommandFailed(f"{file} exists already") from None
    except OSError as error:
        raise CommandFailed(f"{error.strerror or error}: {error.filename or file}") from error
    show_fields({"file": str(file), "bytes": file.stat().st_size, "texts": len(texts)}, shape)


def _write_state(pid: int, logs: list[Path]) -> None:
    """Have a broker log its state and its tasks, as `kill -USR1` does, and wait until a log has grown."""
    before = [path.stat().st_size for path in logs]
    try:
        os.kill(pid, signal.SIGUSR1)
    except OSError as error:
        raise CommandFailed(f"process {pid}: {error.strerror}") from None
    monotonic = SystemClock().monotonic
    end = monotonic() + _STATE_S
    while logs and [path.stat().st_size for path in logs] == before:
        if monotonic() > end:
            show_notice(f"process {pid} has written nothing to these logs")
            return
        time.sleep(_POLL_S)
