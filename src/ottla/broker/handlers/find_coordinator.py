"""FindCoordinator (key 10), versions 0 to 6.

What it does
  Returns the broker that coordinates a group or a transactional id: the leader of its partition of __consumer_offsets
  or __transaction_state, which is created on first use; of a share partition (key type 2), whose key is
  group:topic id:partition, the leader of its partition of __share_group_state. One key per request up to v3, many from
  v4.

What it does not do
  Nothing is left out.

Versions
  v1   key types, error message
  v3   flexible encoding
  v4   many keys at once (KIP-699)
  v6   share groups (KIP-932)
"""

from __future__ import annotations

from typing import Any

from ottla.broker.coordinators import GROUPS, SHARE_GROUPS, TRANSACTIONS, import_in_thread, naming_work
from ottla.broker.internal_topic_creation import create_if_absent
from ottla.broker.requests.handler import Awaited
from ottla.broker.requests.request import Request
from ottla.coordination.view import NO_LEADER
from ottla.core.errors import CoordinatorNotAvailable, ErrorCode, InvalidRequest, KafkaError, NotCoordinator
from ottla.core.ids import parse_id
from ottla.internal_topics.led_partitions import LedPartitions
from ottla.wire.messages.find_coordinator import MESSAGES, Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION, SHARE = 0, 1, 2
SHARE_SINCE = 6
MANY_KEYS_SINCE = 4
WORK = 3
"""Units of work of one key."""


async def handle(request: Request, body: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Find the coordinator of each key separately, once."""
    if request.api_version >= MANY_KEYS_SINCE:
        slices = request.services.slices
        response = FindCoordinatorResponse()
        async for key in slices.each(dict.fromkeys(body.coordinator_keys), WORK):
            slices.spend(naming_work(key))
            response.coordinators.append(await _find(request, key, body.key_type))
        return response
    one = await _find(request, body.key, body.key_type)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message or ErrorCode.NONE.name,  # Kafka's own word for no error, in these versions
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(request: Request, key: str, key_type: int) -> Coordinator:
    try:
        node_id = await _node_for(request, key, key_type)
        broker = request.services.cluster.current.brokers.get(node_id)
        endpoint = broker.endpoints.get(request.listener) if broker is not None else None
        if endpoint is None:
            raise CoordinatorNotAvailable(f"the coordinator of {key!r} is not alive")
    except KafkaError as error:
        return Coordinator(key=key, node_id=NO_LEADER, port=-1, error_code=error.code, error_message=error.message)
    return Coordinator(key=key, node_id=node_id, host=endpoint.host, port=endpoint.port, error_message="")


async def _node_for(request: Request, key: str, key_type: int) -> int:
    services = request.services
    led: LedPartitions[Any]
    if key_type == GROUP:
        await import_in_thread(GROUPS)
        led = services.coordinators.groups.led
    elif key_type == TRANSACTION:
        await import_in_thread(GROUPS, TRANSACTIONS)  # its markers end what is pending in groups
        led = services.coordinators.transactions.led
    elif key_type == SHARE and request.api_version >= SHARE_SINCE:
        _check_share_key(key)
        await import_in_thread(GROUPS, SHARE_GROUPS)
        led = services.coordinators.share_states.led
    else:
        raise InvalidRequest(f"key type {key_type} has no coordinator here")
    await create_if_absent(services, led.topic)
    try:
        index = led.partition_for(key)
    except NotCoordinator as error:  # another broker has created the topic; this one does not know it yet
        raise CoordinatorNotAvailable(error.message) from None
    partition = services.cluster.current.partition(led.topic, index)
    if partition is None or (partition.leader == services.node_id and led.is_offline(index)):
        return NO_LEADER
    return partition.leader


def _check_share_key(key: str) -> None:
    parts = key.rsplit(":", 2)
    try:
        if len(parts) != 3 or not parts[0] or not parts[2].isdigit():
            raise ValueError
        parse_id(parts[1])
    except ValueError:
        raise InvalidRequest("The key of a share partition is group:topic id:partition.") from None


HANDLER = Awaited(MESSAGES, handle)
