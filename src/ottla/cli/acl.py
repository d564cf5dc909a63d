"""`ottla acl`: lists, creates and deletes ACLs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.acl_options import (
    filter_resources,
    operations_from,
    pattern_type_from,
    principal_from,
    resources_from,
    rights_from,
    shortcut_rights,
)
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, report_failures, run_on_cluster
from ottla.cli.errors import not_found, usage_error
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import show_json, show_rows
from ottla.client.acl_admin import AclFilter, bindings_of, create_acls, delete_acls, list_acls
from ottla.client.cluster import Cluster
from ottla.core.acls import WILDCARD, AclBinding, AclOperation, PermissionType

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Access control lists: who may do what.",
)
_COLUMNS = ["principal", "permission", "operation", "resource", "name", "pattern", "host"]


def _names(option: str, what: str, complete: Any = None) -> Any:
    return typer.Option(option, metavar="NAME", help=f"{what}; repeatable.", autocompletion=complete)


Allowed = Annotated[
    list[str] | None,
    typer.Option("--allow-principal", metavar="TYPE:NAME", help="Who may: User:alice, or only alice; repeatable."),
]
Denied = Annotated[
    list[str] | None,
    typer.Option("--deny-principal", metavar="TYPE:NAME", help="Who may not, whatever else is allowed; repeatable."),
]
AllowHosts = Annotated[
    list[str] | None, typer.Option("--allow-host", metavar="HOST", help="From this address or range; repeatable.")
]
DenyHosts = Annotated[
    list[str] | None, typer.Option("--deny-host", metavar="HOST", help="Not from this address or range; repeatable.")
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        metavar="OPERATION",
        help="read, write, create, describe, ... or all; repeatable.",
        autocompletion=completion.acl_operations,
    ),
]
Topics = Annotated[list[str] | None, _names("--topic", "A topic, or * for all", completion.topics)]
Groups = Annotated[list[str] | None, _names("--group", "A group, or * for all", completion.groups)]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
TransactionalIds = Annotated[list[str] | None, _names("--transactional-id", "A transactional id, or * for all")]
Tokens = Annotated[list[str] | None, _names("--delegation-token", "A delegation token by its id")]
Users = Annotated[list[str] | None, _names("--user-principal", "A user whose tokens are meant, as User:NAME")]
CreatedPattern = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type",
        metavar="TYPE",
        help="literal: the name itself. prefixed: every name that begins with it.",
    ),
]
FilterPattern = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type",
        metavar="TYPE",
        help="literal, prefixed, any, or match: every pattern that applies to the name.",
    ),
]


@app.command("list")
def list_(
    allow_principal: Allowed = None,
    deny_principal: Denied = None,
    allow_host: AllowHosts = None,
    deny_host: DenyHosts = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    cluster: OnCluster = False,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: Users = None,
    resource_pattern_type: FilterPattern = "any",
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List ACLs: all, or those that fit the options. `--resource-pattern-type match` lists what applies to a name."""
    names = resources_from(topic, group, transactional_id, delegation_token, user_principal, on_cluster=cluster)
    filters = _filters(
        _principal_filters(allow_principal, deny_principal, allow_host, deny_host),
        operations_from(operation),
        filter_resources(names, resource_pattern_type),
    )

    async def work(connected: Cluster) -> list[AclBinding]:
        return await list_acls(connected, filters)

    bindings = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    show_rows(list(map(_row, bindings)), _COLUMNS, shape, empty="no ACLs")


