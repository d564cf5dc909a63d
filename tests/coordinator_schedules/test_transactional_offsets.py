"""Offsets in transactions beside plain commits, deletions, markers, restarts and a slow log, compared with the log itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

import pytest

from ottla.core.errors import InvalidTxnState, KafkaError
from ottla.core.ids import TopicPartition
from ottla.groups.coordinator import GroupCoordinator
from ottla.groups.machine import Commit
from ottla.groups.offsets import CommittedOffset
from ottla.groups.records import OffsetRecord, decode
from ottla.internal_topics.partitioning import partition_of
from ottla.internal_topics.topic_log import AppendedBatch, KeyValue, ProducerIdentity
from ottla.testing.sim_loop import simulate
from tests.coordinator_schedules.schedules import seeds
from tests.coordinator_schedules.test_groups import PARTITIONS, WORK, RestartingBroker, SlowLog
from tests.support.topic_logs import MemoryTopicLog

GROUPS = ("team", "other")
ALONE = Commit(member_id="", generation=-1)
IN_TRANSACTION = Commit(member_id="", generation=-1, is_transactional=True)


class VerifiedLog(MemoryTopicLog):
    """A log that refuses what does not belong to an open transaction, as the verification of KIP-890 does."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.open: set[tuple[int, ProducerIdentity]] = set()

    async def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        producer: ProducerIdentity | None = None,
        *,
        leader_epoch: int,
    ) -> AppendedBatch:
        if producer is not None and (partition, producer) not in self.open:
            raise InvalidTxnState
        return await super().append(partition, records, producer, leader_epoch=leader_epoch)


