"""FindCoordinator (key 10), versions 0 to 6.

What it does
  Returns the broker that coordinates a group: the leader of the group's partition of __consumer_offsets, which is
  created on first use. One key per request up to v3, many from v4.

What it does not do
  Transactions: a transactional id is refused with a message, and with the error with which clients show it. From v4 on
  (Java) that is UNSUPPORTED_VERSION: for the error of authorization Java shows its own text. Before (librdkafka) it is
  TRANSACTIONAL_ID_AUTHORIZATION_FAILED: librdkafka tries again after any other error.
  Share groups (key type 2): INVALID_REQUEST, as Kafka answers where it does not know a key type.

Versions
  v1   key types, error message
  v3   flexible encoding
  v4   many keys at once (KIP-699)
  v6   share groups (KIP-932)
"""

from __future__ import annotations

from ottla.broker.context import RequestContext
from ottla.broker.handler_helpers import NO_TRANSACTIONS, log_transactional_id, naming_work
from ottla.coordination.view import NO_LEADER
from ottla.core.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    TopicAlreadyExists,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)
from ottla.core.ids import OFFSETS_TOPIC
from ottla.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION = 0, 1
MANY_KEYS_SINCE = 4
WORK = 3
"""Units of work of one key."""


async def handle(ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Find the coordinator of each key separately, once."""
    if ctx.api_version >= MANY_KEYS_SINCE:
        slices = ctx.services.slices
        response = FindCoordinatorResponse()
        async for key in slices.each(dict.fromkeys(request.coordinator_keys), WORK):
            slices.spend(naming_work(key))
            response.coordinators.append(await _find(ctx, key, request.key_type))
        return response
    one = await _find(ctx, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message or ErrorCode.NONE.name,  # Kafka's own word for no error, in these versions
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(ctx: RequestContext, key: str, key_type: int) -> Coordinator:
    try:
        node_id = await _node_for(ctx, key, key_type)
        broker = ctx.services.cluster.current.brokers.get(node_id)
        endpoint = broker.endpoints.get(ctx.listener) if broker is not None else None
        if endpoint is None:
            raise CoordinatorNotAvailable(f"the coordinator of {key!r} is not alive")
    except KafkaError as error:
        return Coordinator(key=key, node_id=NO_LEADER, port=-1, error_code=error.code, error_message=error.message)
    return Coordinator(key=key, node_id=node_id, host=endpoint.host, port=endpoint.port, error_message="")


async def _node_for(ctx: RequestContext, key: str, key_type: int) -> int:
    if key_type == TRANSACTION:
        log_transactional_id(ctx, key)
        if ctx.api_version >= MANY_KEYS_SINCE:
            raise UnsupportedVersion(NO_TRANSACTIONS)
        raise TransactionalIdAuthorizationFailed(NO_TRANSACTIONS)
    if key_type != GROUP:
        raise InvalidRequest(f"key type {key_type} has no coordinator here")
    cluster = ctx.services.cluster
    if OFFSETS_TOPIC not in cluster.current.topics:
        await _create_offsets_topic(ctx)
    index = ctx.services.groups.led.partition_for(key)
    partition = cluster.current.partition(OFFSETS_TOPIC, index)
    if partition is None or (partition.leader == ctx.services.node_id and ctx.services.groups.led.is_offline(index)):
        return NO_LEADER
    return partition.leader


async def _create_offsets_topic(ctx: RequestContext) -> None:
    """With as many replicas as asked for, or as there are brokers: one broker alone must serve groups too."""
    config, brokers = ctx.services.groups.config, len(ctx.services.cluster.current.brokers)
    try:
        await ctx.services.controller.create_topic(
            OFFSETS_TOPIC,
            partitions=config.offsets_topic_partitions,
            replication_factor=min(config.offsets_topic_replication_factor, max(brokers, 1)),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
    except TopicAlreadyExists:
        return  # another request was first
    except KafkaError as error:
        raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC} could not be created: {error.message}") from error
