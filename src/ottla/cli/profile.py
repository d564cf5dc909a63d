"""`ottla profile`: manages named clusters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import existing_profile, load_profiles
from ottla.cli.errors import CommandFailed, ExitCode, not_found, show_notice, usage_error
from ottla.cli.options import Format, OutputFormat, parse_setting
from ottla.cli.output import ItemResult, show_fields, show_json, show_results, show_rows
from ottla.client.addresses import parse_addresses
from ottla.client.password_source import PasswordKind, PasswordSource
from ottla.client.profiles import InvalidProfile, NamedCluster, Profiles, is_profile_name, is_secret

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Named clusters, to use instead of --brokers.",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile.", autocompletion=completion.profiles)]
_BOOTSTRAP = "bootstrap.servers"


@app.command("list")
def list_profiles(shape: Format = OutputFormat.TABLE) -> None:
    """List the profiles; the one in use is marked."""
    profiles = load_profiles(os.environ)
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
    profiles = load_profiles(os.environ)
    cluster = existing_profile(profiles, name)
    settings = {key: "[hidden]" if is_secret(key, value) else value for key, value in cluster.settings.items()}
    fields = {"name": name, "brokers": cluster.brokers, "in_use": name == profiles.current}
    if cluster.password is not None:
        fields[cluster.password.kind.key] = cluster.password.text
    if shape is OutputFormat.JSON:
        show_json({**fields, "settings": settings})
        return
    show_fields(fields, shape)
    for key, value in sorted(settings.items()):
        print(f"  {key}={value}")


@app.command("set")
def set_profile(
    name: Name,
    brokers: Annotated[
        str | None,
        typer.Argument(
            metavar="[HOST:PORT,...]", help="The brokers of the cluster. Default: bootstrap.servers of --settings-file."
        ),
    ] = None,
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
    settings_file: Annotated[
        Path | None,
        typer.Option("--settings-file", metavar="FILE", help="A properties file of a client; --setting overrides it."),
    ] = None,
    password_command: Annotated[
        str | None,
        typer.Option("--password-command", metavar="COMMAND", help="sasl.password is the first line it prints."),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", metavar="FILE", help="sasl.password is the first line of this file."),
    ] = None,
    password_keyring: Annotated[
        str | None,
        typer.Option(
            "--password-keyring", metavar="SERVICE", help="sasl.password is that of sasl.username in the keyring."
        ),
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Make it the profile in use.")] = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Create or replace a profile. Nothing connects yet, and no password is read."""
    _check_name(name)
    settings = {} if settings_file is None else _settings_from(settings_file)
    settings |= dict(parse_setting(text, option="--setting", example="security.protocol=SSL") for text in setting or [])
    named = settings.pop(_BOOTSTRAP, None)
    if brokers is None and named is None:
        raise usage_error("no brokers are given", f"ottla profile set {name} HOST:PORT")
    file = None if password_file is None else str(password_file.expanduser().absolute())
    cluster = NamedCluster(brokers or named or "", settings, _source(password_command, file, password_keyring))
    _check(cluster)
    profiles = load_profiles(os.environ)
    profiles.clusters[name] = cluster
    profiles.current = name if use else profiles.current
    _save(profiles)
    if secrets := sorted(key for key, value in settings.items() if is_secret(key, value)):
        show_notice(
            f"{profiles.path}, which only you can read, has {', '.join(secrets)} in clear; --password-command, "
            "--password-file, --password-keyring and ${env:NAME} keep a password elsewhere"
        )
    _show_result(name, "saved", shape)


def _settings_from(file: Path) -> dict[str, str]:
    """Read a properties file. Raises CommandFailed."""
    from ottla.core.settings import read_properties

    try:
        text = file.expanduser().read_text("utf-8")
    except FileNotFoundError:
        raise not_found(f"there is no file {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file} cannot be read: {error}", code=ExitCode.BAD_INPUT) from None
    return {key: value.text for key, value in read_properties(text, origin=str(file)).items()}


def _source(command: str | None, file: str | None, service: str | None) -> PasswordSource | None:
    given = {PasswordKind.COMMAND: command, PasswordKind.FILE: file, PasswordKind.KEYRING: service}
    sources = [PasswordSource(kind, text) for kind, text in given.items() if text is not None]
    if len(sources) > 1:
        raise usage_error("more than one source of the password is given")
    return sources[0] if sources else None


def _check(cluster: NamedCluster) -> None:
    """Raise CommandFailed if brokers or settings are not valid."""
    from ottla.client.profiles import NOT_READ
    from ottla.client.properties import InvalidProperty, client_options

    if cluster.password is not None and "sasl.password" in cluster.settings:
        raise usage_error("the password is given twice", "leave sasl.password out")
    password = {} if cluster.password is None else {"sasl.password": NOT_READ}
    try:
        parse_addresses(cluster.brokers)
        client_options({**cluster.settings, **password})
    except InvalidProperty as error:
        raise usage_error(f"--setting {error}") from None
    except ValueError as error:
        raise usage_error(str(error)) from None


def _save(profiles: Profiles) -> None:
    try:
        profiles.save()
    except InvalidProfile as error:
        raise CommandFailed(str(error)) from None


@app.command()
def rename(
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="The new name.")],
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Rename a profile."""
    _check_name(new_name)
    profiles = load_profiles(os.environ)
    cluster = existing_profile(profiles, name)
    if new_name in profiles.clusters:
        raise usage_error(f"there is a profile {new_name!r} already")
    del profiles.clusters[name]
    profiles.clusters[new_name] = cluster
    profiles.current = new_name if profiles.current == name else profiles.current
    _save(profiles)
    _show_result(new_name, "renamed", shape)


@app.command()
def use(name: Name, shape: Format = OutputFormat.TABLE) -> None:
    """Use a profile wherever neither --brokers, --profile nor OTTLA_BROKERS is given."""
    profiles = load_profiles(os.environ)
    existing_profile(profiles, name)
    profiles.current = name
    _save(profiles)
    _show_result(name, "in use", shape)


@app.command()
def delete(name: Name, shape: Format = OutputFormat.TABLE) -> None:
    """Delete a profile."""
    profiles = load_profiles(os.environ)
    existing_profile(profiles, name)
    del profiles.clusters[name]
    profiles.current = None if profiles.current == name else profiles.current
    _save(profiles)
    _show_result(name, "deleted", shape)


def _show_result(name: str, result: str, shape: OutputFormat) -> None:
    show_results([ItemResult(name, result, f"profile {name}: {result}")], shape)


def _check_name(name: str) -> None:
    if not is_profile_name(name):
        raise usage_error(f"{name!r} is not a valid name of a profile; use letters, digits, - and _")
