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

from ottla.broker.config_resources import (
    DescribedConfig,
    all_brokers_entries,
    broker_entries,
    entity_entries,
    logger_entries,
    topic_entries,
)
from ottla.broker.context import RequestContext
from ottla.broker.handler_parts.admin_requests import check_topic_name, error_fields
from ottla.coordination import znodes
from ottla.core.errors import InvalidRequest, KafkaError, UnknownTopicOrPartition
from ottla.core.settings import ConfigResourceType
from ottla.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

ENTRY_WORK = 4
"""The share of a slice of work of one setting that is found."""


async def handle(ctx: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe each entity separately, once."""
    each = ctx.services.slices.each
    once = {(asked.resource_type, asked.resource_name): asked async for asked in each(request.resources)}
    return DescribeConfigsResponse(results=[await _result(ctx, request, asked) async for asked in each(once.values())])


async def _result(
    ctx: RequestContext, request: DescribeConfigsRequest, asked: DescribeConfigsResource
) -> DescribeConfigsResult:
    slices = ctx.services.slices
    answer = DescribeConfigsResult(resource_type=asked.resource_type, resource_name=asked.resource_name)
    wanted = {key async for key in slices.each(asked.configuration_keys or ())}
    try:
        entries = _entries(ctx, asked)
    except KafkaError as error:
        answer.error_code, answer.error_message = error_fields(error)
        return answer
    slices.spend(ENTRY_WORK * len(entries))
    answer.configs = [
        _shown(request, entry) async for entry in slices.each(entries) if not wanted or entry.name in wanted
    ]
    return answer


def _entries(ctx: RequestContext, asked: DescribeConfigsResource) -> list[DescribedConfig]:
    services, name = ctx.services, asked.resource_name
    match asked.resource_type:
        case ConfigResourceType.TOPIC:
            check_topic_name(name)
            topic = services.cluster.current.topics.get(name)
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


def _shown(request: DescribeConfigsRequest, entry: DescribedConfig) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=entry.kind.value if entry.kind else 0,
        documentation=entry.doc if request.include_documentation or entry.kind is None else None,
    )
