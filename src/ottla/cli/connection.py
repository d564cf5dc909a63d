"""Connects a command to a cluster: selects the brokers, runs the event loop, converts errors to messages."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.cli.errors import CommandFailed, ExitCode, not_found, show_notice, usage_error
from ottla.client.addresses import Address, parse_addresses
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.connection import HTTP_SERVER, is_http_server
from ottla.client.errors import CannotConnect
from ottla.core.errors import (
    ErrorCode,
    GroupIdNotFound,
    KafkaError,
    LogDirNotFound,
    NetworkException,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from ottla.core.quantities import in_unit_of
from ottla.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from ottla.client.profiles import NamedCluster, Profiles

T = TypeVar("T")
DEFAULT_BROKERS = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
STORE_TIMEOUT_S = 2.0
"""The time that brokers have to say whether they are connected to the metadata store."""
_SILENCE_S, _HTTP_TIMEOUT_S = 1.5, 3.0
"""The silence after which brokers are asked in HTTP, and the time that they have to answer that."""
SETTINGS_VARIABLE = "OTTLA_CLIENT_SETTINGS"
"""Client settings under Kafka's names, one `name=value` per line; `ottla -X` adds lines for this process."""

_BROKERS_NAMED_BY = ContextVar("_BROKERS_NAMED_BY", default="")
"""The origin of the brokers of this command: an option, a variable, a profile; empty for the default."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options that select the cluster of a command."""

    brokers: str | None = None
    profile: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    may_ask: bool = True
    """Whether a password may be read that a profile has not in itself: the command may ask the user."""

    def addresses(self, environment: Mapping[str, str] | None = None) -> tuple[Address, ...]:
        """Select the brokers: --brokers, --profile, OTTLA_BROKERS, the profile in use, or the default."""
        environment = os.environ if environment is None else environment
        profile = self._selected_profile(environment)
        if self.brokers is not None:
            text, source = self.brokers, "--brokers"
        elif profile is not None:
            text, source = profile[1].brokers, f"profile {profile[0]}"
        else:
            text, source = environment.get("OTTLA_BROKERS") or DEFAULT_BROKERS, "OTTLA_BROKERS"
            source = source if environment.get("OTTLA_BROKERS") else ""
        _BROKERS_NAMED_BY.set(source)
        try:
            return parse_addresses(text)
        except ValueError as error:
            raise usage_error(f"{source}: {error}") from None

    def settings(self, environment: Mapping[str, str] | None = None) -> dict[str, str]:
        """Merge the client settings of the selected profile with those of OTTLA_CLIENT_SETTINGS and -X, which win."""
        environment = os.environ if environment is None else environment
        profile = self._selected_profile(environment)
        found = {} if profile is None else self._settings_of(*profile, environment)
        return found | client_settings(environment)

    def registry(self) -> str | None:
        """Return schema.registry.url of the same settings; no password is read for it. Raises `CommandFailed`."""
        from ottla.client.profiles import InvalidProfile, expand_variables
        from ottla.client.properties import REGISTRY

        own, profile = client_settings(os.environ), self._selected_profile(os.environ)
        if REGISTRY in own or profile is None or REGISTRY not in profile[1].settings:
            return own.get(REGISTRY)
        try:
            return expand_variables({REGISTRY: profile[1].settings[REGISTRY]}, os.environ, profile=profile[0])[REGISTRY]
        except InvalidProfile as error:
            raise usage_error(str(error)) from None

    def _settings_of(self, name: str, cluster: NamedCluster, environment: Mapping[str, str]) -> dict[str, str]:
        from ottla.client.profiles import InvalidProfile

        if cluster.password is not None and not self.may_ask:
            raise CommandFailed(f"the password of profile {name} is not read here")
        try:
            return cluster.client_settings(environment, name=name)
        except InvalidProfile as error:
            raise usage_error(str(error)) from None

    def _selected_profile(self, environment: Mapping[str, str]) -> tuple[str, NamedCluster] | None:
        """Return the profile of --profile, or the one in use if nothing else names brokers."""
        if self.profile is None and (self.brokers is not None or environment.get("OTTLA_BROKERS")):
            return None
        profiles = load_profiles(environment)
        name = self.profile or profiles.current
        return None if name is None else (name, existing_profile(profiles, name))


