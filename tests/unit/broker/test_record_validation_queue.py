"""Batches with record validation: their order is kept, the loop is not blocked, and later state changes count."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Mapping
from dataclasses import replace
from types import FrameType

import pytest

from ottla.broker import record_validation_queue
from ottla.broker.handlers import produce
from ottla.broker.record_validation_queue import ValidatedBatch
from ottla.core.error_codes import ErrorCode
from ottla.core.executors import BlockingJob
from ottla.core.ids import TopicPartition
from ottla.records.batch import HEADER_BYTES, BatchHeader, split
from ottla.records.record_reader import read_records
from ottla.replication.partition import Partition
from ottla.storage.validation.record_validator import LOOP_RECORDS_MAX
from ottla.testing.cluster import BrokerHandlers
from ottla.testing.requests import request_to
from ottla.testing.sim_executor import SimExecutor
from ottla.wire.generated import create_topics
from ottla.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.async_tests import setup_of
from tests.support.batches import Written, batch, numbered, with_payload
from tests.support.bombs import BOMBS
from tests.support.hot_messages import CollectedResponse, hot_produce_request
from tests.support.storage import content

pytestmark = pytest.mark.simulated_time

VERSION = 9
ACKS_ALL, ACKS_LEADER, ACKS_NONE = -1, 1, 0
SLOW = {"compression.type": "zstd", "compression.zstd.level": "22"}  # never recompressed on the loop
ZSTD = 4


class _Validated:
    """Waits for one validated batch."""

    def __init__(self) -> None:
        self.batch: asyncio.Future[ValidatedBatch] = asyncio.get_running_loop().create_future()

    def batch_validated(self, partition: Partition, part: object, batch: ValidatedBatch) -> None:
        self.batch.set_result(batch)


def at(server: BrokerHandlers) -> int:
    return server.services.clock.wall_ms()


def sent(server: BrokerHandlers, *parts: tuple[str, bytes], acks: int = ACKS_LEADER) -> CollectedResponse:
    """Pass a request to the handler; the buffer that it is read from is used for something else afterwards."""
    context = request_to(server.services, VERSION)
    topics = [
        TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=records)])
        for name, records in parts
    ]
    request = hot_produce_request(ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=topics), VERSION)
    buffers = [part.records for topic in request.topics for part in topic.partitions]
    answer = CollectedResponse()
    produce.handle(context, request, answer.pending)
    for buffer in buffers:
        assert buffer is not None
        buffer[:] = bytes(len(buffer))
    return answer


async def answered(answer: CollectedResponse) -> list[PartitionProduceResponse]:
    """The response's partitions, once it has come."""
    response = await answer.produce(VERSION)
    return [part for topic in response.responses for part in topic.partition_responses]


