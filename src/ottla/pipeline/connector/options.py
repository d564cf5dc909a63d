"""Parses the options of `format("ottla")`, named as those of Spark's own Kafka source and sink.

Read once, on the driver, into values that travel to the tasks. A name that means nothing, two that contradict each
other, or a value that is none, is an error that names the option: an option without effect would be found out about in
production. Names are compared without regard to case, as Spark compares them.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from ottla.client.addresses import Address, parse_addresses
from ottla.client.cluster import ClientOptions
from ottla.client.profiles import InvalidProfile, NamedCluster, NoSuchProfile, Profiles
from ottla.client.properties import RUNS_A_COMMAND, InvalidProperty, client_options
from ottla.client.properties import SUPPORTED as CLIENT_PROPERTIES
from ottla.pipeline.connector.columns import COLUMNS
from ottla.pipeline.connector.starting_offsets import OffsetOption, ending_offsets, starting_offsets
from ottla.pipeline.connector.subscription import TopicSubscription, subscription_from

T = TypeVar("T")
CLIENT_ID = "ottla-spark"
WAIT_S = 8.0
_RETRY_S = 60.0  # Kafka's default.api.timeout.ms
_FETCH_BYTES = 8 << 20
_FETCH_WAIT_MS = 500
_MAX_TRIGGER_DELAY_S = 15 * 60.0
_KAFKA = "kafka."
_TIME = re.compile(r"(\d+)\s*(ms|s|sec|secs|m|min|mins|h|hour|hours|d|day|days|milliseconds?|seconds?|minutes?)?")
_TIME_UNITS_S = {"ms": 0.001, "mil": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

# Options of Kafka's connector without effect here: they are accepted, for Kafka users have them in their jobs.
_WITHOUT_EFFECT = {
    "groupidprefix",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "kafka.group.id",
    "kafka.group.instance.id",
    "kafka.session.timeout.ms",
    "kafka.heartbeat.interval.ms",
    "kafka.max.poll.records",
    "kafka.max.poll.interval.ms",
    "kafka.metadata.max.age.ms",
    "kafka.connections.max.idle.ms",
    "kafka.reconnect.backoff.ms",
    "kafka.reconnect.backoff.max.ms",
    "kafka.retry.backoff.ms",
    "kafka.retry.backoff.max.ms",
    "kafka.receive.buffer.bytes",
    "kafka.send.buffer.bytes",
    "kafka.client.dns.lookup",
    "kafka.client.rack",
    "kafka.retries",
    "kafka.fetch.min.bytes",
    "kafka.allow.auto.create.topics",
    "kafka.exclude.internal.topics",
    "kafka.max.request.size",
    "kafka.linger.ms",
    "kafka.buffer.memory",
    "kafka.max.block.ms",
    "kafka.max.in.flight.requests.per.connection",
}
_OF_SPARK = {"path", "checkpointlocation", "queryname", "outputmode"}
_REFUSED = {
    "kafka.auto.offset.reset": "use startingOffsets: the checkpoint says where a stream goes on, not the broker",
    "kafka.key.deserializer": "keys are always bytes; cast the column",
    "kafka.value.deserializer": "values are always bytes; cast the column",
    "kafka.key.serializer": "keys are written as bytes or strings; cast the column",
    "kafka.value.serializer": "values are written as bytes or strings; cast the column",
    "kafka.enable.auto.commit": "no offsets are committed to the broker; the checkpoint keeps them",
    "kafka.interceptor.classes": "interceptors are Java classes",
    "kafka.partitioner.class": "partitioners are Java classes; give the column partition",
    "kafka.transactional.id": "the sink is exactly once without transactions (see docs/spark.md)",
}


def _by_lower_case(*names: str) -> Mapping[str, str]:
    """Return the names, as people write them, by what Spark makes of them."""
    return MappingProxyType({name.lower(): name for name in names})


_SOURCE = _by_lower_case(
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "columns",
    "lagGroup",
    "kafkaConsumer.pollTimeoutMs",
    "brokerWait",
    "profile",
    "kafka.isolation.level",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.check.crcs",
)
_SINK = _by_lower_case(
    "topic",
    "includeHeaders",
    "brokerWait",
    "profile",
    "deduplicate",
    "controlTopic",
    "onReplayMismatch",
    "kafka.acks",
    "kafka.enable.idempotence",
    "kafka.compression.type",
    "kafka.batch.size",
    "kafka.delivery.timeout.ms",
)


class InvalidOption(ValueError):
    """An option that is unknown, contradicts another or has no sense. The text begins with its name."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The brokers to connect to, and the settings of the client."""

    brokers: tuple[Address, ...]
    client: ClientOptions = field(default_factory=lambda: ClientOptions(client_id=CLIENT_ID, retry_s=_RETRY_S))
    wait_s: float = WAIT_S
    """The time to wait at the start for brokers that cannot be reached. Once they were, `client.retry_s` counts."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options that a task needs to read a partition."""

    connection: BrokerOptions
    read_committed: bool = False
    fail_on_data_loss: bool = True
    loss_advice: str = "failOnDataLoss=false reads on"
    """The end of a message about lost records."""
    fetch_bytes: int = _FETCH_BYTES
    fetch_wait_ms: int = _FETCH_WAIT_MS
    check_crcs: bool = True


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Holds the parsed options of a source."""

    read_options: ReadOptions
    subscription: TopicSubscription
    starting: OffsetOption
    ending: OffsetOption
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = _MAX_TRIGGER_DELAY_S
    columns: tuple[str, ...] = ()
    lag_group: str | None = None


class OptionMap:
    """Looks up options by name without regard to case, as Spark does, and parses their values."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def names(self) -> set[str]:
        """Return the names of all options, in lower case."""
        return set(self._options)

    def text(self, name: str) -> str | None:
        """Return an option's value as it was given."""
        return self._options.get(name.lower())

    def flag(self, name: str, *, otherwise: bool) -> bool:
        """Return whether an option is true; Spark writes true and false."""
        text = self.text(name)
        if text is None:
            return otherwise
        if text.lower() not in {"true", "false"}:
            raise InvalidOption(f"{name}: {text!r} is neither true nor false")
        return text.lower() == "true"

    def number(self, name: str, *, least: int = 1) -> int | None:
        """Parse an option as a whole number."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"\s*\d{1,18}\s*", text) or int(text) < least:
            raise InvalidOption(f"{name}: {text!r} is no whole number from {least} on")
        return int(text)

    def seconds(self, name: str, *, otherwise: float) -> float:
        """Return a length of time as Spark writes them: 30s, 15m, 100ms; a bare number is milliseconds."""
        text = self.text(name)
        if text is None:
            return otherwise
        match = _TIME.fullmatch(text.strip().lower())
        if match is None:
            raise InvalidOption(f"{name}: {text!r} is not a duration; write 30s, 15m or 100ms")
        unit = match[2] or "ms"
        size = _TIME_UNITS_S.get(unit) or _TIME_UNITS_S.get(unit[:3]) or _TIME_UNITS_S[unit[0]]
        return int(match[1]) * size


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse and validate all options of a source. Raises InvalidOption."""
    given = OptionMap(options)
    _check_names(given, _SOURCE)
    read_options = ReadOptions(
        connection=connection_options(given),
        read_committed=_isolation(given),
        fail_on_data_loss=given.flag("failOnDataLoss", otherwise=True),
        fetch_bytes=given.number("kafka.max.partition.fetch.bytes")
        or given.number("kafka.fetch.max.bytes")
        or _FETCH_BYTES,
        fetch_wait_ms=given.number("kafka.fetch.max.wait.ms") or _FETCH_WAIT_MS,
        check_crcs=given.flag("kafka.check.crcs", otherwise=True),
    )
    found = SourceOptions(
        read_options=read_options,
        subscription=_call_reader(subscription_from, given),
        starting=_call_reader(lambda text: starting_offsets(text, streaming=streaming), given),
        ending=_call_reader(lambda text: ending_offsets(text, streaming=streaming), given),
        min_partitions=given.number("minPartitions"),
        max_records_per_partition=given.number("maxRecordsPerPartition"),
        max_offsets_per_trigger=given.number("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=given.number("minOffsetsPerTrigger"),
        max_trigger_delay_s=given.seconds("maxTriggerDelay", otherwise=_MAX_TRIGGER_DELAY_S),
        columns=_columns(given),
        lag_group=given.text("lagGroup"),
    )
    least, most = found.min_offsets_per_trigger, found.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise InvalidOption(f"minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}")
    return found


def check_sink_names(given: OptionMap) -> None:
    """Raise InvalidOption for a name that means nothing to a sink."""
    _check_names(given, _SINK)


def _check_names(given: OptionMap, known: Mapping[str, str]) -> None:
    for name in sorted(given.names()):
        if name in _REFUSED:
            raise InvalidOption(f"{name}: {_REFUSED[name]}")
        if name in known or name in _WITHOUT_EFFECT | _OF_SPARK or name == "kafka.bootstrap.servers":
            continue
        if name.startswith(_KAFKA):
            continue  # the client's reader of settings knows them, or refuses them by name
        by_end = [wanted for wanted in sorted(known) if wanted.rpartition(".")[2] == name]
        near = by_end or difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
        advice = f"did you mean {known[near[0]]}?" if near else f"these are known: {', '.join(sorted(known.values()))}"
        raise InvalidOption(f"{name}: no such option; {advice}")


def connection_options(given: OptionMap) -> BrokerOptions:
    """Parse brokers and client settings, for source and sink. Raises InvalidOption.

    They are those of the profile, if one is named, and of the options, which override it.
    """
    of_profile = NamedCluster("") if (name := given.text("profile")) is None else _profile(name)
    servers = given.text("kafka.bootstrap.servers") or of_profile.brokers
    if not servers:
        raise InvalidOption(
            "kafka.bootstrap.servers: say which brokers, as host:port,host:port, or name them by the option profile"
        )
    try:
        brokers = parse_addresses(servers)
    except ValueError as error:
        raise InvalidOption(f"kafka.bootstrap.servers: {error}") from None
    ours = {*_SOURCE, *_SINK, *_WITHOUT_EFFECT, "kafka.bootstrap.servers"}
    properties = {
        name.removeprefix(_KAFKA): given.text(name) or ""
        for name in given.names()
        if name.startswith(_KAFKA) and name not in ours
    }
    if commands := RUNS_A_COMMAND.intersection(properties):  # Spark's options may be written by a user of SQL alone
        raise InvalidOption(f"{_KAFKA}{min(commands)}: only a profile names a command; use the option profile")
    base = ClientOptions(client_id=CLIENT_ID, retry_s=_RETRY_S)
    try:
        client = client_options(of_profile.settings | properties, base=base)
    except InvalidProperty as error:
        advice = "" if error.name in CLIENT_PROPERTIES else " (docs/spark.md lists those that are)"
        raise InvalidOption(f"{_KAFKA}{error}{advice}") from None
    patience = given.seconds("kafkaConsumer.pollTimeoutMs", otherwise=client.retry_s)
    wait_s = given.seconds("brokerWait", otherwise=min(WAIT_S, patience))
    return BrokerOptions(brokers, replace(client, retry_s=patience), wait_s)


def _profile(name: str) -> NamedCluster:
    """Return a profile of the user who runs the driver, with its password among the settings."""
    try:
        found = Profiles.load(os.environ).cluster(name)
        return NamedCluster(found.brokers, found.client_settings(os.environ, name=name))
    except (InvalidProfile, NoSuchProfile) as error:
        raise InvalidOption(f"profile: {error}") from None


def _isolation(given: OptionMap) -> bool:
    level = given.text("kafka.isolation.level")
    if level not in {None, "read_committed", "read_uncommitted"}:
        raise InvalidOption(f"kafka.isolation.level: {level!r} is neither read_committed nor read_uncommitted")
    return level == "read_committed"


def _columns(given: OptionMap) -> tuple[str, ...]:
    with_headers = given.flag("includeHeaders", otherwise=False)
    listed = given.text("columns")
    if listed is None:
        return tuple(name for name in COLUMNS if name != "headers" or with_headers)
    names = tuple(part.strip() for part in listed.split(",") if part.strip())
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names or len(set(names)) != len(names):
        raise InvalidOption(f"columns: {listed!r} is no list of different ones of {', '.join(COLUMNS)}")
    return names


def _call_reader(read: Callable[[OptionMap], T], given: OptionMap) -> T:
    """Call a reader of options; raise InvalidOption where it raises ValueError for a single option."""
    try:
        return read(given)
    except InvalidOption:
        raise
    except ValueError as error:
        raise InvalidOption(str(error)) from None
