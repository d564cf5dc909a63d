"""DescribeQuorum (key 55), versions 0 to 2.

What it does
  Says that there is no Raft quorum, with UNSUPPORTED_VERSION, the error that tools know from clusters without KRaft,
  and names the controller.

What it does not do
  Voters and observers are not described: the metadata is kept in ZooKeeper or in a file of the broker.

Versions
  v1   times of replicas (KIP-836)
  v2   directory ids, nodes and messages (KIP-853)
"""

from __future__ import annotations

from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.handler import Inline
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import ErrorCode
from ottla.wire.generated.describe_quorum import MESSAGES, DescribeQuorumRequest, DescribeQuorumResponse


def handle(request: Request, body: DescribeQuorumRequest) -> DescribeQuorumResponse:  # noqa: ARG001
    """Refuse, and name the controller."""
    controller_id = request.services.cluster.current.controller_id
    controller = f"the controller is broker {controller_id}" if controller_id >= 0 else "no controller is elected"
    return DescribeQuorumResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="The cluster has no Raft quorum to describe: its metadata is not in __cluster_metadata; "
        f"{controller}. DescribeCluster shows the brokers.",
    )


HANDLER = Inline(MESSAGES, handle, access=(on_cluster(AclOperation.DESCRIBE),))
