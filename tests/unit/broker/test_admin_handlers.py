"""Topics, records, producers and directories through their handlers: each item by itself, with Kafka's codes."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.testing.cluster import BrokerHandlers
from ottla.wire.generated import (
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    init_producer_id,
    metadata,
)
from tests.support.storage import NOW_MS, batch

pytestmark = pytest.mark.simulated_time


async def create(
    server: BrokerHandlers, *topics: tuple[str, int], timeout_ms: int = 10_000, **more: Any
) -> list[tuple[str, int]]:
    wanted = [create_topics.CreatableTopic(name=name, num_partitions=n, replication_factor=-1) for name, n in topics]
    request = create_topics.CreateTopicsRequest(topics=wanted, timeout_ms=timeout_ms, **more)
    answer = await server.call("create_topics", 7, request)
    return [(topic.name, topic.error_code) for topic in answer.topics]


async def names(
    server: BrokerHandlers, version: int, *asked: metadata.MetadataRequestTopic, **more: Any
) -> list[tuple[Any, int]]:
    request = metadata.MetadataRequest(topics=list(asked), **more)
    answer = await server.call("metadata", version, request)
    return [(topic.name, topic.error_code) for topic in answer.topics]


def by_name(name: str) -> metadata.MetadataRequestTopic:
    return metadata.MetadataRequestTopic(name=name)


def by_id(topic_id: uuid.UUID) -> metadata.MetadataRequestTopic:
    return metadata.MetadataRequestTopic(name=None, topic_id=topic_id)


async def test_topics_are_created_together_and_each_says_why_not(broker: BrokerHandlers) -> None:
    assert await create(
        broker, ("a", 2), ("twice", 1), ("b", 0), ("twice", 1), ("__cluster_metadata", 1), ("c", -1)
    ) == [
        ("a", 0),
        ("twice", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.INVALID_PARTITIONS),
        ("__cluster_metadata", ErrorCode.INVALID_REQUEST),
        ("c", 0),
    ]
    assert await create(broker, ("a", 1), ("d", 1), validate_only=True) == [
        ("a", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("d", 0),
    ]
    assert await create(broker, ("d", 1), timeout_ms=0) == [("d", ErrorCode.REQUEST_TIMED_OUT)]
    assert set(broker.services.cluster.current.topics) == {"a", "c"}
    assert len(broker.services.replicas.partitions) == 3


async def test_metadata_names_all_none_or_what_is_asked_for_by_the_rules_of_its_version(broker: BrokerHandlers) -> None:
    await create(broker, ("a", 1), ("b", 1))
    a = broker.services.cluster.current.topics["a"].topic_id
    never = {"allow_auto_topic_creation": False}
    assert await names(broker, 0) == [("a", 0), ("b", 0)]
    assert await names(broker, 1) == []
    everything = await broker.call("metadata", 1, metadata.MetadataRequest(topics=None))
    assert [topic.name for topic in everything.topics] == ["a", "b"]
    assert await names(broker, 12, by_name("a"), by_name("a")) == [("a", 0)]
    assert await names(broker, 12, by_id(a), by_id(uuid.UUID(int=9))) == [("a", 0), (None, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert await names(broker, 11, by_id(a)) == [("", ErrorCode.INVALID_REQUEST)]
    assert await names(broker, 12, by_name("x"), by_name("a b"), **never) == [
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert set(broker.services.cluster.current.topics) == {"a", "b"}


async def test_asking_for_a_topic_creates_it_if_the_request_and_the_broker_allow_it(broker: BrokerHandlers) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await names(broker, 12, by_name("x"), by_name("a b")) == [
        ("x", unknown),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert await names(broker, 12, by_name("x")) == [("x", 0)]
    never = {"allow_auto_topic_creation": False}
    assert await names(broker, 3, by_name("y"), **never) == [("y", unknown)]  # v3 has no such word
    assert await names(broker, 3, by_name("y"), **never) == [("y", 0)]
    assert {where.topic for where in broker.services.replicas.partitions} == {"x", "y"}


@pytest.mark.options({"auto.create.topics.enable": "false"})
async def test_asking_for_a_topic_creates_none_where_the_broker_does_not_allow_it(broker: BrokerHandlers) -> None:
    assert await names(broker, 12, by_name("z")) == [("z", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_a_deleted_topic_is_unknown_to_the_calls_that_create_it_again(broker: BrokerHandlers) -> None:
    await create(broker, ("t", 1))
    deletion = delete_topics.DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000)
    await broker.call("delete_topics", 5, deletion)
    one, other = await asyncio.gather(names(broker, 12, by_name("t")), names(broker, 12, by_name("t")))
    assert one == other == [("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert await names(broker, 12, by_name("t")) == [("t", 0)]


async def test_topics_are_deleted_by_name_or_by_id_but_not_by_both(broker: BrokerHandlers) -> None:
    await create(broker, ("a", 1), ("b", 1), ("c", 1), ("d", 1))
    ids = {name: topic.topic_id for name, topic in broker.services.cluster.current.topics.items()}

    async def delete(*topics: delete_topics.DeleteTopicState) -> dict[tuple[str | None, uuid.UUID], int]:
        request = delete_topics.DeleteTopicsRequest(topics=list(topics), timeout_ms=5000)
        answer = await broker.call("delete_topics", 6, request)
        return {(each.name, each.topic_id): each.error_code for each in answer.responses}

    state = delete_topics.DeleteTopicState
    unknown = uuid.UUID(int=9)
    assert await delete(
        state(name="a"),
        state(topic_id=ids["b"]),
        state(name="c", topic_id=ids["c"]),
        state(),
        state(topic_id=unknown),
        state(name="d"),
        state(topic_id=ids["d"]),
    ) == {
        ("a", ids["a"]): 0,
        ("b", ids["b"]): 0,
        ("c", ids["c"]): ErrorCode.INVALID_REQUEST,
        (None, NO_TOPIC_ID): ErrorCode.INVALID_REQUEST,
        (None, unknown): ErrorCode.UNKNOWN_TOPIC_ID,
        ("d", ids["d"]): ErrorCode.INVALID_REQUEST,
    }
    assert set(broker.services.cluster.current.topics) == {"c", "d"}
    assert {where.topic for where in broker.services.replicas.partitions} == set(broker.services.cluster.current.topics)


@pytest.mark.options({"delete.topic.enable": "false"})
async def test_a_broker_that_may_not_delete_says_so_in_the_words_of_the_version(broker: BrokerHandlers) -> None:
    await create(broker, ("a", 1))
    for version, code in ((1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)):
        request = delete_topics.DeleteTopicsRequest(topic_names=["a"], timeout_ms=5000)
        answer = await broker.call("delete_topics", version, request)
        assert [each.error_code for each in answer.responses] == [code]
    assert "a" in broker.services.cluster.current.topics


async def test_partitions_are_added_and_can_be_served(broker: BrokerHandlers) -> None:
    await create(broker, ("a", 1), ("b", 1))
    wanted = [
        create_partitions.CreatePartitionsTopic(name=n, count=c, assignments=None)
        for n, c in (("a", 4), ("b", 1), ("nope", 2))
    ]
    request = create_partitions.CreatePartitionsRequest(topics=wanted, timeout_ms=5000)
    answer = await broker.call("create_partitions", 3, request)
    assert [(each.name, each.error_code) for each in answer.results] == [
        ("a", 0),
        ("b", ErrorCode.INVALID_PARTITIONS),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert sum(where.topic == "a" for where in broker.services.replicas.partitions) == 4


async def test_a_description_is_paged_and_the_pages_together_are_whole(broker: BrokerHandlers) -> None:
    await create(broker, ("b", 3), ("a", 2), ("c", 1))
    for limit in range(1, 8):
        seen: list[tuple[str, int]] = []
        cursor = None
        while True:
            request = describe_topic_partitions.DescribeTopicPartitionsRequest(
                response_partition_limit=limit, cursor=cursor
            )
            answer = await broker.call("describe_topic_partitions", 0, request)
            page = [(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions]
            assert 0 < len(page) <= limit
            seen += page
            cursor = answer.next_cursor
            if cursor is None:
                break
        assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    stray = describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[describe_topic_partitions.TopicRequest(name="a")],
        cursor=describe_topic_partitions.Cursor(topic_name="z", partition_index=0),
    )
    answer = await broker.call("describe_topic_partitions", 0, stray)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST]


async def test_producer_ids_differ(broker: BrokerHandlers) -> None:
    async def init(version: int = 4, **fields: Any) -> tuple[int, int, int]:
        request = init_producer_id.InitProducerIdRequest(transaction_timeout_ms=60_000, **fields)
        answer = await broker.call("init_producer_id", version, request)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    assert await init(transactional_id=None) == (0, 0, 0)
    assert await init(transactional_id=None, producer_id=0, producer_epoch=0) == (0, 1, 0)
    assert await init(transactional_id=None, producer_id=7) == (ErrorCode.INVALID_REQUEST, -1, -1)
    assert await init(transactional_id="") == (ErrorCode.INVALID_REQUEST, -1, -1)
    await broker.restart()
    request = init_producer_id.InitProducerIdRequest(transactional_id=None)
    assert (await broker.call("init_producer_id", 4, request)).producer_id == 1000


async def test_records_producers_and_directories_answer_for_each_partition(broker: BrokerHandlers) -> None:
    await create(broker, ("a", 2))
    part, topic = delete_records.DeleteRecordsPartition, delete_records.DeleteRecordsTopic
    request = delete_records.DeleteRecordsRequest(
        topics=[
            topic(name="a", partitions=[part(partition_index=0, offset=-1), part(partition_index=1, offset=5)]),
            topic(name="a", partitions=[part(partition_index=0, offset=-2), part(partition_index=9, offset=0)]),
            topic(name="__consumer_offsets", partitions=[part(partition_index=0, offset=-1)]),
        ]
    )
    answer = await broker.call("delete_records", 2, request)
    assert [(each.low_watermark, each.error_code) for found in answer.topics for each in found.partitions] == [
        (0, 0),
        (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    producers = describe_producers.DescribeProducersRequest(
        topics=[describe_producers.TopicRequest(name=name, partition_indexes=[0]) for name in ("a", "nope", "a b")]
    )
    answer = await broker.call("describe_producers", 0, producers)
    assert [found.partitions[0].error_code for found in answer.topics] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    for topics, count in ((None, 2), ([], 0), ([("a", [1, 9])], 1), ([("nope", [0])], 0)):
        asked = (
            None
            if topics is None
            else [describe_log_dirs.DescribableLogDirTopic(topic=name, partitions=parts) for name, parts in topics]
        )
        request_dirs = describe_log_dirs.DescribeLogDirsRequest(topics=asked)
        (result,) = (await broker.call("describe_log_dirs", 4, request_dirs)).results
        assert sum(len(found.partitions) for found in result.topics) == count
        assert result.log_dir == str(broker.cluster.paths(1)[0])
        assert 0 < result.usable_bytes < result.total_bytes


@pytest.mark.directories(2)
async def test_a_replica_moves_to_another_log_directory(broker: BrokerHandlers) -> None:
    here, there = broker.cluster.paths(1)
    await create(broker, ("web", 1))

    async def alter(version: int, *wanted: tuple[str, str, int]) -> list[tuple[str, int, int]]:
        dirs = [
            alter_replica_log_dirs.AlterReplicaLogDir(
                path=path, topics=[alter_replica_log_dirs.AlterReplicaLogDirTopic(name=topic, partitions=[partition])]
            )
            for path, topic, partition in wanted
        ]
        request = alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs=dirs)
        answer = await broker.call("alter_replica_log_dirs", version, request)
        return [
            (topic.topic_name, each.partition_index, each.error_code)
            for topic in answer.results
            for each in topic.partitions
        ]

    async def described() -> dict[Path, list[tuple[str, bool, int]]]:
        answer = await broker.call("describe_log_dirs", 4, describe_log_dirs.DescribeLogDirsRequest(topics=None))
        return {
            Path(result.log_dir): [
                (f"{topic.name}-{each.partition_index}", each.is_future_key, each.offset_lag)
                for topic in result.topics
                for each in topic.partitions
            ]
            for result in answer.results
        }

    assert await described() == {here: [("web-0", False, 0)], there: []}
    partition = broker.services.replicas.partitions[TopicPartition("web", 0)]
    partition.append_as_leader(batch(b"x", b"y"), acks=1, now_ms=NOW_MS)
    wanted = [(str(there), "web", 0), ("/none", "web", 1), (str(there), "no", 0)]
    assert await alter(2, *wanted) == [
        ("web", 0, 0),
        ("web", 1, ErrorCode.LOG_DIR_NOT_FOUND),
        ("no", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert await described() == {here: [("web-0", False, 0)], there: [("web-0", True, 2)]}
    async with asyncio.timeout(20):
        while await described() != {here: [], there: [("web-0", False, 0)]}:  # noqa: ASYNC110 - as a client does
            await asyncio.sleep(0.01)
    assert await alter(1, (str(there), "web", 0)) == [("web", 0, 0)]


async def test_the_cluster_is_described_to_brokers_clients_only(broker: BrokerHandlers) -> None:
    codes = {}
    for kind in (1, 2, 7):
        request = describe_cluster.DescribeClusterRequest(endpoint_type=kind)
        answer = await broker.call("describe_cluster", 1, request)
        codes[kind] = answer.error_code
        assert len(answer.brokers) == (kind == 1)
    assert codes == {1: 0, 2: ErrorCode.MISMATCHED_ENDPOINT_TYPE, 7: ErrorCode.UNSUPPORTED_ENDPOINT_TYPE}
