"""Administers transactions: lists and describes them, finds hanging ones and aborts them.

A transaction hangs on a partition if it is open there and its coordinator does not know that, so that no marker will
ever come: readers of committed records wait, and compaction stops. Brokers that verify partitions (KIP-890) let none
begin; those of older brokers and of directories taken over from them are found here as kafka-transactions.sh does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ottla.client.cluster import Cluster
from ottla.client.errors import raise_for
from ottla.client.offsets import by_topic
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.core.ids import NO_OFFSET, TopicPartition
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.describe_producers import DescribeProducersResponse
    from ottla.wire.generated.describe_transactions import DescribeTransactionsResponse

if TYPE_CHECKING:  # imported where it is used
    from ottla.wire.generated.list_transactions import ListTransactionsResponse

TRANSACTION_COORDINATOR = 1
_PARTITIONS_PER_REQUEST = 500


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """An item of ListTransactions."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None  # None: no transaction is open
    partitions: tuple[TopicPartition, ...]  # without a marker yet
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open on one partition."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int  # of the producer's last marker; -1: it has had none
    start_offset: int
    last_timestamp_ms: int
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer of a partition, as its leader remembers it; `start_offset` is -1 without an open transaction."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int


async def list_transactions(
    cluster: Cluster, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), longer_than_ms: int = -1
) -> list[TransactionListing]:
    """List the transactional ids of all coordinators, sorted. Raises KafkaError, also for an unknown state."""
    from ottla.wire.generated.list_transactions import ListTransactionsRequest

    ask = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producer_ids), duration_filter=longer_than_ms
    )
    nodes = list((await cluster.refresh([])).nodes)
    answers = await asyncio.gather(*(_list_of(cluster, node, ask) for node in nodes))
    listings = [
        TransactionListing(t.transactional_id, t.transaction_state, t.producer_id, node)
        for node, answer in zip(nodes, answers, strict=True)
        for t in answer.transaction_states
    ]
    unknown = {state for answer in answers for state in answer.unknown_state_filters}
    if unknown:
        raise error_for(ErrorCode.INVALID_REQUEST, f"unknown transaction states: {', '.join(sorted(unknown))}")
    return sorted(listings, key=lambda each: each.transactional_id)


async def describe_transaction(cluster: Cluster, transactional_id: str) -> TransactionDescription:
    """Describe a transactional id. Raises KafkaError: TRANSACTIONAL_ID_NOT_FOUND and others."""
    from ottla.wire.generated.describe_transactions import DescribeTransactionsRequest

    async def attempt() -> TransactionDescription:
        node_id = await cluster.coordinator(transactional_id, key_type=TRANSACTION_COORDINATOR)
        ask = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer: DescribeTransactionsResponse = await cluster.request(node_id, ApiKey.DESCRIBE_TRANSACTIONS, ask)
        (found,) = answer.transaction_states
        raise_for(found.error_code, about=f"transactional id {transactional_id}")
        return TransactionDescription(
            transactional_id=found.transactional_id,
            state=found.transaction_state,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            timeout_ms=found.transaction_timeout_ms,
            start_ms=found.transaction_start_time_ms if found.transaction_start_time_ms >= 0 else None,
            partitions=tuple(sorted(TopicPartition(t.topic, number) for t in found.topics for number in t.partitions)),
            coordinator_id=node_id,
        )

    return await cluster.retrying(attempt)


async def abort_transaction(cluster: Cluster, transactional_id: str) -> None:
    """Have the coordinator abort the transaction of a transactional id, and fence its producer. Raises KafkaError."""
    from ottla.wire.generated.init_producer_id import InitProducerIdRequest

    described = await describe_transaction(cluster, transactional_id)

    async def attempt() -> None:
        node_id = await cluster.coordinator(transactional_id, key_type=TRANSACTION_COORDINATOR)
        ask = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=described.timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        answer = await cluster.request(node_id, ApiKey.INIT_PRODUCER_ID, ask)
        raise_for(answer.error_code, about=f"aborting the transaction of {transactional_id}")

    await cluster.retrying(attempt)


