"""Steps of coordinators that fail on a real broker: the client tries again and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.groups.consumer.group import ConsumerGroup
from ottla.testing.cluster import BrokerHandlers
from ottla.wire.generated import (
    consumer_group_heartbeat,
    create_topics,
    end_txn,
    find_coordinator,
    init_producer_id,
    list_groups,
)

pytestmark = pytest.mark.simulated_time

OPTIONS = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
AGAIN = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS}


async def _retried(call: Callable[[], Awaitable[Any]]) -> tuple[Any, set[int]]:
    """Repeat a request after the errors after which clients do; returns the answer and those errors."""
    seen: set[int] = set()
    while (answer := await call()).error_code in AGAIN:
        seen.add(answer.error_code)
        await asyncio.sleep(0.01)
    return answer, seen


async def _coordinator(broker: BrokerHandlers, key: str, kind: int) -> None:
    request = find_coordinator.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    while (await broker.call("find_coordinator", 4, request)).coordinators[0].error_code:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def _heartbeat(group_id: str, member_id: str, epoch: int) -> consumer_group_heartbeat.ConsumerGroupHeartbeatRequest:
    joins = epoch == 0
    return consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=9_000 if joins else -1,
        subscribed_topic_names=["t"] if joins else None,
        topic_partitions=[] if joins else None,
    )


@pytest.mark.options(OPTIONS)
async def test_the_members_of_a_group_whose_step_failed_go_on_with_their_assignment(
    broker: BrokerHandlers, caplog: pytest.LogCaptureFixture
) -> None:
    topic = create_topics.CreatableTopic(name="t", num_partitions=4, replication_factor=1)
    await broker.call("create_topics", 7, create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=9_000))
    await _coordinator(broker, "team", 0)
    led = broker.services.coordinators.groups.led
    beside = next(name for name in (str(n) for n in range(99)) if led.partition_for(name) == led.partition_for("team"))

    async def beat(group_id: str, epoch: int) -> tuple[Any, set[int]]:
        request = _heartbeat(group_id, "m", epoch)
        return await _retried(lambda: broker.call("consumer_group_heartbeat", 1, request))

    epochs = {group_id: (await beat(group_id, 0))[0].member_epoch for group_id in ("team", beside)}
    runtime = led.shard_of("team").find("team")
    assert runtime is not None
    assert isinstance(runtime.group, ConsumerGroup)
    runtime.group.by_instance["ghost"] = "m"
    answer, seen = await beat("team", epochs["team"])
    assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, epochs["team"])
    assert seen == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert (await beat(beside, epochs[beside]))[0].error_code == ErrorCode.NONE
    listed = await broker.call("list_groups", 5, list_groups.ListGroupsRequest())
    assert {group.group_id for group in listed.groups} == {"team", beside}
    assert (await beat("team", -1))[0].error_code == ErrorCode.NONE
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert OFFSETS_TOPIC in errors[0]
    assert "MemberHeartbeat(member_id='m'" in errors[0]


@pytest.mark.options(OPTIONS)
async def test_a_producer_whose_transactional_id_failed_a_step_goes_on(
    broker: BrokerHandlers, caplog: pytest.LogCaptureFixture
) -> None:
    await _coordinator(broker, "app", 1)
    begin = init_producer_id.InitProducerIdRequest(
        transactional_id="app", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    first, _ = await _retried(lambda: broker.call("init_producer_id", 5, begin))
    coordinator = broker.services.coordinators.transactions
    runtime = coordinator.led.shard_of("app").find("app")
    assert runtime is not None
    runtime.machine.metadata = replace(runtime.machine.metadata, next_producer_id=7)  # of no prepared transaction
    second, seen = await _retried(lambda: broker.call("init_producer_id", 5, begin))
    assert seen == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert (second.error_code, second.producer_id) == (ErrorCode.NONE, first.producer_id)
    assert second.producer_epoch == first.producer_epoch + 1
    abort = end_txn.EndTxnRequest(
        transactional_id="app", producer_id=second.producer_id, producer_epoch=second.producer_epoch, committed=False
    )
    assert (await _retried(lambda: broker.call("end_txn", 5, abort)))[0].error_code == ErrorCode.NONE
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert TRANSACTIONS_TOPIC in errors[0]