def load_profiles(environment: Mapping[str, str]) -> Profiles:
    """Read the file of profiles. Raises `CommandFailed`."""
    from ottla.client.profiles import InvalidProfile, Profiles

    try:
        return Profiles.load(environment)
    except InvalidProfile as error:
        raise CommandFailed(str(error), code=ExitCode.BAD_INPUT) from None


def existing_profile(profiles: Profiles, name: str) -> NamedCluster:
    """Return a profile. Raises `CommandFailed` if there is none of that name."""
    from ottla.client.profiles import NoSuchProfile

    try:
        return profiles.cluster(name)
    except NoSuchProfile as error:
        raise not_found(str(error), "list them with `ottla profile list`") from None


def client_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Parse OTTLA_CLIENT_SETTINGS. Raises `CommandFailed` for a line that is not `name=value`.

    >>> client_settings({"OTTLA_CLIENT_SETTINGS": "security.protocol=SSL"})
    {'security.protocol': 'SSL'}
    """
    found = {}
    for line in environment.get(SETTINGS_VARIABLE, "").splitlines():
        name, equals, value = line.strip().partition("=")
        if line.strip() and not (equals and name):
            raise usage_error(f"{line!r} is not a client setting; write name=value, such as security.protocol=SASL_SSL")
        if name:
            try:
                found[name.strip()] = in_unit_of(name.strip(), value)
            except ValueError as error:
                raise usage_error(f"-X {line.strip()}: {error}") from None
    return found


def client_options_of(target: ConnectionOptions) -> ClientOptions:
    """Return the client options of a command: its timeout and the settings of the environment."""
    from ottla.client.properties import InvalidProperty, client_options

    base = ClientOptions(
        client_id="ottla-cli",
        connect_timeout_s=min(_CONNECT_TIMEOUT_S, target.timeout_s),
        request_timeout_s=target.timeout_s,
        retry_s=target.timeout_s,
        report_retries=show_notice,
    )
    try:
        return client_options(target.settings(), base=base)
    except InvalidProperty as error:
        raise usage_error(f"-X {error}") from None


def run_on_cluster(target: ConnectionOptions, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Connect, run `work`, close the connections. Raises `CommandFailed` for every error."""
    options, addresses = client_options_of(target), target.addresses()

    async def session() -> T:
        async with await _connected(addresses, options) as cluster:
            try:
                return await work(cluster)
            except (KafkaError, CommandFailed) as error:
                raise await _with_store_trouble(cluster, error) from error

    return _run(session())


async def _with_store_trouble(cluster: Cluster, error: KafkaError | CommandFailed) -> CommandFailed:
    """Return the failure of a command; if a broker has no connection to its metadata store the advice says so."""
    from ottla.client.admin import store_troubles

    failure = error if isinstance(error, CommandFailed) else command_failed(error)
    if failure.code in {ExitCode.FAILED, ExitCode.TIMED_OUT}:
        troubles = await store_troubles(cluster, within_s=STORE_TIMEOUT_S)
        failure.advice = "; ".join([*troubles, *([failure.advice] if failure.advice else [])])
    return failure


def run_on_clusters(
    source: ConnectionOptions, target: ConnectionOptions, work: Callable[[Cluster, Cluster], Awaitable[T]]
) -> T:
    """Do the same with two clusters."""
    ends = [(options.addresses(), client_options_of(options)) for options in (source, target)]
    _BROKERS_NAMED_BY.set("--from or --to")

    async def session() -> T:
        async with contextlib.AsyncExitStack() as open_clusters:
            cluster, other = [
                await open_clusters.enter_async_context(await _connected(addresses, options))
                for addresses, options in ends
            ]
            return await work(cluster, other)

    return _run(session())


