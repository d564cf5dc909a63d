"""`ottla profile`: manages named clusters."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ottla.cli.errors import not_found, usage_error
from ottla.cli.options import Format, OutputFormat
from ottla.cli.output import show_rows
from ottla.cli.profile_file import NamedCluster, Profiles, is_profile_name
from ottla.client.addresses import parse_addresses

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Named clusters, to use instead of --brokers.",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile.")]


@app.command("list")
def list_profiles(shape: Format = OutputFormat.TABLE) -> None:
    """List the profiles; the one in use is marked."""
    profiles = Profiles.load(os.environ)
    rows = [
        {"name": name, "brokers": cluster.brokers, "in_use": name == profiles.current}
        for name, cluster in sorted(profiles.clusters.items())
    ]
    show_rows(
        rows,
        ["name", "brokers", "in_use"],
        shape,
        empty="no profiles; create one: `ottla profile set NAME HOST:PORT`",
    )


@app.command("set")
def set_profile(
    name: Name,
    brokers: Annotated[str, typer.Argument(metavar="HOST:PORT,...", help="The brokers of the cluster.")],
    use: Annotated[bool, typer.Option("--use", help="Make it the profile in use.")] = False,
) -> None:
    """Create or change a profile."""
    if not is_profile_name(name):
        raise usage_error(f"{name!r} is not a valid name of a profile; use letters, digits, - and _")
    try:
        parse_addresses(brokers)
    except ValueError as error:
        raise usage_error(str(error)) from None
    profiles = Profiles.load(os.environ)
    profiles.clusters[name] = NamedCluster(brokers)
    profiles.current = name if use else profiles.current
    profiles.save()


@app.command()
def use(name: Name) -> None:
    """Use a profile wherever neither --brokers, --profile nor OTTLA_BROKERS is given."""
    profiles = Profiles.load(os.environ)
    if name not in profiles.clusters:
        raise not_found(f"there is no profile {name!r} in {profiles.path}", "list them with `ottla profile list`")
    profiles.current = name
    profiles.save()


@app.command()
def delete(name: Name) -> None:
    """Delete a profile."""
    profiles = Profiles.load(os.environ)
    if profiles.clusters.pop(name, None) is None:
        raise not_found(f"there is no profile {name!r} in {profiles.path}", "list them with `ottla profile list`")
    profiles.current = None if profiles.current == name else profiles.current
    profiles.save()
