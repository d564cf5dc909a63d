"""Alters settings for AlterConfigs and IncrementalAlterConfigs.

Each resource's change is validated by the rules of its type, then applied here (loggers) or by the controller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from ottla.broker import listener_config_changes
from ottla.broker.client_metrics.subscriptions import parse_match
from ottla.broker.config import SECTIONS, BrokerConfig, declaration_of, declared, has_secrets, is_secret
from ottla.broker.config_resources import LEVELS, ROOT_LOGGER, bound_key, group_bounds, loggers
from ottla.broker.entity_config import INTERVAL_MS_MAX, INTERVAL_MS_MIN, ClientMetricsConfig, OneGroupConfig
from ottla.broker.handler_parts.admin_requests import check_topic_name
from ottla.broker.handler_parts.configs_access import ALTER_CONFIGS
from ottla.broker.kafka_config import NOT_HERE, missing_security
from ottla.broker.requests.elements import Each, InParts, collect, repeated
from ottla.broker.requests.forwarded_identity import encode_identity
from ottla.broker.requests.request import Request
from ottla.broker.services import Services
from ottla.client.errors import error_or_none
from ottla.controller.config_changes import AlterConfig, ConfigChange, ConfigSpec
from ottla.core.errors import InvalidConfig, InvalidRequest, KafkaError, UnknownTopicOrPartition
from ottla.core.settings import (
    HIDDEN_TEXT,
    AlterConfigOpType,
    ConfigResourceType,
    InvalidSettings,
    SettingText,
    Type,
    default_of,
    load,
    settings_of,
    split_listener_key,
    text_of,
)
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.share_partitions.offset_reset import check_reset
from ottla.storage.config import topic_config, topic_settings
from ottla.wire.apis import ApiKey
from ottla.wire.schema import Struct

if TYPE_CHECKING:  # with the handlers
    from ottla.wire.generated.incremental_alter_configs import AlterConfigsResourceResponse

log = logging.getLogger(__name__)

_OPERATIONS = frozenset(op.value for op in AlterConfigOpType)
_UNEXPECTED_BROKER = "Unexpected broker id, expected {}, but received {}"

CHECK_WORK = 3
"""The share of a slice of work of one entity, before that of its changes."""

ENTITY_WORK = 20
"""The share of a slice of work of one entity whose settings may be changed."""


class RequestedChange(NamedTuple):
    """A change of one setting; the operation is not validated yet."""

    op: int
    key: str
    value: str | None


class AlteredResource:
    """A resource of a request with the changes of its settings, and the error that it is answered with."""

    __slots__ = ("changes", "error", "is_done", "name", "requested", "resource_type", "unknown", "without_value")

    def __init__(self, resource_type: int, name: str) -> None:
        self.resource_type, self.name = resource_type, name
        self.requested: list[RequestedChange] = []
        self.changes: list[ConfigChange] = []  # the requested ones, validated
        self.without_value: list[str] = []
        self.unknown: RequestedChange | None = None  # the first with an unknown operation
        self.error: KafkaError | None = None
        self.is_done = False  # nothing of it is stored

    @property
    def identity(self) -> tuple[int, str]:
        """Return what a request may name once."""
        return self.resource_type, self.name


class Alteration(NamedTuple):
    """A request to alter settings; `message_of` makes a request of some of its resources, for the controller."""

    resources: list[AlteredResource]
    key: ApiKey
    message_of: Callable[[Iterable[int]], Struct]
    validate_only: bool

    @property
    def replaces_all(self) -> bool:
        """Return whether settings that are not named go back to their defaults."""
        return self.key == ApiKey.ALTER_CONFIGS


class _Decided(NamedTuple):
    """The resources that were not refused and are still to be altered."""

    events: list[tuple[AlteredResource, AlterConfig]]  # for the controller, here
    remote: list[int]  # for the controller on another broker: the places of the resources


class _Config(Protocol):
    """A setting of a request to AlterConfigs or IncrementalAlterConfigs."""

    name: str
    value: str | None


class _Resource(Protocol):
    """A resource of such a request."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[_Config]:
        """Return its settings."""
        ...