async def _connected(addresses: Sequence[Address], options: ClientOptions) -> Cluster:
    """Connect to a cluster. Raises `CannotConnect`, before the timeout if all addresses are of HTTP servers."""
    connecting = asyncio.ensure_future(Cluster.connect(addresses, options=options))
    try:
        await asyncio.wait({connecting}, timeout=_SILENCE_S)
        if not connecting.done() and options.security.tls is None:
            asked = [is_http_server(address, timeout_s=_HTTP_TIMEOUT_S) for address in addresses]
            if all(await asyncio.gather(*asked)) and not connecting.done():
                raise CannotConnect(", ".join(map(str, addresses)), f"it {HTTP_SERVER}")
        return await connecting
    finally:
        if not connecting.done():
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await connecting


def _run(session: Coroutine[Any, Any, T]) -> T:
    from ottla.security.key_stores import InvalidKeyStore

    try:
        return asyncio.run(session)
    except InvalidKeyStore as error:
        raise usage_error(f"-X {error}") from None
    except (CannotConnect, KafkaError, MalformedRequest) as error:
        raise command_failed(error) from error


def command_failed(error: Exception) -> CommandFailed:
    """Convert an error of the client or the broker to a message with an exit code and advice."""
    match error:
        case CannotConnect():
            return CommandFailed(str(error), code=ExitCode.CANNOT_CONNECT, advice=_connect_advice(error))
        case NetworkException():
            return CommandFailed(error.message, code=ExitCode.CANNOT_CONNECT, advice="check the log of the broker")
        case RequestTimedOut():
            return CommandFailed(error.message, code=ExitCode.TIMED_OUT, advice="raise the limit with --timeout")
        case UnknownTopicOrPartition() | UnknownTopicId():
            return not_found(error.message, "list the topics with `ottla topic list`")
        case GroupIdNotFound():
            return not_found(error.message, "list the groups with `ottla group list`")
        case LogDirNotFound():
            return not_found(error.message, "list the log directories with `ottla cluster log-dirs`")
        case UnsupportedVersion():
            return CommandFailed(error.message, advice="list the supported ones with `ottla cluster api-versions`")
        case KafkaError():
            name = error.code.name if error.code != ErrorCode.UNKNOWN_SERVER_ERROR else ""
            return CommandFailed(f"{error.message} ({name})" if name else error.message)
        case _:
            return CommandFailed(f"the response of the broker cannot be parsed: {error}")


def _connect_advice(error: CannotConnect) -> str:
    """Return the next action, which depends on what named the address."""
    if "advertised listener" in error.address:
        return "the broker advertises this address to clients: check its setting advertised.listeners"
    if any(word in error.reason for word in ("security.protocol", "ssl.", "TLS")):
        return ""  # the reason names the setting to check
    source = _BROKERS_NAMED_BY.get()
    if not source:
        return "start a broker with `ottla server`, or select one with --brokers"
    return f"check {source}, which names this address"


def report_failures(names_and_errors: list[tuple[str, KafkaError | None]], *, what: str) -> None:
    """Raise `CommandFailed` with the items that failed, if there are any."""
    failed = [(name, error) for name, error in names_and_errors if error is not None]
    if failed and len(names_and_errors) == 1:
        name, error = failed[0]
        failure = command_failed(error)
        raise CommandFailed(f"{what} {name}: {failure.args[0]}", code=failure.code, advice=failure.advice)
    if failed:
        codes = {command_failed(error).code for _, error in failed}
        raise CommandFailed(
            f"{len(failed)} of {len(names_and_errors)} failed",
            code=ExitCode.NOT_FOUND if codes == {ExitCode.NOT_FOUND} else ExitCode.FAILED,
            failures=[(f"{what} {name}", error.message) for name, error in failed],
        )
