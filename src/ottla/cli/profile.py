"""`ottla profile`: manages named clusters."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.command_group import CommandGroup
from ottla.cli.errors import not_found, usage_error
from ottla.cli.options import Format, OutputFormat, parse_setting
from ottla.cli.output import ItemResult, show_fields, show_json, show_results, show_rows
from ottla.cli.profile_file import NamedCluster, Profiles, is_profile_name
from ottla.client.addresses import parse_addresses

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Named clusters, to use instead of --brokers.",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile.", autocompletion=completion.profiles)]


@app.command("list")
def list_profiles(shape: Format = OutputFormat.TABLE) -> None:
    """List the profiles; the one in use is marked."""
    profiles = Profiles.load(os.environ)
    rows = [
        {"name": name, "brokers": cluster.brokers, "in_use": name == profiles.current}
        for name, cluster in sorted(profiles.clusters.items())
    ]
    show_rows(
        rows, ["name", "brokers", "in_use"], shape, empty="no profiles; create one: `ottla profile set NAME HOST:PORT`"
    )


@app.command()
def show(name: Name, shape: Format = OutputFormat.TABLE) -> None:
    """Show a profile: its brokers and client settings, without passwords."""
    profiles = Profiles.load(os.environ)
    cluster = _existing(profiles, name)
    settings = {key: "[hidden]" if _is_secret(key, value) else value for key, value in cluster.settings.items()}
    if shape is OutputFormat.JSON:
        show_json({"name": name, "brokers": cluster.brokers, "in_use": name == profiles.current, "settings": settings})
        return
    show_fields({"name": name, "brokers": cluster.brokers, "in_use": name == profiles.current}, shape)
    for key, value in sorted(settings.items()):
        print(f"  {key}={value}")


def _is_secret(name: str, value: str) -> bool:
    """Return whether a setting must not be printed; a reference to an environment variable may be."""
    is_password = "password" in name or name in {"sasl.jaas.config", "ssl.keystore.key"}
    return is_password and not value.startswith("${env:")


@app.command("set")
def set_profile(
    name: Name,
    brokers: Annotated[str, typer.Argument(metavar="HOST:PORT,...", help="The brokers of the cluster.")],
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--setting",
            "-s",
            metavar="NAME=VALUE",
            help="A client setting, such as security.protocol=SASL_SSL; ${env:NAME} is an environment variable.",
            autocompletion=completion.client_settings,
        ),
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Make it the profile in use.")] = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Create or replace a profile."""
    from ottla.client.properties import InvalidProperty, client_options

    _check_name(name)
    settings = dict(parse_setting(text, option="--setting", example="security.protocol=SSL") for text in setting or [])
    try:
        parse_addresses(brokers)
        client_options(settings)
    except InvalidProperty as error:
        raise usage_error(f"--setting {error}") from None
    except ValueError as error:
        raise usage_error(str(error)) from None
    profiles = Profiles.load(os.environ)
    profiles.clusters[name] = NamedCluster(brokers, settings)
    profiles.current = name if use else profiles.current
    profiles.save()
    _show_result(name, "saved", shape)


@app.command()
def rename(
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="The new name.")],
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Rename a profile."""
    _check_name(new_name)
    profiles = Profiles.load(os.environ)
    cluster = _existing(profiles, name)
    if new_name in profiles.clusters:
        raise usage_error(f"there is a profile {new_name!r} already")
    del profiles.clusters[name]
    profiles.clusters[new_name] = cluster
    profiles.current = new_name if profiles.current == name else profiles.current
    profiles.save()
    _show_result(new_name, "renamed", shape)


@app.command()
def use(name: Name, shape: Format = OutputFormat.TABLE) -> None:
    """Use a profile wherever neither --brokers, --profile nor OTTLA_BROKERS is given."""
    profiles = Profiles.load(os.environ)
    _existing(profiles, name)
    profiles.current = name
    profiles.save()
    _show_result(name, "in use", shape)


@app.command()
def delete(name: Name, shape: Format = OutputFormat.TABLE) -> None:
    """Delete a profile."""
    profiles = Profiles.load(os.environ)
    _existing(profiles, name)
    del profiles.clusters[name]
    profiles.current = None if profiles.current == name else profiles.current
    profiles.save()
    _show_result(name, "deleted", shape)


def _show_result(name: str, result: str, shape: OutputFormat) -> None:
    show_results([ItemResult(name, result, f"profile {name}: {result}")], shape)


def _check_name(name: str) -> None:
    if not is_profile_name(name):
        raise usage_error(f"{name!r} is not a valid name of a profile; use letters, digits, - and _")


def _existing(profiles: Profiles, name: str) -> NamedCluster:
    cluster = profiles.clusters.get(name)
    if cluster is None:
        raise not_found(f"there is no profile {name!r} in {profiles.path}", "list them with `ottla profile list`")
    return cluster