async def open_transactions(cluster: Cluster, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """List the transactions that are open on these partitions, sorted by partition and offset. Raises KafkaError."""
    transactions: list[OpenTransaction] = []
    for node_id, topic_partitions in (await cluster.by_leader(partitions)).items():
        for first in range(0, len(topic_partitions), _PARTITIONS_PER_REQUEST):
            transactions += await _open_on(cluster, node_id, topic_partitions[first : first + _PARTITIONS_PER_REQUEST])
    return sorted(transactions, key=lambda each: (each.tp, each.start_offset))


async def hanging_transactions(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, older_than_ms: int, now_ms: int
) -> list[OpenTransaction]:
    """Find the open transactions without a record for so long, of which their coordinator knows nothing.

    Raises KafkaError.
    """
    opened = await open_transactions(cluster, partitions)
    candidates = [transaction for transaction in opened if now_ms - transaction.last_timestamp_ms >= older_than_ms]
    if not candidates:
        return []
    producer_ids = sorted({transaction.producer_id for transaction in candidates})
    listed = await list_transactions(cluster, producer_ids=producer_ids)
    names = {listing.producer_id: listing.transactional_id for listing in listed}
    known: dict[str, TransactionDescription] = {}
    for name in names.values():
        try:
            known[name] = await describe_transaction(cluster, name)
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
    hanging = []
    for open_transaction in candidates:
        owner = names.get(open_transaction.producer_id)
        description = None if owner is None else known.get(owner)
        if description is None or open_transaction.tp not in description.partitions:
            hanging.append(replace(open_transaction, transactional_id=owner))
    return hanging


async def abort_on_partition(cluster: Cluster, transaction: OpenTransaction) -> None:
    """Write an abort marker to one partition, without the coordinator. Raises KafkaError.

    Its coordinator epoch is that of the producer's last marker, which no coordinator exceeds by mistake: a coordinator
    that does know the transaction is not fenced by it.
    """
    from ottla.wire.generated.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest

    tp = transaction.tp
    marker = WritableTxnMarker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
        coordinator_epoch=max(transaction.coordinator_epoch, 0),
    )
    leader = await cluster.partition(tp, fresh=True)
    answer = await cluster.request(leader.leader_id, ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest(markers=[marker]))
    for result in answer.markers:
        for topic in result.topics:
            for part in topic.partitions:
                raise_for(part.error_code, about=f"aborting a transaction on {tp}")


async def active_producers(cluster: Cluster, tp: TopicPartition) -> list[ActiveProducer]:
    """List the idempotent producers that the leader of a partition remembers, the last one first. Raises KafkaError."""
    from ottla.wire.generated.describe_producers import DescribeProducersRequest, TopicRequest

    leader = await cluster.partition(tp, fresh=True)
    ask = DescribeProducersRequest(topics=[TopicRequest(name=tp.topic, partition_indexes=[tp.partition])])
    answer: DescribeProducersResponse = await cluster.request(leader.leader_id, ApiKey.DESCRIBE_PRODUCERS, ask)
    (partition,) = answer.topics[0].partitions
    raise_for(partition.error_code, partition.error_message, about=str(tp))
    producers = [
        ActiveProducer(
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.current_txn_start_offset,
        )
        for producer in partition.active_producers
    ]
    return sorted(producers, key=lambda producer: -producer.last_timestamp_ms)


async def _list_of(cluster: Cluster, node_id: int, ask: object) -> ListTransactionsResponse:
    async def attempt() -> ListTransactionsResponse:
        answer: ListTransactionsResponse = await cluster.request(node_id, ApiKey.LIST_TRANSACTIONS, ask)
        raise_for(answer.error_code, about=f"transactions of broker {node_id}")
        return answer

    return await cluster.retrying(attempt)


async def _open_on(cluster: Cluster, node_id: int, partitions: Sequence[TopicPartition]) -> list[OpenTransaction]:
    from ottla.wire.generated.describe_producers import DescribeProducersRequest, TopicRequest

    topics = [
        TopicRequest(name=name, partition_indexes=[tp.partition for tp in tps])
        for name, tps in by_topic(partitions).items()
    ]
    ask = DescribeProducersRequest(topics=topics)
    answer: DescribeProducersResponse = await cluster.request(node_id, ApiKey.DESCRIBE_PRODUCERS, ask)
    found = []
    for topic in answer.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            raise_for(part.error_code, part.error_message, about=str(tp))
            found += [
                OpenTransaction(
                    tp=tp,
                    producer_id=each.producer_id,
                    producer_epoch=each.producer_epoch,
                    coordinator_epoch=each.coordinator_epoch,
                    start_offset=each.current_txn_start_offset,
                    last_timestamp_ms=each.last_timestamp,
                )
                for each in part.active_producers
                if each.current_txn_start_offset != NO_OFFSET
            ]
    return found
