"""Writes the batches of one sink task under one producer id: in order per partition, each batch once.

The producer id and epoch are given by the caller, because a later attempt of the same task takes over the id with the
next epoch: from its first write to a partition on, brokers fence the earlier attempt. A retried batch has the same
sequence number, so a broker that already has it answers without writing (KIP-98). docs/design/connector.md says
why this is not `client/producer.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.client.cluster import ANY_BROKER, Cluster
from ottla.client.errors import raise_for
from ottla.core.errors import ErrorCode, MessageTooLarge, RecordListTooLarge
from ottla.core.ids import NO_TOPIC_ID, ProducerIdAndEpoch, TopicPartition
from ottla.records.batch import increment_sequence
from ottla.records.builder import NewRecord, build_batch
from ottla.wire.apis import ApiKey
from ottla.wire.hot.produce import FIRST_WITH_TOPIC_IDS

if TYPE_CHECKING:
    from ottla.wire.generated.init_producer_id import InitProducerIdResponse


async def init_producer_id(cluster: Cluster) -> ProducerIdAndEpoch:
    """Request a new producer id from the brokers. Raises KafkaError or CannotConnect."""
    from ottla.wire.generated.init_producer_id import InitProducerIdRequest

    async def attempt() -> ProducerIdAndEpoch:
        ask = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        answer: InitProducerIdResponse = await cluster.request(ANY_BROKER, ApiKey.INIT_PRODUCER_ID, ask)
        raise_for(answer.error_code, about="asking for a producer id")
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    return await cluster.retrying(attempt)


class Sender:
    """Writes with one batch in flight per partition; `send` waits for the previous one."""

    def __init__(
        self, cluster: Cluster, identity: ProducerIdAndEpoch, *, codec: int, acks: int, patience_s: float
    ) -> None:
        self._cluster = cluster
        self._identity = identity
        self._codec = codec
        self._acks = acks
        self._patience_s = patience_s
        self._next_sequence: dict[TopicPartition, int] = {}
        self._under_way: dict[TopicPartition, asyncio.Task[None]] = {}

    async def send(self, tp: TopicPartition, records: Sequence[NewRecord]) -> None:
        """Start to write the records. Raises the error of the partition's previous batch."""
        await self._settle(tp)
        self._under_way[tp] = asyncio.ensure_future(self._write(tp, records))

    async def finish(self) -> None:
        """Wait until all batches are acknowledged. Raises the first error."""
        for tp in list(self._under_way):
            await self._settle(tp)

    async def close(self) -> None:
        """Cancel the batches in flight."""
        tasks = list(self._under_way.values())
        self._under_way.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self, tp: TopicPartition) -> None:
        task = self._under_way.pop(tp, None)
        if task is not None:
            await task

    async def _write(self, tp: TopicPartition, records: Sequence[NewRecord]) -> None:
        """Write one batch; if the broker rejects it as too large, write it in two halves."""
        base_sequence = self._next_sequence.get(tp, 0)
        batch = bytes(
            build_batch(
                records,
                codec=self._codec,
                producer_id=self._identity.producer_id,
                producer_epoch=self._identity.epoch,
                base_sequence=base_sequence,
            )
        )
        try:
            await self._deliver(tp, batch)
        except (MessageTooLarge, RecordListTooLarge):
            if len(records) == 1:
                raise
            middle = len(records) // 2
            await self._write(tp, records[:middle])
            await self._write(tp, records[middle:])
        else:
            self._next_sequence[tp] = increment_sequence(base_sequence, len(records))

    async def _deliver(self, tp: TopicPartition, batch: bytes) -> None:
        stale = False

        async def attempt() -> None:
            nonlocal stale
            fresh, stale = stale, True
            await self._produce(tp, batch, fresh=fresh)

        await self._cluster.retrying(attempt, retry_s=self._patience_s)

    async def _produce(self, tp: TopicPartition, batch: bytes, *, fresh: bool) -> None:
        from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData

        leader = await self._cluster.partition(tp, fresh=fresh)
        topic_id = self._cluster.info.topics[tp.topic].topic_id
        data = PartitionProduceData(index=tp.partition, records=batch)
        ask = ProduceRequest(
            acks=self._acks,
            timeout_ms=int(self._cluster.options.request_timeout_s * 1000),
            topic_data=[TopicProduceData(name=tp.topic, topic_id=topic_id, partition_data=[data])],
        )
        at_most = FIRST_WITH_TOPIC_IDS - 1 if topic_id == NO_TOPIC_ID else None
        answer = await self._cluster.request(leader.leader_id, ApiKey.PRODUCE, ask, at_most=at_most)
        result = answer.responses[0].partition_responses[0]
        if result.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return  # an earlier attempt of this request was written
        detail = next((e.batch_index_error_message for e in result.record_errors if e.batch_index_error_message), None)
        raise_for(result.error_code, result.error_message or detail, about=str(tp))
