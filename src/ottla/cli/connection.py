"""From a command to a cluster: which brokers, one event loop, and errors in a person's words."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ottla.cli.errors import CommandFailed, ExitCode, not_found, usage_error
from ottla.client.addresses import Address, parse_addresses
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.errors import CannotConnect
from ottla.core.errors import (
    ErrorCode,
    GroupIdNotFound,
    KafkaError,
    NetworkException,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from ottla.wire.errors import MalformedRequest

T = TypeVar("T")
DEFAULT_BROKERS = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
SETTINGS_VARIABLE = "OTTLA_CLIENT_SETTINGS"
"""Settings of the client under Kafka's names, one `name=value` a line; `ottla -X` adds to it for this process."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Which cluster a command means, as its options say."""

    brokers: str | None = None
    profile: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    def addresses(self, environment: Mapping[str, str] | None = None) -> tuple[Address, ...]:
        """The brokers to ask: --brokers, --profile, OTTLA_BROKERS, the profile in use, this machine's own."""
        from ottla.cli.profile_file import Profiles

        environment = os.environ if environment is None else environment
        source = "--brokers"
        text = self.brokers
        if text is None and self.profile is None and environment.get("OTTLA_BROKERS"):
            text, source = environment["OTTLA_BROKERS"], "OTTLA_BROKERS"
        if text is None:
            profiles = Profiles.load(environment)
            name = self.profile or profiles.current
            if name is None:
                text = DEFAULT_BROKERS
            elif name in profiles.clusters:
                text, source = profiles.clusters[name].brokers, f"profile {name}"
            else:
                raise not_found(f"there is no profile {name!r} in {profiles.path}", "`ottla profile list` shows them")
        try:
            return parse_addresses(text)
        except ValueError as error:
            raise usage_error(f"{source}: {error}") from None


def client_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What OTTLA_CLIENT_SETTINGS says. Raises `CommandFailed` for a line that is no `name=value`.

    >>> client_settings({"OTTLA_CLIENT_SETTINGS": "security.protocol=SSL"})
    {'security.protocol': 'SSL'}
    """
    found = {}
    for line in environment.get(SETTINGS_VARIABLE, "").splitlines():
        name, equals, value = line.strip().partition("=")
        if line.strip() and not (equals and name):
            raise usage_error(
                f"{line!r} is no setting of the client; write name=value, as in security.protocol=SASL_SSL"
            )
        if name:
            found[name.strip()] = value.strip()
    return found


def _options(target: ConnectionOptions) -> ClientOptions:
    """The command's own patience, and the settings of the environment."""
    from ottla.client.properties import InvalidProperty, client_options

    base = ClientOptions(
        client_id="ottla-cli",
        connect_timeout_s=min(_CONNECT_TIMEOUT_S, target.timeout_s),
        request_timeout_s=target.timeout_s,
        retry_s=target.timeout_s,
    )
    try:
        return client_options(client_settings(os.environ), base=base)
    except InvalidProperty as error:
        raise usage_error(f"-X {error}") from None


def run_on_cluster(target: ConnectionOptions, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Connect, run `work`, hang up. What goes wrong comes out as a `CommandFailed`."""
    from ottla.client.tls import InvalidKeyStore

    options = _options(target)

    async def session() -> T:
        async with await Cluster.connect(target.addresses(), options=options) as cluster:
            return await work(cluster)

    try:
        return asyncio.run(session())
    except InvalidKeyStore as error:
        raise usage_error(f"-X {error}") from None
    except (CannotConnect, KafkaError, MalformedRequest) as error:
        raise command_failed(error) from error


def command_failed(error: Exception) -> CommandFailed:
    """An error of the client or the broker, as what, where and what to do."""
    match error:
        case CannotConnect():
            return CommandFailed(
                str(error),
                code=ExitCode.CANNOT_CONNECT,
                advice="start one with `ottla server`, or name it with --brokers",
            )
        case NetworkException():
            return CommandFailed(error.message, code=ExitCode.CANNOT_CONNECT, advice="the broker's log may say why")
        case RequestTimedOut():
            return CommandFailed(error.message, code=ExitCode.TIMED_OUT, advice="--timeout allows more time")
        case UnknownTopicOrPartition() | UnknownTopicId():
            return not_found(error.message, "`ottla topic list` shows the topics")
        case GroupIdNotFound():
            return not_found(error.message, "`ottla group list` shows the groups")
        case UnsupportedVersion():
            return CommandFailed(error.message, advice="`ottla cluster api-versions` shows what the broker serves")
        case KafkaError():
            name = error.code.name if error.code != ErrorCode.UNKNOWN_SERVER_ERROR else ""
            return CommandFailed(f"{error.message} ({name})" if name else error.message)
        case _:
            return CommandFailed(f"the broker sent what cannot be read: {error}")


def report_failures(names_and_errors: list[tuple[str, KafkaError | None]], *, what: str) -> None:
    """Print each of several items that failed on standard error; raise if there is any."""
    import sys

    failed = [(name, error) for name, error in names_and_errors if error is not None]
    if failed and len(names_and_errors) == 1:
        name, error = failed[0]
        failure = command_failed(error)
        raise CommandFailed(f"{what} {name}: {failure.args[0]}", code=failure.code, advice=failure.advice)
    for name, error in failed:
        print(f"{what} {name}: {error.message}", file=sys.stderr)
    if failed:
        codes = {command_failed(error).code for _, error in failed}
        code = ExitCode.NOT_FOUND if codes == {ExitCode.NOT_FOUND} else ExitCode.FAILED
        raise CommandFailed(f"{len(failed)} of {len(names_and_errors)} failed", code=code)
