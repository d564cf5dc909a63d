"""`ottla token`: creates, lists, renews and expires delegation tokens."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.acl_options import principal_from
from ottla.cli.command_group import CommandGroup
from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, run_on_cluster
from ottla.cli.errors import not_found
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import ItemResult, show_fields, show_results, show_rows
from ottla.client.cluster import Cluster
from ottla.client.token_admin import BROKERS_DEFAULT, NOW, Token, create_token, expire_token, list_tokens, renew_token
from ottla.core.quantities import parse_duration_ms

app = typer.Typer(
    cls=CommandGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Delegation tokens."
)
TokenId = Annotated[
    str, typer.Argument(metavar="TOKEN_ID", help="The id of the token.", autocompletion=completion.tokens)
]


def _duration_ms(text: str) -> int:
    """Parse a duration. Raises `typer.BadParameter`.

    >>> _duration_ms("7d")
    604800000
    """
    duration_ms = parse_duration_ms(str(text))
    if not duration_ms:
        raise typer.BadParameter(f"{text!r} is not a duration: write 30m, 12h, 7d")
    return duration_ms


@app.command()
def create(
    owner: Annotated[
        str | None,
        typer.Option("--owner", metavar="TYPE:NAME", help="Whom it signs in. Default: the user that you are."),
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option("--renewer", metavar="TYPE:NAME", help="Who else may renew and expire it; repeatable."),
    ] = None,
    max_lifetime: Annotated[
        int | None,
        typer.Option(
            "--max-lifetime",
            parser=_duration_ms,
            metavar="DURATION",
            help="After that it cannot be renewed: 12h, 7d. Default: the brokers'.",
        ),
    ] = None,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create a token: its id and its HMAC, a secret, sign in as user name and password of SCRAM with tokenauth=true."""
    whom = None if owner is None else principal_from(owner)
    renewers = [principal_from(text) for text in renewer or []]
    if dry_run:
        show_results([ItemResult(f"token of {whom or 'this user'}", "would create")], shape)
        return

    async def work(cluster: Cluster) -> Token:
        lifetime_ms = BROKERS_DEFAULT if max_lifetime is None else max_lifetime
        return await create_token(cluster, owner=whom, renewers=renewers, lifetime_ms=lifetime_ms)

    token = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    show_fields({**_row(token), "hmac": base64.b64encode(token.hmac).decode()}, shape)


@app.command("list")
def list_(
    owner: Annotated[
        list[str] | None, typer.Option("--owner", metavar="TYPE:NAME", help="Only tokens of this user; repeatable.")
    ] = None,
    show_hmac: Annotated[bool, typer.Option("--hmac", help="Show the secrets, too.")] = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the tokens that this user may see."""
    owners = [principal_from(text) for text in owner] if owner else None

    async def work(cluster: Cluster) -> list[Token]:
        return await list_tokens(cluster, owners)

    tokens = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    rows = [
        {**_row(token), **({"hmac": base64.b64encode(token.hmac).decode()} if show_hmac else {})} for token in tokens
    ]
    columns = ["id", "owner", "renewers", "expires", "renewable_until", *(["hmac"] if show_hmac else [])]
    show_rows(rows, columns, shape, empty="no tokens; create one with `ottla token create`")


@app.command()
def renew(
    token_id: TokenId,
    period: Annotated[
        int | None,
        typer.Option(
            "--for", parser=_duration_ms, metavar="DURATION", help="From now on: 12h, 7d. Default: the brokers'."
        ),
    ] = None,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let a token live longer, at most as long as it can be renewed."""

    async def work(cluster: Cluster) -> int | None:
        token = await _existing(cluster, token_id)
        return None if dry_run else await renew_token(cluster, token.hmac, period_ms=period or BROKERS_DEFAULT)

    expires_ms = run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    text = "" if expires_ms is None else f"renewed {token_id}: it expires {_time(expires_ms)}"
    show_results([ItemResult(token_id, "would renew" if dry_run else "renewed", text)], shape)


@app.command()
def expire(
    token_id: TokenId,
    period: Annotated[
        int | None, typer.Option("--in", parser=_duration_ms, metavar="DURATION", help="Later: 30m, 12h. Default: now.")
    ] = None,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let a token expire, now or later. Connections that are signed in with it remain until their session ends."""

    async def work(cluster: Cluster) -> None:
        token = await _existing(cluster, token_id)
        if not dry_run:
            await expire_token(cluster, token.hmac, period_ms=NOW if period is None else period)

    run_on_cluster(ConnectionOptions(brokers, profile, timeout), work)
    show_results([ItemResult(token_id, "would expire" if dry_run else "expired")], shape)


async def _existing(cluster: Cluster, token_id: str) -> Token:
    for token in await list_tokens(cluster):
        if token.token_id == token_id:
            return token
    raise not_found(f"there is no token {token_id} that this user may see", "list them with `ottla token list`")


def _row(token: Token) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": _time(token.issued_ms),
        "expires": _time(token.expires_ms),
        "renewable_until": _time(token.latest_ms),
    }


def _time(time_ms: int) -> str:
    """Format a time.

    >>> _time(0)
    '1970-01-01 00:00:00Z'
    """
    return f"{dt.datetime.fromtimestamp(time_ms / 1000, tz=dt.UTC):%Y-%m-%d %H:%M:%S}Z"
