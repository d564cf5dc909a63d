"""A topic with three replicas on three brokers: acknowledged records survive the loss of its leader."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.consumer import Consumer
from ottla.client.producer import Producer, RecordMetadata
from ottla.controller.elections import Election
from ottla.controller.reassignments import RequestedReassignment
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.replication.partition import Partition
from ottla.storage.small_files import CLEAN_SHUTDOWN
from ottla.testing.cluster import TestCluster
from ottla.wire.apis import ApiKey
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.storage import batch
from tests.unit.broker.test_produce import ACKS_LEADER, answered, sent

pytestmark = pytest.mark.simulated_time

TP = TopicPartition("web", 0)
Queued = dict[int, asyncio.Future[RecordMetadata]]


async def create(
    cluster: TestCluster,
    name: str = "web",
    *,
    partitions: int = 1,
    factor: int = 3,
    configs: dict[str, str | None] | None = None,
) -> None:
    """Create a topic, and wait until each broker knows it."""
    controller = cluster.services(cluster.controller).controller
    await controller.create_topic(name, partitions=partitions, replication_factor=factor, configs=configs)
    await cluster.known_everywhere(name)


def replica(cluster: TestCluster, node_id: int, tp: TopicPartition = TP) -> Partition:
    return cluster.services(node_id).replicas.partition(tp)


def leader_of(cluster: TestCluster, tp: TopicPartition = TP) -> int:
    """Return the leader that all running brokers agree on; -1 while they do not."""
    found = {cluster.services(node_id).cluster.current.partition(*tp) for node_id in cluster.brokers}
    leaders = {partition.leader if partition is not None else -1 for partition in found}
    return leaders.pop() if len(leaders) == 1 else -1


async def in_sync(cluster: TestCluster, count: int, tp: TopicPartition = TP) -> None:
    """Wait until a partition has so many in-sync replicas, in the eyes of all brokers."""

    def is_so() -> bool:
        for node_id in cluster.brokers:
            partition = cluster.services(node_id).cluster.current.partition(*tp)
            if partition is None or len(partition.isr) != count:
                return False
        return True

    await cluster.until(is_so, seconds=20)


async def send(cluster: TestCluster, values: range, tp: TopicPartition = TP) -> list[int]:
    """Send records with acks=all; returns their offsets."""
    async with await cluster.client() as client, Producer(client, clock=cluster.clock) as producer:
        sent = [
            await producer.send(tp.topic, partition=tp.partition, value=str(value).encode(), timestamp_ms=value)
            for value in values
        ]
        return [(await each).offset for each in sent]


async def read(cluster: TestCluster, count: int, tp: TopicPartition = TP) -> list[int]:
    """Read the first records of a partition."""
    found: list[int] = []
    async with await cluster.client() as client, Consumer(client, {tp: 0}, end={tp: count}) as consumer:
        async for _, records in consumer.chunks():
            found += [int(record.value or b"") for record in records]
    return found


def bytes_of(partition: Partition) -> bytes:
    """The records of a replica below its high watermark."""
    found, offset = b"", partition.log.log_start_offset
    while offset < partition.high_watermark:
        region = partition.log.read(offset, max_bytes=1 << 20, end_offset=partition.high_watermark, at_least_one=True)
        assert region is not None
        found += region.file.read_at(region.position, region.size)
        offset = partition.log.segment_list.region_end_offset
    return found


async def equal_replicas(cluster: TestCluster, end: int, tp: TopicPartition = TP) -> None:
    """Wait until all replicas have the same records up to a high watermark."""
    await cluster.until(
        lambda: all(replica(cluster, node_id, tp).high_watermark == end for node_id in cluster.brokers), seconds=20
    )
    assert len({bytes_of(replica(cluster, node_id, tp)) for node_id in cluster.brokers}) == 1


async def test_records_reach_all_replicas_before_they_are_acknowledged(cluster: TestCluster) -> None:
    await create(cluster)
    assert await send(cluster, range(100)) == list(range(100))
    assert all(replica(cluster, node_id).log.flushed_offset == 100 for node_id in cluster.brokers)
    assert await read(cluster, 100) == list(range(100))
    await equal_replicas(cluster, 100)


@pytest.mark.parametrize(
    "min_isr", [pytest.param(isr, marks=pytest.mark.options({"min.insync.replicas": str(isr)})) for isr in (1, 2)]
)
async def test_with_one_in_sync_replica_acks_1_is_answered_when_the_record_is_visible(
    cluster: TestCluster, min_isr: int
) -> None:
    """As in Kafka; where more replicas have to be in sync, nothing becomes visible, and the answer does not wait."""
    await create(cluster, factor=2)
    for node_id in [each for each in cluster.brokers if each != leader_of(cluster)]:
        await cluster.kill(node_id)
    await in_sync(cluster, 1)
    server = cluster.handlers(leader_of(cluster))
    partition = replica(cluster, leader_of(cluster))
    for number in range(20):
        part = await answered(sent(server, "web", acks=ACKS_LEADER, timeout_ms=20_000))
        assert (part.error_code, part.base_offset) == (ErrorCode.NONE, number)
        assert partition.high_watermark == (number + 1 if min_isr == 1 else 0)


async def test_acknowledged_records_survive_the_loss_of_the_leader(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(100))
    was = leader_of(cluster)
    await cluster.kill(was)
    await cluster.until(lambda: leader_of(cluster) not in {-1, was})
    await send(cluster, range(100, 200))
    assert await read(cluster, 200) == list(range(200))
    await cluster.restart(was)
    await in_sync(cluster, 3)
    assert await send(cluster, range(200, 210)) == list(range(200, 210))
    await equal_replicas(cluster, 210)


async def test_a_producer_goes_on_while_its_leader_is_killed(cluster: TestCluster) -> None:
    await create(cluster)
    queued: Queued = {}
    sending = asyncio.ensure_future(_send_steadily(cluster, 400, queued))
    await cluster.until(lambda: len(queued) >= 100)
    await cluster.kill(leader_of(cluster))
    acknowledged = await sending
    assert sorted(acknowledged.values()) == list(range(400))  # offsets: none twice, none left out
    found = await read(cluster, 400)
    assert found == list(range(400))


async def _send_steadily(cluster: TestCluster, count: int, queued: Queued, *, first: int = 0) -> dict[int, int]:
    """Send one record after another every few milliseconds, added to `queued`; returns the offset of each."""
    async with await cluster.client() as client, Producer(client, clock=cluster.clock) as producer:
        for value in range(first, first + count):
            queued[value] = await producer.send("web", partition=0, value=str(value).encode(), timestamp_ms=value)
            await asyncio.sleep(0.003)
        return {value: (await each).offset for value, each in queued.items()}


async def test_all_brokers_are_killed_at_once_and_come_back(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(100))
    for node_id in (1, 2, 3):
        await cluster.kill(node_id)
    for node_id in (3, 1, 2):
        await cluster.restart(node_id)
    await in_sync(cluster, 3)
    assert await read(cluster, 100) == list(range(100))
    assert await send(cluster, range(100, 110)) == list(range(100, 110))
    await equal_replicas(cluster, 110)


async def test_a_clean_stop_moves_the_leaders_first(cluster: TestCluster) -> None:
    await create(cluster, partitions=6)
    await send(cluster, range(50))
    was = leader_of(cluster)
    seen: list[int] = []
    other = next(node_id for node_id in cluster.brokers if node_id != was)
    cluster.services(other).cluster.subscribe(
        lambda _, new: seen.append(new.topics["web"].partitions[0].leader) if "web" in new.topics else None
    )
    queued: Queued = {}
    sending = asyncio.ensure_future(_send_steadily(cluster, 200, queued, first=50))
    await cluster.until(lambda: len(queued) >= 50)
    await cluster.stop(was)
    acknowledged = await sending
    assert -1 not in seen  # there was a leader all the time
    assert sorted(acknowledged.values()) == list(range(50, 250))
    for node_id in cluster.brokers:
        view = cluster.services(node_id).cluster.current
        assert all(was not in partition.isr for partition in view.topics["web"].partitions)
    await cluster.restart(was)
    await in_sync(cluster, 3)
    await equal_replicas(cluster, 250)


async def test_all_brokers_stop_together_without_waiting_for_each_other(cluster: TestCluster) -> None:
    await create(cluster, partitions=3)
    await send(cluster, range(50))
    async with asyncio.timeout(5):
        await asyncio.gather(*(cluster.stop(node_id) for node_id in (1, 2, 3)))
    await cluster.start()
    await in_sync(cluster, 3)
    assert await read(cluster, 50) == list(range(50))


@pytest.mark.parametrize("is_clean", [False, True])
async def test_the_only_replica_in_sync_gets_its_lost_records_again_from_those_that_have_them(
    cluster: TestCluster, *, is_clean: bool
) -> None:
    await create(cluster)
    await send(cluster, range(100))
    last = leader_of(cluster)
    others = [node_id for node_id in cluster.brokers if node_id != last]
    for node_id in (*others, last):
        await cluster.stop(node_id)
    files, (data,) = cluster.files(last), cluster.paths(last)
    (segment,) = (data / "web-0" / name for name in files.names_in(data / "web-0") if name.endswith(".log"))
    files.open(segment).truncate(files.size_of(segment) // 2)
    if not is_clean:
        files.remove(data / CLEAN_SHUTDOWN)
    for node_id in (last, *others):
        await cluster.restart(node_id)
    services = cluster.services(last)
    assert services.cluster.current.replica_reports[last].is_clean is is_clean
    await in_sync(cluster, 3)
    assert leader_of(cluster) in others
    assert not services.cluster.current.replica_reports[last].suspects
    assert await read(cluster, 100) == list(range(100))
    await equal_replicas(cluster, 100)


async def produce_batch(cluster: TestCluster, node_id: int, sequence: int, *, acks: int = -1) -> tuple[ErrorCode, int]:
    """Send a batch of two records of one producer; returns the error code and the offset of the answer."""
    records = bytes(batch(b"v", b"w", producer_id=7000, epoch=0, sequence=sequence))
    partition = PartitionProduceData(index=0, records=memoryview(records))
    topic_id = cluster.services(node_id).cluster.current.topics["web"].topic_id
    request = ProduceRequest(
        acks=acks,
        timeout_ms=5_000,
        topic_data=[TopicProduceData(topic_id=topic_id, name="web", partition_data=[partition])],
    )
    async with await cluster.client() as client:
        response = await (await client.connection(node_id)).request(ApiKey.PRODUCE, request, timeout_s=10)
    (found,) = response.responses[0].partition_responses
    return ErrorCode(found.error_code), found.base_offset


async def sent_again(cluster: TestCluster, last: int) -> None:
    """Check that the leader answers the last five batches with their offsets, which are their sequences."""
    await cluster.until(lambda: leader_of(cluster) in cluster.brokers, seconds=20)
    leader = leader_of(cluster)
    for sequence in range(last - 8, last + 2, 2):
        assert await produce_batch(cluster, leader, sequence) == (ErrorCode.NONE, sequence), f"by {leader}"


@pytest.mark.brokers(1)
async def test_batches_in_flight_at_a_clean_stop_of_all_brokers_are_duplicates_after_the_start(
    cluster: TestCluster,
) -> None:
    await create(cluster, factor=1)
    await cluster.until(lambda: leader_of(cluster) == 1)
    sent = [await produce_batch(cluster, 1, sequence) for sequence in range(0, 12, 2)]
    assert sent == [(ErrorCode.NONE, offset) for offset in range(0, 12, 2)]
    await cluster.stop(1)
    await cluster.restart(1)
    await sent_again(cluster, 10)
    assert (await produce_batch(cluster, 1, 0))[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await produce_batch(cluster, 1, 12) == (ErrorCode.NONE, 12)


@pytest.mark.brokers(4)
async def test_the_last_five_batches_keep_their_offsets_over_fail_overs_truncations_and_new_replicas(
    cluster: TestCluster,
) -> None:
    async def elect(cluster: TestCluster) -> None:
        await cluster.services(cluster.controller).controller.elect_leaders(Election.PREFERRED, [TP])
        await cluster.until(lambda: leader_of(cluster) == 1, seconds=20)

    controller = cluster.services(cluster.controller).controller
    await controller.create_topic("web", assignments=[(0, (1, 2, 3))])
    await cluster.known_everywhere("web")
    for sequence in range(0, 12, 2):
        assert await produce_batch(cluster, 1, sequence) == (ErrorCode.NONE, sequence)
    await cluster.kill(1)
    await sent_again(cluster, 10)  # a follower of then
    assert await produce_batch(cluster, leader_of(cluster), 12) == (ErrorCode.NONE, 12)
    await cluster.restart(1)
    await in_sync(cluster, 3)
    await elect(cluster)
    await sent_again(cluster, 12)  # one that recovered from a kill and fetched the rest

    for follower in (2, 3):
        await cluster.kill(follower, session_expires=False)
    assert await produce_batch(cluster, 1, 14, acks=1) == (ErrorCode.NONE, 14)  # in no other log
    await cluster.kill(1, session_expires=False)
    for node_id in (2, 3, 1):
        await cluster.expire(node_id)
    for follower in (2, 3):
        await cluster.restart(follower)
    await sent_again(cluster, 12)
    async with await cluster.client() as client, Producer(client, clock=cluster.clock) as producer:
        for _ in range(3):
            sent = await producer.send("web", partition=0, value=b"of another", timestamp_ms=0)
            await sent
    assert await produce_batch(cluster, leader_of(cluster), 14) == (ErrorCode.NONE, 17)
    await cluster.restart(1)
    await in_sync(cluster, 3)
    await elect(cluster)
    assert replica(cluster, 1).log.end_offset == 19
    assert await produce_batch(cluster, 1, 14) == (ErrorCode.NONE, 17), "not that of the truncated batch"
    assert await produce_batch(cluster, 1, 6) == (ErrorCode.NONE, 6)

    moved = RequestedReassignment(TP, (4, 2, 3))
    assert await cluster.services(cluster.controller).controller.reassign([moved]) == [None]
    await cluster.until(lambda: leader_of(cluster) == 4, seconds=20)
    assert await produce_batch(cluster, 4, 14) == (ErrorCode.NONE, 17)
    assert await produce_batch(cluster, 4, 6) == (ErrorCode.NONE, 6)
    assert await produce_batch(cluster, 4, 16) == (ErrorCode.NONE, 19)


async def test_a_replica_with_contradictory_offsets_is_reported_and_fetched_again(cluster: TestCluster) -> None:
    await create(cluster)
    await in_sync(cluster, 3)
    assert await send(cluster, range(5)) == list(range(5))
    bad = leader_of(cluster)
    partition = replica(cluster, bad)
    partition.log.flushed_offset = 99  # as a defect would leave it
    partition.check_offsets()
    assert not partition.is_serving
    await cluster.until(lambda: leader_of(cluster) not in {bad, -1}, seconds=20)
    await in_sync(cluster, 3)
    assert replica(cluster, bad).log.end_offset == 5
    assert await send(cluster, range(5, 8)) == [5, 6, 7]
    assert await read(cluster, 8) == list(range(8))
