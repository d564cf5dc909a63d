"""Alters settings for AlterConfigs and IncrementalAlterConfigs.

Each resource's change is validated by the rules of its type, then applied here (loggers) or by the controller.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from ottla.broker.config import SECTIONS, BrokerConfig, declared
from ottla.broker.config_resources import LEVELS, ROOT_LOGGER, bound_key, group_bounds, loggers
from ottla.broker.context import Services
from ottla.broker.entity_config import INTERVAL_MS_MAX, INTERVAL_MS_MIN, ClientMetricsConfig, OneGroupConfig
from ottla.broker.handler_parts.admin_requests import check_topic_name, duplicates, error_fields
from ottla.broker.kafka_config import NOT_HERE, missing_security
from ottla.broker.requests.forwarded_identity import encode_identity
from ottla.broker.requests.request import Request
from ottla.client.errors import error_or_none
from ottla.controller.config_changes import AlterConfig, ConfigChange, ConfigSpec
from ottla.coordination import znodes
from ottla.core.errors import InvalidConfig, InvalidRequest, KafkaError, UnknownTopicOrPartition
from ottla.core.settings import (
    AlterConfigOpType,
    ConfigResourceType,
    InvalidSettings,
    Setting,
    SettingText,
    Type,
    default_of,
    load,
    settings_of,
    text_of,
)
from ottla.limits.loop_slices import LoopSlices
from ottla.share_partitions.offset_reset import check_reset
from ottla.storage.config import topic_config, topic_settings
from ottla.wire.apis import ApiKey

log = logging.getLogger(__name__)

CLIENT_PROPERTIES = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
"""Properties that a client-metrics subscription may match (KIP-714)."""


_UNEXPECTED_BROKER = "Unexpected broker id, expected {}, but received {}"

ResourceResponse = TypeVar("ResourceResponse")

ENTITY_WORK = 20
"""The share of a slice of work of one entity whose settings may be changed."""


class ConfigResourceChange(NamedTuple):
    """Holds the changes of one resource; the operations are not validated yet."""

    resource_type: int
    name: str
    changes: Sequence[tuple[int, str, str | None]]


async def altered_resources(
    request: Request, body: Any, resource_response: Callable[..., ResourceResponse], *, replaces_all: bool
) -> list[ResourceResponse]:
    """Alter the settings of each resource of a request, and return a response for each."""
    each_of = request.services.slices.each
    wanted = [
        ConfigResourceChange(
            each.resource_type,
            each.resource_name,
            [
                (AlterConfigOpType.SET if replaces_all else config.config_operation, config.name, config.value)
                async for config in each_of(each.configs)
            ],
        )
        async for each in each_of(body.resources)
    ]
    outcomes = await _alter_configs(request, wanted, replaces_all=replaces_all, validate_only=body.validate_only)
    responses = []
    async for each, outcome in each_of(zip(wanted, outcomes, strict=True)):
        code, message = error_fields(outcome)
        responses.append(
            resource_response(
                error_code=code, error_message=message, resource_type=each.resource_type, resource_name=each.name
            )
        )
    return responses


async def _alter_configs(
    request: Request, wanted: Sequence[ConfigResourceChange], *, replaces_all: bool, validate_only: bool
) -> list[KafkaError | None]:
    """Return None or an error for each resource; one error does not affect the others."""
    slices = request.services.slices
    twice = await duplicates(slices, [(each.resource_type, each.name) for each in wanted])
    outcomes: list[KafkaError | None] = [None] * len(wanted)
    events: dict[int, AlterConfig] = {}
    remote: dict[int, ConfigResourceChange] = {}
    is_remote = request.services.controller_channel.must_forward
    async for place, each in slices.each(enumerate(wanted)):
        try:
            if (each.resource_type, each.name) in twice:
                raise InvalidRequest("Each resource must appear at most once.")
            changes = await _checked(slices, each)
            slices.spend(ENTITY_WORK)
            if each.resource_type == ConfigResourceType.BROKER_LOGGER and not replaces_all:
                _alter_loggers(request.services, each.name, changes, validate_only=validate_only)
            elif is_remote:
                if each.resource_type == ConfigResourceType.BROKER and each.name:
                    _check_node(request.services.node_id, each.name, _UNEXPECTED_BROKER)
                remote[place] = each
            else:
                events[place] = _event(request, each, changes, replaces_all=replaces_all)
        except KafkaError as error:
            outcomes[place] = error
    if remote:
        forwarded = await _forward(
            request, list(remote.values()), replaces_all=replaces_all, validate_only=validate_only
        )
        for place, outcome in zip(remote, forwarded, strict=True):
            outcomes[place] = outcome
    try:
        done = await request.services.controller.alter_configs(list(events.values()), validate_only=validate_only)
    except KafkaError as error:
        done = [error for _ in events]
    for place, outcome in zip(events, done, strict=True):
        outcomes[place] = outcome
    return outcomes


async def _forward(
    request: Request, wanted: Sequence[ConfigResourceChange], *, replaces_all: bool, validate_only: bool
) -> list[KafkaError | None]:
    """Have the controller alter the settings of resources."""
    each_of = request.services.slices.each
    key = ApiKey.ALTER_CONFIGS if replaces_all else ApiKey.INCREMENTAL_ALTER_CONFIGS
    encode = _replacing_request if replaces_all else _incremental_request
    body = encode([each async for each in each_of(wanted, ENTITY_WORK)], validate_only=validate_only)
    try:
        answer = await request.services.controller_channel.request(
            key, body, client_host=request.client_host, principal=encode_identity(request.identity, request.listener)
        )
    except KafkaError as error:
        return [error for _ in wanted]
    found = {
        (each.resource_type, each.resource_name): error_or_none(each.error_code, each.error_message)
        async for each in each_of(answer.responses)
    }
    return [found.get((each.resource_type, each.name)) for each in wanted]


def _incremental_request(wanted: Sequence[ConfigResourceChange], *, validate_only: bool) -> Any:
    from ottla.wire.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    resources = [
        AlterConfigsResource(
            resource_type=each.resource_type,
            resource_name=each.name,
            configs=[AlterableConfig(name=name, config_operation=op, value=value) for op, name, value in each.changes],
        )
        for each in wanted
    ]
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)


def _replacing_request(wanted: Sequence[ConfigResourceChange], *, validate_only: bool) -> Any:
    from ottla.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource

    resources = [
        AlterConfigsResource(
            resource_type=each.resource_type,
            resource_name=each.name,
            configs=[AlterableConfig(name=name, value=value) for _, name, value in each.changes],
        )
        for each in wanted
    ]
    return AlterConfigsRequest(resources=resources, validate_only=validate_only)


async def _checked(slices: LoopSlices, wanted: ConfigResourceChange) -> list[ConfigChange]:
    operations = {op.value for op in AlterConfigOpType}
    if await duplicates(slices, [key for _, key, _ in wanted.changes]):
        raise InvalidRequest("Error due to duplicate config keys")
    without = [
        key async for op, key, value in slices.each(wanted.changes) if value is None and op != AlterConfigOpType.DELETE
    ]
    if without:
        raise InvalidRequest(f"Null value not supported for : {','.join(without)}")
    changes = []
    async for op, key, value in slices.each(wanted.changes):
        if op not in operations:
            raise InvalidRequest(f"Unknown operation {op} on {key}")
        changes.append(ConfigChange(AlterConfigOpType(op), key, value))
    return changes


def _event(
    request: Request, wanted: ConfigResourceChange, changes: Sequence[ConfigChange], *, replaces_all: bool
) -> AlterConfig:
    services = request.services
    match wanted.resource_type:
        case ConfigResourceType.TOPIC:
            kind, name, known, check = _topic(services, wanted.name)
        case ConfigResourceType.BROKER:
            kind, name, known, check = _broker(request, wanted.name, changes)
        case ConfigResourceType.CLIENT_METRICS:
            kind, name, known, check = _client_metrics(wanted.name)
        case ConfigResourceType.GROUP:
            kind, name, known, check = _group(services, wanted.name)
        case unknown:
            raise InvalidRequest(f"Unknown resource type {unknown}")
    return AlterConfig(kind, name, changes, known, check, replaces_all)


class _Rules(NamedTuple):
    """Holds how a resource's settings are stored and validated, and which of them are lists."""

    kind: str
    name: str
    known: Mapping[str, ConfigSpec]
    check: Callable[[Mapping[str, str]], object]


