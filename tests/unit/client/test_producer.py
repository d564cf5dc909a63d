"""What a producer does when brokers do what brokers do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.client.addresses import Address, parse_addresses
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.producer import Producer, ProducerOptions, RecordGroup, RecordRefused
from ottla.client.retry_report import RetryReport
from ottla.core.clock import SystemClock
from ottla.core.errors import (
    ErrorCode,
    KafkaError,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    StorageError,
    UnknownTopicOrPartition,
)
from ottla.records.batch import BatchHeader
from ottla.records.builder import NewRecord
from ottla.records.record_reader import read_records
from ottla.testing import kafka
from ottla.wire.apis import ApiKey
from ottla.wire.generated.init_producer_id import InitProducerIdResponse
from ottla.wire.generated.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.unit.client.scripted_broker import HANG_UP, ScriptedBroker, once, scripted_broker

OPTIONS = ProducerOptions(linger_s=0.01, delivery_timeout_s=2)


class Log:
    """One partition as a broker keeps it: appends batches, or refuses those over a size."""

    def __init__(self, *, bytes_max: int = 1 << 30) -> None:
        self.values: list[bytes | None] = []
        self.bytes_max = bytes_max
        self.identities = 0

    def append(self, request: Any) -> ProduceResponse:
        data = request.topic_data[0].partition_data[0]
        if len(data.records) > self.bytes_max:
            return produced(data.index, error_code=10)
        base_offset = len(self.values)
        self.values += [record.value for record in read_records(data.records)]
        return produced(data.index, base_offset=base_offset)

    def init(self, _request: Any) -> InitProducerIdResponse:
        self.identities += 1
        return InitProducerIdResponse(producer_id=self.identities, producer_epoch=0)


def produced(index: int = 0, *, base_offset: int = -1, error_code: int = 0) -> ProduceResponse:
    result = PartitionProduceResponse(index=index, base_offset=base_offset, error_code=error_code)
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[result])])


def headers(broker: ScriptedBroker) -> list[BatchHeader]:
    requests = broker.requests(ApiKey.PRODUCE)
    return [BatchHeader(bytes(request.topic_data[0].partition_data[0].records)) for request in requests]


@asynccontextmanager
async def producing(log: Log, options: ProducerOptions = OPTIONS) -> AsyncIterator[tuple[ScriptedBroker, Producer]]:
    async with scripted_broker() as broker:
        broker.answers[ApiKey.PRODUCE] = log.append
        broker.answers[ApiKey.INIT_PRODUCER_ID] = log.init
        seeds = [Address("127.0.0.1", broker.port)]
        async with (
            await Cluster.connect(seeds, options=ClientOptions(retry_s=2)) as cluster,
            Producer(cluster, clock=SystemClock(), options=options) as producer,
        ):
            yield broker, producer


async def test_records_sent_together_are_one_batch_and_each_gets_its_offset() -> None:
    log = Log()
    async with producing(log) as (broker, producer):
        sent = [await producer.send("t", value=b"%d" % n) for n in range(10)]
        await producer.flush()
        assert [future.result().offset for future in sent] == list(range(10))
        assert [header.record_count for header in headers(broker)] == [10]


@pytest.mark.parametrize("trouble", [produced(error_code=6), produced(error_code=19), HANG_UP])
async def test_a_retried_batch_has_the_same_sequence(trouble: Any) -> None:
    log = Log()
    async with producing(log) as (broker, producer):
        broker.answers[ApiKey.PRODUCE] = once(trouble, then=log.append)
        first = await (await producer.send("t", value=b"a"))
        second = await (await producer.send("t", value=b"b"))
        assert (first.offset, second.offset) == (0, 1)
        sent = headers(broker)
        assert [(h.producer_id, h.base_sequence) for h in sent] == [(1, 0), (1, 0), (1, 1)]


async def test_after_a_final_failure_the_sequence_restarts_under_a_new_producer_id() -> None:
    log = Log()
    async with producing(log) as (broker, producer):
        await (await producer.send("t", value=b"a"))
        broker.answers[ApiKey.PRODUCE] = once(produced(error_code=45), then=log.append)
        with pytest.raises(OutOfOrderSequenceNumber):
            await (await producer.send("t", value=b"lost"))
        await (await producer.send("t", value=b"b"))
        sent = headers(broker)
        assert [(h.producer_id, h.base_sequence) for h in sent] == [(1, 0), (1, 1), (2, 0)]
        assert log.values == [b"a", b"b"]


async def test_a_batch_that_is_too_large_is_split_and_only_the_large_record_fails() -> None:
    log = Log(bytes_max=400)
    async with producing(log) as (broker, producer):
        values = [b"x" * 60 for _ in range(5)] + [b"y" * 1000] + [b"z" * 60 for _ in range(2)]
        sent = [await producer.send("t", value=value) for value in values]
        await producer.flush()
        with pytest.raises(MessageTooLarge):
            sent[5].result()
        assert log.values == [value for value in values if len(value) < 100]
        written = [h for h in headers(broker) if h.size_bytes <= 400]
        assert [h.base_sequence for h in written] == [
            sum(h.record_count for h in written[:i]) for i in range(len(written))
        ]


async def test_a_duplicate_sequence_error_counts_as_written() -> None:
    async with producing(Log()) as (broker, producer):
        broker.answers[ApiKey.PRODUCE] = lambda _: produced(error_code=46)
        assert (await (await producer.send("t", value=b"a"))).offset == -1


async def test_a_partition_that_does_not_exist_is_refused_at_once() -> None:
    async with producing(Log()) as (_, producer):
        with pytest.raises(UnknownTopicOrPartition, match="has no partition 3; it has 1"):
            await producer.send("t", value=b"a", partition=3)


async def test_send_waits_while_the_buffer_is_full() -> None:
    log = Log()
    options = ProducerOptions(linger_s=0, buffer_bytes=1000, batch_bytes=500, delivery_timeout_s=2)
    async with producing(log, options) as (_, producer):
        for _ in range(50):
            await producer.send("t", value=b"x" * 300)
            assert producer.unsent_bytes <= 1000
        await producer.flush()
        assert len(log.values) == 50
        assert producer.unsent_bytes == 0


def new_records(*values: bytes) -> list[NewRecord]:
    return [NewRecord(None, value, 1_431_857_103_000, []) for value in values]


def offsets(groups: list[RecordGroup]) -> list[int]:
    """The offsets of the written records, in the order in which they were sent."""
    found = {
        group.positions[written.first_index + index]: written.base_offset + index
        for group in groups
        for written in group.written
        for index in range(written.record_count)
    }
    return [found[position] for position in sorted(found)]


async def test_many_records_are_sent_in_few_batches_and_each_gets_its_offset() -> None:
    log = Log()
    async with producing(log, ProducerOptions(linger_s=0.01, batch_bytes=40_000)) as (broker, producer):
        values = [b"%d" % n for n in range(10_000)]
        groups = await producer.send_many("t", new_records(*values))
        later = await (await producer.send("t", value=b"later"))
        await producer.flush()
        assert log.values == [*values, b"later"]
        assert later.offset == 10_000
        assert offsets(groups) == list(range(10_000))
        assert all(group.done.done() and group.error is None for group in groups)
        sent = headers(broker)
        assert len(sent) < 20
        assert [h.base_sequence for h in sent] == [sum(h.record_count for h in sent[:i]) for i in range(len(sent))]


async def test_of_many_records_only_the_one_that_is_too_large_fails() -> None:
    log = Log(bytes_max=400)
    async with producing(log) as (_, producer):
        values = [b"x" * 60 for _ in range(50)] + [b"y" * 1000] + [b"z" * 60 for _ in range(20)]
        groups = await producer.send_many("t", new_records(*values))
        await producer.flush()
        assert log.values == [value for value in values if len(value) < 100]
        assert offsets(groups) == list(range(70))
        (failed,) = [group for group in groups if group.error is not None]
        assert failed.failed_position == 50
        assert isinstance(failed.error, MessageTooLarge)


async def test_many_records_with_an_unknown_partition_are_refused_with_its_position() -> None:
    log = Log()
    async with producing(log) as (_, producer):
        with pytest.raises(RecordRefused) as refused:
            await producer.send_many("t", new_records(b"a", b"b", b"c"), partitions=[None, 3, 0])
        assert refused.value.position == 1
        assert "has no partition 3; it has 1" in str(refused.value.error)
        assert log.values == []


async def test_send_many_waits_while_the_buffer_is_full() -> None:
    log = Log()
    options = ProducerOptions(linger_s=0, buffer_bytes=1000, batch_bytes=500, delivery_timeout_s=2)
    async with producing(log, options) as (_, producer):
        await producer.send_many("t", new_records(*[b"x" * 300] * 50))
        assert producer.unsent_bytes <= 1000
        await producer.flush()
        assert len(log.values) == 50


def test_an_idempotent_producer_needs_acks_all() -> None:
    with pytest.raises(ValueError, match="acks=-1"):
        Producer(None, clock=SystemClock(), options=ProducerOptions(acks=1))  # type: ignore[arg-type]


def refusing_first_partition(log: Log) -> Callable[[Any], Any]:
    """Answer as a broker whose partition 0 is on a full disk."""

    def answer(request: Any) -> Any:
        index = request.topic_data[0].partition_data[0].index
        return log.append(request) if index else produced(index, error_code=ErrorCode.KAFKA_STORAGE_ERROR)

    return answer


async def test_the_timeout_of_records_that_wait_for_a_refused_batch_begins_when_they_are_queued() -> None:
    log, options = Log(), ProducerOptions(linger_s=0, delivery_timeout_s=0.5, batch_bytes=200)
    async with producing(log, options) as (broker, producer):
        broker.partitions = 2
        broker.answers[ApiKey.PRODUCE] = refusing_first_partition(log)
        loop = asyncio.get_running_loop()
        began = loop.time()
        sent = [await producer.send("t", value=b"x" * 150, partition=0) for _ in range(20)]
        for each in sent:
            with pytest.raises(StorageError):
                await each
        assert loop.time() - began < 20 * 0.5 / 2, "each batch had a timeout of its own"
        written = await producer.send("t", value=b"y", partition=1)
        assert (await written).offset == 0


async def test_records_that_wait_for_batches_that_are_written_do_not_time_out() -> None:
    log, options = Log(), ProducerOptions(linger_s=0, delivery_timeout_s=0.3, batch_bytes=200)
    async with producing(log, options) as (broker, producer):
        refusals = itertools.cycle([True, True, False])  # each batch is written at the third attempt

        def answer(request: Any) -> Any:
            return produced(error_code=ErrorCode.KAFKA_STORAGE_ERROR) if next(refusals) else log.append(request)

        broker.answers[ApiKey.PRODUCE] = answer
        sent = [await producer.send("t", value=b"x" * 150, partition=0) for _ in range(4)]
        assert [(await each).offset for each in sent] == [0, 1, 2, 3], "they take 0.6 s together"


async def test_the_success_of_one_partition_is_not_reported_as_the_end_of_the_failure_of_another() -> None:
    log, reports = Log(), list[str]()
    report = RetryReport(reports.append, SystemClock())
    options = ProducerOptions(linger_s=0, delivery_timeout_s=20)
    async with producing(log, options) as (broker, producer):
        producer._cluster.retries = report
        broker.partitions = 2
        refusing = refusing_first_partition(log)
        broker.answers[ApiKey.PRODUCE] = refusing
        waiting = await producer.send("t", value=b"x", partition=0)
        while not reports:
            written = await producer.send("t", value=b"y", partition=1)
            await written
            await asyncio.sleep(0.01)
        for _ in range(3):
            await (await producer.send("t", value=b"y", partition=1))
        assert len(reports) == 1
        assert ". Retrying for up to" in reports[0]
        assert ".. " not in reports[0]
        broker.answers[ApiKey.PRODUCE] = log.append
        await waiting
        assert reports[1].startswith("it works again, after ")


async def test_no_producer_id_while_the_controller_is_away_says_so() -> None:
    with kafka(topics=["orders"]) as k:
        k.fail("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS")
        options = ClientOptions(retry_s=0.1)
        async with (
            await Cluster.connect(parse_addresses(k.bootstrap), options=options) as cluster,
            Producer(cluster, clock=SystemClock()) as producer,
        ):
            answer = await producer.send("orders", value=b"x")
            with pytest.raises(KafkaError, match="no producer id: the controller or the metadata store is away"):
                await answer