@app.command()
def create(
    allow_principal: Allowed = None,
    deny_principal: Denied = None,
    allow_host: AllowHosts = None,
    deny_host: DenyHosts = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    cluster: OnCluster = False,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: Users = None,
    resource_pattern_type: CreatedPattern = "literal",
    producer: Annotated[
        bool, typer.Option("--producer", help="What a producer needs of --topic, and of --transactional-id if given.")
    ] = False,
    consumer: Annotated[bool, typer.Option("--consumer", help="What a consumer needs of --topic and --group.")] = False,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create ACLs: one for each principal, host, operation and resource. One that exists stays.

    Without --operation it is every operation (all).
    """
    principals = _principals(allow_principal, deny_principal, allow_host, deny_host)
    if not principals:
        raise usage_error("whom is it about?", "--allow-principal User:NAME or --deny-principal User:NAME")
    names = resources_from(topic, group, transactional_id, delegation_token, user_principal, on_cluster=cluster)
    if not names:
        raise usage_error("what is it about?", "--topic, --group, --cluster, --transactional-id, ...")
    pattern = pattern_type_from(resource_pattern_type, is_filter=False)
    if producer or consumer:
        if operation:
            raise usage_error("--producer and --consumer name the operations", "leave --operation out")
        rights = shortcut_rights(names, pattern, producer=producer, consumer=consumer)
    else:
        rights = rights_from(names, pattern, operations_from(operation) or [AclOperation.ALL])
    bindings = bindings_of(principals, rights)

    async def work(connected: Cluster) -> list[tuple[AclBinding, str, Any]]:
        known = set(await list_acls(connected))
        fresh = [acl for acl in bindings if acl not in known]
        errors = {} if dry_run or not fresh else dict(await create_acls(connected, fresh))
        result = "would create" if dry_run else "created"
        return [(acl, result if acl in fresh else "exists", errors.get(acl)) for acl in bindings]

    _show_outcomes(run_on_cluster(ConnectionOptions(brokers, profile, timeout), work), shape)


@app.command()
def delete(
    allow_principal: Allowed = None,
    deny_principal: Denied = None,
    allow_host: AllowHosts = None,
    deny_host: DenyHosts = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    cluster: OnCluster = False,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: Users = None,
    resource_pattern_type: FilterPattern = "any",
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete everything that the options select.")] = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete the ACLs that the options select; without --yes it lists them and changes nothing."""
    names = resources_from(topic, group, transactional_id, delegation_token, user_principal, on_cluster=cluster)
    by_principal = _principal_filters(allow_principal, deny_principal, allow_host, deny_host)
    if not names and by_principal == [AclFilter()] and not operation:
        raise usage_error("that selects every ACL of the cluster", "name a principal, a resource or an operation")
    filters = _filters(by_principal, operations_from(operation), filter_resources(names, resource_pattern_type))

    async def work(connected: Cluster) -> list[tuple[AclBinding, str, Any]]:
        selected = await list_acls(connected, filters)
        if not selected:
            raise not_found("no ACL fits the options", "list them with `ottla acl list`")
        if dry_run or not yes:
            return [(acl, "would delete", None) for acl in selected]
        return [(acl, "deleted", error) for acl, error in await delete_acls(connected, selected)]

    outcomes = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    _show_outcomes(outcomes, shape)
    if not dry_run and not yes:
        raise usage_error(f"{len(outcomes)} ACLs are selected, and nothing was changed", "add --yes to delete them")


def _principals(
    allow: Sequence[str] | None,
    deny: Sequence[str] | None,
    allow_hosts: Sequence[str] | None,
    deny_hosts: Sequence[str] | None,
) -> list[tuple[PermissionType, str, str]]:
    """Return permission, principal and host of each ACL to create. Raises CommandFailed."""
    entries = []
    for permission, principals, hosts, option in (
        (PermissionType.ALLOW, allow, allow_hosts, "allow"),
        (PermissionType.DENY, deny, deny_hosts, "deny"),
    ):
        if hosts and not principals:
            raise usage_error(f"--{option}-host needs --{option}-principal")
        entries += [
            (permission, principal, host)
            for principal, host in product(map(principal_from, principals or []), hosts or [WILDCARD])
        ]
    return entries


def _principal_filters(
    allow: Sequence[str] | None,
    deny: Sequence[str] | None,
    allow_hosts: Sequence[str] | None,
    deny_hosts: Sequence[str] | None,
) -> list[AclFilter]:
    """Return the filters by principal, permission and host; one that matches all without options."""
    filters = []
    for permission, principals, hosts in (
        (PermissionType.ALLOW, allow, allow_hosts),
        (PermissionType.DENY, deny, deny_hosts),
    ):
        if principals or hosts:
            names: list[str | None] = [*map(principal_from, principals or [])] or [None]
            addresses: list[str | None] = [*(hosts or [])] or [None]
            filters += [
                AclFilter(permission_type=permission, principal=name, host=address)
                for name, address in product(names, addresses)
            ]
    return filters or [AclFilter()]


def _filters(
    by_principal: Iterable[AclFilter], operations: Sequence[AclOperation], resources: Iterable[AclFilter]
) -> list[AclFilter]:
    return [
        AclFilter(
            resource_type=resource.resource_type,
            pattern_type=resource.pattern_type,
            resource_name=resource.resource_name,
            principal=who.principal,
            host=who.host,
            operation=operation,
            permission_type=who.permission_type,
        )
        for who, operation, resource in product(by_principal, operations or [AclOperation.ANY], list(resources))
    ]


def _show_outcomes(outcomes: Sequence[tuple[AclBinding, str, Any]], shape: OutputFormat) -> None:
    """Print what was done with each ACL, and raise CommandFailed with those that failed."""
    rows = [{"result": result, **_row(acl)} for acl, result, error in outcomes if error is None]
    if shape is OutputFormat.JSON:
        show_json(
            [{"name": _text(acl), "result": row["result"]} for row, acl in zip(rows, _done(outcomes), strict=True)]
        )
    else:
        show_rows(rows, ["result", *_COLUMNS], shape)
    report_failures([(_text(acl), error) for acl, _, error in outcomes], what="ACL")


def _done(outcomes: Iterable[tuple[AclBinding, str, Any]]) -> list[AclBinding]:
    return [acl for acl, _, error in outcomes if error is None]


def _row(acl: AclBinding) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "permission": acl.permission_type.name.lower(),
        "operation": acl.operation.name.lower(),
        "resource": acl.resource_type.name.lower(),
        "name": acl.resource_name,
        "pattern": acl.pattern_type.name.lower(),
        "host": acl.host,
    }


def _text(acl: AclBinding) -> str:
    """Describe an ACL in a line.

    >>> from ottla.core.acls import PatternType, ResourceType
    >>> topic = (ResourceType.TOPIC, PatternType.PREFIXED, "a")
    >>> _text(AclBinding(*topic, "User:bob", "*", AclOperation.READ, PermissionType.ALLOW))
    'allow User:bob read topic a (prefixed) from *'
    """
    row = _row(acl)
    what = f"{row['resource']} {row['name']} ({row['pattern']})"
    return f"{row['permission']} {row['principal']} {row['operation']} {what} from {row['host']}"
