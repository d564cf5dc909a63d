"""Produces in transactions: all records and offsets of a transaction become visible together, or none does (KIP-98).

With `transaction.version` 2 on the cluster (KIP-890) the first batch of a partition adds it to the transaction, and
each transaction has an epoch of its own. With older brokers AddPartitionsToTxn and AddOffsetsToTxn come first.

    READY -> begin -> IN_TRANSACTION -> commit or abort -> READY
    an error of a record or of offsets -> FAILED: only abort is possible
    another producer with the same transactional id -> FENCED: nothing is possible
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.errors import raise_for
from ottla.client.groups import OffsetAndMetadata
from ottla.client.producer import Headers, Producer, ProducerOptions, RecordGroup, RecordMetadata
from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode, InvalidTxnState, KafkaError
from ottla.core.ids import ProducerIdAndEpoch, TopicPartition
from ottla.records.builder import NewRecord
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.end_txn import EndTxnResponse
    from ottla.wire.generated.init_producer_id import InitProducerIdResponse

T = TypeVar("T")
TRANSACTION_COORDINATOR, GROUP_COORDINATOR = 1, 0
TRANSACTION_TIMEOUT_MS = 60_000
"""Kafka's default of `transaction.timeout.ms`."""

_FEATURE, _FIRST_LEVEL_WITH_EPOCH_BUMP = "transaction.version", 2
_FIRST_END_TXN_WITH_EPOCH_BUMP = 5
# The last versions of clients that use the first version of transactions.
_OLD_PRODUCE, _OLD_END_TXN, _OLD_OFFSET_COMMIT, _OFFSET_COMMIT_BY_NAME = 11, 4, 4, 5
_CLIENT_ADD_PARTITIONS = 3  # later versions are for brokers
_FENCING = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)