async def encode_secrets(request: Request, resources: Sequence[_Resource]) -> None:
    """Encrypt the secrets of this broker within a request, before anything is forwarded or stored."""
    secrets_found: list[_Config] = []
    await collect(request, Each[_Resource, None](resources, partial(_find_secrets, secrets_found)))
    if not secrets_found or request.services.dynamic_secrets is None:
        return
    secrets = request.services.dynamic_secrets()
    if secrets.is_configured:
        for config, encoded in zip(
            secrets_found, await secrets.encode(config.value or "" for config in secrets_found), strict=True
        ):
            config.value = encoded


def _find_secrets(
    found: list[_Config], request: Request, resource: _Resource, _view: ClusterView
) -> InParts[None] | None:
    if resource.resource_type != ConfigResourceType.BROKER or resource.resource_name != str(request.services.node_id):
        return None

    def note(_request: Request, config: _Config, _view: ClusterView) -> None:
        if config.value is not None and is_secret(config.name):
            found.append(config)

    return InParts(None, Each(resource.configs, note))


def _decoded(services: Services, values: Mapping[str, str]) -> Mapping[str, str]:
    """Return settings with the secrets decrypted that this broker knows, and without others."""
    secrets = services.dynamic_secrets
    return values if secrets is None or not has_secrets(values) else secrets().decoded(values)


def _check_secrets(name: str, changes: Iterable[ConfigChange]) -> None:
    """Refuse a secret that would be stored as it is, or for all brokers. Raises InvalidRequest, as Kafka does."""
    secrets = [change for change in changes if change.op is AlterConfigOpType.SET and is_secret(change.key)]
    if secrets and not name:
        keys = ", ".join(change.key for change in secrets)
        raise InvalidRequest(
            f"Cannot update these configs at default cluster level, broker id must be specified: [{keys}]"
        )
    if not secrets:
        return
    from ottla.broker.dynamic_secrets import NOT_CONFIGURED
    from ottla.security.password_encoder import is_encoded

    for change in secrets:
        if not is_encoded(change.value or ""):
            raise InvalidRequest(f"{change.key}: {NOT_CONFIGURED}")


async def alter_configs(request: Request, alteration: Alteration) -> None:
    """Alter the settings of each resource, or note its error; one error does not affect the others."""
    resources = alteration.resources
    twice: set[tuple[int, str]] = set()
    await collect(request, repeated((resource.identity for resource in resources), twice))
    await collect(request, Each[AlteredResource, None](resources, partial(_check, twice), work=CHECK_WORK))
    for resource in resources:
        if resource.error is None and resource.resource_type == ConfigResourceType.BROKER:
            await _check_listeners(request, alteration, resource)
    decided = _Decided([], [])
    placed: Iterable[tuple[int, AlteredResource]] = enumerate(resources)
    await collect(request, Each(placed, partial(_decide, alteration, decided), work=ENTITY_WORK))
    if decided.remote:
        await _forward(request, alteration, decided.remote)
    events = [event for _, event in decided.events]
    try:
        outcomes = await request.services.controller.alter_configs(events, validate_only=alteration.validate_only)
    except KafkaError as error:
        outcomes = [error for _ in events]
    for (resource, _), outcome in zip(decided.events, outcomes, strict=True):
        resource.error = outcome


async def _check_listeners(request: Request, alteration: Alteration, resource: AlteredResource) -> None:
    """Check the changes of listeners' TLS as the broker that has them, and note the resource's error."""
    services, changes = request.services, resource.changes
    if request.is_forwarded or resource.name != str(services.node_id):
        return
    if not any(listener_config_changes.is_tls_setting(change.key) for change in changes):
        return
    stored = services.cluster.current.broker_configs.get(resource.name)
    values = stored.values if stored is not None and not alteration.replaces_all else {}
    tls = services.listeners_tls
    try:
        listener_config_changes.check_names(changes, of_one_broker=True)
        if listener_config_changes.locations_repeated(services.config, changes):
            resource.is_done = True
            if tls is not None and not alteration.validate_only:
                tls.reload()
            return
        await listener_config_changes.check_certificates(
            services.config, tls, values, changes, partial(_decoded, services)
        )
    except KafkaError as error:
        resource.error = error


