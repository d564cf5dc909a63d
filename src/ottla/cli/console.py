"""`ottla console`: serves the web console of a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, client_options_of
from ottla.cli.errors import CommandFailed, usage_error
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import alert, show_json
from ottla.cli.pipeline_libraries import needs_pipeline_libraries
from ottla.client.broker_http import TOKEN_VARIABLE
from ottla.client.cluster import Cluster
from ottla.client.connection import Security
from ottla.client.sasl import Sasl
from ottla.core.settings import InvalidSettings

if TYPE_CHECKING:
    from ottla.console.oidc import OidcProvider
    from ottla.console.options import ConsoleOptions
    from ottla.console.passwords import PasswordFile
    from ottla.console.registry import RegistryValues
    from ottla.console.workspace import Connect
    from ottla.http.address import HttpAddress

_INSTALL = "pip install '.[{0}]' in a clone, or 'FILE.whl[{0}]'"
app = typer.Typer(add_completion=False, rich_markup_mode=None)
_WITH_PASSWORD = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


Listen = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve; https://HOST:PORT with TLS.")
]
UsersFile = Annotated[
    Path | None, typer.Option("--users", metavar="FILE", help="Who may sign in, with hashes of passwords.")
]
WithSasl = Annotated[
    bool, typer.Option("--sasl", help="Sign in with a name and password of the brokers, and act with its rights.")
]
OidcIssuer = Annotated[
    str | None, typer.Option("--oidc-issuer", metavar="URL", help="Sign in at this OpenID Connect provider.")
]
OidcClient = Annotated[
    str | None, typer.Option("--oidc-client", metavar="ID", help="The client id of this console there.")
]
OidcSecretFile = Annotated[
    Path | None, typer.Option("--oidc-secret-file", metavar="FILE", help="The client secret, if it has one.")
]
OidcCa = Annotated[
    Path | None, typer.Option("--oidc-ca", metavar="FILE", help="PEM certificates that the provider's is checked with.")
]
OidcAllow = Annotated[
    list[str] | None,
    typer.Option("--oidc-allow", metavar="EMAIL", help="Only this person may sign in; repeatable. Default: all."),
]
PublicUrl = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="With --oidc-issuer: where browsers find this console.")
]
JobFile = Annotated[
    Path | None, typer.Option("--job", metavar="FILE", help="A job file: show its tables, audit and report.")
]
Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        help="A schema registry, by which keys and values are decoded. Default: schema.registry.url of the profile.",
    ),
]
AllowChanges = Annotated[
    bool, typer.Option("--allow-changes", help="Change things too, also where it is not the default.")
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Change nothing.")]
Certificate = Annotated[
    Path | None, typer.Option("--certificate", metavar="FILE", help="The PEM file of https://, with its key.")
]
HttpsProxy = Annotated[bool, typer.Option("--https-proxy", help="Browsers reach it by https, through a proxy.")]
HashPassword = Annotated[
    str | None,
    typer.Option("--hash-password", metavar="NAME", help="Read a password, print its line for --users, and end."),
]


@app.command()
def console(
    listen: Listen = "127.0.0.1:8080",
    users: UsersFile = None,
    sasl: WithSasl = False,
    oidc_issuer: OidcIssuer = None,
    oidc_client: OidcClient = None,
    oidc_secret_file: OidcSecretFile = None,
    oidc_ca: OidcCa = None,
    oidc_allow: OidcAllow = None,
    public_url: PublicUrl = None,
    registry: Registry = None,
    job: JobFile = None,
    allow_changes: AllowChanges = False,
    read_only: ReadOnly = False,
    certificate: Certificate = None,
    proxied: HttpsProxy = False,
    hash_password: HashPassword = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Serve a web console: topics, messages, groups, transactions, and why something is not well.

    It acts with the rights of the profile, or with --sasl with those of each user. On other addresses than this
    machine's it is read-only unless --allow-changes is given, and requires a sign-in and https.
    """
    if hash_password is not None:
        _print_hash(hash_password)
        return
    try:
        from ottla.console.options import ConsoleOptions
        from ottla.http.address import parse_address
    except ModuleNotFoundError as error:
        raise CommandFailed(f"{error.name} is not installed", advice=_INSTALL.format("console")) from None
    if allow_changes and read_only:
        raise usage_error("--allow-changes and --read-only contradict each other", "use one of them")
    signs_in = _count_sign_ins(users, oidc_issuer, sasl=sasl)
    oidc = _provider(oidc_issuer, oidc_client, oidc_secret_file, oidc_allow or [], public_url, oidc_ca)
    try:
        address = parse_address(listen)
    except InvalidSettings as error:
        raise usage_error(f"--listen {listen}: {error.problems[0].reason}") from None
    is_local = address.host in _LOOPBACK
    _check_exposure(address, is_local=is_local, signs_in=signs_in > 0, proxied=proxied)
    options = ConsoleOptions(
        connect=_connect(target := ConnectionOptions(brokers, profile, timeout)),
        cluster_name=profile or brokers or ", ".join(map(str, target.addresses())),
        may_change=not read_only and (is_local or allow_changes),
        users=None if users is None else _read_users(users),
        connect_as=_connect_as(target) if sasl else None,
        oidc=oidc,
        hosts=frozenset({"127.0.0.1", "localhost", "[::1]"}) if is_local and not proxied else None,
        registry=_registry(registry or target.registry()),
        http_token=os.environ.get(TOKEN_VARIABLE, ""),
        job_file=job,
        is_https=address.is_secure or proxied,
        profile_words=("--profile", profile) if profile else ("--brokers", brokers) if brokers else (),
    )
    asyncio.run(_serve(options, address, certificate, shape))


