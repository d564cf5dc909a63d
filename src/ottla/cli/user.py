"""`ottla user`: lists, creates, alters and deletes users who sign in with SCRAM."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, report_failures, run_on_cluster
from ottla.cli.errors import usage_error
from ottla.cli.name_patterns import select, selected_for_deletion, unknown_name
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout, Yes
from ottla.cli.output import ItemResult, show_results, show_rows
from ottla.cli.secret_input import PasswordFile, read_new_password
from ottla.client.cluster import Cluster
from ottla.client.user_admin import (
    ITERATIONS,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    ScramUser,
    UnsuitablePassword,
    delete_credentials,
    list_users,
    set_password,
)
from ottla.core.errors import KafkaError

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Users who sign in with SCRAM.",
)


class Mechanism(StrEnum):
    """A mechanism by the name that `sasl.mechanism` has."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.", autocompletion=completion.users)]
Mechanisms = Annotated[
    list[Mechanism] | None, typer.Option("--mechanism", "-m", help="Only this mechanism; repeatable. Default: both.")
]
Iterations = Annotated[
    int,
    typer.Option(
        "--iterations", min=ITERATIONS_MIN, max=ITERATIONS_MAX, metavar="N", help="How often the password is hashed."
    ),
]


@app.command("list")
def list_(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATTERN]...", help="Only users that match, such as 'app-*'.", autocompletion=completion.users
        ),
    ] = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the users with SCRAM credentials and their mechanisms."""

    async def work(cluster: Cluster) -> list[ScramUser]:
        users = await list_users(cluster)
        selected = set(select(patterns or [], [user.name for user in users], what="user")) if patterns else None
        return [user for user in users if selected is None or user.name in selected]

    rows = [
        {
            "name": user.name,
            "mechanisms": [str(mechanism) for mechanism in user.iterations],
            "iterations": list(user.iterations.values()),
        }
        for user in run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    ]
    columns = ["name", "mechanisms", "iterations"]
    show_rows(rows, columns, shape, empty="no users; create one with `ottla user create NAME`")


@app.command()
def create(
    name: Name,
    password_file: PasswordFile = None,
    mechanism: Mechanisms = None,
    iterations: Iterations = ITERATIONS,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create a user. The password comes from a prompt, or from --password-file; brokers get it salted and hashed."""
    password = read_new_password(password_file, of=name)
    mechanisms = _codes(mechanism)

    async def work(cluster: Cluster) -> None:
        if await list_users(cluster, [name]):
            raise usage_error(f"there is a user {name} already", f"change the password: `ottla user alter {name}`")
        if not dry_run:
            await set_password(cluster, name, password, mechanisms, iterations=iterations)

    _set(ConnectionOptions(brokers, profile, timeout), work)
    show_results([ItemResult(name, "would create" if dry_run else "created")], shape)


@app.command()
def alter(
    name: Name,
    password_file: PasswordFile = None,
    mechanism: Mechanisms = None,
    iterations: Iterations = ITERATIONS,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Change the password of a user. Connections that are signed in remain."""
    password = read_new_password(password_file, of=name)
    mechanisms = _codes(mechanism)

    async def work(cluster: Cluster) -> None:
        users = await list_users(cluster)
        if name not in (names := [user.name for user in users]):
            raise unknown_name(name, names, what="user")
        if not dry_run:
            await set_password(cluster, name, password, mechanisms, iterations=iterations)

    _set(ConnectionOptions(brokers, profile, timeout), work)
    show_results([ItemResult(name, "would alter" if dry_run else "altered")], shape)


@app.command()
def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Users, or patterns such as 'app-*'.", autocompletion=completion.users),
    ],
    mechanism: Mechanisms = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete users; those that a pattern selects only with --yes. Their ACLs and quotas remain."""
    mechanisms = _codes(mechanism)

    async def work(cluster: Cluster) -> list[tuple[str, KafkaError | None]]:
        users = {user.name: user for user in await list_users(cluster)}
        selected = selected_for_deletion(names, users, what="user", is_allowed=yes or dry_run)
        if unknown := [name for name in selected if name not in users]:
            raise unknown_name(unknown[0], users, what="user")
        return [(name, await _delete(cluster, users[name], mechanisms, dry_run=dry_run)) for name in selected]

    outcomes = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    result = "would delete" if dry_run else "deleted"
    show_results([ItemResult(name, result) for name, error in outcomes if error is None], shape)
    report_failures(outcomes, what="user")


async def _delete(
    cluster: Cluster, user: ScramUser, mechanisms: Sequence[ScramMechanism], *, dry_run: bool
) -> KafkaError | None:
    if not dry_run:
        try:
            await delete_credentials(cluster, user.name, [code for code in user.iterations if code in mechanisms])
        except KafkaError as error:
            return error
    return None


def _codes(mechanisms: Sequence[Mechanism] | None) -> list[ScramMechanism]:
    """Return the mechanisms of --mechanism, both without it."""
    return [ScramMechanism[mechanism.name] for mechanism in dict.fromkeys(mechanisms or Mechanism)]


def _set(target: ConnectionOptions, work: Callable[[Cluster], Awaitable[None]]) -> None:
    try:
        run_on_cluster(target, work)
    except UnsuitablePassword as error:
        raise usage_error(str(error)) from None
