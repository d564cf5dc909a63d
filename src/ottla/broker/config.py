"""Reads the settings of a broker from file, environment and command line into one frozen value.

Each package declares its own section; this module combines them and detects unknown names. The order of precedence,
strongest first: the command line (`-o name=value`, `--port`, `--data`), environment variables, the file
given by `--config`, the default.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ottla.broker.event_config import EventConfig
from ottla.broker.http_config import HttpConfig, MetricsConfig
from ottla.broker.server_config import ALL_DIRECTORIES, ServerConfig
from ottla.controller.config import ControllerConfig
from ottla.core.quantities import in_unit_of
from ottla.core.settings import (
    HIDDEN_TEXT,
    InvalidSettings,
    Setting,
    SettingProblem,
    SettingText,
    from_environment,
    is_secret_name,
    load,
    read_properties,
    settings_of,
    split_listener_key,
    text_of,
)
from ottla.groups.config import GroupConfig
from ottla.metadata_store.config import ZooKeeperConfig
from ottla.net.config import NetConfig
from ottla.net.connection_limits import parse_counts
from ottla.replication.config import ReplicationConfig
from ottla.security.config import (
    MECHANISMS,
    AuditConfig,
    AuthorizerConfig,
    QuotaConfig,
    SaslConfig,
    SecretConfig,
    TlsConfig,
    TokenConfig,
    split_mechanism_key,
    why_not_authorized,
)
from ottla.share_coordinator.config import ShareCoordinatorConfig
from ottla.share_partitions.config import ShareConfig
from ottla.storage.cleaning.cleaner_config import CleanerConfig
from ottla.storage.config import LogConfig
from ottla.storage.scrubbing.scrubber_config import ScrubberConfig
from ottla.storage.small_files import META_PROPERTIES, parse_meta
from ottla.transactions.config import TransactionConfig

T = TypeVar("T")

_OF_SECURITY = (
    "ssl.", "sasl.", "listener.name.", "security.inter.broker.protocol", "super.users", "allow.everyone."
)  # fmt: skip
"""Begin the settings that have no effect without a listener or an authorizer that uses them."""
SECTIONS: dict[str, tuple[str, type[Any]]] = {
    "server": ("The broker", ServerConfig),
    "net": ("Sockets and connections", NetConfig),
    "tls": ("TLS", TlsConfig),
    "quotas": ("Quotas", QuotaConfig),
    "sasl": ("Sign-in by SASL", SaslConfig),
    "log": ("The log on disk", LogConfig),
    "cleaner": ("Compaction", CleanerConfig),
    "scrub": ("Scrubber", ScrubberConfig),
    "replication": ("Replication", ReplicationConfig),
    "groups": ("Consumer groups", GroupConfig),
    "share": ("Share groups", ShareConfig),
    "share_coordinator": ("Share coordinator", ShareCoordinatorConfig),
    "transactions": ("Transactions", TransactionConfig),
    "controller": ("Topics", ControllerConfig),
    "authorizer": ("Access control", AuthorizerConfig),
    "zookeeper": ("ZooKeeper", ZooKeeperConfig),
    "audit": ("Security audit log", AuditConfig),
    "events": ("Events and log", EventConfig),
    "tokens": ("Delegation tokens", TokenConfig),
    "secrets": ("Encrypted settings", SecretConfig),
    "http": ("HTTP", HttpConfig),
    "metrics": ("Metrics", MetricsConfig),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Holds one section per package; a package gets its own section only."""

    server: ServerConfig
    net: NetConfig
    tls: TlsConfig
    quotas: QuotaConfig
    sasl: SaslConfig
    log: LogConfig
    cleaner: CleanerConfig
    scrub: ScrubberConfig
    replication: ReplicationConfig
    groups: GroupConfig
    share: ShareConfig
    share_coordinator: ShareCoordinatorConfig
    transactions: TransactionConfig
    controller: ControllerConfig
    authorizer: AuthorizerConfig
    zookeeper: ZooKeeperConfig
    audit: AuditConfig
    events: EventConfig
    tokens: TokenConfig
    secrets: SecretConfig
    http: HttpConfig
    metrics: MetricsConfig
    given: Mapping[str, SettingText] = field(repr=False)  # what was set, by Kafka's name, and where
    dynamic: Mapping[str, str] = field(repr=False)  # what was set while the broker ran, which takes precedence

    def of_listener(self, section: type[T], listener: str, mechanism: str = "") -> T:
        """Return a section as a listener has it: `listener.name.<name>.<key>` in place of `<key>`.

        Or as a mechanism of SASL has it there: `listener.name.<name>.<mechanism>.<key>`.
        """
        return load(section, _with_dynamic(self.given, self.dynamic), listener=listener, mechanism=mechanism)

    def with_overrides(self, overrides: Mapping[str, str]) -> BrokerConfig:
        """Return the settings with live changes (AlterConfigs on a broker) applied to them. Raises InvalidSettings."""
        if not overrides:
            return replace(_build(self.given), given=self.given) if self.dynamic else self
        return replace(_build(_with_dynamic(self.given, overrides)), given=self.given, dynamic=overrides)


