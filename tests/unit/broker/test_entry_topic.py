"""The security audit log as a topic: every broker writes its entries there, and no client can."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ottla.broker.entry_topic import EntryTopic
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode
from ottla.core.ids import AUDIT_TOPIC, TopicPartition
from ottla.records.builder import NewRecord, build_batch
from ottla.security.audit_log import AuditQueue
from ottla.testing.cluster import TestCluster
from ottla.testing.requests import request_to
from ottla.wire.apis import ApiKey
from ottla.wire.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.cleaning import records_in_log

pytestmark = pytest.mark.simulated_time
with_topic = pytest.mark.options({"ottla.audit.topic.enable": "true", "ottla.audit.topic.retention.ms": "3600000"})


def _deny(cluster: TestCluster, node_id: int, name: str) -> None:
    services = cluster.services(node_id)
    assert services.audit_log is not None
    services.audit_log.denied(request_to(services, 1), AclOperation.READ, ResourceType.TOPIC, name)


def _entries(cluster: TestCluster) -> list[dict[str, Any]]:
    found = []
    for node_id in cluster.brokers:
        for name, partition in cluster.services(node_id).replicas.partitions.items():
            if name.topic == AUDIT_TOPIC and partition.is_serving:
                found += [json.loads(record.value or b"") for record in records_in_log(partition.log)]
    return found


def _denied(cluster: TestCluster) -> list[dict[str, Any]]:
    """Return the entries but those of changes: the brokers create the topic by requests to the controller."""
    return [entry for entry in _entries(cluster) if entry["event"] == "denied"]


@with_topic
async def test_each_broker_writes_its_entries_to_a_partition_that_it_leads(cluster: TestCluster) -> None:
    for node_id in cluster.brokers:
        for _ in range(2):
            _deny(cluster, node_id, f"t{node_id}")
    await cluster.until(lambda: len(_denied(cluster)) >= 3)
    found = sorted((entry["broker"], entry["resource"], entry.get("count")) for entry in _denied(cluster))
    assert found == [(node_id, f"t{node_id}", 2) for node_id in sorted(cluster.brokers)]
    topic = cluster.services(cluster.controller).cluster.current.topics[AUDIT_TOPIC]
    assert (len(topic.partitions), topic.replication_factor, topic.config["retention.ms"]) == (12, 3, "3600000")
    assert topic.internal


@with_topic
async def test_no_client_can_write_to_the_topic_or_delete_its_records(cluster: TestCluster) -> None:
    _deny(cluster, cluster.controller, "t")
    await cluster.until(lambda: len(_denied(cluster)) == 1)
    await cluster.known_everywhere(AUDIT_TOPIC)
    forged = bytes(build_batch([NewRecord(value=b'{"event":"denied"}')]))
    for node_id in cluster.brokers:
        services = cluster.services(node_id)
        connection = await services.nodes.connect_to(node_id)
        topic = services.cluster.current.topics[AUDIT_TOPIC]
        led = [each.index for each in topic.partitions if each.leader == node_id]
        data = TopicProduceData(
            topic_id=topic.topic_id,
            name=AUDIT_TOPIC,
            partition_data=[PartitionProduceData(index=index, records=forged) for index in led],
        )
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data])
        answer = await connection.request(ApiKey.PRODUCE, request, timeout_s=10)
        codes = {each.error_code for each in answer.responses[0].partition_responses}
        assert led and codes == {ErrorCode.INVALID_TOPIC_EXCEPTION}
        partitions = [DeleteRecordsPartition(partition_index=index, offset=-1) for index in led]
        deletion = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=AUDIT_TOPIC, partitions=partitions)], timeout_ms=1000
        )
        answer = await connection.request(ApiKey.DELETE_RECORDS, deletion, timeout_s=10)
        assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert len(_denied(cluster)) == 1


@with_topic
@pytest.mark.brokers(2)
async def test_entries_wait_for_a_topic_that_cannot_be_created_and_are_dropped_beyond_a_number(
    cluster: TestCluster,
) -> None:
    services = cluster.services(1)
    output = EntryTopic(services, AUDIT_TOPIC, AuditQueue(entries_max=3), "audit log")
    assert services.audit_log is not None
    services.audit_log._outputs = (output,)
    for number in range(5):
        _deny(cluster, 1, f"t{number}")
    await asyncio.sleep(5)  # three replicas are more than two brokers
    assert AUDIT_TOPIC not in services.cluster.current.topics
    assert (len(output.queue), output.queue.dropped_total) == (4, 2)
    await cluster.create_topic(AUDIT_TOPIC, partitions=4, replication_factor=2)
    await cluster.until(lambda: len(_entries(cluster)) == 4)
    assert [(entry["event"], entry.get("count")) for entry in _entries(cluster)] == [("dropped", 2)] + [
        ("denied", None)
    ] * 3
    assert TopicPartition(AUDIT_TOPIC, 0) in services.replicas.partitions
