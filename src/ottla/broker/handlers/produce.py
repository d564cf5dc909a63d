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

Step 4 of 9 on the path of a batch (ARCHITECTURE.md). Before: broker/requests/driver.py. Next: replication/partition.py.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from ottla.broker.context import Services
from ottla.broker.delayed_operations import DelayedOperation
from ottla.broker.handler_parts.new_leaders import endpoint_of
from ottla.broker.record_validation_queue import ValidatedBatch
from ottla.broker.remote.transaction_verification import TransactionSupportedOperation, TransactionVerification
from ottla.broker.requests.handler import Deferred
from ottla.broker.requests.request import Request
from ottla.core.errors import (
    ErrorCode,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTopic,
    KafkaError,
    NotLeaderOrFollower,
    RequestTimedOut,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
    UnsupportedCompressionType,
    error_code_for,
    error_for,
)
from ottla.core.ids import TopicPartition
from ottla.net.connection import PendingResponse
from ottla.records.batch import CODEC_BITS, HEADER_BYTES, TRANSACTIONAL, BatchHeader
from ottla.replication.group_commit import PATIENCE_SECONDS
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import Slices, Slicing
from ottla.wire.errors import MalformedRequest
from ottla.wire.hot.produce import (
    FIRST_WITH_TOPIC_IDS,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    decode_produce_request,
    decode_produce_slices,
    encode_produce_response,
    encode_produce_slices,
)
from ottla.wire.messages.fetch import NodeEndpoint
from ottla.wire.messages.produce import BatchIndexAndErrorMessage, LeaderIdAndEpoch, PartitionProduceResponse

ACKS_ALL: Final = -1
ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
FIRST_WITH_ZSTD: Final = 7
ZSTD: Final = 4
FIRST_WITH_TRANSACTION_ABORTABLE: Final = 11
FIRST_THAT_ADDS_PARTITIONS: Final = 12
FLUSH_SECONDS_MIN: Final = PATIENCE_SECONDS

THIS_BROKER: Final = LeaderIdAndEpoch()  # sent only when another broker leads; shared, because nothing changes it
_CHECKED_ATTRIBUTES: Final = CODEC_BITS | TRANSACTIONAL
_COMPARED_AT_ONCE: Final = 100
_AT_ONCE: Final = 20  # partitions of a long request between two looks at the slice of work
_PARTITION_WORK: Final = 12  # an append or a refusal takes 30 to 60 microseconds
_BYTES_PER_WORK: Final = 4096
_NO_REQUEST: Final = ProduceRequest(None, ACKS_NONE, 0, [])
_NO_ENDPOINTS: Final[Mapping[int, NodeEndpoint]] = {}  # shared: most requests name no new leader

decode = decode_produce_request


def handle(
    ctx: Request,
    request: ProduceRequest,
    response: PendingResponse,
    verification: TransactionVerification | None = None,
) -> Coroutine[Any, Any, None] | None:
    """Append to all partitions; respond now or when the slowest partition's records are replicated.

    Returns what is left to be run as a task if a transaction must be verified first.
    """
    services = ctx.services
    if len(request.topics) > 1 or (request.topics and len(request.topics[0].partitions) > 1):
        request.topics = _without_repeats(request.topics)
    refusal = _refusal_of(request)
    if verification is None and request.transactional_id is not None and refusal is None:
        begun = _VerificationOfRequest(services, ctx.api_version, request.transactional_id)
        for topic in request.topics:
            for part in topic.partitions:
                begun.begin(topic, part)
        verification, refusal = begun.verification, begun.refusal
        if refusal is None and verification is not None:
            for topic in request.topics:
                for part in topic.partitions:
                    if part.records is not None:  # a view into the connection's buffer, which is used again
                        part.records = memoryview(bytearray(part.records))
            return _verify_and_append(ctx, request, response, verification)
    operation = DelayedProduce(services, ctx.api_version, ctx.listener, request, response, verification)
    now_ms = services.clock.wall_ms()
    for topic in request.topics:
        for part in topic.partitions:
            operation.append(topic, part, refusal, now_ms)
    operation.complete_or_wait()
    return None


