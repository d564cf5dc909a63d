"""Appends the batches of a Produce request, and holds its response until they are replicated.

A request of any length is one `DelayedProduce`. A short one is appended in one go, a long one some partitions at a
time, between which the loop turns (`handlers/produce.py`).

Step 4 of 9 on the path of a batch (ARCHITECTURE.md), and step 7 on the way back.
Before: broker/handlers/produce.py. Next: replication/partition.py, and on the way back net/connection.py.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.broker.delayed_operations import DelayedOperation
from ottla.broker.handler_parts.new_leaders import endpoint_of
from ottla.broker.record_validation_queue import ValidatedBatch
from ottla.broker.remote.transaction_verification import TransactionVerification
from ottla.broker.services import Services
from ottla.core.errors import (
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
)
from ottla.net.connection import NO_FETCH, PendingResponse
from ottla.records.batch import CODEC_BITS, HEADER_BYTES, TRANSACTIONAL, BatchHeader
from ottla.replication.group_commit import PATIENCE_SECONDS
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.generated.fetch import NodeEndpoint
from ottla.wire.generated.produce import BatchIndexAndErrorMessage, LeaderIdAndEpoch, PartitionProduceResponse
from ottla.wire.hot.produce import (
    FIRST_WITH_TOPIC_IDS,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    encode_produce_response,
    in_chunks,
    write_produce_response,
)
from ottla.wire.hot.reading import AT_ONCE

ACKS_ALL: Final = -1
ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
FIRST_WITH_ZSTD: Final = 7
ZSTD: Final = 4
FLUSH_SECONDS_MIN: Final = PATIENCE_SECONDS

THIS_BROKER: Final = LeaderIdAndEpoch()  # sent only when another broker leads; shared, because nothing changes it
_CHECKED_ATTRIBUTES: Final = CODEC_BITS | TRANSACTIONAL
_NO_REQUEST: Final = ProduceRequest(None, ACKS_NONE, 0)
_NO_ENDPOINTS: Final[Mapping[int, NodeEndpoint]] = {}  # shared: most requests name no new leader


class DelayedProduce(DelayedOperation):
    """One request until its response is sent."""

    __slots__ = (
        "_api_version",
        "_completed",
        "_endpoints",
        "_is_expired",
        "_listener",
        "_request",
        "_services",
        "_unreplicated",
        "_unvalidated",
        "client_id",
        "refusal",
        "verification",
    )

    def __init__(
        self, services: Services, api_version: int, listener: str, request: ProduceRequest, response: PendingResponse
    ) -> None:
        super().__init__(response)
        self._services = services
        self._api_version = api_version
        self._listener = listener  # of the client: the endpoints of new leaders are given for it
        self._endpoints: Mapping[int, NodeEndpoint] = _NO_ENDPOINTS  # of the new leaders that the response names
        self._request = request
        self.client_id: str | None = None  # for events
        self.verification: TransactionVerification | None = None  # of its transactional batches
        self.refusal: KafkaError | None = None  # of the request as a whole, which each of its partitions gets
        if request.acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
            self.refusal = InvalidRequiredAcks()
        self._unvalidated = 1  # partitions whose batch is being validated; and one until all batches are begun
        self._unreplicated = 0  # partitions whose batch is appended and still to be replicated
        self._is_expired = False
        self._completed: asyncio.Future[PendingResponse] | None = None  # of a long request, whose task responds

    def append(self, topics: Sequence[ProduceTopic], now_ms: int) -> None:
        """Append batches of the request, begin their validation, or refuse them; one does not fail the others."""
        services, version = self._services, self._api_version
        for topic in topics:
            name = topic.name
            if version >= FIRST_WITH_TOPIC_IDS and (view := services.cluster.current.topic_by_id.get(topic.wire_name)):
                name = view.name
            for part in topic.partitions:
                try:
                    if self.refusal is not None:
                        raise self.refusal
                    if not name and version >= FIRST_WITH_TOPIC_IDS:
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
                        self._validate(partition, records, part, now_ms)
                    else:
                        self._append(partition, records, header, part, now_ms, None)
                except (KafkaError, OSError) as error:
                    self.refuse(part, error, name)

    def _validate(self, partition: Partition, records: memoryview, part: ProducePartition, now_ms: int) -> None:
        """Begin the validation of a batch. Raises the KafkaError to respond with."""
        self._unvalidated += 1
        try:
            self._services.record_validation.validate(partition, records, self, part, now_ms)
        except KafkaError:
            self._unvalidated -= 1
            raise

    def refuse(self, part: ProducePartition, error: BaseException, topic: str = "") -> None:
        """Refuse the batch of a partition."""
        errors = self._services.request_errors
        errors.refused(ApiKey.PRODUCE, error, topic=topic, partition=part.index, client=self.client_id or "")
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
        if batch.refusal is not None:  # not raised: this frame holds the batch, and the batch the refusal
            self.refuse(part, batch.refusal, partition.topic_partition.topic)
        else:
            try:
                now_ms = self._services.clock.wall_ms()
                self._append(partition, batch.records, None, part, now_ms, batch.config)
            except Exception as error:  # noqa: BLE001 - one partition's outcome, whatever it is: error_code_for maps it
                self.refuse(part, error, partition.topic_partition.topic)
        self.complete_or_wait()

    def complete_or_wait(self) -> None:
        """Respond, or wait for what is left: called once all batches are begun, and after each that was validated."""
        self._unvalidated -= 1
        response = self.response
        if response is None:
            return
        if self._unvalidated:
            response.is_pipelined = not self._services.record_validation.is_full
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
        self._is_expired = True
        self.complete()

    def respond(self, response: PendingResponse) -> None:
        """Send the response, or leave that to the task of a long request."""
        if self._completed is not None:
            self._completed.set_result(response)
            return
        request, self._request = self._request, _NO_REQUEST  # this may be in a heap until its deadline
        if self._is_expired or request.acks == ACKS_NONE:
            self._settle(request, request.topics)
        if response.throttle is not None:
            response.throttle(NO_FETCH)
        if request.acks == ACKS_NONE:
            response.send(())
            return
        encoded = encode_produce_response(
            request.topics,
            self._api_version,
            response.correlation_id,
            throttle_time_ms=response.throttle_time_ms,
            endpoints=tuple(self._endpoints.values()) if self._endpoints else (),
        )
        response.send((encoded,))

    def leave_response_to_task(self) -> None:
        """Leave the response to a task, which calls `respond_in_slices`: the request is long."""
        self._completed = asyncio.get_running_loop().create_future()

    async def respond_in_slices(self) -> None:
        """Respond once all batches are replicated or refused, or the deadline has passed."""
        assert self._completed is not None
        response = await self._completed
        request, self._request = self._request, _NO_REQUEST
        slices = self._services.slices
        async for topics in slices.each(in_chunks(request.topics, AT_ONCE), work=AT_ONCE):
            self._settle(request, topics)
        if response.throttle is not None:
            response.throttle(NO_FETCH)
        if request.acks == ACKS_NONE:
            response.send(())
            return
        encoded = bytearray()
        writing = write_produce_response(
            encoded,
            request.topics,
            self._api_version,
            response.correlation_id,
            throttle_time_ms=response.throttle_time_ms,
            endpoints=tuple(self._endpoints.values()),
        )
        async for _ in slices.each(writing, work=AT_ONCE):
            pass
        response.send((encoded,))

    def _settle(self, request: ProduceRequest, topics: Sequence[ProduceTopic]) -> None:
        """Determine the outcome of what is not replicated yet.

        Raises MalformedRequest for a refusal with acks=0: there is no response, so that it closes the connection.
        """
        for topic in topics:
            for part in topic.partitions:
                if self._is_expired and part.is_awaited:
                    _fail_after_append(part, RequestTimedOut())
                if request.acks == ACKS_NONE and part.failure is not None:
                    raise MalformedRequest(f"Produce with acks=0: {part.failure.error_message}")

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
        if self.verification is not None:
            guard = self.verification.guards.get(partition.topic_partition)
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
            and (
                acks == ACKS_ALL
                or (leader is not None and (not leader.followers or leader.is_alone(partition.min_isr)))
            )
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
            if self.verification is not None:
                self.verification.check(partition.topic_partition)


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
