"""Reports to the controller which replicas of this broker must not lead: those that lost records, and offline ones.

Others should not lead while a replica of another broker can: impaired ones, whose reasons come and go.

The first report is written in the commit that registers the broker, so that no election comes between. A replica that
lost records leaves the report once it has all that its leader has committed, or once it leads after all.
"""

from __future__ import annotations

from ottla.controller.controller import Controller
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.cluster_view_builder import ViewBuilder
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.store import MetadataStore, NodeChange, StoreError
from ottla.metadata_store.znodes import Impairment, ReplicaReport
from ottla.replication.replicas import Replicas
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.log.faulty_ranges import is_faulty


async def read_cluster(store: MetadataStore) -> ClusterView:
    """Read the cluster once, before this broker registers."""
    await store.sync()
    nodes = await store.list_nodes("/")
    changes = [NodeChange(0, path, node) for path, node in sorted(nodes.items())]
    return await ViewBuilder().build(ClusterView(), changes, is_complete=True)


def report_at_start(directories: LogManager) -> ReplicaReport:
    """Return what the log directories show before the broker is registered."""
    suspects: set[TopicPartition] = set()
    faulty: set[TopicPartition] = set()
    ends: set[int | None] = set()
    for directory in directories.opened:
        suspects |= directory.shortened
        suspects |= directory.corrupt.keys()
        suspects |= directory.lost_logs.keys()
        faulty |= {topic_partition for topic_partition, log in directory.logs.items() if is_faulty(log)}
        if directory.logs:
            ends.add(directory.clean_broker_epoch)
    # a directory that was offline in the last run has the clean marker of an earlier one
    is_clean = None not in ends and len(ends) <= 1 and not directories.offline
    impaired = {Impairment.CORRUPT: frozenset(faulty)} if faulty else {}
    return ReplicaReport(is_clean, frozenset(suspects), impaired=impaired)


class ReplicaReports:
    """Keeps the report of this broker up to date."""

    def __init__(
        self, controller: Controller, cluster: MetadataCache, replicas: Replicas, first: ReplicaReport
    ) -> None:
        self._controller, self._cluster, self._replicas = controller, cluster, replicas
        self._last = first
        self._is_certain = True  # the store has the last one, and not one whose write had no answer

    async def update(self) -> None:
        """Write the report if it has changed. What the store refuses is written by a later call."""
        last = self._last
        offline = frozenset(self._replicas.offline_partitions)
        suspects = {topic_partition for topic_partition in last.suspects if self._is_suspect(topic_partition)}
        suspects |= self._replicas.contradictory_partitions
        report = ReplicaReport(last.is_clean, frozenset(suspects), offline, self._replicas.impaired_partitions)
        if report == last and self._is_certain:
            return
        self._is_certain = False
        try:
            await self._controller.report_replicas(report)
        except StoreError:
            return
        self._last, self._is_certain = report, True

    def _is_suspect(self, topic_partition: TopicPartition) -> bool:
        """Return whether the replica may still lack records that were committed."""
        if self._cluster.current.partition(*topic_partition) is None:
            return False
        partition = self._replicas.partitions.get(topic_partition)
        if partition is None:
            return topic_partition in self._replicas.offline_partitions
        follower = partition.follower
        if follower is None or partition.is_serving:
            return not partition.is_serving  # without a leader nothing is known
        committed = follower.leader_high_watermark
        return committed < 0 or partition.durable_end < committed
