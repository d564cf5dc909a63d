"""`ottla why`: says why a group, a topic, a client or a broker is not well."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions
from ottla.cli.diagnosis import explain
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.diagnosis.rule import Subject

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Say why a group, a topic, a client or a broker is not well: a line with the cause, and one with the fix.",
)


@app.command()
def group(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The group.", autocompletion=completion.groups)],
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Say why a group does not consume as it should. Exit code 1 if something is found."""
    explain(Subject.GROUP, name, shape, ConnectionOptions(brokers, profile, timeout))


@app.command()
def topic(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic.", autocompletion=completion.topics)],
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Say why a topic cannot be written, read or compacted as it should. Exit code 1 if something is found."""
    explain(Subject.TOPIC, name, shape, ConnectionOptions(brokers, profile, timeout))


@app.command()
def client(
    name: Annotated[str, typer.Argument(metavar="CLIENT-ID", help="Its client.id.")],
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Say why a client is refused, throttled or slow. Exit code 1 if something is found."""
    explain(Subject.CLIENT, name, shape, ConnectionOptions(brokers, profile, timeout))


@app.command()
def broker(
    node: Annotated[int, typer.Argument(metavar="ID", help="The node id of the broker.")],
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Say what is not well with a broker. Exit code 1 if something is found."""
    explain(Subject.BROKER, str(node), shape, ConnectionOptions(brokers, profile, timeout))