def _with_dynamic(given: Mapping[str, SettingText], dynamic: Mapping[str, str]) -> dict[str, SettingText]:
    of_store = {key: SettingText(text, "dynamic broker config", is_secret(key)) for key, text in dynamic.items()}
    return {**given, **of_store}


@cache
def declared() -> Mapping[str, tuple[str, str, Setting]]:
    """Return every setting by each of its names: the section, the field, the declaration."""
    declarations: dict[str, tuple[str, str, Setting]] = {}
    for section, (_, cls) in SECTIONS.items():
        for field_name, spec in settings_of(cls).items():
            for key in (spec.key, *spec.synonyms):
                assert key not in declarations, f"{key} is declared twice"
                declarations[key] = (section, field_name, spec)
    return declarations


def declaration_of(key: str) -> tuple[str, str, Setting] | None:
    """Return the section, the field and the declaration of a setting, also of one listener's; None if it is unknown."""
    if (declaration := declared().get(key)) is not None:
        return declaration
    listener, name = split_listener_key(key)
    mechanism, own_name = split_mechanism_key(name)
    declaration = declared().get(own_name)
    if (
        declaration is None
        or (listener and not declaration[2].per_listener)
        or (mechanism and not declaration[2].per_mechanism)
    ):
        return None
    return declaration


@cache
def per_listener() -> tuple[str, ...]:
    """Return the names of the settings that a listener may have of its own."""
    return tuple(
        name
        for key, (_, _, spec) in declared().items()
        if spec.per_listener
        for name in (key, *((f"{mechanism.lower()}.{key}" for mechanism in MECHANISMS) if spec.per_mechanism else ()))
    )


DEV = "--dev"
COMMAND_LINE, OF_ENVIRONMENT = "command line", "environment variable "
DEV_DEFAULTS = {"group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": "true"}
"""The defaults for one developer: a consumer starts at once, and topics are created on first use."""


def read(
    *,
    file: Path | None,
    environment: Mapping[str, str],
    options: Mapping[str, str],
    is_dev: bool = False,
    is_process: bool = False,
) -> tuple[BrokerConfig, list[str]]:
    """Read the configuration, and lines worth a warning. Raises InvalidSettings (all that is wrong) or OSError.

    InvalidSettings has the warnings too. Of a process (`is_process`) the options are of its command line, which other
    users of the machine can read; variables such as `${file:/path:key}` in its file and options are expanded.
    """
    known = declared()
    given = {key: SettingText(text, DEV) for key, text in DEV_DEFAULTS.items()} if is_dev else {}
    if file is not None:
        given |= read_properties(file.read_text(encoding="utf-8"), origin=str(file))
    of_environment = from_environment(environment, known, per_listener())
    given |= of_environment
    read_already = {value.origin for value in of_environment.values()}
    given |= {key: value for key, value in _security_in(environment).items() if value.origin not in read_already}
    given |= {key: SettingText(text, COMMAND_LINE) for key, text in options.items()}
    given = {key: value._replace(is_secret=may_be_secret(key)) for key, value in given.items()}
    problems: list[SettingProblem] = []
    if is_process:
        trusted = frozenset(key for key, value in given.items() if not value.origin.startswith(OF_ENVIRONMENT))
        problems += _secrets_of_command_line(given)
        given, of_providers = _expanded(given, trusted, environment)
        problems += of_providers
    given, of_units = _in_units(given)
    problems += of_units
    unknown = {key: given[key] for key in sorted(given) if declaration_of(key) is None}
    refused, warnings = _look_at_unknown(unknown, known, options) if unknown else ([], [])
    problems += refused
    try:
        config = _build({key: value for key, value in given.items() if key not in unknown})
    except InvalidSettings as error:
        raise InvalidSettings([*problems, *error.problems], warnings) from None
    if problems:
        raise InvalidSettings(problems, warnings)
    if any(key.startswith(_OF_SECURITY) for key in given):
        from ottla.broker.unused_security import security_without_effect

        warnings += security_without_effect(config.given, config.net)
    return config, warnings


