"""DescribeCluster (key 60), versions 0 to 2.

What it does
  Returns the cluster id, the controller, and the brokers with their addresses on the listener of the request. While
  this broker has no connection to the metadata store the error message says so, beside the code NONE: Kafka's clients
  pass over it, and `ottla` shows it to people whose command failed.

What it does not do
  Endpoints of controllers: an admin client that requests them gets MISMATCHED_ENDPOINT_TYPE. Fenced brokers do not
  exist here.

Versions
  v1   the client says which kind of endpoint it wants (KIP-919)
  v2   fenced brokers (KIP-1073)
"""

from __future__ import annotations

from ottla.broker.handler_parts.authorized_operations import DESCRIBE_CLUSTER, OPERATIONS_OMITTED, cluster_operations
from ottla.broker.requests.handler import Inline
from ottla.broker.requests.request import Request
from ottla.broker.services import Services
from ottla.core.errors import ErrorCode
from ottla.wire.generated.describe_cluster import (
    MESSAGES,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


def handle(request: Request, body: DescribeClusterRequest) -> DescribeClusterResponse:
    """Return the brokers that are alive."""
    match body.endpoint_type:
        case 1:
            pass
        case 2:
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
                "CONTROLLER",
            )
        case unknown:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, error_message=f"Unsupported endpoint type {unknown}"
            )
    view = request.services.cluster.current
    wants_operations = body.include_cluster_authorized_operations
    return DescribeClusterResponse(
        error_message=None if request.services.controller.is_connected else _no_connection(request.services),
        cluster_id=view.cluster_id,
        controller_id=view.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=broker.node_id, host=place.host, port=place.port, rack=broker.rack)
            for broker in view.brokers.values()
            if (place := broker.endpoints.get(request.listener)) is not None
        ],
        cluster_authorized_operations=cluster_operations(request) if wants_operations else OPERATIONS_OMITTED,
    )


def _no_connection(services: Services) -> str:
    connect = services.config.zookeeper.connect
    return f"no connection to {f'ZooKeeper at {connect}' if connect else 'the metadata store'}"


HANDLER = Inline(MESSAGES, handle, access=(DESCRIBE_CLUSTER,))
