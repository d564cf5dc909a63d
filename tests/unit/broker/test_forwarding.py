"""Requests for the controller that reach another broker, and connections between brokers."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.handlers import envelope
from ottla.broker.requests.handler import ForwardedRequest
from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.client.connection import Connection
from ottla.client.errors import CannotConnect
from ottla.controller.topics import CreateTopic
from ottla.core.errors import ErrorCode, InvalidReplicationFactor, NotController
from ottla.core.ids import OFFSETS_TOPIC
from ottla.net.identity import USER, ConnectionIdentity
from ottla.testing.cluster import TestCluster
from ottla.testing.requests import connection_without_socket, request_to
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.generated.alter_configs import AlterableConfig as ReplacedConfig
from ottla.wire.generated.alter_configs import AlterConfigsRequest
from ottla.wire.generated.alter_configs import AlterConfigsResource as ReplacedResource
from ottla.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.generated.envelope import EnvelopeRequest
from ottla.wire.generated.find_coordinator import FindCoordinatorRequest
from ottla.wire.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.headers import encode_request_header

pytestmark = pytest.mark.simulated_time

TOPIC, BROKER, LOGGER = 2, 4, 8


def _follower(cluster: TestCluster) -> int:
    return next(node_id for node_id in cluster.brokers if node_id != cluster.controller)


async def _connect(cluster: TestCluster, node_id: int) -> Connection:
    """A connection as a client opens it; without APIs between brokers."""
    return await cluster.services(node_id).nodes.connect_to(node_id)


async def test_topics_are_created_and_deleted_by_a_request_to_any_broker(cluster: TestCluster) -> None:
    connection = await _connect(cluster, _follower(cluster))
    topics = [CreatableTopic(name="web", num_partitions=3, replication_factor=2)]
    topics += [CreatableTopic(name=f"long-{index}", num_partitions=1, replication_factor=1) for index in range(300)]
    request = CreateTopicsRequest(topics=topics, timeout_ms=10_000)
    answer = await connection.request(ApiKey.CREATE_TOPICS, request, timeout_s=20)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.NONE}
    assert answer.topics[0].num_partitions == 3
    await cluster.known_everywhere("web")
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name="web")], timeout_ms=10_000)
    answer = await connection.request(ApiKey.DELETE_TOPICS, delete, timeout_s=10)
    assert answer.responses[0].error_code == ErrorCode.NONE
    await cluster.until(lambda: all("web" not in cluster.services(i).cluster.current.topics for i in (1, 2, 3)))


async def test_a_forwarded_request_reaches_the_next_controller(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    was, asked = cluster.controller, _follower(cluster)
    connection = await _connect(cluster, asked)
    await cluster.kill(was, session_expires=False)
    nodes, attempts = cluster.services(asked).nodes, []
    connect_to = nodes.connect_to

    async def counted(node_id: int) -> Connection:
        attempts.append(node_id)
        return await connect_to(node_id)

    monkeypatch.setattr(nodes, "connect_to", counted)
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="web", num_partitions=1, replication_factor=1)], timeout_ms=10_000
    )
    answering = asyncio.ensure_future(connection.request(ApiKey.CREATE_TOPICS, request, timeout_s=20))
    await cluster.until(lambda: attempts.count(was) >= 2)
    assert not answering.done()
    await cluster.expire(was)
    answer = await answering
    assert answer.topics[0].error_code == ErrorCode.NONE
    assert cluster.controller != was


@pytest.mark.options({"request.timeout.ms": "500"})
async def test_without_a_controller_the_client_gets_not_controller(cluster: TestCluster) -> None:
    was, asked = cluster.controller, _follower(cluster)
    connection = await _connect(cluster, asked)
    await cluster.kill(was, session_expires=False)
    request = CreateTopicsRequest(topics=[CreatableTopic(name="web", num_partitions=1, replication_factor=1)])
    answer = await connection.request(ApiKey.CREATE_TOPICS, request, timeout_s=10)
    assert answer.topics[0].error_code == ErrorCode.NOT_CONTROLLER
    await cluster.expire(was)


@pytest.mark.brokers(2)
async def test_a_broker_that_is_not_the_controller_refuses_an_envelope(cluster: TestCluster) -> None:
    version = 7
    body = codec.encode_request(ApiKey.CREATE_TOPICS, version, CreateTopicsRequest())
    inner = encode_request_header(ApiKey.CREATE_TOPICS, version, 7, "client") + body
    request = EnvelopeRequest(request_data=inner, request_principal=None, client_host_address=b"\x7f\0\0\1")
    follower = await _connect(cluster, _follower(cluster))
    controller = await _connect(cluster, cluster.controller)
    answer = await follower.request(ApiKey.ENVELOPE, request, timeout_s=10)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
    answer = await controller.request(ApiKey.ENVELOPE, request, timeout_s=10)
    assert answer.error_code == ErrorCode.NONE
    assert answer.response_data[:4] == (7).to_bytes(4, "big")
    foreign = encode_request_header(ApiKey.METADATA, 12, 7, "client")
    request = EnvelopeRequest(request_data=foreign, request_principal=None, client_host_address=b"")
    answer = await controller.request(ApiKey.ENVELOPE, request, timeout_s=10)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.brokers(1)
async def test_a_request_without_a_client_is_the_other_brokers_own(cluster: TestCluster) -> None:
    connection = connection_without_socket(host="192.0.2.7", listener="BROKERS")
    request = request_to(cluster.services(1), 0, connection=connection)
    request.identity = ConnectionIdentity(USER, "broker")
    version = 7
    body = codec.encode_request(ApiKey.CREATE_TOPICS, version, CreateTopicsRequest())
    inner = encode_request_header(ApiKey.CREATE_TOPICS, version, 7, "broker") + body
    own = envelope.unwrap(request, EnvelopeRequest(request_data=inner, request_principal=None, client_host_address=b""))
    assert isinstance(own, ForwardedRequest)
    assert (own.identity.principal_name, own.client_host, own.listener) == ("broker", "192.0.2.7", "BROKERS")


def test_only_requests_for_the_controller_are_forwarded() -> None:
    assert {api.key for api in APIS.values() if api.controller_only} >= {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
    }
    assert not any(api.controller_only and api.load().is_deferred for api in APIS.values())
    assert not any(key in APIS for key in INTER_BROKER_APIS)
    assert APIS.keys() >= envelope.FORWARDED_IN_PART


@pytest.mark.brokers(2)
async def test_settings_are_altered_by_a_request_to_any_broker(cluster: TestCluster) -> None:
    asked = _follower(cluster)
    other = cluster.controller
    await cluster.services(other).controller.create_topic("web", partitions=1, replication_factor=1)
    await cluster.known_everywhere("web")
    level = AlterableConfig(name="ottla.net.server", config_operation=0, value="ERROR")
    retention = AlterableConfig(name="retention.ms", config_operation=0, value="1000")
    dynamic = AlterableConfig(name="max.connections", config_operation=0, value="77")
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(resource_type=TOPIC, resource_name="web", configs=[retention]),
            AlterConfigsResource(resource_type=BROKER, resource_name=str(asked), configs=[dynamic]),
            AlterConfigsResource(resource_type=BROKER, resource_name=str(other), configs=[dynamic]),
            AlterConfigsResource(resource_type=LOGGER, resource_name=str(asked), configs=[level]),
        ]
    )
    answer = await cluster.handlers(asked).call("incremental_alter_configs", 1, request)
    refused = ErrorCode.INVALID_REQUEST
    assert [each.error_code for each in answer.responses] == [0, 0, refused, 0]
    await cluster.until(lambda: cluster.services(asked).config.net.connections_max == 77)
    assert cluster.services(other).config.net.connections_max != 77
    topics = cluster.services(asked).cluster.current.topics
    assert topics["web"].config == {"retention.ms": "1000"}
    segment = ReplacedConfig(name="segment.bytes", value="2000000")
    replacing = AlterConfigsRequest(
        resources=[
            ReplacedResource(resource_type=TOPIC, resource_name="web", configs=[segment]),
            ReplacedResource(resource_type=TOPIC, resource_name="missing", configs=[segment]),
        ]
    )
    answer = await cluster.handlers(asked).call("alter_configs", 2, replacing)
    assert [each.error_code for each in answer.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    await cluster.until(
        lambda: cluster.services(asked).cluster.current.topics["web"].config == {"segment.bytes": "2000000"}
    )


@pytest.mark.brokers(2)
@pytest.mark.options({"auto.create.topics.enable": "true"})
async def test_a_topic_is_created_by_its_first_use_on_any_broker(cluster: TestCluster) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="fresh")], allow_auto_topic_creation=True)
    answer = await cluster.handlers(_follower(cluster)).call("metadata", 12, request)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await cluster.known_everywhere("fresh")


@pytest.mark.brokers(2)
async def test_an_internal_topic_gets_all_its_replicas_or_is_not_created(cluster: TestCluster) -> None:
    """Of a cluster the first broker must not create it with one replica."""
    request = FindCoordinatorRequest(key="group", key_type=0)
    for node_id in cluster.brokers:
        answer = await cluster.handlers(node_id).call("find_coordinator", 3, request)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await cluster.restart(3)
    await cluster.until(lambda: all(len(cluster.services(i).cluster.current.brokers) == 3 for i in (1, 2, 3)))
    asked = _follower(cluster)
    answers = await asyncio.gather(*(cluster.handlers(asked).call("find_coordinator", 3, request) for _ in range(20)))
    assert {answer.error_code for answer in answers} <= {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    await cluster.known_everywhere(OFFSETS_TOPIC)
    topic = cluster.services(1).cluster.current.topics[OFFSETS_TOPIC]
    assert topic.replication_factor == 3


@pytest.mark.brokers(2)
async def test_the_channel_reports_the_controllers_refusal(cluster: TestCluster) -> None:
    channel = cluster.services(_follower(cluster)).controller_channel
    assert channel.must_forward
    with pytest.raises(InvalidReplicationFactor):
        await channel.create_topic(CreateTopic("web", 1, 5))
    assert not cluster.services(cluster.controller).controller_channel.must_forward
    with pytest.raises(NotController):
        await cluster.services(cluster.controller).controller_channel.forward(b"")


@pytest.mark.brokers(2)
async def test_connections_between_brokers_end_with_the_broker(cluster: TestCluster) -> None:
    nodes = cluster.services(1).nodes
    connection = await nodes.connect_to(2)
    assert ApiKey.ENVELOPE in connection.versions
    with pytest.raises(CannotConnect):
        await nodes.connect_to(9)
    await cluster.stop(1)
    assert not connection.usable