async def create(server: BrokerHandlers, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Create topics of one partition each."""
    asked = [
        create_topics.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[create_topics.CreatableTopicConfig(name=key, value=value) for key, value in config.items()],
        )
        for name, config in topics.items()
    ]
    made = await server.call("create_topics", 5, create_topics.CreateTopicsRequest(topics=asked, timeout_ms=20_000))
    assert not any(topic.error_code for topic in made.topics), made


@pytest.fixture
async def server(request: pytest.FixtureRequest, broker: BrokerHandlers) -> BrokerHandlers:
    """A broker with topics of one partition each."""
    await create(broker, setup_of(request).get("topics", {}))
    return broker


def replica(server: BrokerHandlers, topic: str) -> Partition:
    return server.services.replicas.partition(TopicPartition(topic, 0))


def stored(partition: Partition) -> list[tuple[BatchHeader, list[bytes | None]]]:
    """Every batch of a log and the values in it."""
    log = partition.log
    data = content(log.read(0, max_bytes=1 << 30, end_offset=log.end_offset))
    return [(header, [each.value for each in read_records(data[where:])]) for where, header in split(data)]


@pytest.mark.setup(topics={"slow": SLOW})
async def test_batches_of_one_partition_keep_their_order_whatever_each_takes(server: BrokerHandlers) -> None:
    now_ms, answers = at(server), []
    for number in range(12):
        light = number % 3 == 2  # already as the topic wants it: nothing to be done but to wait
        records = [Written(b"%d" % number + bytes(30_000 * (not light)))]
        answers.append(sent(server, ("slow", batch(records, attributes=ZSTD * light, base_timestamp_ms=now_ms))))
    partition = replica(server, "slow")
    assert partition.log.end_offset == 0, "the first is in a thread, and the others wait for it"
    parts = [part for answer in answers for part in await answered(answer)]
    assert [part.base_offset for part in parts] == list(range(12))
    assert [int((values[0] or b"").rstrip(b"\0")) for _, values in stored(partition)] == list(range(12))
    assert {header.codec for header, _ in stored(partition)} == {ZSTD}
    assert server.services.record_validation.held_bytes == 0


@pytest.mark.setup(
    topics={"slow": SLOW, "plain": {}, "compact": {"cleanup.policy": "compact"}, "gzip": {"compression.type": "gzip"}}
)
async def test_other_partitions_do_not_wait_and_a_light_batch_is_in_its_log_at_once(server: BrokerHandlers) -> None:
    now_ms = at(server)
    heavy = sent(server, ("slow", batch([Written(bytes(30_000))], base_timestamp_ms=now_ms)))
    for topic in ("plain", "compact", "gzip"):
        sent(server, (topic, batch(numbered(3), base_timestamp_ms=now_ms)))
        assert replica(server, topic).log.end_offset == 3, topic
    assert [header.codec for header, _ in stored(replica(server, "gzip"))] == [1]
    assert replica(server, "slow").log.end_offset == 0
    await answered(heavy)


@pytest.mark.setup(topics={"compact": {}})
async def test_a_large_batch_is_not_validated_on_the_loop(server: BrokerHandlers) -> None:
    values = [Written(bytes(1000)) for _ in range(400)]
    for codec in range(1, 5):  # small, and large inside
        before = replica(server, "compact").log.end_offset
        answer = sent(server, ("compact", batch(values, attributes=codec, base_timestamp_ms=at(server))))
        assert replica(server, "compact").log.end_offset == before
        assert (await answered(answer))[0].base_offset == before


@pytest.mark.setup(topics={"plain": {}})
async def test_an_uncompressed_batch_is_validated_on_the_loop_unless_it_has_very_many_records(
    server: BrokerHandlers,
) -> None:
    log = replica(server, "plain").log
    few = sent(server, ("plain", batch([Written(bytes(300_000))] * 3, base_timestamp_ms=at(server))))
    assert log.end_offset == 3, "not copied, and not passed to a thread"
    many = [Written(b"", None)] * (LOOP_RECORDS_MAX + 1)
    last = sent(server, ("plain", batch(many, base_timestamp_ms=at(server))))
    assert log.end_offset == 3
    assert [(await answered(each))[0].base_offset for each in (few, last)] == [0, 3]


@pytest.mark.setup(topics={"compact": {"cleanup.policy": "compact"}, "other": {"cleanup.policy": "compact"}})
async def test_what_unpacks_to_many_times_its_size_has_a_thread_of_its_own(server: BrokerHandlers) -> None:
    now_ms, validation = at(server), server.services.record_validation
    threads, thread_of_bombs = validation._executor, validation._for_bombs
    assert isinstance(threads, SimExecutor)
    assert isinstance(thread_of_bombs, SimExecutor)
    dense = batch([Written(bytes(3 << 20))], attributes=ZSTD, base_timestamp_ms=now_ms)
    plain = batch([Written(os.urandom(900_000))], attributes=ZSTD, base_timestamp_ms=now_ms)
    keyless = batch([Written(bytes(3 << 20), None)], attributes=ZSTD, base_timestamp_ms=now_ms)

    answers = [sent(server, ("compact", records)) for records in (dense, plain, keyless)]
    answers.append(sent(server, ("other", plain)))

    parts = [(await answered(answer))[0] for answer in answers]
    assert [part.error_code for part in parts] == [0, 0, ErrorCode.INVALID_RECORD, 0]
    assert [len(values[0] or b"") for _, values in stored(replica(server, "compact"))] == [3 << 20, 900_000]
    assert (threads.submitted, thread_of_bombs.submitted) == (4, 2)
    assert validation.held_bytes == 0


class AtOnce:
    """An executor that runs jobs when they are submitted."""

    def submit(self, job: BlockingJob) -> None:
        job.run()
        job.finished()

    def close(self) -> None:
        pass


class ByHand:
    """An executor whose jobs a test runs."""

    def __init__(self) -> None:
        self.jobs: list[BlockingJob] = []

    def submit(self, job: BlockingJob) -> None:
        self.jobs.append(job)

    def close(self) -> None:
        pass


@pytest.mark.setup(topics={name: {"cleanup.policy": "compact"} for name in ("compact", "other")})
async def test_many_bombs_of_a_partition_do_not_keep_another_partition_from_its_turn(server: BrokerHandlers) -> None:
    validation, thread = server.services.record_validation, ByHand()
    validation._executor, validation._for_bombs = AtOnce(), thread
    bomb = batch([Written(bytes(3 << 20))], attributes=ZSTD, base_timestamp_ms=at(server))
    answers = [sent(server, ("compact", bomb)) for _ in range(5)]
    other = sent(server, ("other", bomb))
    done = []
    while thread.jobs:
        (job,) = thread.jobs
        thread.jobs.clear()
        job.run()
        job.finished()
        done.append((replica(server, "compact").log.end_offset, replica(server, "other").log.end_offset))

    assert done == [(1, 0), (2, 0), (2, 1), (3, 1), (4, 1), (5, 1)]
    assert [(await answered(answer))[0].base_offset for answer in (*answers, other)] == [0, 1, 2, 3, 4, 0]


@pytest.mark.setup(
    topics={
        "compact": {"cleanup.policy": "compact"},
        "recoded": {"compression.type": "zstd", "cleanup.policy": "compact"},
    }
)
async def test_no_refusal_leaves_a_reference_cycle(server: BrokerHandlers) -> None:
    """It would keep what the batch was unpacked to until Python's collector runs."""
    many = [Written(bytes(1000), None)] * 400

    async def refuse_all(server: BrokerHandlers) -> None:
        now_ms = at(server)
        for codec in range(5):
            truncated = with_payload(
                batch(many, attributes=codec)[HEADER_BYTES:-9], count=400, attributes=codec, newest_ms=now_ms
            )
            keyless = batch(many, attributes=codec, base_timestamp_ms=now_ms)
            small = batch([Written(None, None)], attributes=codec, base_timestamp_ms=now_ms)
            far_ahead = batch(many, attributes=codec, base_timestamp_ms=9_000_000_000_000)
            garbage = with_payload(b"garbage" * 9000, count=3, attributes=codec, newest_ms=now_ms)
            for records in (truncated, keyless, small, far_ahead, garbage, keyless[:-1], keyless[:20], b""):
                for topic in ("compact", "recoded"):
                    assert (await answered(sent(server, (topic, records))))[0].error_code
        moved = sent(server, ("compact", batch(many, attributes=1, base_timestamp_ms=now_ms)))
        partition = replica(server, "compact")
        partition.log.reconfigure(replace(partition.log.config, max_message_bytes=1))
        assert (await answered(moved))[0].error_code

    await refuse_all(server)  # what is made once is not counted
    await asyncio.sleep(0)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await refuse_all(server)
        await asyncio.sleep(0)
        gc.collect()
        cyclic = [each for each in gc.garbage if isinstance(each, BaseException | FrameType | memoryview)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not cyclic


@pytest.mark.setup(
    topics={"compact": {"cleanup.policy": "compact"}, "other": {"cleanup.policy": "compact"}, "plain": {}}
)
async def test_one_request_answers_for_all_its_partitions_when_the_last_is_validated(server: BrokerHandlers) -> None:
    now_ms = at(server)
    wrong = batch([Written(bytes(300_000), key=None)], attributes=1, base_timestamp_ms=now_ms)
    good = batch([Written(bytes(300_000))], attributes=1, base_timestamp_ms=now_ms)
    for acks in (ACKS_LEADER, ACKS_ALL):
        begin = replica(server, "compact").log.end_offset
        parts = await answered(sent(server, ("other", wrong), ("plain", good), ("compact", good), acks=acks))
        assert [part.error_code for part in parts] == [ErrorCode.INVALID_RECORD, 0, 0]
        assert [part.base_offset for part in parts] == [-1, begin, begin]
        assert [each.batch_index for each in parts[0].record_errors] == [0]
        assert replica(server, "compact").high_watermark == begin + 1 or acks == ACKS_LEADER


@pytest.mark.setup(topics={"plain": {}, "other": {}})
async def test_of_a_partition_that_a_request_names_twice_the_last_batch_counts(server: BrokerHandlers) -> None:
    """As in Kafka: a client could not map two answers for one partition to its batches."""
    now_ms = at(server)
    first, last = (batch(numbered(count), base_timestamp_ms=now_ms) for count in (2, 3))
    wrong = batch(crc_off_by=1)
    for parts, codes, end_offset in (
        ([("plain", first), ("plain", last)], [0], 3),
        ([("plain", wrong), ("plain", last)], [0], 6),
        ([("plain", first), ("plain", wrong)], [ErrorCode.CORRUPT_MESSAGE], 6),
        ([("plain", first), ("other", last), ("plain", last)], [0, 0], 9),
    ):
        answer = await answered(sent(server, *parts))
        assert [part.error_code for part in answer] == codes
        assert replica(server, "plain").log.end_offset == end_offset
    assert replica(server, "other").log.end_offset == 3


@pytest.mark.setup(topics={"slow": SLOW})
async def test_settings_that_changed_meanwhile_are_those_that_count(server: BrokerHandlers) -> None:
    partition, now_ms = replica(server, "slow"), at(server)
    answers = [sent(server, ("slow", batch([Written(bytes(30_000))], base_timestamp_ms=now_ms))) for _ in range(3)]
    keyless = sent(server, ("slow", batch([Written(bytes(30_000), key=None)], base_timestamp_ms=now_ms)))
    config = replace(partition.log.config, compression_type="lz4", cleanup_policy=("compact",))
    partition.log.reconfigure(config)
    assert [(await answered(answer))[0].base_offset for answer in answers] == [0, 1, 2]
    assert (await answered(keyless))[0].error_code == ErrorCode.INVALID_RECORD
    assert [header.codec for header, _ in stored(partition)] == [3, 3, 3]
    assert server.services.record_validation.held_bytes == 0
    found = _Validated()
    large = memoryview(batch([Written(bytes(200_000))], base_timestamp_ms=now_ms))
    server.services.record_validation.validate(partition, large, found, None, now_ms)
    partition.log.reconfigure(replace(config, compression_type="gzip"))
    again = await found.batch
    assert BatchHeader(again.records).codec == 1, "the second look was not left to the loop"
    assert again.config is partition.log.config


@pytest.mark.setup(topics={"slow": SLOW})
async def test_a_batch_that_came_under_another_leader_epoch_is_not_appended(server: BrokerHandlers) -> None:
    partition = replica(server, "slow")
    answer = sent(server, ("slow", batch([Written(bytes(30_000))], base_timestamp_ms=at(server))))
    view = server.services.cluster.current.partition("slow", 0)
    assert view is not None
    partition.apply(replace(view, leader_epoch=view.leader_epoch + 1))
    assert (await answered(answer))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.log.end_offset == 0
    after = await answered(sent(server, ("slow", batch([Written(bytes(30_000))], base_timestamp_ms=at(server)))))
    assert after[0].base_offset == 0


@pytest.mark.setup(topics={"compact": {"cleanup.policy": "compact"}})
async def test_without_acks_a_refused_batch_closes_the_connection_and_a_good_one_has_no_answer(
    server: BrokerHandlers,
) -> None:
    good = batch([Written(bytes(300_000))], attributes=1, base_timestamp_ms=at(server))
    fine = sent(server, ("compact", good), acks=ACKS_NONE)
    assert not fine.is_sent, "it is in a thread"
    assert await fine.frame() == b""
    assert not fine.is_closed
    assert replica(server, "compact").log.end_offset == 1
    refused = sent(server, ("compact", batch([Written(bytes(300_000), None)], attributes=1)), acks=ACKS_NONE)
    assert await refused.frame() == b""
    assert refused.is_closed


@pytest.mark.setup(topics={"slow": SLOW})
async def test_a_client_sends_no_more_while_too_much_is_held(
    server: BrokerHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_validation_queue, "HELD_BYTES_MAX", 50_000)

    heavy = batch([Written(bytes(30_000))], base_timestamp_ms=at(server))
    answers = [sent(server, ("slow", heavy)) for _ in range(3)]
    assert [each.pending.is_pipelined for each in answers] == [True, False, False]
    for answer in answers:
        await answered(answer)
    assert not server.services.record_validation.is_full


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.setup(
    topics={
        "compact": {"cleanup.policy": "compact", "max.message.bytes": "200000000"},
        "plain": {"compression.type": "uncompressed", "max.message.bytes": "200000000"},
    }
)
async def test_a_decompression_bomb_is_refused_and_the_next_batch_is_not(server: BrokerHandlers, name: str) -> None:
    codec, make = BOMBS[name]
    now_ms = at(server)
    bomb = with_payload(make(), count=9, attributes=codec, base_timestamp_ms=now_ms, newest_ms=now_ms)
    for topic in ("compact", "plain"):
        first = sent(server, (topic, bomb))
        second = sent(server, (topic, batch(base_timestamp_ms=now_ms)))
        assert (await answered(first))[0].error_code == ErrorCode.INVALID_RECORD
        assert (await answered(second))[0].base_offset == 0
