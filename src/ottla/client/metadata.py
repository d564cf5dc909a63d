"""Holds cluster metadata as immutable values: brokers, topics, partitions, leaders. Built from a Metadata response."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from ottla.client.addresses import Address
from ottla.core.errors import ErrorCode

_NO_LEADER = int(ErrorCode.LEADER_NOT_AVAILABLE)
_NUMBER = attrgetter("partition_index")


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A broker."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        """The address in its advertised.listeners."""
        return Address(self.host, self.port)


class PartitionInfo(NamedTuple):
    """A partition; `leader_id` is -1 while it has no leader. A tuple: a cluster may have very many of them."""

    partition: int
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with its partitions, sorted by number."""

    name: str
    topic_id: uuid.UUID
    internal: bool
    partitions: tuple[PartitionInfo, ...]
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The content of one Metadata response."""

    cluster_id: str | None
    controller_id: int
    nodes: Mapping[int, BrokerNode]
    topics: Mapping[str, TopicInfo]


def from_response(answer: Any) -> ClusterInfo:
    """Convert a MetadataResponse. Topics that the broker does not know are kept, with their error code."""
    nodes = {b.node_id: BrokerNode(b.node_id, b.host, b.port, b.rack) for b in answer.brokers}
    topics = {t.name: _topic(t) for t in answer.topics if t.name is not None}
    return ClusterInfo(answer.cluster_id, answer.controller_id, nodes, topics)


def _topic(topic: Any) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(
            p.partition_index,
            -1 if p.error_code == _NO_LEADER else p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas),
            p.error_code,
        )
        for p in sorted(topic.partitions, key=_NUMBER)
    )
    return TopicInfo(topic.name, topic.topic_id, topic.is_internal, partitions, topic.error_code)