class TransactionalLog(SlowLog, VerifiedLog):
    """`__consumer_offsets` with transactions; slow before and after the append."""

    def end(self, partition: int, producer: ProducerIdentity, *, commit: bool) -> int:
        self.open.discard((partition, producer))
        return self.end_transaction(partition, producer, commits=commit)

    def visible(self, group_id: str) -> dict[TopicPartition, int]:
        """What a reader of the whole log finds committed."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        pending: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        for at, batch in enumerate(self.batches[partition_of(group_id, PARTITIONS)]):
            if batch.commits is not None:
                assert batch.producer is not None
                for where, (order, offset) in pending.pop(batch.producer.producer_id, {}).items():
                    if batch.commits and order > found.get(where, (-1, -1))[0]:
                        found[where] = (order, offset)
            for key, value in batch.records:
                record = decode(key, value)
                if not isinstance(record, OffsetRecord) or record.group_id != group_id:
                    continue
                if record.committed is None:
                    for each in (found, *pending.values()):
                        each.pop(record.partition, None)
                elif batch.producer is None:
                    found[record.partition] = (at, record.committed.offset)
                else:
                    mine = pending.setdefault(batch.producer.producer_id, {})
                    mine[record.partition] = (at, record.committed.offset)
        return {where: offset for where, (_, offset) in found.items()}


class TransactionalWorkload:
    """One broker, and the offsets that may not be seen: those of open and of aborted transactions."""

    def __init__(self, rng: random.Random, log: TransactionalLog) -> None:
        self.rng, self.log, self.broker = rng, log, RestartingBroker(rng, log)
        self.numbers = iter(range(1, 1_000_000))  # each commit has an offset of its own
        self.hidden: set[int] = set()
        self.running = True

    @property
    def coordinator(self) -> GroupCoordinator:
        return self.broker.coordinator

    def change(self) -> dict[TopicPartition, CommittedOffset]:
        chosen = self.rng.sample(WORK, self.rng.randint(1, 3))
        return {where: CommittedOffset(next(self.numbers)) for where in chosen}

    async def commits(self) -> None:
        while self.running:
            await asyncio.sleep(self.rng.random() * 2)
            try:
                await self.coordinator.commit(self.rng.choice(GROUPS), ALONE, self.change())
            except KafkaError:
                pass

    async def deletes(self) -> None:
        while self.running:
            await asyncio.sleep(self.rng.random() * 8)
            group_id = self.rng.choice(GROUPS)
            try:
                if self.rng.random() < 0.3:
                    await self.coordinator.delete(group_id)
                else:
                    await self.coordinator.delete_offsets(group_id, self.rng.sample(WORK, 2))
            except KafkaError:
                pass

    async def produces(self, producer_id: int) -> None:
        epoch = 0
        while self.running:
            producer = ProducerIdentity(producer_id, epoch)
            partitions = {partition_of(group_id, PARTITIONS) for group_id in GROUPS}
            self.log.open |= {(partition, producer) for partition in partitions}
            written: set[int] = set()
            late: list[asyncio.Task[None]] = []
            for _ in range(self.rng.randint(1, 4)):
                change = self.change()
                written |= {each.offset for each in change.values()}
                self.hidden |= {each.offset for each in change.values()}
                late.append(asyncio.create_task(self.commit_in(producer, change)))
                if self.rng.random() < 0.7:
                    await late.pop()
                await asyncio.sleep(self.rng.random())
            commit = self.rng.random() < 0.6
            if commit:
                await asyncio.gather(*late)  # a client waits for its offsets before it commits
                self.hidden -= written
            await self.end(producer, partitions, commit=commit)
            await asyncio.gather(*late)
            epoch += self.rng.random() < 0.5

    async def commit_in(self, producer: ProducerIdentity, change: dict[TopicPartition, CommittedOffset]) -> None:
        await asyncio.sleep(self.rng.random() * 0.5)
        try:
            await self.coordinator.commit(self.rng.choice(GROUPS), IN_TRANSACTION, change, producer)
        except KafkaError:
            pass

    async def end(self, producer: ProducerIdentity, partitions: set[int], *, commit: bool) -> None:
        for partition in partitions:
            self.coordinator.marker_appended(partition, self.log.end(partition, producer, commit=commit))
            while True:
                try:
                    await self.coordinator.complete_transaction(partition, producer.producer_id, commit=commit)
                    break
                except KafkaError:
                    await asyncio.sleep(0.05)

    async def reads(self) -> None:
        while self.running:
            await asyncio.sleep(self.rng.random() * 0.3)
            for group_id in GROUPS:
                try:
                    found = self.coordinator.fetch(group_id)
                except KafkaError:
                    continue
                seen = {each.offset for _, each in found.items()} & self.hidden
                assert not seen, f"offsets of an open or aborted transaction are visible: {seen}"


async def transactions(failing: float, rng: random.Random) -> None:
    log = TransactionalLog(rng)
    workload = TransactionalWorkload(rng, log)
    await workload.coordinator.led.wait_until_loaded()
    log.failure_rate = failing
    work = [workload.commits(), workload.commits(), workload.deletes(), workload.reads()]
    work += [workload.produces(producer_id) for producer_id in (7, 8)]
    tasks = [asyncio.create_task(each) for each in work]
    for _ in range(3):
        await asyncio.sleep(rng.random() * 10)
        await workload.broker.restart()
    await asyncio.sleep(rng.random() * 10)
    workload.running = False
    await asyncio.gather(*tasks)
    if not failing:  # a write that failed and is in the log all the same shows after the next start
        compare(workload)
    await workload.broker.restart()
    compare(workload)
    for group_id in GROUPS:
        assert not workload.coordinator.fetch(group_id).has_open_transactions
    await workload.coordinator.close()


def compare(workload: TransactionalWorkload) -> None:
    for group_id in GROUPS:
        found = {where: each.offset for where, each in workload.coordinator.fetch(group_id).items()}
        assert found == workload.log.visible(group_id)


@pytest.mark.parametrize("seed", seeds(60))
def test_only_offsets_of_committed_transactions_are_visible(seed: int) -> None:
    simulate(partial(transactions, 0.0), seed=seed)


@pytest.mark.parametrize("seed", seeds(40, first=100_000))
def test_only_offsets_of_committed_transactions_are_visible_when_the_log_fails_at_times(seed: int) -> None:
    simulate(partial(transactions, 0.2), seed=seed)