def _topic(services: Services, name: str) -> _Rules:
    if not name:
        raise InvalidRequest("Default topic resources are not allowed.")
    check_topic_name(name)
    if name not in services.cluster.current.topics:
        raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
    known = {
        key: ConfigSpec(found.spec.kind, text_of(default_of(found.section, found.field_name)))
        for key, found in topic_settings().items()
    }
    return _Rules(znodes.TOPICS_KIND, name, known, lambda values: topic_config(services.config.log, values))


def _broker(request: Request, name: str, changes: Sequence[ConfigChange]) -> _Rules:
    """Return the rules for this broker or for all brokers, or for the broker that has forwarded the request."""
    services = request.services
    if name and not request.is_forwarded:
        _check_node(services.node_id, name, _UNEXPECTED_BROKER)
    known = declared()
    changed = [change for change in changes if change.op is not AlterConfigOpType.DELETE]
    static = [change.key for change in changed if _is_static(change.key, known)]
    if static:
        raise InvalidRequest(f"Cannot update these configs dynamically: Set({', '.join(static)})")
    asked = {each.key: SettingText(each.value or "", "") for each in changes if each.op is not AlterConfigOpType.DELETE}
    if missing := missing_security(asked):
        raise InvalidRequest(f"{missing[0].key} is refused: {missing[0].reason}")

    def check(values: Mapping[str, str]) -> None:
        try:
            config = services.config.with_overrides(values)
        except InvalidSettings as error:
            first = error.problems[0]
            raise InvalidRequest(f"Invalid value {first.text} for configuration {first.key}: {first.reason}") from None
        for key in [change.key for change in changed if change.key in known]:
            _check_dynamic(services.config, config, key, values[key], known[key][2].kind, of_one_broker=bool(name))

    lists = {
        spec.key: ConfigSpec(spec.kind, text_of(default_of(section, field_name)))
        for _, section in SECTIONS.values()
        for field_name, spec in settings_of(section).items()
    }
    return _Rules(znodes.BROKERS_KIND, name or znodes.DEFAULT_ENTITY, lists, check)