def _check_exposure(address: HttpAddress, *, is_local: bool, signs_in: bool, proxied: bool) -> None:
    """Refuse what all of a network could use or read. Raises CommandFailed."""
    if is_local and not proxied:
        return
    if not signs_in:
        raise usage_error(
            f"everybody who reaches {address.url} could use the console", "add --users FILE, --sasl or --oidc-issuer"
        )
    if not (address.is_secure or proxied):
        raise usage_error(
            f"passwords would be readable on the way to {address.url}",
            "listen at https:// with --certificate, or say --https-proxy",
        )


def _print_hash(name: str) -> None:
    from ottla.cli.secret_input import read_new_password
    from ottla.console.passwords import hash_password as hashed

    print(f"{name}:{hashed(read_new_password(None, of=name))}")


def _read_users(path: Path) -> PasswordFile:
    from ottla.console.passwords import InvalidPasswordFile, PasswordFile

    try:
        return PasswordFile.read(path)
    except (InvalidPasswordFile, OSError, UnicodeDecodeError) as error:
        raise usage_error(f"--users: {error}") from None


def _provider(
    issuer: str | None,
    client: str | None,
    secret_file: Path | None,
    allowed: list[str],
    url: str | None,
    ca_file: Path | None,
) -> OidcProvider | None:
    """Return the OIDC provider of the options. Raises CommandFailed."""
    if issuer is None:
        return None
    if client is None or url is None:
        raise usage_error("--oidc-issuer needs --oidc-client ID and --url URL", "the URL of this console for browsers")
    from ottla.cli.secret_input import read_secret_file

    secret = "" if secret_file is None else read_secret_file(secret_file)
    back = f"{url.rstrip('/')}/sign-in/callback"
    try:
        from ottla.console.oidc import OidcProvider

        trust = None if ca_file is None else ssl.create_default_context(cafile=ca_file)
        return OidcProvider(issuer, client, secret, back, allowed=frozenset(allowed), trust=trust)
    except OSError as error:
        raise usage_error(f"--oidc-ca {ca_file}: {error}") from None
    except ModuleNotFoundError as error:
        raise CommandFailed(f"{error.name} is not installed", advice=_INSTALL.format("security")) from None
    except ValueError as error:
        raise usage_error(f"--oidc-issuer: {error}") from None


def _count_sign_ins(users: Path | None, issuer: str | None, *, sasl: bool) -> int:
    """Return how many ways to sign in are given: one at most. Raises CommandFailed."""
    count = sum((users is not None, sasl, issuer is not None))
    if count > 1:
        raise usage_error("--users, --sasl and --oidc-issuer contradict each other", "use one of them")
    return count


def _registry(url: str | None) -> RegistryValues | None:
    """Return what decodes by a registry. Raises CommandFailed."""
    if url is None:
        return None
    with needs_pipeline_libraries("--registry"):
        from ottla.console.registry import RegistryValues
    try:
        return RegistryValues(url)
    except ValueError as error:
        raise usage_error(f"--registry {url}: {error}") from None


def _connect(target: ConnectionOptions) -> Connect:
    options, addresses = client_options_of(target), target.addresses()

    async def connect() -> Cluster:
        return await Cluster.connect(addresses, options=options)

    return connect


def _connect_as(target: ConnectionOptions) -> Callable[[str, str], Connect]:
    """Return how to connect as another user, by the mechanism and TLS of the profile."""
    options, addresses = client_options_of(target), target.addresses()
    tls, sasl = options.security.tls, options.security.sasl
    mechanism = "SCRAM-SHA-512" if sasl is None or sasl.mechanism not in _WITH_PASSWORD else sasl.mechanism
    if tls is None and mechanism == "PLAIN" and not all(address.host in _LOOPBACK for address in addresses):
        raise usage_error("PLAIN without TLS would send passwords that can be read", "set security.protocol=SASL_SSL")

    def connect_as(name: str, password: str) -> Connect:
        security = Security(tls, Sasl(mechanism, name, password))

        async def connect() -> Cluster:
            return await Cluster.connect(addresses, options=replace(options, security=security))

        return connect

    return connect_as


async def _serve(options: ConsoleOptions, address: HttpAddress, certificate: Path | None, shape: OutputFormat) -> None:
    from ottla.console.app import application
    from ottla.http.listener import HttpListener

    tls = None
    if address.is_secure:
        if certificate is None:
            raise usage_error("https:// needs --certificate FILE", "a PEM file with the certificates and the key")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(certificate)
        except (OSError, ssl.SSLError) as error:
            raise usage_error(f"--certificate {certificate}: {error}") from None
    try:
        listener = HttpListener(address, tls=tls, console=application(options))
    except OSError as error:
        raise CommandFailed(f"cannot listen at {address.url}: {error.strerror or error}") from None
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    listener.start()
    _show_ready(options, listener.address.url, shape)
    await stop.wait()
    await listener.stop()


def _show_ready(options: ConsoleOptions, url: str, shape: OutputFormat) -> None:
    """Print where the console is, once it answers."""
    if shape is OutputFormat.JSON:
        show_json({"url": url, "cluster": options.cluster_name, "read_only": not options.may_change})
        sys.stdout.flush()
        return
    print(f"the console of {options.cluster_name} is at {url}", flush=True)
    if not options.may_change:
        print(alert("it is read-only; --allow-changes lets it change things"), flush=True)
