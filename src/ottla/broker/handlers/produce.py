"""Produce (key 0), versions 3 to 13.

What it does
  For each partition: checks the batch, appends it to the leader's log. Answers at once (acks 0) or when the records
  are replicated on every in-sync replica (acks -1): fsynced, unless the topic has `durability=page-cache`. With acks 1
  the leader alone must have the records; where it is the only in-sync replica the answer waits for them to become
  visible, as in Kafka: after it ListOffsets and fetches see them. The request's timeout is for the other replicas: the
  leader's own fsync is part of its append and has five seconds at least, so that no short timeout fails it.
  The records of a batch are validated before it is appended: of a large or compressed batch maybe in a thread; order
  is kept. Of a partition that a request names twice only the last batch counts, as in Kafka.
  The first batch of a transaction on a partition waits until the transaction coordinator has verified the partition, or
  from version 12 on has added it to the transaction (KIP-890); later batches do not wait.

What it does not do
  Message formats before record batch v2: versions 0 to 2 are advertised (KAFKA-18659: librdkafka derives its codecs
    from them) and refused with UNSUPPORTED_VERSION.

Versions
  v5   log_start_offset in the answer
  v8   error_message and record_errors in the answer (KIP-467)
  v9   flexible encoding
  v10  current_leader and its endpoint in the answer, when it is not this broker (KIP-951)
  v11  TRANSACTION_ABORTABLE; v12 partitions are added to transactions implicitly (KIP-890)
  v13  topics by id

Step 4 of 9 on the path of a batch (ARCHITECTURE.md).
Before: broker/requests/driver.py. Next: broker/delayed_produce.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from ottla.broker.delayed_produce import DelayedProduce
from ottla.broker.remote.transaction_verification import TransactionSupportedOperation, TransactionVerification
from ottla.broker.requests.allowed_topics import TopicKey, allowed_topics
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.handler import Deferred
from ottla.broker.requests.request import Request
from ottla.broker.services import Services
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.core.ids import TopicPartition
from ottla.net.connection import PendingResponse
from ottla.records.batch import ATTRIBUTES_BYTE_AT, HEADER_BYTES, TRANSACTIONAL, BatchHeader
from ottla.wire.apis import ApiKey
from ottla.wire.hot.produce import (
    FIRST_WITH_TOPIC_IDS,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    decode_produce_request,
    in_chunks,
    read_topics,
)
from ottla.wire.hot.reading import AT_ONCE

FIRST_WITH_TRANSACTION_ABORTABLE: Final = 11
FIRST_THAT_ADDS_PARTITIONS: Final = 12
WRITE: Final = Access(AclOperation.WRITE, ResourceType.TOPIC, "each topic")
WRITE_TRANSACTIONAL_ID: Final = Access(
    AclOperation.WRITE,
    ResourceType.TRANSACTIONAL_ID,
    "the transactional id, if a batch is transactional",
    refusal="`TRANSACTIONAL_ID_AUTHORIZATION_FAILED` for each partition",
)
_APPENDED_AT_ONCE: Final = 20  # partitions of a long request between two looks at the slice of work
_APPEND_WORK: Final = 12  # an append or a refusal takes 30 to 60 microseconds
_BYTES_PER_WORK: Final = 4096

decode = decode_produce_request


def handle(ctx: Request, request: ProduceRequest, response: PendingResponse) -> Coroutine[Any, Any, None] | None:
    """Append to all partitions; respond now or when the slowest partition's records are replicated.

    Returns what is left to be run as a task if a transaction must be verified first.
    """
    services = ctx.services
    if len(request.topics) > 1 or (request.topics and len(request.topics[0].partitions) > 1):
        request.topics = _without_repeats(request.topics)
    operation = DelayedProduce(services, ctx.api_version, ctx.listener, request, response)
    operation.client_id = ctx.client_id
    topics = request.topics
    if ctx.authorizer is not None:
        topics = _authorized(ctx, operation, request.transactional_id, topics)
    if request.transactional_id is not None and operation.refusal is None:
        begun = _VerificationOfRequest(services, ctx.api_version, request.transactional_id)
        begun.begin(topics)
        if begun.refusal is None and begun.verification is not None:
            for topic in topics:
                for part in topic.partitions:
                    if part.records is not None:  # a view into the connection's buffer, which is used again
                        part.records = memoryview(bytearray(part.records))
            return _verify_and_append(services, operation, topics, response, begun.verification)
        operation.refusal = begun.refusal
    operation.append(topics, services.clock.wall_ms())
    operation.complete_or_wait()
    return None


async def _verify_and_append(
    services: Services,
    operation: DelayedProduce,
    topics: Sequence[ProduceTopic],
    response: PendingResponse,
    verification: TransactionVerification,
) -> None:
    """Append once the transaction coordinator has verified the partitions."""
    _keep_task(response)
    await services.coordinators.transaction_verifier.verify(verification)
    operation.verification = verification
    operation.append(topics, services.clock.wall_ms())
    operation.complete_or_wait()


def _authorized(
    ctx: Request, operation: DelayedProduce, transactional_id: str | None, topics: list[ProduceTopic]
) -> list[ProduceTopic]:
    """Refuse what the client may not write; return the topics that are left."""
    if _has_transactional_batch(topics) and _is_denied(ctx, transactional_id):
        operation.refusal = WRITE_TRANSACTIONAL_ID.error
        return topics
    return _writable(ctx, operation, topics)


async def _authorized_in_slices(
    ctx: Request, operation: DelayedProduce, transactional_id: str | None, topics: list[ProduceTopic]
) -> list[ProduceTopic]:
    """Do the same for a request of many partitions, some at a time."""
    slices, is_transactional = ctx.services.slices, False
    async for chunk in slices.each(in_chunks(topics, AT_ONCE), work=AT_ONCE):
        is_transactional = is_transactional or _has_transactional_batch(chunk)
    if is_transactional and _is_denied(ctx, transactional_id):
        operation.refusal = WRITE_TRANSACTIONAL_ID.error
        return topics
    authorized: list[ProduceTopic] = []
    async for chunk in slices.each(in_chunks(topics, AT_ONCE), work=AT_ONCE):
        authorized += _writable(ctx, operation, chunk)
    return authorized


def _is_denied(ctx: Request, transactional_id: str | None) -> bool:
    return transactional_id is None or WRITE_TRANSACTIONAL_ID.denies(ctx, transactional_id)


def _writable(ctx: Request, operation: DelayedProduce, topics: list[ProduceTopic]) -> list[ProduceTopic]:
    """Refuse the topics that the client may not write; return the others."""
    by_id, allowed = ctx.api_version >= FIRST_WITH_TOPIC_IDS, allowed_topics(ctx)
    denied: list[ProduceTopic] | None = None
    for topic in topics:
        key: TopicKey = topic.wire_name if by_id else topic.name
        if key in allowed.writable:
            continue
        name = topic.name
        if by_id:
            view = ctx.services.cluster.current.topic_by_id.get(topic.wire_name)
            if view is None:  # which is its error
                continue
            name = view.name
        if not WRITE.denies(ctx, name):
            allowed.add(allowed.writable, key)
            continue
        for part in topic.partitions:
            operation.refuse(part, WRITE.error)
        if denied is None:
            denied = []
        denied.append(topic)
    return topics if denied is None else [topic for topic in topics if topic not in denied]


def _has_transactional_batch(topics: Sequence[ProduceTopic]) -> bool:
    for topic in topics:
        for part in topic.partitions:
            records = part.records
            if records is not None and records.nbytes >= HEADER_BYTES and records[ATTRIBUTES_BYTE_AT] & TRANSACTIONAL:
                return True
    return False


def _keep_task(response: PendingResponse) -> None:
    """Have a disconnected client not end the current task: from here on it has effects, which are not given up."""
    task = asyncio.current_task()
    assert task is not None
    response.connection.keep(task)


async def handle_long(ctx: Request, frame: bytearray, at: int, response: PendingResponse) -> None:
    """Serve a request of many partitions as `handle` does, some of them at a time, and respond."""
    services, version, body = ctx.services, ctx.api_version, memoryview(frame)
    slices = services.slices
    request = decode_produce_request(body, version, at, is_long=True)
    while not read_topics(body, version, request, AT_ONCE):
        if slices.spend(AT_ONCE):
            await slices.yield_to_loop()
    last = _LastBatches()
    async for topics in slices.each(in_chunks(request.topics, AT_ONCE), work=AT_ONCE):
        last.add(topics)
    request.topics = last.topics()
    _keep_task(response)
    operation = DelayedProduce(services, version, ctx.listener, request, response)
    operation.client_id = ctx.client_id
    operation.leave_response_to_task()
    authorized = request.topics
    if ctx.authorizer is not None:
        authorized = await _authorized_in_slices(ctx, operation, request.transactional_id, authorized)
    if request.transactional_id is not None and operation.refusal is None:
        begun = _VerificationOfRequest(services, version, request.transactional_id)
        async for topics in slices.each(in_chunks(authorized, AT_ONCE), work=AT_ONCE):
            begun.begin(topics)
        operation.refusal = begun.refusal
        if begun.refusal is None and begun.verification is not None:
            await services.coordinators.transaction_verifier.verify(begun.verification)
            operation.verification = begun.verification
    async for topics in slices.each(in_chunks(authorized, _APPENDED_AT_ONCE), work=_APPENDED_AT_ONCE * _APPEND_WORK):
        operation.append(topics, services.clock.wall_ms())
        slices.spend(_release_records(topics) // _BYTES_PER_WORK)
    operation.complete_or_wait()
    await operation.respond_in_slices()


def _release_records(topics: Sequence[ProduceTopic]) -> int:
    """Release the records of batches that are in the log; returns how many bytes they were."""
    size = 0
    for topic in topics:
        for part in topic.partitions:
            if part.records is not None:
                size += part.records.nbytes
                part.records = None
    return size


class _VerificationOfRequest:
    """Begins the verification of a request's transactional batches, partition by partition."""

    __slots__ = (
        "_now_ms",
        "_operation",
        "_producer",
        "_services",
        "_transactional_id",
        "_version",
        "refusal",
        "verification",
    )

    def __init__(self, services: Services, version: int, transactional_id: str) -> None:
        self._services = services
        self._version = version
        self._transactional_id = transactional_id
        self._now_ms = services.clock.wall_ms()
        self._operation = TransactionSupportedOperation.DEFAULT_ERROR
        if version >= FIRST_THAT_ADDS_PARTITIONS:
            self._operation = TransactionSupportedOperation.ADD_PARTITION
        elif version >= FIRST_WITH_TRANSACTION_ABORTABLE:
            self._operation = TransactionSupportedOperation.GENERIC_ERROR
        self._producer: tuple[int, int] | None = None  # the id and the epoch that all batches must have
        self.verification: TransactionVerification | None = None  # None: there is nothing to verify, as mostly
        self.refusal: KafkaError | None = None  # of the whole request

    def begin(self, topics: Sequence[ProduceTopic]) -> None:
        """Begin the verification of each batch that is the first of its transaction on a partition of this broker."""
        for topic in topics:
            name = topic.name
            if self._version >= FIRST_WITH_TOPIC_IDS:
                view = self._services.cluster.current.topic_by_id.get(topic.wire_name)
                name = "" if view is None else view.name
            for part in topic.partitions:
                self._begin(TopicPartition(name, part.index), part.records)

    def _begin(self, topic_partition: TopicPartition, records: memoryview | None) -> None:
        if records is None or records.nbytes < HEADER_BYTES:
            return
        header = BatchHeader(records, 0)
        if not header.is_transactional or header.producer_id < 0:
            return
        producer_id, epoch = header.producer_id, header.producer_epoch
        if self._producer is None:
            self._producer = producer_id, epoch
        elif (producer_id, epoch) != self._producer:
            why = "Transactional records contained more than one producer ID"
            self.refusal = error_for(ErrorCode.INVALID_PRODUCER_ID_MAPPING, why)
            return
        partition = self._services.replicas.partitions.get(topic_partition)
        if partition is None or partition.internal or not partition.is_serving:
            return
        if partition.log.producers.has_ongoing_transaction(producer_id, epoch):
            return
        if self.verification is None:
            self.verification = TransactionVerification(self._transactional_id, producer_id, epoch, self._operation)
        self.verification.begin(partition, header.base_sequence, self._now_ms)


