"""`ottla config`: shows and changes the settings of topics and brokers."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import not_found, usage_error
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout, parse_setting
from ottla.cli.output import ItemResult, show_results, show_rows
from ottla.cli.resource_argument import parse_resource
from ottla.client import admin
from ottla.client.cluster import Cluster
from ottla.core.settings import AlterConfigOpType, ConfigResourceType

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Settings of topics and brokers.",
)
Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="topic/NAME, broker/ID, or broker for all brokers at once.",
        autocompletion=completion.resources,
    ),
]
Names = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="The settings.", autocompletion=completion.settings_of_resource)
]


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
    with_documentation = shape is OutputFormat.JSON

    async def work(cluster: Cluster) -> list[dict[str, object]]:
        entries = await admin.describe_configs(cluster, kind, name, documentation=with_documentation)
        rows = [_row(entry) for entry in entries if all_settings or not entry.is_default]
        if kind is ConfigResourceType.BROKER and not name and all_settings:
            rows += await _rows_of_all_brokers(cluster, documentation=with_documentation)
        return rows

    rows = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    columns = ["name", "value", "source"]
    if len({row["broker"] for row in rows if "broker" in row}) > 1:
        columns = ["broker", *columns]
    show_rows(rows, columns, shape, empty="all settings have their defaults; show them with --all")


async def _rows_of_all_brokers(
    cluster: Cluster, *, keys: list[str] | None = None, documentation: bool = False
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for node in (await admin.describe_cluster(cluster)).nodes:
        entries = await admin.describe_configs(
            cluster, ConfigResourceType.BROKER, str(node.node_id), keys=keys, documentation=documentation
        )
        rows += [{"broker": node.node_id, **_row(entry)} for entry in entries]
    return rows


@app.command()
def get(
    resource: Resource,
    names: Names,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the values of settings; for a single setting only the value."""
    kind, name = parse_resource(resource)

    async def work(cluster: Cluster) -> list[dict[str, object]]:
        if kind is ConfigResourceType.BROKER and not name:
            return await _rows_of_all_brokers(cluster, keys=names)
        return [_row(entry) for entry in await admin.describe_configs(cluster, kind, name, keys=names)]

    found = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    if missing := [wanted for wanted in names if wanted not in {row["name"] for row in found}]:
        raise not_found(
            f"{resource} has no setting {missing[0]}", f"list them with `ottla config describe {resource} --all`"
        )
    if len(found) == 1 and shape is OutputFormat.TABLE:
        print("" if found[0]["value"] is None else found[0]["value"])
        return
    rows = sorted(found, key=lambda row: names.index(str(row["name"])))
    is_of_several = len({row.get("broker") for row in rows}) > 1
    show_rows(rows, [*(["broker"] if is_of_several else []), "name", "value", "source"], shape)


@app.command("set")
def set_(
    resource: Resource,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="NAME=VALUE sets, NAME+=VALUE and NAME-=VALUE change a list.",
            autocompletion=completion.changes_of_resource,
        ),
    ],
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
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
    show_results([ItemResult(resource, "would change" if dry_run else "changed")], shape)


@app.command()
def unset(
    resource: Resource,
    names: Names,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Reset settings to their defaults."""
    kind, name = parse_resource(resource)
    wanted = [admin.AlterConfigOp(key, AlterConfigOpType.DELETE) for key in names]
    run_on_cluster(
        ConnectionOptions(brokers, profile, timeout),
        lambda cluster: admin.alter_configs(cluster, kind, name, wanted, validate_only=dry_run),
    )
    show_results([ItemResult(resource, "would change" if dry_run else "changed")], shape)


def parse_change(text: str) -> admin.AlterConfigOp:
    """Parse `name=value`, `name+=value` or `name-=value`. Raises `CommandFailed`.

    >>> parse_change("cleanup.policy+=compact").operation
    <AlterConfigOpType.APPEND: 2>
    """
    name, value = parse_setting(text, example="retention.ms=1h")
    operation = {"+": AlterConfigOpType.APPEND, "-": AlterConfigOpType.SUBTRACT}.get(name[-1:], AlterConfigOpType.SET)
    name = name if operation is AlterConfigOpType.SET else name[:-1]
    if not name:
        raise usage_error(f"{text}: write NAME=VALUE, such as retention.ms=1h")
    return admin.AlterConfigOp(name, operation, value)


def _row(entry: admin.ConfigEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "value": "[hidden]" if entry.sensitive else entry.value,
        "source": entry.source_name,
        "read_only": entry.read_only,
        "documentation": entry.documentation,
    }
