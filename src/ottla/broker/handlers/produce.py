"""Produce (key 0), versions 3 to 13.

What it does
  For each partition: checks the batch, appends it to the leader's log. Answers at once (acks 0 and 1) or when the
  records count on every in-sync replica (acks -1): fsynced, unless the topic says `durability=page-cache`. A batch
  that must be looked into (compacted topics, bounds on times, another codec) may be so in a thread; order is kept.

What it does not do
  Message formats before record batch v2: versions 0 to 2 are advertised (KAFKA-18659: librdkafka derives its codecs
  from them) and refused with UNSUPPORTED_VERSION. Transactional batches are refused until transactions are served.

Versions
  v5   log_start_offset in the answer
  v8   error_message and record_errors in the answer (KIP-467)
  v9   flexible encoding
  v10  current_leader in the answer, when it is not this broker (KIP-951)
  v13  topics by id

Station 4 of 9 on a batch's journey. Before: broker/dispatch.py. After: replication/partition.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.broker.context import RequestContext, Services
from ottla.broker.inspections import Inspected
from ottla.broker.later import Later
from ottla.core.errors import (
    ErrorCode,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTopic,
    KafkaError,
    RequestTimedOut,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
    UnsupportedCompressionType,
    error_code_for,
)
from ottla.core.ids import TopicPartition
from ottla.records.batch import CODEC_BITS, CRC_FROM, HEADER_BYTES, TRANSACTIONAL
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.wire.errors import MalformedRequest
from ottla.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

ACKS_ALL, ACKS_NONE, ACKS_LEADER = -1, 0, 1
FIRST_WITH_ZSTD, ZSTD = 7, 4
ATTRIBUTES_AT = CRC_FROM + 1  # the lower of the two bytes, the only one in use
FIRST_WITH_TOPIC_IDS = 13
NO_TRANSACTIONS = "transactions are not served yet"

OURSELVES = LeaderIdAndEpoch()  # told only when another broker leads; shared, because nobody changes it


@dataclass(slots=True)
class _Progress:
    """What has become of one request so far."""

    appends: list[tuple[Partition, int, PartitionProduceResponse]] = field(default_factory=list)
    """Where, the end offset to wait for, whose answer."""
    inspected: int = 0  # partitions whose batch is still being looked into
    when_inspected: Callable[[], None] | None = None


def handle(ctx: RequestContext, request: ProduceRequest) -> ProduceResponse | Later[ProduceResponse | None] | None:
    """Append all, then answer now or when the slowest partition's records count."""
    progress = _Progress()
    refusal = _why_refused(request)
    responses = [_topic(ctx, topic, request.acks, progress, refusal) for topic in request.topic_data]
    response = ProduceResponse(responses=responses)
    if not progress.inspected:
        return _appended(response, request, progress)
    answer: Later[ProduceResponse | None] = Later()
    answer.pipelined = not ctx.services.inspections.is_full

    def go_on() -> None:
        try:
            result = _appended(response, request, progress)
        except MalformedRequest as error:
            answer.fail(error)
            return
        if isinstance(result, Later):
            result.then(answer.give)
        else:
            answer.give(result)

    progress.when_inspected = go_on
    return answer


def _appended(
    response: ProduceResponse, request: ProduceRequest, progress: _Progress
) -> ProduceResponse | Later[ProduceResponse | None] | None:
    """All batches are in their logs, or refused."""
    if request.acks == ACKS_ALL:
        late = [each for each in progress.appends if each[0].high_watermark < each[1]]
        return _when_replicated(response, late, timeout_seconds=request.timeout_ms / 1000) if late else response
    if request.acks != ACKS_NONE:
        return response
    parts = [each for topic in response.responses for each in topic.partition_responses]
    if refused := [each.error_message for each in parts if each.error_code]:
        raise MalformedRequest(f"Produce with acks=0: {refused[0]}")  # a closed connection is all that can tell
    return None


def _why_refused(request: ProduceRequest) -> KafkaError | None:
    """What is wrong with the request as a whole, told for each of its partitions."""
    if request.acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
        return InvalidRequiredAcks()
    if request.transactional_id is not None:
        return TransactionalIdAuthorizationFailed(NO_TRANSACTIONS)
    return None


def _topic(
    ctx: RequestContext, data: TopicProduceData, acks: int, progress: _Progress, refusal: KafkaError | None
) -> TopicProduceResponse:
    name = data.name
    if refusal is None and ctx.api_version >= FIRST_WITH_TOPIC_IDS:
        topic = ctx.services.cluster.current.topic_by_id.get(data.topic_id.bytes)
        if topic is None:
            refusal = UnknownTopicId(f"no topic has the id {data.topic_id}")
        else:
            name = topic.name
    return TopicProduceResponse(
        topic_id=data.topic_id,
        name=data.name,
        partition_responses=[_partition(ctx, name, each, acks, progress, refusal) for each in data.partition_data],
    )


