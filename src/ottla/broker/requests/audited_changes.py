"""Finds what an administrative request has changed, for the security audit log: from the request and its response.

One function for each API returns the resources that the request named, with the error of each. Imported with the first
such request. Values of settings are returned if the setting is declared and no secret; of a user, a token or an ACL
never more than what names it. RenewDelegationToken and ExpireDelegationToken name a token by its HMAC, which is secret:
their handlers record the change themselves, with the id of the token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ottla.broker.config import declared
from ottla.broker.entity_config import ClientMetricsConfig, OneGroupConfig
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation, PatternType, PermissionType, ResourceType
from ottla.core.errors import ErrorCode
from ottla.core.settings import AlterConfigOpType, ConfigResourceType, Setting, settings_of
from ottla.security.audit_log import AuditLog
from ottla.storage.config import topic_settings
from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import Slices

log = logging.getLogger(__name__)

CHANGE_WORK: Final = 4
"""The share of a slice of work of one entry."""

_TOPIC, _GROUP, _CLUSTER, _USER, _TOKEN = (
    resource.name
    for resource in (
        ResourceType.TOPIC,
        ResourceType.GROUP,
        ResourceType.CLUSTER,
        ResourceType.USER,
        ResourceType.DELEGATION_TOKEN,
    )
)
_ACL: Final = "ACL"
_QUOTA: Final = "CLIENT_QUOTA"
_BROKER: Final = "BROKER"
_FEATURE: Final = "FEATURE"


class Change(NamedTuple):
    """One resource that a request asked to change."""

    resource_type: str
    name: str
    error_code: int = 0
    details: tuple[tuple[str, str], ...] = ()


Changes = Iterable[Change]


def record(audit_log: AuditLog, request: Request, body: Any, response: Any) -> Slices[None]:
    """Record what a request has changed, or failed to change, in slices of work.

    A request that only validates changes nothing. An unexpected error is logged: the client gets its response.
    """
    if getattr(body, "validate_only", False):
        return
    slices = request.services.slices
    try:
        for change in CHANGES[ApiKey(request.header[0])](request, body, response):
            audit_log.changed(
                request, change.resource_type, change.name, error=_error_name(change.error_code), details=change.details
            )
            if slices.spend(CHANGE_WORK):
                yield
    except Exception:
        log.exception("the audit log lacks a part of a request of API %d", request.header[0])


def _error_name(code: int) -> str:
    if not code:
        return ""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


# ---- Topics and partitions


def _created_topics(_request: Request, body: Any, response: Any) -> Changes:
    asked = {topic.name: topic for topic in body.topics}
    for result in response.topics:
        topic = asked.get(result.name)
        details: list[tuple[str, str]] = []
        if topic is not None:
            details += [("partitions", str(result.num_partitions if not result.error_code else topic.num_partitions))]
            details += _settings(ConfigResourceType.TOPIC, [(config.name, config.value) for config in topic.configs])
        yield Change(_TOPIC, result.name, result.error_code, tuple(details))


def _deleted_topics(_request: Request, _body: Any, response: Any) -> Changes:
    for result in response.responses:
        yield Change(_TOPIC, result.name or str(result.topic_id), result.error_code)


def _created_partitions(_request: Request, body: Any, response: Any) -> Changes:
    counts = {topic.name: topic.count for topic in body.topics}
    for result in response.results:
        yield Change(_TOPIC, result.name, result.error_code, (("partitions", str(counts.get(result.name, ""))),))


def _partitions(topics: Iterable[tuple[str, Sequence[tuple[int, int]]]], what: str = "partitions") -> Iterator[Change]:
    """Return one change for each topic and outcome, with the partitions."""
    for name, results in topics:
        by_error: dict[int, list[str]] = {}
        for index, code in results:
            by_error.setdefault(code, []).append(str(index))
        for code, indexes in by_error.items():
            yield Change(_TOPIC, name, code, ((what, ",".join(indexes)),))


def _deleted_records(_request: Request, _body: Any, response: Any) -> Changes:
    return _partitions(
        (topic.name, [(partition.partition_index, partition.error_code) for partition in topic.partitions])
        for topic in response.topics
    )


def _elected_leaders(_request: Request, _body: Any, response: Any) -> Changes:
    if response.error_code:
        return [Change(_CLUSTER, "kafka-cluster", response.error_code)]
    return _partitions(
        (topic.topic, [(partition.partition_id, partition.error_code) for partition in topic.partition_result])
        for topic in response.replica_election_results
    )


def _reassigned_partitions(_request: Request, _body: Any, response: Any) -> Changes:
    if response.error_code:
        return [Change(_CLUSTER, "kafka-cluster", response.error_code)]
    return _partitions(
        (topic.name, [(partition.partition_index, partition.error_code) for partition in topic.partitions])
        for topic in response.responses
    )


def _moved_replicas(_request: Request, _body: Any, response: Any) -> Changes:
    return _partitions(
        (topic.topic_name, [(partition.partition_index, partition.error_code) for partition in topic.partitions])
        for topic in response.results
    )


# ---- Groups


def _deleted_groups(_request: Request, _body: Any, response: Any) -> Changes:
    for result in response.results:
        yield Change(_GROUP, result.group_id, result.error_code)


def _deleted_offsets(_request: Request, body: Any, response: Any) -> Changes:
    yield Change(_GROUP, body.group_id, response.error_code, _listed([topic.name for topic in response.topics]))


def _share_offsets(_request: Request, body: Any, response: Any) -> Changes:
    yield Change(
        _GROUP, body.group_id, response.error_code, _listed([topic.topic_name for topic in response.responses])
    )


def _listed(topics: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return (("topics", ",".join(topics)),) if topics else ()


# ---- Settings


def _shown_settings(kind: int) -> frozenset[str]:
    """Return the settings of a kind of resource whose values may be shown."""
    specs: Iterable[tuple[str, Setting]]
    match kind:
        case ConfigResourceType.TOPIC:
            specs = [(name, declaration.spec) for name, declaration in topic_settings().items()]
        case ConfigResourceType.BROKER:
            specs = [(name, spec) for name, (_, _, spec) in declared().items()]
        case ConfigResourceType.GROUP:
            specs = [(spec.key, spec) for spec in settings_of(OneGroupConfig).values()]
        case ConfigResourceType.CLIENT_METRICS:
            specs = [(spec.key, spec) for spec in settings_of(ClientMetricsConfig).values()]
        case _:
            specs = []
    return frozenset(name for name, spec in specs if not spec.secret)


def _settings(kind: int, given: Iterable[tuple[str, str | None]]) -> list[tuple[str, str]]:
    shown = _shown_settings(kind)
    is_level = kind == ConfigResourceType.BROKER_LOGGER
    return [
        (name, "" if value is None else value if is_level or name in shown else "[hidden]") for name, value in given
    ]


def _altered_configs(request: Request, body: Any, response: Any) -> Changes:
    """Return the resources altered here. Those passed on to the controller are in the log of its broker."""
    passed_on = not request.is_forwarded and request.services.controller_channel.must_forward
    by_name = {(resource.resource_type, resource.resource_name): resource for resource in body.resources}
    for result in response.responses:
        if passed_on and result.resource_type != ConfigResourceType.BROKER_LOGGER:
            continue
        resource = by_name.get((result.resource_type, result.resource_name))
        given = (
            []
            if resource is None
            else [(_operation(config) + config.name, config.value) for config in resource.configs]
        )
        plain = {name: name.lstrip("+-") for name, _ in given}
        values = dict(_settings(result.resource_type, [(plain[name], value) for name, value in given]))
        kind = _config_kind(result.resource_type)
        details = tuple((name, values[plain[name]]) for name, _ in given)
        yield Change(kind, result.resource_name or "<default>", result.error_code, details)


def _operation(config: Any) -> str:
    """Return a mark before the name of a setting that a list is changed or that goes back to its default."""
    operation = getattr(config, "config_operation", AlterConfigOpType.SET)
    return {AlterConfigOpType.APPEND: "+", AlterConfigOpType.SUBTRACT: "-", AlterConfigOpType.DELETE: "-"}.get(
        operation, ""
    )


def _config_kind(number: int) -> str:
    try:
        return f"{ConfigResourceType(number).name}_CONFIG"
    except ValueError:
        return str(number)


# ---- Access


def _named(kind: type[Any], number: int) -> str:
    try:
        return str(kind(number).name)
    except ValueError:
        return str(number)


def _acl_details(acl: Any, pattern_type: int) -> tuple[tuple[str, str], ...]:
    return (
        ("principal", acl.principal),
        ("host", acl.host),
        ("operation", _named(AclOperation, acl.operation)),
        ("permission", _named(PermissionType, acl.permission_type)),
        ("pattern", _named(PatternType, pattern_type)),
    )


def _created_acls(_request: Request, body: Any, response: Any) -> Changes:
    for acl, result in zip(body.creations, response.results, strict=False):
        name = f"{_named(ResourceType, acl.resource_type)}:{acl.resource_name}"
        yield Change(_ACL, name, result.error_code, _acl_details(acl, acl.resource_pattern_type))


def _deleted_acls(_request: Request, _body: Any, response: Any) -> Changes:
    for result in response.filter_results:
        if result.error_code:
            yield Change(_ACL, "", result.error_code)
        for acl in result.matching_acls:
            name = f"{_named(ResourceType, acl.resource_type)}:{acl.resource_name}"
            yield Change(_ACL, name, acl.error_code, _acl_details(acl, acl.pattern_type))


_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def _altered_users(_request: Request, body: Any, response: Any) -> Changes:
    codes = {result.user: result.error_code for result in response.results}
    for change, altered in (("set", body.upsertions), ("deleted", body.deletions)):
        for credential in altered:
            mechanism = _MECHANISMS.get(credential.mechanism, str(credential.mechanism))
            yield Change(_USER, credential.name, codes.get(credential.name, 0), ((change, mechanism),))


def _altered_quotas(_request: Request, body: Any, response: Any) -> Changes:
    for asked, result in zip(body.entries, response.entries, strict=False):
        entity = ",".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in asked.entity)
        details = tuple((op.key, "" if op.remove else f"{op.value:g}") for op in asked.ops)
        yield Change(_QUOTA, entity, result.error_code, details)


def _created_token(_request: Request, _body: Any, response: Any) -> Changes:
    details = (
        ("owner", f"{response.principal_type}:{response.principal_name}"),
        ("max_timestamp", str(response.max_timestamp_ms)),
    )
    yield Change(_TOKEN, response.token_id, response.error_code, () if response.error_code else details)


# ---- The cluster


def _updated_features(_request: Request, body: Any, response: Any) -> Changes:
    for update in body.feature_updates:
        yield Change(_FEATURE, update.feature, response.error_code, (("level", str(update.max_version_level)),))


def _unregistered_broker(_request: Request, body: Any, response: Any) -> Changes:
    yield Change(_BROKER, str(body.broker_id), response.error_code)


CHANGES: Final[dict[ApiKey, Callable[[Request, Any, Any], Changes]]] = {
    ApiKey.CREATE_TOPICS: _created_topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.CREATE_PARTITIONS: _created_partitions,
    ApiKey.DELETE_RECORDS: _deleted_records,
    ApiKey.ELECT_LEADERS: _elected_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassigned_partitions,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _moved_replicas,
    ApiKey.DELETE_GROUPS: _deleted_groups,
    ApiKey.OFFSET_DELETE: _deleted_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _share_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _share_offsets,
    ApiKey.ALTER_CONFIGS: _altered_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _altered_configs,
    ApiKey.CREATE_ACLS: _created_acls,
    ApiKey.DELETE_ACLS: _deleted_acls,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _altered_users,
    ApiKey.ALTER_CLIENT_QUOTAS: _altered_quotas,
    ApiKey.CREATE_DELEGATION_TOKEN: _created_token,
    ApiKey.UPDATE_FEATURES: _updated_features,
    ApiKey.UNREGISTER_BROKER: _unregistered_broker,
}