class _LastBatches:
    """The last batch of each partition in a request."""

    __slots__ = ("_partitions", "_topics")

    def __init__(self) -> None:
        self._topics: dict[bytes, ProduceTopic] = {}
        self._partitions: dict[bytes, dict[int, ProducePartition]] = {}

    def add(self, topics: Sequence[ProduceTopic]) -> None:
        """Add topics after all that were added before."""
        for topic in topics:
            self._topics.setdefault(topic.wire_name, topic)
            partitions = self._partitions.setdefault(topic.wire_name, {})
            for part in topic.partitions:
                partitions[part.index] = part

    def topics(self) -> list[ProduceTopic]:
        """Return each topic once, in the order of the request."""
        for wire_name, topic in self._topics.items():
            topic.partitions = list(self._partitions[wire_name].values())
        return list(self._topics.values())


def _without_repeats(topics: list[ProduceTopic]) -> list[ProduceTopic]:
    """Return each topic and each partition once, with the last batch that the request has for it, as in Kafka."""
    if len({topic.wire_name for topic in topics}) == len(topics) and all(
        len(topic.partitions) == 1 or len({part.index for part in topic.partitions}) == len(topic.partitions)
        for topic in topics
    ):
        return topics
    last = _LastBatches()
    last.add(topics)
    return last.topics()


HANDLER = Deferred(
    ApiKey.PRODUCE, decode=decode, handle=handle, handle_long=handle_long, access=(WRITE, WRITE_TRANSACTIONAL_ID)
)