def _partition(
    ctx: RequestContext,
    topic: str,
    data: PartitionProduceData,
    acks: int,
    progress: _Progress,
    refusal: KafkaError | None,
) -> PartitionProduceResponse:
    """One partition's outcome. Its failure must not fail its neighbours."""
    part = PartitionProduceResponse(index=data.index, current_leader=OURSELVES)
    services = ctx.services
    try:
        if refusal is not None:
            raise refusal
        partition = services.replicas.partition(TopicPartition(topic, data.index))
        if partition.internal:
            raise InvalidTopic(f"{topic} is written by the broker alone")
        records = data.records if isinstance(data.records, memoryview) else memoryview(data.records or b"")
        if records.nbytes >= HEADER_BYTES:
            _check_attributes(ctx.api_version, records[ATTRIBUTES_AT])
        now_ms = services.clock.wall_ms()
        if services.inspections.may_concern(partition, records, now_ms=now_ms):
            _inspect(services, partition, records, acks, progress, part)
        else:
            _append(partition, records, acks, now_ms, progress, part)
    except (KafkaError, OSError) as error:
        _refuse(part, error)
    return part


def _append(
    partition: Partition,
    records: memoryview,
    acks: int,
    now_ms: int,
    progress: _Progress,
    part: PartitionProduceResponse,
    inspected: LogConfig | None = None,
) -> None:
    """Raises the KafkaError to answer with."""
    appended = partition.append_as_leader(records, acks=acks, now_ms=now_ms, inspected=inspected)
    part.base_offset = appended.first_offset
    part.log_append_time_ms = appended.append_time_ms
    part.log_start_offset = appended.log_start_offset
    progress.appends.append((partition, appended.last_offset + 1, part))


def _inspect(
    services: Services,
    partition: Partition,
    records: memoryview,
    acks: int,
    progress: _Progress,
    part: PartitionProduceResponse,
) -> None:
    """Its header does not say enough, or one before it is still being looked into. Raises the KafkaError to answer."""

    def done(found: Inspected) -> None:
        progress.inspected -= 1
        try:
            if found.refusal is not None:
                raise found.refusal
            now_ms = services.clock.wall_ms()
            _append(partition, found.records, acks, now_ms, progress, part, found.config)
        except Exception as error:  # noqa: BLE001 - one partition's outcome, whatever it is; error_code_for tells
            _refuse(part, error)
        if not progress.inspected and progress.when_inspected is not None:
            progress.when_inspected()

    progress.inspected += 1
    try:
        services.inspections.begin(partition, records, done, now_ms=services.clock.wall_ms())
    except KafkaError:
        progress.inspected -= 1
        raise


def _check_attributes(api_version: int, attributes: int) -> None:
    """What a batch may be in this version of the request. Raises the KafkaError to answer with."""
    if api_version < FIRST_WITH_ZSTD and attributes & CODEC_BITS == ZSTD:
        raise UnsupportedCompressionType(f"zstd needs version {FIRST_WITH_ZSTD} of Produce")
    if attributes & TRANSACTIONAL:
        raise TransactionalIdAuthorizationFailed(NO_TRANSACTIONS)


def _refuse(part: PartitionProduceResponse, error: BaseException) -> None:
    message = error.message if isinstance(error, KafkaError) else str(error)
    part.error_code = error_code_for(error)
    part.base_offset = -1
    part.error_message = message
    if isinstance(error, InvalidRecord | InvalidTimestamp):
        part.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each.place, batch_index_error_message=each.message)
            for each in error.records
        ]


def _when_replicated(
    response: ProduceResponse, appends: list[tuple[Partition, int, PartitionProduceResponse]], *, timeout_seconds: float
) -> Later[ProduceResponse | None]:
    """The whole answer, later. One timer per request; what is late by then is REQUEST_TIMED_OUT, and written."""
    loop = asyncio.get_running_loop()
    answer: Later[ProduceResponse | None] = Later()
    left = len(appends)

    def woken(part: PartitionProduceResponse, error: BaseException | None) -> None:
        nonlocal left
        left -= 1
        if answer.is_given:
            return
        if error is not None:
            part.error_code = error_code_for(error)
            part.base_offset = -1
        if not left:
            timer.cancel()
            answer.give(response)

    def late() -> None:
        for partition, end_offset, part in appends:
            if partition.high_watermark < end_offset and part.error_code == ErrorCode.NONE:
                part.error_code = RequestTimedOut.code
                part.base_offset = -1
        answer.give(response)

    timer = loop.call_later(timeout_seconds, late)
    for partition, end_offset, part in appends:
        partition.when_replicated(end_offset, lambda error, part=part: woken(part, error))  # type: ignore[misc]
    return answer