def is_secret(key: str) -> bool:
    """Return whether the value of a setting must not be shown: it is declared so, or its name says so."""
    declaration = declaration_of(key)
    return is_secret_name(key) if declaration is None else declaration[2].secret


def has_secrets(keys: Iterable[str]) -> bool:
    """Return whether any of these settings is a secret."""
    return any(map(is_secret, keys))


def may_be_secret(key: str) -> bool:
    """Return whether the value of a setting is not shown: of one that is not declared the name may be misspelled."""
    declaration = declaration_of(key)
    return declaration is None or declaration[2].secret


def _expanded(
    given: dict[str, SettingText], trusted: frozenset[str], environment: Mapping[str, str]
) -> tuple[dict[str, SettingText], list[SettingProblem]]:
    if not any("${" in value.text or key.startswith("config.providers") for key, value in given.items()):
        return given, []
    from ottla.security.config_providers import expand

    return expand(given, trusted, environment)


def _secrets_of_command_line(given: Mapping[str, SettingText]) -> list[SettingProblem]:
    why = (
        "every user of this machine can read the command line: write the secret into a file and "
        "NAME=${file:/path:key} here, or NAME=${env:VARIABLE}"
    )
    return [
        SettingProblem(key, value.shown, why, value.origin)
        for key, value in given.items()
        if is_secret(key) and value.origin == COMMAND_LINE and value.text and not value.text.startswith("${")
    ]


def _security_in(environment: Mapping[str, str]) -> dict[str, SettingText]:
    if not any(name.startswith("OTTLA_") for name in environment):
        return {}
    from ottla.broker.kafka_config import security_in

    return security_in(environment)


def _look_at_unknown(
    unknown: Mapping[str, SettingText], known: Mapping[str, object], options: Collection[str]
) -> tuple[list[SettingProblem], list[str]]:
    """Return what prevents a start, and what is worth a warning.

    A name in a file may mean something to Kafka. One just typed is a mistake, unless Kafka has it for its quorum.
    """
    from ottla.broker.kafka_config import is_of_kraft, missing_security

    problems = missing_security(unknown)
    refused = {problem.key for problem in problems}
    rest = {key: value for key, value in unknown.items() if key not in refused}
    of_kraft = [f"{key} ({value.origin})" for key, value in rest.items() if is_of_kraft(key)]
    rest = {key: value for key, value in rest.items() if not is_of_kraft(key)}
    problems += [
        SettingProblem(key, value.shown, f"there is no such setting{_meant(key, known)}", value.origin)
        for key, value in rest.items()
        if key in options
    ]
    warnings = []
    if of_kraft:
        warnings.append(f"settings of a KRaft quorum have no effect in Ottla: {', '.join(of_kraft)}")
    passed_over = [f"{key} ({value.origin}{_meant(key, known)})" for key, value in rest.items() if key not in options]
    if passed_over:
        warnings.append(f"settings that mean nothing to Ottla are passed over: {', '.join(passed_over)}")
    return problems, warnings


def settings_of_dev(config: BrokerConfig) -> dict[str, str]:
    """Return the settings that `ottla server --dev` set, because nothing else did."""
    return {key: given.text for key, given in config.given.items() if given.origin == DEV}


