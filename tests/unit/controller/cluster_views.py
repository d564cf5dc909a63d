"""Makes snapshots of small clusters for the tests of the controller's decisions."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ottla.controller.config import ControllerConfig
from ottla.controller.overlay import Rules
from ottla.metadata_store.cluster_view import BrokerInfo, ClusterView, PartitionView, TopicView
from ottla.storage.config import LogConfig

TOPIC_ID = uuid.UUID(int=7)
RULES = Rules(ControllerConfig(), LogConfig(), controller_epoch=5)
BROKER_EPOCH = 100
"""Of broker 0; the epoch of broker n is higher by n."""


def brokers(nodes: Iterable[int], shutting_down: Iterable[int] = ()) -> dict[int, BrokerInfo]:
    """Return live brokers."""
    return {node: BrokerInfo(node, {}, None, BROKER_EPOCH + node, {}, node in set(shutting_down)) for node in nodes}


def a_partition(**fields: Any) -> PartitionView:
    """Return a partition of three replicas with all in sync."""
    values: dict[str, Any] = {
        "index": 0,
        "leader": 1,
        "leader_epoch": 4,
        "replicas": (1, 2, 3),
        "isr": (1, 2, 3),
        "partition_epoch": 6,
        **fields,
    }
    return PartitionView(**values)


def view_of(
    *partitions: PartitionView,
    alive: Iterable[int] = (1, 2, 3),
    shutting_down: Iterable[int] = (),
    config: dict[str, str] | None = None,
) -> ClusterView:
    """Return a cluster with one topic `t`."""
    numbered = tuple(replace(partition, index=index) for index, partition in enumerate(partitions))
    topic = TopicView("t", TOPIC_ID, numbered, config or {}, 2, 0 if config else -1)
    return ClusterView(brokers=brokers(alive, shutting_down)).with_topics({"t": topic})


def only(view: ClusterView) -> PartitionView:
    """Return the only partition."""
    (partition,) = view.topics["t"].partitions
    return partition
