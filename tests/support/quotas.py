"""Sets quotas and uses a broker as clients do: connections with a client id, requests one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.client.connection import Connection, open_connection
from ottla.testing.cluster import TestCluster
from ottla.wire.apis import ApiKey
from ottla.wire.generated.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from ottla.wire.generated.describe_client_quotas import DescribeClientQuotasRequest
from ottla.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.batches import batch, numbered

TIMEOUT_S = 10_000.0  # of virtual time: a client may have to wait for long


async def connect(cluster: TestCluster, client_id: str, node_id: int = 1) -> Connection:
    """Return a connection to a broker."""
    address = cluster.addresses[list(cluster.brokers).index(node_id)]
    return await open_connection(address, client_id=client_id, timeout_s=TIMEOUT_S)


async def alter_quotas(
    cluster: TestCluster, entity: Mapping[str, str | None], node_id: int = 1, **quotas: float | None
) -> list[tuple[int, str | None]]:
    """Set or (None) remove quotas of an entity; returns the errors. All brokers have seen the change then."""
    connection = await connect(cluster, "admin", node_id)
    ops = [OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()]
    parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    request = AlterClientQuotasRequest(entries=[AlterClientQuotasRequestEntryData(entity=parts, ops=ops)])
    answer = await connection.request(ApiKey.ALTER_CLIENT_QUOTAS, request, timeout_s=TIMEOUT_S)
    await connection.close()
    await cluster.until(
        lambda: len({str(cluster.services(each).cluster.current.configs) for each in cluster.brokers}) == 1
    )
    return [(entry.error_code, entry.error_message) for entry in answer.entries]


async def described(cluster: TestCluster) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    """Return all quotas."""
    connection = await connect(cluster, "admin")
    answer = await connection.request(ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest(), timeout_s=TIMEOUT_S)
    await connection.close()
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


def produce_request(topic: str, size: int, *, acks: int = 1) -> ProduceRequest:
    """Return a request with one batch of about so many bytes."""
    records = batch(numbered(1, size=size))
    topic_data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])]
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=topic_data)


async def produce(connection: Connection, topic: str, size: int) -> Any:
    """Produce one batch of about so many bytes; returns the response."""
    request = produce_request(topic, size)
    return await connection.request(ApiKey.PRODUCE, request, timeout_s=TIMEOUT_S, at_most=12)


async def fetch(connection: Connection, topic: str, *, size: int, offset: int = 0) -> Any:
    """Fetch at most so many bytes from an offset, without a session; returns the response."""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=size)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=size,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    return await connection.request(ApiKey.FETCH, request, timeout_s=TIMEOUT_S, at_most=12)


def fetched_bytes(answer: Any) -> int:
    """Return the bytes of records in a response."""
    return sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)
