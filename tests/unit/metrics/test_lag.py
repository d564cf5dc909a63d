"""The lag in records and in seconds is true: under a load, over pauses, transactions, compaction and retention."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from ottla.client.groups import commit_offsets
from ottla.client.offsets import delete_records
from ottla.client.producer import Producer
from ottla.client.share_groups import alter_start_offsets
from ottla.client.transactions import TransactionalProducer
from ottla.core.ids import TopicPartition
from ottla.metrics.first_record import first_timestamp
from ottla.metrics.reader import MetricsReader
from ottla.metrics.request_times import RequestTimes
from ottla.share_coordinator.machine import StateWrite
from ottla.share_coordinator.records import SharePartitionKey
from ottla.testing.cluster import TestCluster
from ottla.wire.apis import ApiKey
from ottla.wire.generated.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.support.scrapes import scrape, together
from tests.support.storage import NOW_MS, batch

pytestmark = [pytest.mark.simulated_time, pytest.mark.brokers(3)]

GROUP, SHARE_GROUP, TOPIC = "billing", "workers", "orders"
WHERE = TopicPartition(TOPIC, 0)


@pytest.fixture
async def readers(cluster: TestCluster) -> AsyncIterator[dict[int, MetricsReader]]:
    made = {
        node_id: MetricsReader(broker, RequestTimes(cluster.clock.monotonic))
        for node_id, broker in cluster.brokers.items()
    }
    yield made
    for reader in made.values():
        await reader.close()


class _Lag:
    """Reads the lag of a group in the first partition."""

    def __init__(self, cluster: TestCluster, readers: dict[int, MetricsReader], group: str = GROUP) -> None:
        self._cluster, self._readers, self._group = cluster, readers, group

    async def read(self) -> tuple[float, float | None]:
        """Return the records and the seconds; None: not known."""
        pages = [await scrape(reader) for reader in self._readers.values()]
        where = {"group": self._group, "topic": TOPIC, "partition": 0}
        seconds = together(pages, "ottla_group_lag_seconds", **where)
        (records,) = together(pages, "ottla_group_lag_records", group=self._group)
        return records, seconds[0] if seconds else None

    async def check(self, records: int, first_unread_s: float) -> None:
        """Compare both with the truth: `first_unread_s` is when the first unread record was produced."""
        found, seconds = await self.read()
        assert found == records
        assert seconds is not None
        assert abs(seconds - (self._now_s() - first_unread_s)) < 1

    def _now_s(self) -> float:
        return self._cluster.clock.wall_ms() / 1000


async def _commit(cluster: TestCluster, offset: int) -> None:
    async with await cluster.client() as client:
        await commit_offsets(client, GROUP, {WHERE: offset})


async def _produce(cluster: TestCluster, *, key: bytes | None = None, count: int = 1) -> float:
    """Produce records one by one; return when, in seconds."""
    produced_s = cluster.clock.wall_ms() / 1000
    async with await cluster.client() as client, Producer(client, clock=cluster.clock) as producer:
        for _ in range(count):
            await (await producer.send(TOPIC, value=b"v", key=key, partition=0))
    return produced_s


@contextlib.asynccontextmanager
async def _open_transaction(cluster: TestCluster) -> AsyncIterator[TransactionalProducer]:
    """Have a record in a transaction that is not decided yet."""
    async with await cluster.client() as client, TransactionalProducer(client, "t", clock=cluster.clock) as producer:
        producer.begin()
        await (await producer.send(TOPIC, value=b"v", partition=0))
        yield producer


async def test_it_is_true_at_each_moment_of_a_load_with_pauses(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    """The group reads more slowly than the producer writes; both pause, and the group reads all in the end."""
    await cluster.create_topic(TOPIC, 1)
    lag, produced_s, position = _Lag(cluster, readers), list[float](), 0
    await _commit(cluster, 0)
    for moment in range(40):
        if moment % 10 < 6:
            produced_s.append(await _produce(cluster))
        if moment % 3 == 0 and position < len(produced_s) - 1:
            position += 1
            await _commit(cluster, position)
        await asyncio.sleep(0.7 if moment % 10 < 8 else 90)
        await lag.check(len(produced_s) - position, produced_s[position])
    await _commit(cluster, len(produced_s))
    await asyncio.sleep(600)
    assert await lag.read() == (0, 0.0)
    produced_s.append(await _produce(cluster))
    await lag.check(1, produced_s[-1])


async def test_records_of_an_open_and_of_an_aborted_transaction_are_no_lag(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    await cluster.create_topic(TOPIC, 1)
    lag = _Lag(cluster, readers)
    await _commit(cluster, 0)
    async with _open_transaction(cluster) as producer:
        await asyncio.sleep(5)
        produced_s = await _produce(cluster)
        await asyncio.sleep(10)
        assert await lag.read() == (0, 0.0), "nothing after the transaction can be read"
        await producer.abort()
    await asyncio.sleep(10)
    _, seconds = await lag.read()
    assert seconds is not None
    assert abs(seconds - (cluster.clock.wall_ms() / 1000 - produced_s)) < 1, "the aborted record is skipped"


async def test_the_age_of_deleted_records_does_not_count(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    await cluster.create_topic(TOPIC, 1)
    lag = _Lag(cluster, readers)
    first_s = await _produce(cluster, count=3)
    await _commit(cluster, 1)
    await asyncio.sleep(100)
    second_s = await _produce(cluster, count=2)
    await lag.check(4, first_s)
    async with await cluster.client() as client:
        await delete_records(client, {WHERE: 3})
    await lag.check(2, second_s)
    await asyncio.sleep(50)
    await lag.check(2, second_s)


def test_a_record_that_compaction_has_removed_is_not_the_first_unread_one() -> None:
    left = b"".join(bytes(batch(b"v", base_offset=offset, timestamp_ms=NOW_MS + offset * 1000)) for offset in (0, 4, 5))
    assert first_timestamp(left, 1, (), committed_only=True) == (NOW_MS + 4_000, 1)


async def test_nothing_is_kept_of_a_log_that_may_be_compacted(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    """Another record may become the first unread one at the same position."""
    await cluster.create_topic(TOPIC, 1, configs={"cleanup.policy": "compact"})
    lag = _Lag(cluster, readers)
    produced_s = await _produce(cluster, key=b"k")
    await _commit(cluster, 0)
    await lag.check(1, produced_s)
    kept = [reader._lags._timestamps.committed for reader in readers.values() if reader._lags is not None]
    assert kept == [{}] * 3


async def test_a_share_group_counts_what_it_is_not_done_with_and_its_age(
    cluster: TestCluster, readers: dict[int, MetricsReader]
) -> None:
    """Also records of an open transaction: a share group reads them, and Kafka's tools count to the high watermark."""
    await cluster.create_topic(TOPIC, 1)
    lag = _Lag(cluster, readers, SHARE_GROUP)
    produced_s = []
    for _ in range(6):
        produced_s.append(await _produce(cluster))
        await asyncio.sleep(20)
    await _begin_share_group(cluster)
    for start, done in ((0, 0), (2, 0), (2, 3)):
        await _share_state(cluster, start, done)
        await lag.check(6 - start - done, produced_s[start])
        await asyncio.sleep(100)
    await _share_state(cluster, 6, 0)
    assert await lag.read() == (0, 0.0)
    async with _open_transaction(cluster) as producer:
        produced = cluster.clock.wall_ms() / 1000
        await asyncio.sleep(15)
        await lag.check(1, produced)
        await producer.abort()


async def _begin_share_group(cluster: TestCluster) -> None:
    async with await cluster.client() as client:
        coordinator = await client.coordinator(SHARE_GROUP)
        for epoch in (0, -1):
            beat = ShareGroupHeartbeatRequest(
                group_id=SHARE_GROUP, member_id="m", member_epoch=epoch, subscribed_topic_names=[TOPIC]
            )
            assert (await client.request(coordinator, ApiKey.SHARE_GROUP_HEARTBEAT, beat)).error_code == 0
        await alter_start_offsets(client, SHARE_GROUP, {WHERE: 0})


async def _share_state(cluster: TestCluster, start: int, done: int) -> None:
    """Persist that the records before `start` are done, and so many after it."""
    states = cluster.services(1).coordinators._share_state_persister
    key = SharePartitionKey(SHARE_GROUP, cluster.services(1).cluster.current.topics[TOPIC].topic_id, 0)
    state = (await states.read(key, 0)).state
    assert state is not None
    await states.write(key, StateWrite(state.state_epoch, 0, start, done, ()))
