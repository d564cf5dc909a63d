"""UnregisterBroker (key 64), version 0.

What it does
  A broker is registered while it runs and until its session ends, so there is nothing to remove for one that has
  ended: the request succeeds for each broker that has replicas or settings and does not run. For a running broker it
  is refused; for an id that nothing knows the error is BROKER_ID_NOT_REGISTERED.

What it does not do
  The replicas of the broker stay assigned to it, as in Kafka: a reassignment moves them.

Versions
  v0   flexible encoding
"""

from __future__ import annotations

from functools import partial

from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode
from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.wire.generated.unregister_broker import MESSAGES, UnregisterBrokerRequest, UnregisterBrokerResponse


def answer(
    _request: Request, body: UnregisterBrokerRequest, view: ClusterView
) -> UnregisterBrokerResponse | InParts[UnregisterBrokerResponse]:
    """Say whether the broker is registered no longer."""
    node_id = body.broker_id
    if node_id in view.brokers:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"Broker {node_id} is running, and stays registered while it does. Stop it first.",
        )
    if str(node_id) in view.broker_configs:
        return UnregisterBrokerResponse(error_message=None)
    response = UnregisterBrokerResponse(
        error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message=f"Broker ID {node_id} is not currently registered"
    )
    return InParts(response, Each(view.topics.values(), partial(_accept_if_replica, node_id, response)))


def _accept_if_replica(
    node_id: int, response: UnregisterBrokerResponse, _request: Request, topic: TopicView, _view: ClusterView
) -> None:
    """Accept the request if the broker has a replica of the topic."""
    if any(node_id in partition.replicas for partition in topic.partitions):
        response.error_code, response.error_message = ErrorCode.NONE, None


HANDLER = ElementWise(MESSAGES, answer, access=(on_cluster(AclOperation.ALTER),))