async def _forward(request: Request, alteration: Alteration, places: list[int]) -> None:
    """Have the controller alter the settings of resources, and note its errors."""
    resources = [alteration.resources[place] for place in places]
    try:
        answer = await request.services.controller_channel.request(
            alteration.key,
            alteration.message_of(places),
            client_host=request.client_host,
            principal=encode_identity(request.identity, request.listener),
        )
    except KafkaError as error:
        for resource in resources:
            resource.error = error
        return
    errors: dict[tuple[int, str], KafkaError | None] = {}
    responses: list[AlterConfigsResourceResponse] = answer.responses  # AlterConfigs has the same
    await collect(request, Each(responses, partial(_note_error, errors)))
    for resource in resources:
        resource.error = errors.get(resource.identity)


def _note_error(
    errors: dict[tuple[int, str], KafkaError | None],
    _request: Request,
    response: AlterConfigsResourceResponse,
    _view: ClusterView,
) -> None:
    identity = response.resource_type, response.resource_name
    errors[identity] = error_or_none(response.error_code, response.error_message)


def _check(
    twice: set[tuple[int, str]], _request: Request, resource: AlteredResource, _view: ClusterView
) -> InParts[None] | None:
    """Validate the changes by themselves; note the resource's error."""
    if resource.identity in twice:
        resource.error = InvalidRequest("Each resource must appear at most once.")
        return None
    keys_twice: set[str] = set()
    return InParts(
        None,
        repeated((change.key for change in resource.requested), keys_twice),
        Each(resource.requested, partial(_check_change, resource)),
        Each([resource], partial(_conclude, keys_twice)),
    )


def _check_change(resource: AlteredResource, _request: Request, requested: RequestedChange, _view: ClusterView) -> None:
    op, key, value = requested
    if value is None and op != AlterConfigOpType.DELETE:
        resource.without_value.append(key)
    elif op in _OPERATIONS:
        resource.changes.append(ConfigChange(AlterConfigOpType(op), key, value))
    elif resource.unknown is None:
        resource.unknown = requested


def _conclude(keys_twice: set[str], _request: Request, resource: AlteredResource, _view: ClusterView) -> None:
    if keys_twice:
        resource.error = InvalidRequest("Error due to duplicate config keys")
    elif resource.without_value:
        resource.error = InvalidRequest(f"Null value not supported for : {','.join(resource.without_value)}")
    elif resource.unknown is not None:
        resource.error = InvalidRequest(f"Unknown operation {resource.unknown.op} on {resource.unknown.key}")


def _decide(
    alteration: Alteration, decided: _Decided, request: Request, placed: tuple[int, AlteredResource], view: ClusterView
) -> None:
    """Alter loggers, and decide who alters other settings; note the resource's error."""
    place, resource = placed
    if resource.error is not None or resource.is_done:
        return
    services, kind, name = request.services, resource.resource_type, resource.name
    try:
        ALTER_CONFIGS.check(request, kind, name)
        if kind == ConfigResourceType.BROKER_LOGGER and not alteration.replaces_all:
            _alter_loggers(services, name, resource.changes, validate_only=alteration.validate_only)
        elif services.controller_channel.must_forward:
            if kind == ConfigResourceType.BROKER and name:
                _check_node(services.node_id, name, _UNEXPECTED_BROKER)
            if kind == ConfigResourceType.BROKER:
                _check_secrets(name, resource.changes)
            decided.remote.append(place)
        else:
            decided.events.append((resource, _event(request, view, resource, replaces_all=alteration.replaces_all)))
    except KafkaError as error:
        resource.error = error


