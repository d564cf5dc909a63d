"""`ottla certs`: makes the certificates of a test cluster, and shows what certificates say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.command_group import CommandGroup
from ottla.cli.errors import CommandFailed, ExitCode, not_found, usage_error
from ottla.cli.options import Format, OutputFormat
from ottla.cli.output import alert, show_fields, show_json
from ottla.cli.secret_input import PasswordFile, read_secret_file
from ottla.core.clock import SystemClock

if TYPE_CHECKING:
    from ottla.security.dev_certificates import DevCertificates
    from ottla.security.principal_mapping import PrincipalMapper

app = typer.Typer(
    cls=CommandGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Certificates for TLS."
)
_DAYS_MAX = 3650
_ALARM_DAYS = 30


@app.command()
def dev(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the new files.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A name or address of brokers, besides localhost; repeatable."),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=_DAYS_MAX, metavar="N", help="How long the certificates are valid.")
    ] = 365,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Make a certificate authority, and certificates of brokers, a client and an administrator, for a test cluster.

    Existing files are not overwritten. The keys are not encrypted, and only their owner can read them: for tests, and
    not for a cluster that anything depends on. Prints the settings of brokers and clients.
    """
    _needs_cryptography()
    from ottla.security.dev_certificates import ADMIN, LOCAL_HOSTS, FileExists, make_certificates

    target = directory.expanduser().absolute()
    hosts = list(dict.fromkeys((*LOCAL_HOSTS, *(host or ()))))
    try:
        files = make_certificates(target, hosts=hosts, days=days, now_ms=SystemClock().wall_ms())
    except FileExists as error:
        raise usage_error(str(error), "give another directory, or remove the file: nothing is overwritten") from None
    except ValueError as error:
        raise usage_error(f"--host: {error}") from None
    except OSError as error:
        raise CommandFailed(f"{target}: {error.strerror}") from None
    if shape is OutputFormat.JSON:
        show_json(
            {
                "files": [str(path) for path in files.all],
                "broker": files.broker_settings(),
                "client": files.client_settings(),
                "admin": files.client_settings(ADMIN),
            }
        )
        return
    _show(files)


def _show(files: DevCertificates) -> None:
    from ottla.security.dev_certificates import ADMIN

    print(f"# wrote {', '.join(path.name for path in files.all)} into {files.directory}")
    print("\n# server.properties of every broker; add listeners=SSL://...")
    _print_settings(files.broker_settings())
    print("\n# properties of a client; its principal is User:client")
    _print_settings(files.client_settings())
    print(f"\n# an administrator, User:admin, a super user, has {files.identity(ADMIN).name} in place of client.pem")


def _print_settings(settings: dict[str, str]) -> None:
    for name, value in settings.items():
        print(f"{name}={value}")


@app.command()
def show(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="PEM, DER or PKCS#12 (.p12) files.")],
    password_file: PasswordFile = None,
    mapping_rules: Annotated[
        str, typer.Option("--mapping-rules", metavar="RULES", help="ssl.principal.mapping.rules of the broker.")
    ] = "DEFAULT",
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Show the certificates in files: subject, issuer, names, expiry, and the principal of their owner."""
    _needs_cryptography()
    from ottla.security.principal_mapping import InvalidRules, PrincipalMapper

    try:
        mapper = PrincipalMapper(mapping_rules)
    except InvalidRules as error:
        raise usage_error(f"--mapping-rules: {error}") from None
    password = None if password_file is None else read_secret_file(password_file)
    rows = [row for file in files for row in _read(file, password, mapper)]
    if shape is OutputFormat.JSON:
        show_json(rows)
        return
    for number, row in enumerate(rows):
        if number:
            print()
        left = row["days_left"]
        text = f"{row['valid_until']} ({f'in {left} days' if left >= 0 else 'expired'})"
        row["valid_until"] = alert(text) if left < _ALARM_DAYS else text
        show_fields({name: value for name, value in row.items() if name != "days_left"}, shape)


def _read(file: Path, password: str | None, mapper: PrincipalMapper) -> list[dict[str, Any]]:
    from ottla.security.certificates import read_certificates, summarize
    from ottla.security.key_stores import InvalidKeyStore, KeyStore, as_pem

    path = file.expanduser()
    if not path.is_file():
        raise not_found(f"there is no file {file}")
    store = KeyStore(str(path), password=password)
    try:
        try:
            certificates = read_certificates(store.content())
        except ValueError:
            certificates = read_certificates(as_pem(store, keys=False))
    except (InvalidKeyStore, ValueError) as error:
        raise CommandFailed(f"{file}: {error}", code=ExitCode.BAD_INPUT) from None
    now_ms = SystemClock().wall_ms()
    rows = []
    for certificate in certificates:
        summary = summarize(certificate, now_ms=now_ms)
        principal = "" if summary.is_authority else _principal(mapper, summary.subject)
        rows.append({"file": str(file), **asdict(summary), "principal": principal})
    return rows


def _principal(mapper: PrincipalMapper, subject: str) -> str:
    from ottla.security.principal_mapping import NoMatchingRule

    try:
        return f"User:{mapper.name(subject)}"
    except NoMatchingRule:
        return "none: no rule matches, and the broker refuses the client"


def _needs_cryptography() -> None:
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        raise CommandFailed("certificates need cryptography, which is not installed", advice="install ottla[keystores]")