def _in_units(given: Mapping[str, SettingText]) -> tuple[dict[str, SettingText], list[SettingProblem]]:
    """Convert durations and sizes such as 7d and 1GiB to the numbers that Kafka's settings hold."""
    converted = dict(given)
    problems: list[SettingProblem] = []
    for key, value in given.items():
        try:
            if declaration_of(key) is not None:
                converted[key] = value._replace(text=in_unit_of(split_listener_key(key)[1], value.text))
        except ValueError as error:
            del converted[key]
            problems.append(SettingProblem(key, value.shown, str(error), value.origin))
    return converted, problems


def of_directories(config: BrokerConfig, paths: Sequence[Path]) -> BrokerConfig:
    """Return the settings with the node id of the log directories, unless one was given: that one has to match."""
    if config.given.keys() & {"node.id", "broker.id"}:
        return config
    for path in paths:
        try:
            fields = parse_meta((path / META_PROPERTIES).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue  # a new directory; or one that the start will say more of
        node_id = fields.get("node.id", fields.get("broker.id", ""))
        if node_id.isdecimal():
            return replace(config, server=replace(config.server, node_id=int(node_id)))
    return config


def _build(given: Mapping[str, SettingText]) -> BrokerConfig:
    sections: dict[str, Any] = {}
    problems: list[SettingProblem] = []
    for name, (_, cls) in SECTIONS.items():
        try:
            sections[name] = load(cls, given)
        except InvalidSettings as error:
            problems += error.problems
    problems += _problems_of_listeners(given)
    if problems:
        raise InvalidSettings(problems)
    net: NetConfig = sections["net"]
    try:
        parse_counts(net.connections_per_ip_overrides)
    except ValueError as error:
        key = "max.connections.per.ip.overrides"
        raise InvalidSettings([SettingProblem(key, given[key].text, str(error), given[key].origin)]) from None
    server: ServerConfig = sections["server"]
    if reason := why_not_cordoned(server):
        origin = given["cordoned.log.dirs"].origin
        raise InvalidSettings([SettingProblem("cordoned.log.dirs", text_of(server.cordoned_log_dirs), reason, origin)])
    if refused := why_not_authorized(sections["authorizer"]):
        key, reason = refused
        raise InvalidSettings([SettingProblem(key, given[key].text, reason, given[key].origin)])
    return BrokerConfig(**sections, given=given, dynamic={})


def _problems_of_listeners(given: Mapping[str, SettingText]) -> list[SettingProblem]:
    """Return what is wrong with the settings that are for one listener."""
    problems: list[SettingProblem] = []
    for key, value in given.items():
        if key in declared():
            continue
        listener, name = split_listener_key(key)
        mechanism, name = split_mechanism_key(name)
        declaration = declared().get(name) if listener or mechanism else None
        if declaration is None:
            continue
        section, spec = SECTIONS[declaration[0]][1], declaration[2]
        try:
            load(section, {name: value})
        except InvalidSettings as error:
            text = HIDDEN_TEXT if spec.secret else value.shown
            problems.append(SettingProblem(key, text, error.problems[0].reason, value.origin))
    return problems


def log_dirs_of(server: ServerConfig) -> list[Path]:
    """Return the data directories, as given or by default."""
    return [Path(text).expanduser().absolute() for text in server.log_dirs] or [default_data_directory()]


def why_not_cordoned(server: ServerConfig) -> str:
    """Return why `cordoned.log.dirs` cannot be; empty if it can."""
    cordoned = server.cordoned_log_dirs
    if ALL_DIRECTORIES in cordoned:
        return "* must be the only value" if len(cordoned) > 1 else ""
    paths = log_dirs_of(server)
    others = [text for text in cordoned if Path(text).expanduser().absolute() not in paths]
    return f"{', '.join(others)} must be in log.dirs" if others else ""


def _meant(key: str, known: Mapping[str, object]) -> str:
    import difflib  # for a misspelled name only

    close = difflib.get_close_matches(key, known, n=1, cutoff=0.85)
    return f"; did you mean {close[0]}?" if close else ""


def default_data_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Return the default data directory: the user's own (XDG)."""
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_DATA_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".local" / "share")
    return Path(base) / "ottla"
