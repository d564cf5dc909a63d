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

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from ottla.broker.coordinators import GROUPS, SHARE_GROUPS, TRANSACTIONS, import_in_thread, naming_work
from ottla.broker.internal_topic_creation import create_if_absent
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.core.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.core.errors import CoordinatorNotAvailable, ErrorCode, InvalidRequest, KafkaError, NotCoordinator
from ottla.core.ids import parse_id
from ottla.internal_topics.led_partitions import LedPartitions
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView
from ottla.wire.generated.find_coordinator import MESSAGES, Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION, SHARE = 0, 1, 2
SHARE_SINCE = 6
MANY_KEYS_SINCE = 4
WORK = 3
"""Units of work of one key."""


ACCESS = {
    GROUP: Access(AclOperation.DESCRIBE, ResourceType.GROUP, "each group"),
    TRANSACTION: Access(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "each transactional id"),
    SHARE: Access(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, "the cluster, for share partitions"),
}
"""By the type of the keys."""

_Led = LedPartitions[Any]
"""The partitions that this broker leads of the internal topic of one kind of coordinator."""


class _Found(NamedTuple):
    led: _Led | KafkaError
    denied: frozenset[str]  # keys


async def find(request: Request, body: FindCoordinatorRequest) -> _Found:
    """Find the kind of coordinator, and create its internal topic if need be."""
    keys: Sequence[str] = body.coordinator_keys if request.api_version >= MANY_KEYS_SINCE else (body.key,)
    denied: frozenset[str] = frozenset()
    access = ACCESS.get(body.key_type)
    if access is not None and (body.key_type != SHARE or request.api_version >= SHARE_SINCE):
        denied = frozenset(await collect(request, Each(keys, partial(_denied, access), work=WORK)))
        keys = [key for key in keys if key not in denied]
    return _Found(await _led(request, body, keys), denied)


def _denied(access: Access, request: Request, key: str, _view: ClusterView) -> str | None:
    name = CLUSTER_NAME if access.resource is ResourceType.CLUSTER else key
    return key if access.denies(request, name) else None


async def _led(request: Request, body: FindCoordinatorRequest, keys: Sequence[str]) -> _Led | KafkaError:
    coordinators = request.services.coordinators
    led: _Led
    try:
        if body.key_type == GROUP:
            await import_in_thread(GROUPS)
            led = coordinators.groups.led
        elif body.key_type == TRANSACTION:
            await import_in_thread(GROUPS, TRANSACTIONS)  # its markers end what is pending in groups
            led = coordinators.transactions.led
        elif body.key_type == SHARE and request.api_version >= SHARE_SINCE:
            keys = await collect(request, Each(keys, _valid_share_key, work=WORK))
            await import_in_thread(GROUPS, SHARE_GROUPS)
            led = coordinators.share_states.led
        else:
            raise InvalidRequest(f"key type {body.key_type} has no coordinator here")
        if keys:
            await create_if_absent(request.services, led.topic)
    except KafkaError as error:
        return error
    return led


def _valid_share_key(_request: Request, key: str, _view: ClusterView) -> str | None:
    parts = key.rsplit(":", 2)
    try:
        if len(parts) != 3 or not parts[0] or not parts[2].isdigit():
            return None
        parse_id(parts[1])
    except ValueError:
        return None
    return key


def answer(
    request: Request, body: FindCoordinatorRequest, found: _Found, view: ClusterView
) -> FindCoordinatorResponse | InParts[FindCoordinatorResponse]:
    """Return the coordinator of each key separately, once."""
    if request.api_version >= MANY_KEYS_SINCE:
        response, one = FindCoordinatorResponse(), partial(_coordinator, body, found)
        return InParts(
            response, Each(body.coordinator_keys, one, into=response.coordinators, key=_identity, work=_work)
        )
    coordinator = _coordinator(body, found, request, body.key, view)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        # Kafka's own word for no error, in these versions
        error_message=coordinator.error_message or ErrorCode.NONE.name,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def _identity(key: str) -> str:
    return key


def _work(key: str) -> int:
    return WORK + naming_work(key)


def _coordinator(
    body: FindCoordinatorRequest, found: _Found, request: Request, key: str, view: ClusterView
) -> Coordinator:
    led = found.led
    if key in found.denied:
        return _refusal(key, ACCESS[body.key_type].error)
    is_share = body.key_type == SHARE and request.api_version >= SHARE_SINCE
    if is_share and _valid_share_key(request, key, view) is None:
        return _refusal(key, InvalidRequest("The key of a share partition is group:topic id:partition."))
    if isinstance(led, KafkaError):
        return _refusal(key, led)
    try:
        node_id = _node_for(request, led, key, view)
    except KafkaError as error:
        return _refusal(key, error)
    broker = view.brokers.get(node_id)
    endpoint = broker.endpoints.get(request.listener) if broker is not None else None
    if endpoint is None:
        return _refusal(key, CoordinatorNotAvailable(f"the coordinator of {key!r} is not alive"))
    return Coordinator(key=key, node_id=node_id, host=endpoint.host, port=endpoint.port, error_message="")


def _refusal(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(key=key, node_id=NO_LEADER, port=-1, error_code=error.code, error_message=error.message)


def _node_for(request: Request, led: _Led, key: str, view: ClusterView) -> int:
    try:
        index = led.partition_for(key)
    except NotCoordinator as error:  # another broker has created the topic; this one does not know it yet
        raise CoordinatorNotAvailable(error.message) from None
    partition = view.partition(led.topic, index)
    if partition is None or (partition.leader == request.services.node_id and led.is_offline(index)):
        return NO_LEADER
    return partition.leader


HANDLER = ElementWiseAfter(MESSAGES, first=find, answer=answer, access=tuple(ACCESS.values()))