async def _verify_and_append(
    ctx: Request, request: ProduceRequest, response: PendingResponse, verification: TransactionVerification
) -> None:
    """Append once the transaction coordinator has verified the partitions."""
    task = asyncio.current_task()
    assert task is not None
    response.connection.keep(task)  # a disconnected client does not end this: the coordinator has been asked
    await ctx.services.coordinators.transaction_verifier.verify(verification)
    handle(ctx, request, response, verification)


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

    def begin(self, topic: ProduceTopic, part: ProducePartition) -> None:
        """Begin the verification of one batch if it is the first of its transaction on a partition of this broker."""
        records = part.records
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
        name = _name_of(self._services, self._version, topic)
        partition = self._services.replicas.partitions.get(TopicPartition(name, part.index))
        if partition is None or partition.internal or not partition.is_serving:
            return
        if partition.log.producers.has_ongoing_transaction(producer_id, epoch):
            return
        if self.verification is None:
            self.verification = TransactionVerification(self._transactional_id, producer_id, epoch, self._operation)
        self.verification.begin(partition, header.base_sequence, self._now_ms)


async def handle_long(ctx: Request, frame: bytearray, at: int, response: PendingResponse) -> None:
    """Decode, handle and answer a request of many partitions in slices of work."""
    services, version = ctx.services, ctx.api_version
    slices = services.slices
    request = await slices.run(decode_produce_slices(memoryview(frame), version, at, Slicing(slices)))
    request.topics = await slices.run(_without_repeats_in_slices(request.topics, Slicing(slices)))
    task = asyncio.current_task()
    assert task is not None
    response.connection.keep(task)  # from here on it has effects: they are not given up
    refusal, verification = _refusal_of(request), None
    if request.transactional_id is not None and refusal is None:
        begun = _VerificationOfRequest(services, version, request.transactional_id)
        for topic in request.topics:
            async for part in slices.each(topic.partitions):
                begun.begin(topic, part)
        verification, refusal = begun.verification, begun.refusal
        if refusal is None and verification is not None:
            await services.coordinators.transaction_verifier.verify(verification)
    operation = LongProduce(services, version, ctx.listener, request, response, verification)
    for topic in request.topics:
        for first in range(0, len(topic.partitions), _AT_ONCE):
            now_ms = services.clock.wall_ms()
            parts = topic.partitions[first : first + _AT_ONCE]
            size = 0
            for part in parts:
                operation.append(topic, part, refusal, now_ms)
                if part.records is not None:
                    size += part.records.nbytes
                    part.records = None
            if slices.spend(_PARTITION_WORK * len(parts) + size // _BYTES_PER_WORK):
                await slices.yield_to_loop()
        if slices.spend():
            await slices.yield_to_loop()
    await operation.finish()


class DelayedProduce(DelayedOperation):
    """One request until its response is sent."""

    __slots__ = (
        "_api_version",
        "_awaits_validation",
        "_endpoints",
        "_listener",
        "_request",
        "_services",
        "_unreplicated",
        "_unvalidated",
        "_verification",
    )

    def __init__(
        self,
        services: Services,
        api_version: int,
        listener: str,
        request: ProduceRequest,
        response: PendingResponse,
        verification: TransactionVerification | None,
    ) -> None:
        super().__init__(response)
        self._services = services
        self._api_version = api_version
        self._listener = listener  # of the client: the endpoints of new leaders are given for it
        self._endpoints: Mapping[int, NodeEndpoint] = _NO_ENDPOINTS  # of the new leaders that the response names
        self._request = request
        self._verification = verification  # of its transactional batches
        self._awaits_validation = False  # it is not done by the time all batches are begun
        self._unvalidated = 0  # partitions whose batch is being validated
        self._unreplicated = 0  # partitions whose batch is appended and still to be replicated

    def append(self, topic: ProduceTopic, part: ProducePartition, refusal: KafkaError | None, now_ms: int) -> None:
        """Append one partition's batch, begin its validation, or refuse it without failing the other partitions."""
        try:
            if refusal is not None:
                raise refusal
            services = self._services
            name = _name_of(services, self._api_version, topic)
            if not name and self._api_version >= FIRST_WITH_TOPIC_IDS:
                raise UnknownTopicId(f"no topic has the id {uuid.UUID(bytes=topic.wire_name)}")
            partition = services.replicas.find(name, part.index)
            if partition.internal:
                raise InvalidTopic(f"{name} is written by the broker alone")
            records = part.records if part.records is not None else memoryview(b"")
            header = None
            if records.nbytes >= HEADER_BYTES:
                header = BatchHeader(records, 0)
                if header.attributes & _CHECKED_ATTRIBUTES:
                    self._check_attributes(header.attributes, partition)
            if services.record_validation.is_required(partition, header, now_ms):
                self._unvalidated += 1
                try:
                    services.record_validation.validate(partition, records, self, part, now_ms)
                except KafkaError:
                    self._unvalidated -= 1
                    raise
            else:
                self._append(partition, records, header, part, now_ms, None)
        except (KafkaError, OSError) as error:
            self._refuse(part, error)

    def _refuse(self, part: ProducePartition, error: BaseException) -> None:
        self._note_leader(error)
        _refuse(part, error)

    def _note_leader(self, error: BaseException) -> None:
        """Note where the new leader listens, if that is the error (KIP-951)."""
        if isinstance(error, NotLeaderOrFollower) and error.leader_id not in self._endpoints:
            endpoint = endpoint_of(self._services.cluster.current, error.leader_id, self._listener)
            if endpoint is not None:
                self._endpoints = {**self._endpoints, error.leader_id: endpoint}

    def batch_validated(self, partition: Partition, part: object, batch: ValidatedBatch) -> None:
        """Append or refuse a batch that the record validation queue has validated."""
        assert isinstance(part, ProducePartition)
        self._unvalidated -= 1
        if batch.refusal is not None:  # not raised: this frame holds the batch, and the batch the refusal
            self._refuse(part, batch.refusal)
        else:
            try:
                now_ms = self._services.clock.wall_ms()
                self._append(partition, batch.records, None, part, now_ms, batch.config)
            except Exception as error:  # noqa: BLE001 - one partition's outcome, whatever it is: error_code_for maps it
                self._refuse(part, error)
        if not self._unvalidated and self._awaits_validation:
            self.complete_or_wait()

    def complete_or_wait(self) -> None:
        """Respond, or wait for what is left, now that all batches are appended, refused or being validated."""
        response = self.response
        if response is None:
            return
        if self._unvalidated:
            response.is_pipelined = not self._services.record_validation.is_full
            self._awaits_validation = True
        elif self._unreplicated:
            response.is_pipelined = True
            timeout_seconds = max(self._request.timeout_ms / 1000, FLUSH_SECONDS_MIN)
            self._services.delayed_operations.add(self, timeout_seconds)
        else:
            self.complete()

    def offset_reached(self, part: object, error: BaseException | None) -> None:
        """Note that a partition's batch is replicated, or never will be."""
        assert isinstance(part, ProducePartition)
        self._unreplicated -= 1
        part.is_awaited = False
        if self.is_completed:
            return
        if error is not None:
            self._note_leader(error)
            _fail_after_append(part, error)
        if not self._unreplicated and not self._unvalidated:
            self.complete()

    def expire(self) -> None:
        """Respond REQUEST_TIMED_OUT for what is not replicated yet. It is written all the same."""
        for topic in self._request.topics:
            for part in topic.partitions:
                if part.is_awaited:
                    _fail_after_append(part, RequestTimedOut())
        self.complete()

    def respond(self, response: PendingResponse) -> None:
        """Send the response; with acks=0 none, but a refusal closes the connection."""
        request, self._request = self._request, _NO_REQUEST
        if request.acks != ACKS_NONE:
            endpoints = tuple(self._endpoints.values()) if self._endpoints else ()
            encoded = encode_produce_response(
                request.topics, self._api_version, response.correlation_id, endpoints=endpoints
            )
            response.send((encoded,))
            return
        for topic in request.topics:
            for part in topic.partitions:
                if part.failure is not None:
                    raise MalformedRequest(f"Produce with acks=0: {part.failure.error_message}")
        response.send(())

    def _append(
        self,
        partition: Partition,
        records: memoryview,
        header: BatchHeader | None,
        part: ProducePartition,
        now_ms: int,
        validated: LogConfig | None,
    ) -> None:
        """Append a batch. Raises the KafkaError to respond with."""
        acks = self._request.acks
        guard = None
        if self._verification is not None:
            guard = self._verification.guards.get(partition.topic_partition)
        refused = self._services.refused_batches
        if refused is not None and refused.batches and refused.refuses(partition, records):
            raise NotLeaderOrFollower("A batch before this one was refused: send it again first")
        try:
            appended = partition.append_as_leader(
                records, acks=acks, now_ms=now_ms, validated_for=validated, header=header, guard=guard
            )
        except KafkaError as error:
            if error.retriable:
                _note_refused(self._services, partition, records)
            raise
        part.base_offset = appended.first_offset
        part.log_append_time_ms = appended.append_time_ms
        part.log_start_offset = appended.log_start_offset
        end_offset, leader = appended.last_offset + 1, partition.leader_state
        if (
            acks != ACKS_NONE
            and partition.log.high_watermark < end_offset
            and (acks == ACKS_ALL or (leader is not None and leader.is_alone(partition.min_isr)))
        ):
            part.is_awaited = True
            self._unreplicated += 1
            partition.waiters.add(end_offset, self, part)

    def _check_attributes(self, attributes: int, partition: Partition) -> None:
        """Refuse a batch that this version of the request may not carry. Raises the KafkaError to respond with."""
        if self._api_version < FIRST_WITH_ZSTD and attributes & CODEC_BITS == ZSTD:
            raise UnsupportedCompressionType(f"zstd needs version {FIRST_WITH_ZSTD} of Produce")
        if attributes & TRANSACTIONAL:
            if self._request.transactional_id is None:
                raise TransactionalIdAuthorizationFailed("Transactional records need a transactional id")
            if self._verification is not None:
                self._verification.check(partition.topic_partition)


class LongProduce(DelayedProduce):
    """A request of many partitions: what it does when it is complete is done by the task that serves it."""

    __slots__ = ("_completed", "_is_expired")

    def __init__(
        self,
        services: Services,
        api_version: int,
        listener: str,
        request: ProduceRequest,
        response: PendingResponse,
        verification: TransactionVerification | None,
    ) -> None:
        super().__init__(services, api_version, listener, request, response, verification)
        self._completed: asyncio.Future[PendingResponse] = asyncio.get_running_loop().create_future()
        self._is_expired = False
        self._unvalidated = 1  # it is not complete before `finish`, whatever is replicated meanwhile

    def expire(self) -> None:
        """Complete because the deadline has passed: `finish` does the rest."""
        self._is_expired = True
        self.complete()

    def respond(self, response: PendingResponse) -> None:
        """Let `finish` respond."""
        self._completed.set_result(response)

    async def finish(self) -> None:
        """Wait until all batches are replicated or refused, then respond."""
        self._unvalidated -= 1
        self.complete_or_wait()
        response = await self._completed
        request, self._request = self._request, _NO_REQUEST
        slices = self._services.slices
        for topic in request.topics:
            async for part in slices.each(topic.partitions):
                if self._is_expired and part.is_awaited:
                    _fail_after_append(part, RequestTimedOut())
                if request.acks == ACKS_NONE and part.failure is not None:
                    raise MalformedRequest(f"Produce with acks=0: {part.failure.error_message}")
            if slices.spend():
                await slices.yield_to_loop()
        if request.acks == ACKS_NONE:
            response.send(())
            return
        encoding = encode_produce_slices(
            request.topics,
            self._api_version,
            response.correlation_id,
            Slicing(slices),
            endpoints=tuple(self._endpoints.values()),
        )
        response.send((await slices.run(encoding),))


class _LastBatches:
    """The last batch of each partition in a request."""

    __slots__ = ("_partitions", "_topics")

    def __init__(self) -> None:
        self._topics: dict[bytes, ProduceTopic] = {}
        self._partitions: dict[bytes, dict[int, ProducePartition]] = {}

    def add(self, topic: ProduceTopic, partitions: list[ProducePartition]) -> None:
        """Add partitions of a topic after all that were added before."""
        self._topics.setdefault(topic.wire_name, topic)
        of_topic = self._partitions.setdefault(topic.wire_name, {})
        for part in partitions:
            of_topic[part.index] = part

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
    found = _LastBatches()
    for topic in topics:
        found.add(topic, topic.partitions)
    return found.topics()


def _without_repeats_in_slices(topics: list[ProduceTopic], slicing: Slicing) -> Slices[list[ProduceTopic]]:
    """Return the same for a request of many partitions, in slices of work."""
    found = _LastBatches()
    for topic in topics:
        for first in range(0, max(len(topic.partitions), 1), _COMPARED_AT_ONCE):
            found.add(topic, topic.partitions[first : first + _COMPARED_AT_ONCE])
            if slicing.spend_on(_COMPARED_AT_ONCE):
                yield
    return found.topics()


def _refusal_of(request: ProduceRequest) -> KafkaError | None:
    """Return the error of the request as a whole, which each of its partitions gets; None if there is none."""
    if request.acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
        return InvalidRequiredAcks()
    return None


def _name_of(services: Services, version: int, topic: ProduceTopic) -> str:
    """Return the name of a topic of a request; empty if no topic has the id by which the request names it."""
    if version < FIRST_WITH_TOPIC_IDS:
        return topic.name
    found = services.cluster.current.topic_by_id.get(topic.wire_name)
    return "" if found is None else found.name


def _note_refused(services: Services, partition: Partition, records: memoryview) -> None:
    """Remember a batch that was refused for a reason that passes: what follows it is refused, too."""
    if services.refused_batches is None:
        from ottla.broker.refused_batches import RefusedBatches

        services.refused_batches = RefusedBatches(services.clock)
    services.refused_batches.note(partition, records)


def _refuse(part: ProducePartition, error: BaseException) -> None:
    """Set the error of a partition whose batch is not in the log."""
    failure = part.failure = PartitionProduceResponse(
        index=part.index,
        error_code=error_code_for(error),
        base_offset=-1,
        error_message=error.message if isinstance(error, KafkaError) else str(error),
        current_leader=_leader_of(error),
    )
    if isinstance(error, InvalidRecord | InvalidTimestamp):
        failure.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each.place, batch_index_error_message=each.message)
            for each in error.records
        ]


def _fail_after_append(part: ProducePartition, error: BaseException) -> None:
    """Set the error of a partition whose batch is in the log, but not known to be replicated."""
    part.failure = PartitionProduceResponse(
        index=part.index,
        error_code=error_code_for(error),
        base_offset=-1,
        log_append_time_ms=part.log_append_time_ms,
        log_start_offset=part.log_start_offset,
        current_leader=_leader_of(error),
    )


def _leader_of(error: BaseException) -> LeaderIdAndEpoch:
    """Return the leader that a refusal names: the client need not ask for it (KIP-951)."""
    if isinstance(error, NotLeaderOrFollower):
        return LeaderIdAndEpoch(leader_id=error.leader_id, leader_epoch=error.leader_epoch)
    return THIS_BROKER


HANDLER = Deferred(ApiKey.PRODUCE, decode=decode, handle=handle, handle_long=handle_long)