def _is_static(key: str, known: Mapping[str, tuple[str, str, Setting]]) -> bool:
    """Return whether a setting of a broker cannot be changed while it runs."""
    if (found := known.get(key)) is None:
        return key in NOT_HERE
    return not (found[2].live and found[2].key == key)  # log.retention.hours is read at the start only


def _check_dynamic(
    was: BrokerConfig, config: BrokerConfig, key: str, text: str, kind: Type, *, of_one_broker: bool
) -> None:
    """Refuse what Kafka refuses of a setting that is changed while the broker runs. Raises a KafkaError."""

    def refuse(reason: str) -> NoReturn:
        raise InvalidRequest(f"Invalid value {text} for configuration {key}: {reason}")

    if kind is Type.LIST and text.strip():
        items = [item.strip() for item in text.split(",")]
        if "" in items or len(set(items)) < len(items):
            refuse("an item is empty or occurs twice")
    if key == "cordoned.log.dirs" and not of_one_broker:
        refuse("the directories are those of one broker")
    log_config = config.log
    match key:
        case "log.cleaner.threads":
            threads, current = config.cleaner.threads, was.cleaner.threads
            if not max(1, current // 2) <= threads <= max(1, current * 2):
                refuse(f"must be at least half and at most double the current value {current}")
        case "log.retention.ms":
            if log_config.retention_ms == 0:
                refuse("must be -1 or at least 1")
        case "log.local.retention.ms":
            _check_local(refuse, log_config.local_retention_ms, log_config.retention_ms, "log.retention.ms")
        case "log.local.retention.bytes":
            _check_local(refuse, log_config.local_retention_bytes, log_config.retention_bytes, "log.retention.bytes")
        case "min.insync.replicas":
            if of_one_broker:
                raise InvalidConfig("min.insync.replicas is a setting of all brokers or of a topic, not of one broker.")


def _check_local(refuse: Callable[[str], NoReturn], local: int, whole: int, of: str) -> None:
    """Refuse a limit of what is kept on this disk that is above the limit of what is kept at all."""
    if whole != -1 and local != -2 and (local == -1 or local > whole):
        refuse(f"must be at most {of}, which is {whole}")


def _group(services: Services, name: str) -> _Rules:
    if not name:
        raise InvalidRequest("Default group resources are not allowed.")

    def check(values: Mapping[str, str]) -> None:
        names = {spec.key for spec in settings_of(OneGroupConfig).values()}
        for key in values.keys() - names:
            raise InvalidConfig(f"Unknown group config name: {key}")
        _check_section(OneGroupConfig, values)
        _check_offset_reset(values)
        if values.get("errors.deadletterqueue.topic.name", "").strip().startswith("__"):
            raise InvalidConfig("errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'")
        _check_group_bounds(services, values)

    return _Rules(znodes.GROUPS_KIND, name, {}, check)


def _check_offset_reset(values: Mapping[str, str]) -> None:
    key = "share.auto.offset.reset"
    if (strategy := values.get(key)) is not None:
        try:
            check_reset(strategy)
        except ValueError as error:
            raise InvalidConfig(f"Invalid value {strategy} for configuration {key}: {error}") from None


def _check_group_bounds(services: Services, values: Mapping[str, str]) -> None:
    """Refuse settings of a group outside the broker's bounds, in Kafka's words."""
    bounds = group_bounds(services)
    found = {key: int(values.get(key, bound.default)) for key, bound in bounds.items()}
    for key in bounds.keys() & values.keys():
        if found[key] < bounds[key].at_least:
            raise InvalidConfig(f"{key} must be greater than or equal to {bound_key(key, 'min')}")
        if found[key] > bounds[key].at_most:
            raise InvalidConfig(f"{key} must be less than or equal to {bound_key(key, 'max')}")
    for kind in ("consumer", "share"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if {session, heartbeat} & values.keys() and found[session] <= found[heartbeat]:
            raise InvalidConfig(f"{session} must be greater than {heartbeat}")


def _client_metrics(name: str) -> _Rules:
    if not name:
        raise InvalidRequest("Subscription name can't be empty")

    def check(values: Mapping[str, str]) -> None:
        names = {spec.key for spec in settings_of(ClientMetricsConfig).values()}
        for key in values.keys() - names:
            raise InvalidRequest(f"Unknown client metrics configuration: {key}")
        interval = values.get("interval.ms", "")
        if interval.isdigit() and not INTERVAL_MS_MIN <= int(interval) <= INTERVAL_MS_MAX:  # Kafka's own code for it
            raise InvalidRequest(f"interval.ms must be {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX}, not {interval}")
        _check_section(ClientMetricsConfig, values)
        for pattern in filter(None, (part.strip() for part in values.get("match", "").split(","))):
            attribute, equals, expression = pattern.partition("=")
            if not equals or attribute.strip() not in CLIENT_PROPERTIES or not _compiles(expression):
                raise InvalidConfig(f"Illegal client matching pattern: {pattern}")

    return _Rules(znodes.CLIENT_METRICS_KIND, name, {}, check)


def _check_section(section: type[Any], values: Mapping[str, str]) -> None:
    try:
        load(section, {key: SettingText(text, "") for key, text in values.items()})
    except InvalidSettings as error:
        first = error.problems[0]
        raise InvalidConfig(f"Invalid value {first.text} for configuration {first.key}: {first.reason}") from None


def _compiles(expression: str) -> bool:
    try:
        re.compile(expression)
    except re.error:
        return False
    return True


def _check_node(node_id: int, name: str, unexpected: str) -> None:
    try:
        number = int(name)
    except ValueError:
        raise InvalidRequest(f"Node id must be an integer, but it is: {name}") from None
    if number != node_id:
        raise InvalidRequest(unexpected.format(node_id, number))


def _alter_loggers(services: Services, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
    """Change log levels until the broker stops; nothing is stored."""
    _check_node(services.node_id, name, "Unexpected node id. Expected {}, but received {}")
    present = loggers()
    for op, key, value in changes:
        if op not in {AlterConfigOpType.SET, AlterConfigOpType.DELETE}:
            raise InvalidRequest(f"{op.name} operation is not allowed for the BROKER_LOGGER resource")
        if key not in present:
            raise InvalidConfig(f"Logger {key} does not exist!")
        if op is AlterConfigOpType.DELETE and key == ROOT_LOGGER:
            raise InvalidRequest("Removing the log level of the root logger is not allowed")
        if op is AlterConfigOpType.SET and value not in LEVELS:
            raise InvalidConfig(f"Cannot set the log level of {key} to {value}: it must be one of {', '.join(LEVELS)}")
    if validate_only:
        return
    for op, key, value in changes:
        present[key].setLevel(LEVELS[value] if op is AlterConfigOpType.SET and value else logging.NOTSET)
        log.info("log level of %s set to %s", key, value or "its parent's")