class TransactionalProducerState(Enum):
    """The state of a transactional producer, which determines the calls it allows."""

    UNINITIALIZED = "not initialized"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    FAILED = "in a failed transaction"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """The member of a consumer group in whose name offsets are committed."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class TransactionalProducer:
    """Sends records in transactions. Call `init` first (or use `async with`)."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        clock: Clock,
        options: ProducerOptions | None = None,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        first_version: bool = False,
    ) -> None:
        """Take `first_version`: with it the second version of transactions is not used even if the cluster has it."""
        self.transactional_id = transactional_id
        self.identity = ProducerIdAndEpoch()
        self.state = TransactionalProducerState.UNINITIALIZED
        self.produce_version_max: int | None = None
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._first_version = first_version
        self._bumps_epochs = False  # by the second version of transactions
        self._error: Exception | None = None
        self._partitions: set[TopicPartition] = set()  # that have been added to this transaction
        self._has_offsets = False
        self._adding = asyncio.Lock()
        self._producer = Producer(cluster, clock=clock, options=options, transaction=self)

    async def __aenter__(self) -> Self:
        await self.init()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            if self.state in {TransactionalProducerState.IN_TRANSACTION, TransactionalProducerState.FAILED}:
                await self.abort()
        finally:
            await self.close()

    # ---- The life of a transaction

    async def init(self) -> None:
        """Take the transactional id over: the transaction of an earlier producer is aborted, and it is fenced."""
        self.identity = await self._cluster.retrying(lambda: self._init_producer_id(ProducerIdAndEpoch()))
        self.state = TransactionalProducerState.READY

    def begin(self) -> None:
        """Begin a transaction."""
        self._expect(TransactionalProducerState.READY)
        self.state = TransactionalProducerState.IN_TRANSACTION

    async def send(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue a record, as `Producer.send` does."""
        self._expect(TransactionalProducerState.IN_TRANSACTION)
        return await self._producer.send(
            topic, key=key, value=value, headers=headers, timestamp_ms=timestamp_ms, partition=partition
        )

    async def send_many(
        self, topic: str, records: Sequence[NewRecord], *, partitions: Sequence[int | None] | None = None
    ) -> list[RecordGroup]:
        """Queue records, as `Producer.send_many` does."""
        self._expect(TransactionalProducerState.IN_TRANSACTION)
        return await self._producer.send_many(topic, records, partitions=partitions)

    async def flush(self) -> None:
        """Send all queued records, and wait until each is acknowledged or has failed."""
        await self._producer.flush()

    async def send_offsets(
        self, group: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Commit offsets of a group with this transaction: they count once it is committed. Raises KafkaError."""
        self._expect(TransactionalProducerState.IN_TRANSACTION)
        if not offsets:
            return
        try:
            if not self._bumps_epochs:
                await self._cluster.retrying(lambda: self._add_offsets(group.group_id))
            self._has_offsets = True
            await self._cluster.retrying(lambda: self._commit_offsets(group, offsets))
        except Exception as error:
            self.failed(error)
            raise

    async def commit(self) -> None:
        """Wait for all records, then commit. Raises the error of the first record that failed: abort then."""
        await self._producer.flush()
        self._expect(TransactionalProducerState.IN_TRANSACTION)
        await self._end(committed=True)
        self.state = TransactionalProducerState.READY

    async def abort(self) -> None:
        """Drop the transaction: readers of committed records never see it. Raises KafkaError."""
        if self.state not in {TransactionalProducerState.IN_TRANSACTION, TransactionalProducerState.FAILED}:
            self._expect(TransactionalProducerState.IN_TRANSACTION)
        await self._producer.flush()
        has_failed = self.state is TransactionalProducerState.FAILED
        await self._end(committed=False)
        if has_failed and not self._bumps_epochs:  # unknown which sequence the broker expects (KIP-360)
            self.identity = await self._cluster.retrying(lambda: self._init_producer_id(self.identity))
        self._error = None
        self.state = TransactionalProducerState.READY

    async def close(self) -> None:
        """Stop. An open transaction stays open until it is aborted by its timeout."""
        await self._producer.close(flush=False)

    # ---- For the producer of the batches

    async def add_partition(self, tp: TopicPartition) -> None:
        """Add a partition to the transaction before its first batch. Raises KafkaError."""
        if self._error is not None:
            raise self._error
        if tp in self._partitions:
            return
        async with self._adding:  # TV_1 serves one such request at a time
            if tp in self._partitions:
                return
            if not self._bumps_epochs:
                await self._cluster.retrying(lambda: self._add_partitions(tp))
            self._partitions.add(tp)

    def failed(self, error: Exception) -> None:
        """Note that a record or offsets were not written: the transaction cannot be committed."""
        is_fenced = isinstance(error, KafkaError) and error.code in _FENCING
        if self.state is not TransactionalProducerState.FENCED:
            self.state = TransactionalProducerState.FENCED if is_fenced else TransactionalProducerState.FAILED
            self._error = self._error or error

    # ---- Internals

    def _expect(self, state: TransactionalProducerState) -> None:
        if self.state is state:
            return
        if self._error is not None:
            raise self._error
        raise InvalidTxnState(f"The producer of transactional id {self.transactional_id} is {self.state.value}")

    async def _init_producer_id(self, known: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        from ottla.wire.generated.init_producer_id import InitProducerIdRequest

        node_id = await self._cluster.coordinator(self.transactional_id, key_type=TRANSACTION_COORDINATOR)
        connection = await self._cluster.connection(node_id)
        level = connection.features.get(_FEATURE, 0)
        _, end_txn = connection.versions.get(ApiKey.END_TXN, (0, 0))
        self._bumps_epochs = (
            not self._first_version
            and level >= _FIRST_LEVEL_WITH_EPOCH_BUMP
            and end_txn >= _FIRST_END_TXN_WITH_EPOCH_BUMP
        )
        self.produce_version_max = None if self._bumps_epochs else _OLD_PRODUCE
        ask = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
        )
        answer: InitProducerIdResponse = await self._cluster.request(node_id, ApiKey.INIT_PRODUCER_ID, ask)
        raise_for(answer.error_code, about=f"initializing transactional id {self.transactional_id}")
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def _add_partitions(self, tp: TopicPartition) -> None:
        from ottla.wire.generated.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic

        ask = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])],
        )
        answer = await self._ask_coordinator(ApiKey.ADD_PARTITIONS_TO_TXN, ask, at_most=_CLIENT_ADD_PARTITIONS)
        for topic in answer.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                raise_for(result.partition_error_code, about=f"adding {tp} to a transaction")

    async def _add_offsets(self, group_id: str) -> None:
        from ottla.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest

        ask = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=group_id,
        )
        answer = await self._ask_coordinator(ApiKey.ADD_OFFSETS_TO_TXN, ask)
        raise_for(answer.error_code, about=f"adding the offsets of group {group_id} to a transaction")

    async def _commit_offsets(
        self, group: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        from ottla.wire.generated.txn_offset_commit import (
            TxnOffsetCommitRequest,
            TxnOffsetCommitRequestPartition,
            TxnOffsetCommitRequestTopic,
        )

        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for tp, offset in offsets.items():
            topics.setdefault(tp.topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
            )
        ask = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
        )
        node_id = await self._cluster.coordinator(group.group_id, key_type=GROUP_COORDINATOR)
        at_most = _OFFSET_COMMIT_BY_NAME if self._bumps_epochs else _OLD_OFFSET_COMMIT
        answer = await self._cluster.request(node_id, ApiKey.TXN_OFFSET_COMMIT, ask, at_most=at_most)
        for topic in answer.topics:
            for part in topic.partitions:
                raise_for(part.error_code, about=f"the offset of {topic.name}-{part.partition_index}")

    async def _end(self, *, committed: bool) -> None:
        """End the transaction, unless nothing was sent in it."""
        if self._partitions or self._has_offsets:
            try:
                await self._cluster.retrying(lambda: self._end_txn(committed=committed))
            except KafkaError as error:
                if not error.retriable:
                    self.failed(error)
                raise
        self._partitions, self._has_offsets = set(), False

    async def _end_txn(self, *, committed: bool) -> None:
        from ottla.wire.generated.end_txn import EndTxnRequest

        ask = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=committed,
        )
        at_most = None if self._bumps_epochs else _OLD_END_TXN
        answer: EndTxnResponse = await self._ask_coordinator(ApiKey.END_TXN, ask, at_most=at_most)
        raise_for(answer.error_code, about=f"{'committing' if committed else 'aborting'} a transaction")
        if self._bumps_epochs and answer.producer_id >= 0:
            self.identity = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def _ask_coordinator(self, key: ApiKey, ask: Any, *, at_most: int | None = None) -> Any:
        node_id = await self._cluster.coordinator(self.transactional_id, key_type=TRANSACTION_COORDINATOR)
        return await self._cluster.request(node_id, key, ask, at_most=at_most)
