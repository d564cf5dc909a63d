"""`ottla quota`: lists, sets and deletes the limits of users, clients and addresses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import not_found, usage_error
from ottla.cli.name_patterns import did_you_mean
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import ItemResult, show_json, show_results, show_rows
from ottla.client.cluster import Cluster
from ottla.client.quota_admin import (
    CLIENT_ID,
    IP,
    USER,
    EntityQuotas,
    alter_quotas,
    entity_text,
    list_quotas,
    quotas_of,
)
from ottla.core.quantities import parse_size

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Limits of users, clients and addresses.",
)
User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="Of this user.", autocompletion=completion.users)
]
UserDefault = Annotated[bool, typer.Option("--user-default", help="Of every user without a limit of its own.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Of this client id.")]
ClientIdDefault = Annotated[
    bool, typer.Option("--client-id-default", help="Of every client id without a limit of its own.")
]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="Of connections from this address.")]
IpDefault = Annotated[bool, typer.Option("--ip-default", help="Of every address without a limit of its own.")]


@app.command("list")
def list_(
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientIdDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List quotas, all or those of an entity; a user's include those of its client ids."""
    entity = _entity(user, user_default, client_id, client_id_default, ip, ip_default)

    async def work(cluster: Cluster) -> list[EntityQuotas]:
        return await list_quotas(cluster, entity)

    quotas = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    if shape is OutputFormat.JSON:
        show_json([{"entity": of_entity.entity, "quotas": of_entity.values} for of_entity in quotas])
        return
    rows = [
        {"entity": entity_text(of_entity.entity), "quota": name, "value": f"{value:.15g}"}
        for of_entity in quotas
        for name, value in of_entity.values.items()
    ]
    show_rows(rows, ["entity", "quota", "value"], shape, empty="no quotas")


@app.command("set")
def set_(
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="producer_byte_rate=1MiB, consumer_byte_rate=..., ...",
            autocompletion=completion.quota_changes,
        ),
    ],
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientIdDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set limits of an entity: a user, a client id, both together, or an address.

    producer_byte_rate and consumer_byte_rate are bytes a second and broker; request_percentage is the share of a
    thread; controller_mutation_rate is partitions created or deleted a second; connection_creation_rate, of
    addresses, is connections a second.
    """
    entity = _named_entity(user, user_default, client_id, client_id_default, ip, ip_default)
    values = dict(_parse_change(text, quotas_of(entity)) for text in changes)

    async def work(cluster: Cluster) -> None:
        await alter_quotas(cluster, entity, values=values, validate_only=dry_run)

    run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    result = "would set" if dry_run else "set"
    show_results(
        [ItemResult(f"{entity_text(entity)} {name}={value:.15g}", result) for name, value in values.items()], shape
    )


@app.command()
def delete(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="The limits; all of them only with --yes.", autocompletion=completion.quotas
        ),
    ] = None,
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientIdDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete every limit of the entity.")] = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete limits of an entity: those named, or all with --yes."""
    entity = _named_entity(user, user_default, client_id, client_id_default, ip, ip_default)

    async def work(cluster: Cluster) -> list[str]:
        quotas = await list_quotas(cluster, entity, strict=True)
        known = list(quotas[0].values) if quotas else []
        selected = list(dict.fromkeys(names or known))
        if missing := [name for name in selected if name not in known]:
            raise not_found(f"{entity_text(entity)} has no quota {missing[0]}{did_you_mean(missing[0], known)}")
        if not known:
            raise not_found(f"{entity_text(entity)} has no quotas", "list them with `ottla quota list`")
        if not names and not yes and not dry_run:
            raise usage_error(f"{entity_text(entity)} has {', '.join(known)}", "add --yes to delete all of them")
        await alter_quotas(cluster, entity, removed=selected, validate_only=dry_run)
        return selected

    deleted = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    result = "would delete" if dry_run else "deleted"
    show_results([ItemResult(f"{entity_text(entity)} {name}", result) for name in deleted], shape)


def _entity(
    user: str | None,
    user_default: bool,
    client_id: str | None,
    client_id_default: bool,
    ip: str | None,
    ip_default: bool,
) -> dict[str, str | None]:
    """Return what the options select. Raises CommandFailed where they contradict each other."""
    entity: dict[str, str | None] = {}
    for kind, name, default in (
        (USER, user, user_default),
        (CLIENT_ID, client_id, client_id_default),
        (IP, ip, ip_default),
    ):
        if name is not None and default:
            raise usage_error(f"--{kind} and --{kind}-default contradict each other", "use one of them")
        if name == "":
            raise usage_error(f"--{kind} has no name", f"--{kind}-default is for all without a limit of their own")
        if name is not None or default:
            entity[kind] = name
    if IP in entity and len(entity) > 1:
        raise usage_error("limits of an address are of every user and client there", "use --ip alone")
    return entity


def _named_entity(*options: Any) -> dict[str, str | None]:
    entity = _entity(*options)
    if not entity:
        raise usage_error("whose limit?", "--user, --client-id, --ip, or one of them with -default")
    return entity


def _parse_change(text: str, known: Sequence[str]) -> tuple[str, float]:
    """Parse NAME=VALUE. Raises CommandFailed.

    >>> _parse_change("producer_byte_rate=1MiB", ["producer_byte_rate"])
    ('producer_byte_rate', 1048576.0)
    """
    name, equals, number = text.partition("=")
    if not equals:
        raise usage_error(f"{text}: write NAME=VALUE, such as {known[0]}=1000")
    if name not in known:
        raise usage_error(f"there is no quota {name}{did_you_mean(name, known)}", f"one of {', '.join(known)}")
    size = parse_size(number) if name.endswith("_byte_rate") else None
    try:
        value = float(number) if size is None else float(size)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        unit = " or a size such as 1MiB" if name.endswith("_byte_rate") else ""
        raise usage_error(f"{name}: {number!r} is not a number above 0{unit}")
    return name, value
