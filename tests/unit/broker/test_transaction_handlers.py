"""What the transaction APIs' handlers add to the coordinator, on a real broker: partitions, versions, filters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.ids import TRANSACTIONS_TOPIC, TopicPartition
from ottla.testing.cluster import BrokerHandlers
from ottla.wire.generated import add_offsets_to_txn as offsets
from ottla.wire.generated import add_partitions_to_txn as add
from ottla.wire.generated import api_versions, end_txn, find_coordinator, init_producer_id, list_transactions
from ottla.wire.generated import describe_transactions as describe
from ottla.wire.generated import write_txn_markers as markers

pytestmark = pytest.mark.simulated_time

FEW = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}


async def initialized(server: BrokerHandlers, name: str = "app", version: int = 5) -> tuple[int, int]:
    """Find the coordinator, which creates its topic, and initialize."""
    found = await server.call(
        "find_coordinator", 6, find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
    )
    assert (found.coordinators[0].error_code, found.coordinators[0].node_id) == (0, 1)
    await server.services.coordinators.transactions.led.wait_until_loaded()
    answer = await server.call("init_producer_id", version, init_request(name))
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


def init_request(name: str | None, producer_id: int = -1, epoch: int = -1) -> Any:
    return init_producer_id.InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=60_000, producer_id=producer_id, producer_epoch=epoch
    )


async def with_topic(server: BrokerHandlers, name: str = "web", partitions: int = 2) -> None:
    await server.services.controller.create_topic(name, partitions=partitions, replication_factor=1)


def topics(**partitions: list[int]) -> list[add.AddPartitionsToTxnTopic]:
    return [add.AddPartitionsToTxnTopic(name=name, partitions=found) for name, found in partitions.items()]


async def added(
    server: BrokerHandlers, producer: tuple[int, int], asked: list[Any], *, version: int = 3, name: str = "app"
) -> dict[str, dict[int, int]]:
    request = add.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=asked,
    )
    answer = await server.call("add_partitions_to_txn", version, request)
    return codes(answer.results_by_topic_v3_and_below)


def codes(results: list[Any]) -> dict[str, dict[int, int]]:
    return {
        topic.name: {each.partition_index: each.partition_error_code for each in topic.results_by_partition}
        for topic in results
    }


async def ended(
    server: BrokerHandlers, producer: tuple[int, int], *, committed: bool = True, version: int = 5
) -> tuple[int, int, int]:
    request = end_txn.EndTxnRequest(
        transactional_id="app", producer_id=producer[0], producer_epoch=producer[1], committed=committed
    )
    answer = await server.call("end_txn", version, request)
    return answer.error_code, answer.producer_id, answer.producer_epoch


async def state_of(server: BrokerHandlers, name: str = "app") -> describe.TransactionState:
    request = describe.DescribeTransactionsRequest(transactional_ids=[name])
    (found,) = (await server.call("describe_transactions", 0, request)).transaction_states
    assert isinstance(found, describe.TransactionState)
    return found


async def until(server: BrokerHandlers, state: str) -> describe.TransactionState:
    while (found := await state_of(server)).transaction_state != state:  # noqa: ASYNC110  # clients have no event
        await asyncio.sleep(0.001)
    return found


@pytest.mark.options(FEW)
async def test_a_transaction_writes_its_marker_into_the_partition(broker: BrokerHandlers) -> None:
    await with_topic(broker)
    producer = await initialized(broker)
    assert producer[1] == 0
    assert await added(broker, producer, topics(web=[0, 1])) == {"web": {0: 0, 1: 0}}
    described = await state_of(broker)
    assert (described.transaction_state, described.producer_id) == ("Ongoing", producer[0])
    assert [(one.topic, one.partitions) for one in described.topics] == [("web", [0, 1])]
    assert described.transaction_timeout_ms == 60_000
    assert described.transaction_start_time_ms > 0
    assert await ended(broker, producer) == (0, producer[0], 1)
    complete = await until(broker, "CompleteCommit")
    assert (complete.topics, complete.producer_epoch) == ([], 1)
    log = broker.services.replicas.partition(TopicPartition("web", 1)).log
    assert log.end_offset == 1
    assert broker.services.cluster.current.topics[TRANSACTIONS_TOPIC].partitions[1].leader == 1


@pytest.mark.options(FEW)
async def test_one_bad_partition_keeps_all_out(broker: BrokerHandlers) -> None:
    await with_topic(broker)
    producer = await initialized(broker)
    assert await added(broker, producer, topics(web=[0, 7], none=[0], __transaction_state=[0])) == {
        "web": {0: ErrorCode.OPERATION_NOT_ATTEMPTED, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        "none": {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        "__transaction_state": {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED},
    }
    assert (await state_of(broker)).transaction_state == "Empty"
    assert await added(broker, producer, topics(web=[0]), name="") == {"web": {0: ErrorCode.INVALID_REQUEST}}


@pytest.mark.options(FEW)
async def test_brokers_ask_for_many_transactions_and_verify(broker: BrokerHandlers) -> None:
    await with_topic(broker)
    producer = await initialized(broker)

    def transaction(name: str, asked: list[Any], **more: Any) -> add.AddPartitionsToTxnTransaction:
        return add.AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=producer[0], producer_epoch=producer[1], topics=asked, **more
        )

    request = add.AddPartitionsToTxnRequest(
        transactions=[transaction("app", topics(web=[0])), transaction("unknown", topics(web=[0]))]
    )
    answer = await broker.call("add_partitions_to_txn", 5, request)
    assert [(each.transactional_id, codes(each.topic_results)) for each in answer.results_by_transaction] == [
        ("app", {"web": {0: 0}}),
        ("unknown", {"web": {0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}}),
    ]
    verify = add.AddPartitionsToTxnRequest(transactions=[transaction("app", topics(web=[0, 1]), verify_only=True)])
    (verified,) = (await broker.call("add_partitions_to_txn", 4, verify)).results_by_transaction
    assert codes(verified.topic_results) == {"web": dict.fromkeys((0, 1), ErrorCode.TRANSACTION_ABORTABLE)}


@pytest.mark.options(FEW)
async def test_old_clients_know_a_fenced_producer_by_its_epoch(broker: BrokerHandlers) -> None:
    await with_topic(broker)
    old = await initialized(broker)
    new = await initialized(broker)
    assert new == (old[0], 1)
    epoch, fenced = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED
    for version, error in ((1, epoch), (2, fenced)):
        assert await added(broker, old, topics(web=[0]), version=version) == {"web": {0: error}}
        request = offsets.AddOffsetsToTxnRequest(
            transactional_id="app", producer_id=old[0], producer_epoch=old[1], group_id="team"
        )
        assert (await broker.call("add_offsets_to_txn", version, request)).error_code == error
        assert (await ended(broker, old, version=version))[0] == error
    for version, error in ((3, epoch), (4, fenced)):
        refused = await broker.call("init_producer_id", version, init_request("app", *old))
        assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (error, -1, -1)


@pytest.mark.options(FEW)
async def test_the_first_version_answers_without_a_new_epoch(broker: BrokerHandlers) -> None:
    await with_topic(broker)
    producer = await initialized(broker)
    await added(broker, producer, topics(web=[0]))
    assert await ended(broker, producer, version=4) == (0, -1, -1)
    assert (await until(broker, "CompleteCommit")).producer_epoch == 0


@pytest.mark.options(FEW)
async def test_the_offsets_of_a_group_are_part_of_the_transaction(broker: BrokerHandlers) -> None:
    producer = await initialized(broker)
    request = offsets.AddOffsetsToTxnRequest(
        transactional_id="app", producer_id=producer[0], producer_epoch=0, group_id="team"
    )
    assert (await broker.call("add_offsets_to_txn", 4, request)).error_code == 0  # creates __consumer_offsets
    (topic,) = (await state_of(broker)).topics
    assert (topic.topic, topic.partitions) == ("__consumer_offsets", [1])
    assert (await ended(broker, producer))[0] == 0
    await until(broker, "CompleteCommit")
    request.transactional_id = ""
    assert (await broker.call("add_offsets_to_txn", 4, request)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.options(FEW)
async def test_producers_without_transactions_get_an_id(broker: BrokerHandlers) -> None:
    answer = await broker.call("init_producer_id", 5, init_request(None))
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    for name, producer_id, epoch in (("", -1, -1), (None, 5, -1), ("app", -1, 5)):
        refused = await broker.call("init_producer_id", 5, init_request(name, producer_id, epoch))
        assert (refused.error_code, refused.producer_id) == (ErrorCode.INVALID_REQUEST, -1)
    unknown = await broker.call("init_producer_id", 5, init_request("app"))
    assert unknown.error_code == ErrorCode.NOT_COORDINATOR  # the topic is created by FindCoordinator


@pytest.mark.options(FEW)
async def test_transactions_are_listed_by_state_producer_age_and_pattern(broker: BrokerHandlers) -> None:
    async def listed(server: BrokerHandlers, **filters: Any) -> tuple[int, list[str], list[str]]:
        request = list_transactions.ListTransactionsRequest(**filters)
        answer = await server.call("list_transactions", 2, request)
        names = sorted(each.transactional_id for each in answer.transaction_states)
        return answer.error_code, names, answer.unknown_state_filters

    await with_topic(broker)
    producer = await initialized(broker)
    await added(broker, producer, topics(web=[0]))
    other = await initialized(broker, "other")
    while await listed(broker, duration_filter=5, state_filters=["Ongoing"]) != (0, ["app"], []):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert await listed(broker) == (0, ["app", "other"], [])
    assert await listed(broker, state_filters=["Ongoing", "ongoing", "ongoing"]) == (0, ["app"], ["ongoing"])
    assert await listed(broker, state_filters=["none"]) == (0, [], ["none"])
    assert await listed(broker, producer_id_filters=[other[0], 999]) == (0, ["other"], [])
    assert await listed(broker, duration_filter=60_000, state_filters=["Ongoing"]) == (0, [], [])
    assert await listed(broker, transactional_id_pattern="a.*") == (0, ["app"], [])
    assert await listed(broker, transactional_id_pattern="a") == (0, [], [])  # the whole id must match
    for invalid in ("(", "(a)\\1"):  # a back reference would make the time exponential
        assert await listed(broker, transactional_id_pattern=invalid) == (ErrorCode.INVALID_REGULAR_EXPRESSION, [], [])


@pytest.mark.options(FEW)
async def test_an_unknown_id_is_not_found(broker: BrokerHandlers) -> None:
    await initialized(broker)
    assert (await state_of(broker, "other")).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert (await state_of(broker, "")).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.options(FEW)
async def test_another_coordinator_writes_markers_by_request(broker: BrokerHandlers) -> None:
    await with_topic(broker)

    async def write(epoch: int, coordinator_epoch: int) -> list[Any]:
        asked = [
            markers.WritableTxnMarkerTopic(name="web", partition_indexes=[0, 9]),
            markers.WritableTxnMarkerTopic(name="none", partition_indexes=[0]),
        ]
        marker = markers.WritableTxnMarker(
            producer_id=7,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            transaction_result=True,
            topics=asked,
        )
        answer = await broker.call("write_txn_markers", 1, markers.WriteTxnMarkersRequest(markers=[marker]))
        (one,) = answer.markers
        assert one.producer_id == 7
        return [(topic.name, {p.partition_index: p.error_code for p in topic.partitions}) for topic in one.topics]

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await write(5, 3) == [("web", {0: 0, 9: unknown}), ("none", {0: unknown})]
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await write(5, 2) == [("web", {0: fenced, 9: unknown}), ("none", {0: unknown})]
    epoch = ErrorCode.INVALID_PRODUCER_EPOCH
    assert await write(4, 3) == [("web", {0: epoch, 9: unknown}), ("none", {0: unknown})]
    assert (await broker.call("write_txn_markers", 1, markers.WriteTxnMarkersRequest())).markers == []


@pytest.mark.options(FEW)
async def test_the_second_version_of_transactions_is_advertised(broker: BrokerHandlers) -> None:
    for version, lowest in ((3, 1), (4, 0)):
        request = api_versions.ApiVersionsRequest(client_software_name="test", client_software_version="1")
        answer = await broker.call("api_versions", version, request)
        supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
        assert supported["transaction.version"] == (lowest, 2)
        levels = {one.name: (one.min_version_level, one.max_version_level) for one in answer.finalized_features}
        assert levels["transaction.version"] == (2, 2)
        assert answer.finalized_features_epoch > 0