def _event(request: Request, view: ClusterView, resource: AlteredResource, *, replaces_all: bool) -> AlterConfig:
    services, changes = request.services, resource.changes
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            kind, name, known, check = _topic(services, view, resource.name)
        case ConfigResourceType.BROKER:
            kind, name, known, check = _broker(request, resource.name, changes)
        case ConfigResourceType.CLIENT_METRICS:
            kind, name, known, check = _client_metrics(resource.name)
        case ConfigResourceType.GROUP:
            kind, name, known, check = _group(services, resource.name)
        case unknown:
            raise InvalidRequest(f"Unknown resource type {unknown}")
    return AlterConfig(kind, name, changes, known, check, replaces_all)


class _Rules(NamedTuple):
    """Holds how a resource's settings are stored and validated, and which of them are lists."""

    kind: str
    name: str
    known: Mapping[str, ConfigSpec]
    check: Callable[[Mapping[str, str]], object]


def _topic(services: Services, view: ClusterView, name: str) -> _Rules:
    if not name:
        raise InvalidRequest("Default topic resources are not allowed.")
    check_topic_name(name)
    if name not in view.topics:
        raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
    known = {
        key: ConfigSpec(setting.spec.kind, text_of(default_of(setting.section, setting.field_name)))
        for key, setting in topic_settings().items()
    }
    return _Rules(znodes.TOPICS_KIND, name, known, lambda values: topic_config(services.config.log, values))


def _broker(request: Request, name: str, changes: Sequence[ConfigChange]) -> _Rules:
    """Return the rules for this broker or for all brokers, or for the broker that has forwarded the request."""
    services = request.services
    if name and not request.is_forwarded:
        _check_node(services.node_id, name, _UNEXPECTED_BROKER)
    known = declared()
    changed = [change for change in changes if change.op is not AlterConfigOpType.DELETE]
    listener_config_changes.check_names(changed, of_one_broker=bool(name))
    static = [change.key for change in changed if _is_static(change.key)]
    if static:
        raise InvalidRequest(f"Cannot update these configs dynamically: [{', '.join(static)}]")
    asked = {each.key: SettingText(each.value or "", "") for each in changed if declaration_of(each.key) is None}
    if missing := missing_security(asked):
        raise InvalidRequest(f"{missing[0].key} is refused: {missing[0].reason}")
    _check_secrets(name, changes)

    def check(values: Mapping[str, str]) -> None:
        try:
            config = services.config.with_overrides(_decoded(services, values))
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


def _is_static(key: str) -> bool:
    """Return whether a setting of a broker, or of one listener of it, cannot be changed while it runs.

    What is no setting of a listener cannot be changed for one either; names that mean nothing can, as in Kafka.
    """
    _, name = split_listener_key(key)
    if (declaration := declaration_of(key)) is None:
        return name in NOT_HERE or name in declared() or name.startswith("config.providers.")
    return not (declaration[2].live and declaration[2].key == name)  # log.retention.hours is read at the start only


def _check_dynamic(
    was: BrokerConfig, config: BrokerConfig, key: str, text: str, kind: Type, *, of_one_broker: bool
) -> None:
    """Refuse what Kafka refuses of a setting that is changed while the broker runs. Raises a KafkaError."""

    def refuse(reason: str) -> NoReturn:
        shown = HIDDEN_TEXT if is_secret(key) else text
        raise InvalidRequest(f"Invalid value {shown} for configuration {key}: {reason}")

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
        try:
            parse_match(filter(None, (part.strip() for part in values.get("match", "").split(","))))
        except ValueError as error:
            raise InvalidConfig(str(error)) from None

    return _Rules(znodes.CLIENT_METRICS_KIND, name, {}, check)


def _check_section(section: type[Any], values: Mapping[str, str]) -> None:
    try:
        load(section, {key: SettingText(text, "") for key, text in values.items()})
    except InvalidSettings as error:
        first = error.problems[0]
        raise InvalidConfig(f"Invalid value {first.text} for configuration {first.key}: {first.reason}") from None


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
