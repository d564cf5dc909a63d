"""DescribeConfigs (key 32), versions 1 to 4.

What it does
  Shows every setting of topics, of this broker, of all brokers together (only what was set while they run), of
  loggers, groups and client-metrics subscriptions: value, source, synonyms, type and documentation; or only the
  requested ones. Secrets are shown as null.

What it does not do
  Settings that Kafka has and Ottla has not. The settings of another broker: ask that one.

Versions
  v1   synonyms (KIP-226)
  v3   type and documentation (KIP-569)
  v4   flexible encoding
"""

from __future__ import annotations

from functools import partial

from ottla.broker.config_resources import (
    DescribedConfig,
    all_brokers_entries,
    broker_entries,
    entity_entries,
    logger_entries,
    topic_entries,
)
from ottla.broker.handler_parts.admin_requests import check_topic_name, error_fields
from ottla.broker.handler_parts.configs_access import DESCRIBE_CONFIGS
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.broker.services import Services
from ottla.core.errors import InvalidRequest, KafkaError, UnknownTopicOrPartition
from ottla.core.settings import ConfigResourceType
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.wire.generated.describe_configs import (
    MESSAGES,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

ENTRY_WORK = 4
"""The share of a slice of work of one setting that is found."""


def answer(_request: Request, body: DescribeConfigsRequest, _view: ClusterView) -> InParts[DescribeConfigsResponse]:
    """Describe each entity separately, once."""
    response = DescribeConfigsResponse()
    one = partial(_resource, body)
    return InParts(response, Each(body.resources, one, into=response.results, key=_entity))


def _entity(asked: DescribeConfigsResource) -> tuple[int, str]:
    return asked.resource_type, asked.resource_name


def _resource(
    body: DescribeConfigsRequest, request: Request, asked: DescribeConfigsResource, view: ClusterView
) -> InParts[DescribeConfigsResult]:
    result = DescribeConfigsResult(resource_type=asked.resource_type, resource_name=asked.resource_name)
    try:
        DESCRIBE_CONFIGS.check(request, asked.resource_type, asked.resource_name)
        entries = _entries(request.services, asked, view)
    except KafkaError as error:
        result.error_code, result.error_message = error_fields(error)
        return InParts(result)
    one = partial(_entry, body, frozenset(asked.configuration_keys or ()))
    return InParts(result, Each(entries, one, into=result.configs, work=ENTRY_WORK))


def _entries(services: Services, asked: DescribeConfigsResource, view: ClusterView) -> list[DescribedConfig]:
    name = asked.resource_name
    match asked.resource_type:
        case ConfigResourceType.TOPIC:
            check_topic_name(name)
            topic = view.topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartition
            return topic_entries(services, topic.config)
        case ConfigResourceType.BROKER:
            if not name:
                return all_brokers_entries(services)
            _check_broker(services.node_id, name, "or empty string, but received")
            return broker_entries(services)
        case ConfigResourceType.BROKER_LOGGER:
            if not name:
                raise InvalidRequest("Broker id must not be empty")
            _check_broker(services.node_id, name, "but received")
            return logger_entries()
        case ConfigResourceType.CLIENT_METRICS:
            if not name:
                raise InvalidRequest("Client metrics subscription name must not be empty")
            return entity_entries(services, znodes.CLIENT_METRICS_KIND, name)
        case ConfigResourceType.GROUP:
            if not name:
                raise InvalidRequest("Group name must not be empty")
            return entity_entries(services, znodes.GROUPS_KIND, name)
        case unknown:
            raise InvalidRequest(f"Unsupported resource type: {unknown}")


def _check_broker(node_id: int, name: str, otherwise: str) -> None:
    try:
        number = int(name)
    except ValueError:
        raise InvalidRequest(f"Broker id must be an integer, but it is: {name}") from None
    if number != node_id:
        raise InvalidRequest(f"Unexpected broker id, expected {node_id} {otherwise} {name}")


def _entry(
    body: DescribeConfigsRequest, names: frozenset[str], _request: Request, entry: DescribedConfig, _view: ClusterView
) -> DescribeConfigsResourceResult | None:
    """Show a setting, unless others were asked for."""
    if names and entry.name not in names:
        return None
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in (entry.synonyms if body.include_synonyms else ())
        ],
        config_type=entry.kind.value if entry.kind else 0,
        documentation=entry.doc if body.include_documentation or entry.kind is None else None,
    )


HANDLER = ElementWise(MESSAGES, answer, access=DESCRIBE_CONFIGS)
