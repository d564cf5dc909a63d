"""`ottla doctor`: looks for all that is not well, from the connection of this machine to the disks of the brokers."""

from __future__ import annotations

import typer

from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions
from ottla.cli.diagnosis import explain
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.diagnosis.rule import Subject

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def doctor(
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Look for all that is not well: names, ports, TLS, sign-in, brokers, disks, topics, groups and clients.

    Prints the weightiest first, each as a line with the cause and one with the fix. Exit code 1 if something is found.
    It works on any Kafka; brokers of Ottla with `ottla.http.listener` or `ottla.events.topic.enable` report more.
    """
    explain(Subject.CLUSTER, "", shape, ConnectionOptions(brokers, profile, timeout))
