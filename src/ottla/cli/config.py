"""`ottla config`: shows and changes the settings of topics and brokers."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import not_found, usage_error
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import show_rows
from ottla.client import admin

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Settings of topics and brokers."
)
Resource = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="topic/NAME, broker/ID, or broker for all brokers at once.")
]


def parse_resource(text: str) -> tuple[admin.ResourceType, str]:
    """Parse `topic/NAME`, `broker/ID`, `broker`. Raises `CommandFailed`.

    >>> parse_resource("topic/a")
    (<ResourceType.TOPIC: 2>, 'a')
    """
    kind, _, name = text.partition("/")
    match kind:
        case "topic" if name:
            return admin.ResourceType.TOPIC, name
        case "group" if name:
            return admin.ResourceType.GROUP, name
        case "broker" if not name or name.isdecimal():
            return admin.ResourceType.BROKER, name
    raise usage_error(f"{text!r} is not a resource: write topic/NAME, broker/ID or broker")


@app.command()
def describe(
    resource: Resource,
    all_settings: Annotated[bool, typer.Option("--all", "-a", help="Show settings with default values too.")] = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the settings that differ from their defaults, with --all every setting."""
    kind, name = parse_resource(resource)
    entries = run_on_cluster(
        ConnectionOptions(brokers, profile, timeout),
        lambda cluster: admin.describe_configs(cluster, kind, name, documentation=shape is OutputFormat.JSON),
    )
    rows = [_row(entry) for entry in entries if all_settings or not entry.is_default]
    show_rows(rows, ["name", "value", "source"], shape, empty="all settings have their defaults; show them with --all")


@app.command()
def get(
    resource: Resource,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The settings.")],
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the values of settings; for a single setting only the value."""
    kind, name = parse_resource(resource)
    entries = run_on_cluster(
        ConnectionOptions(brokers, profile, timeout),
        lambda cluster: admin.describe_configs(cluster, kind, name, keys=names),
    )
    found = {entry.name: entry for entry in entries}
    if missing := [wanted for wanted in names if wanted not in found]:
        raise not_found(f"{resource} has no setting {missing[0]}", "list them with `ottla config describe --all`")
    if len(names) == 1 and shape is OutputFormat.TABLE:
        print("" if found[names[0]].value is None else found[names[0]].value)
        return
    show_rows([_row(found[wanted]) for wanted in names], ["name", "value", "source"], shape)


@app.command("set")
def set_(
    resource: Resource,
    changes: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="NAME=VALUE sets, NAME+=VALUE and NAME-=VALUE change a list."),
    ],
    dry_run: DryRun = False,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Change settings of a topic or broker; all of them or none."""
    kind, name = parse_resource(resource)
    wanted = [parse_change(text) for text in changes]
    run_on_cluster(
        ConnectionOptions(brokers, profile, timeout),
        lambda cluster: admin.alter_configs(cluster, kind, name, wanted, validate_only=dry_run),
    )
    print(f"{'would change' if dry_run else 'changed'} {resource}")


@app.command()
def unset(
    resource: Resource,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The settings.")],
    dry_run: DryRun = False,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Reset settings to their defaults."""
    kind, name = parse_resource(resource)
    wanted = [admin.ConfigChange(key, admin.AlterOperation.DELETE) for key in names]
    run_on_cluster(
        ConnectionOptions(brokers, profile, timeout),
        lambda cluster: admin.alter_configs(cluster, kind, name, wanted, validate_only=dry_run),
    )
    print(f"{'would change' if dry_run else 'changed'} {resource}")


def parse_change(text: str) -> admin.ConfigChange:
    """Parse `name=value`, `name+=value` or `name-=value`. Raises `CommandFailed`.

    >>> parse_change("cleanup.policy+=compact").operation
    <AlterOperation.APPEND: 2>
    """
    name, equals, value = text.partition("=")
    operation = {"+": admin.AlterOperation.APPEND, "-": admin.AlterOperation.SUBTRACT}.get(
        name[-1:], admin.AlterOperation.SET
    )
    name = name if operation is admin.AlterOperation.SET else name[:-1]
    if not equals or not name:
        raise usage_error(f"{text!r} is not a setting: write NAME=VALUE, such as retention.ms=3600000")
    return admin.ConfigChange(name, operation, value)


def _row(entry: admin.ConfigEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "value": "[hidden]" if entry.sensitive else entry.value,
        "source": entry.source_name,
        "read_only": entry.read_only,
        "documentation": entry.documentation,
    }
