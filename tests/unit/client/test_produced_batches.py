"""How the tests' own `produce_batch` retries: what was refused is sent again, what may have been appended is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.client.addresses import Address
from ottla.client.cluster import ClientOptions, Cluster
from ottla.core.errors import KafkaError, NotLeaderOrFollower
from ottla.core.ids import TopicPartition
from ottla.records.builder import NewRecord, build_batch
from ottla.wire.apis import ApiKey
from ottla.wire.generated.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.support.topics import produce_batch
from tests.unit.client.scripted_broker import HANG_UP, Answer, ScriptedBroker, once, scripted_broker

BATCH = bytes(build_batch([NewRecord(None, b"x", 0)]))
PLACE = TopicPartition("t", 0)


def produced(code: int) -> ProduceResponse:
    result = PartitionProduceResponse(index=0, error_code=code)
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[result])])


def appended(_request: Any) -> ProduceResponse:
    return produced(0)


@asynccontextmanager
async def connected(answer: Answer, *, retry_s: float = 30.0) -> AsyncIterator[tuple[ScriptedBroker, Cluster]]:
    async with scripted_broker() as broker:
        broker.answers[ApiKey.PRODUCE] = answer
        seeds = [Address("127.0.0.1", broker.port)]
        async with await Cluster.connect(seeds, options=ClientOptions(retry_s=retry_s)) as cluster:
            yield broker, cluster


async def test_a_refused_batch_is_sent_again_to_the_leader_of_fresh_metadata() -> None:
    """Kafka names the leader of a new topic before that broker knows that it is the leader."""
    async with connected(once(produced(6), produced(3), then=appended)) as (broker, cluster):
        await produce_batch(cluster, PLACE, BATCH)
        assert len(broker.requests(ApiKey.PRODUCE)) == 3
        assert len([each for each in broker.requests(ApiKey.METADATA) if each.topics]) == 3


@pytest.mark.parametrize("code", [7, 20, 10])
async def test_a_batch_that_may_have_been_appended_or_never_can_be_is_not_sent_again(code: int) -> None:
    async with connected(once(produced(code), then=appended)) as (broker, cluster):
        with pytest.raises(KafkaError) as raised:
            await produce_batch(cluster, PLACE, BATCH)
        assert raised.value.code == code
        assert len(broker.requests(ApiKey.PRODUCE)) == 1


async def test_a_batch_without_an_answer_is_not_sent_again() -> None:
    async with connected(once(HANG_UP, then=appended)) as (broker, cluster):
        with pytest.raises(AssertionError, match="may have been appended"):
            await produce_batch(cluster, PLACE, BATCH)
        assert len(broker.requests(ApiKey.PRODUCE)) == 1


async def test_the_retries_end_with_the_error() -> None:
    async with connected(lambda _: produced(6), retry_s=0.2) as (broker, cluster):
        with pytest.raises(NotLeaderOrFollower):
            await produce_batch(cluster, PLACE, BATCH)
        assert len(broker.requests(ApiKey.PRODUCE)) > 1
