"""Holds what all partitions of a broker share for replication: the clock, the limits, the brokers of the snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.core.clock import Clock
from ottla.core.events import EventLog
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import BrokerInfo
from ottla.metadata_store.znodes import Impairment, ReplicaReport
from ottla.replication.config import ReplicationConfig
from ottla.replication.isr_proposal_queue import IsrChanges
from ottla.replication.throttle import ReplicationQuota
from ottla.storage.log.faulty_ranges import accept_lost_start, is_faulty, keep_lost_start
from ottla.storage.log.log_faults import FaultListener
from ottla.storage.log.partition_log import PartitionLog

_NO_BROKERS: Mapping[int, BrokerInfo] = {}
_NO_REPORTS: Mapping[int, ReplicaReport] = {}


def _ignore(topic_partition: TopicPartition) -> None:
    """Do nothing: nothing depends on the partition's role."""


class ReplicationContext:
    """Holds what all partitions of a broker share."""

    __slots__ = (
        "_on_fault",
        "alter_log_dirs_quota",
        "brokers",
        "clock",
        "contradictory",
        "events",
        "follower_quota",
        "impaired",
        "isr_changes",
        "lag_max_s",
        "lagging",
        "leader_quota",
        "not_removed",
        "on_leading",
        "reports",
    )

    def __init__(
        self, clock: Clock, config: ReplicationConfig, on_leading: Callable[[TopicPartition], None] = _ignore
    ) -> None:
        self.clock = clock
        self.events: EventLog | None = None  # the broker sets it
        self.on_leading = on_leading  # called with a partition that leads after its truncation has ended
        self.lag_max_s = config.lag_time_max_ms / 1000
        self.leader_quota = ReplicationQuota(config.leader_throttled_rate)
        self.follower_quota = ReplicationQuota(config.follower_throttled_rate)
        self.alter_log_dirs_quota = ReplicationQuota(config.alter_log_dirs_rate)
        self.brokers = _NO_BROKERS  # of the current snapshot
        self.reports = _NO_REPORTS  # the same: what brokers report of their replicas
        # This broker's replicas that should not lead while another one can, and why: to be reported.
        self.impaired: dict[TopicPartition, set[Impairment]] = {}
        self._on_fault: FaultListener = self._report_fault  # one object for all logs
        self.isr_changes = IsrChanges()
        # Led partitions with a follower that is not at the log end or not in sync. The others need no ISR check.
        self.lagging: dict[TopicPartition, None] = {}
        # Replicas that are out of service, because their offsets contradict each other.
        self.contradictory: dict[TopicPartition, None] = {}
        self.not_removed: dict[TopicPartition, None] = {}  # whose corrupt log the disk refused to remove

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a replica that is removed or offline."""
        self.contradictory.pop(topic_partition, None)
        self.not_removed.pop(topic_partition, None)
        self.impaired.pop(topic_partition, None)

    def impair(self, topic_partition: TopicPartition, why: Impairment) -> None:
        """Report that a replica should not lead, nor be in the ISR, while another member of the ISR can lead.

        The report is written within a second. It is for the caller to find out when the reason has gone: `restored`.
        """
        self.impaired.setdefault(topic_partition, set()).add(why)

    def restored(self, topic_partition: TopicPartition, why: Impairment) -> None:
        """Report one reason no longer."""
        reasons = self.impaired.get(topic_partition)
        if reasons is not None:
            reasons.discard(why)
            if not reasons:
                del self.impaired[topic_partition]

    def watch_faults(self, log: PartitionLog, *, has_peers: bool) -> None:
        """Report a replica as impaired while something of its log is to be fetched again."""
        log.faults.listener = self._on_fault
        if has_peers:
            keep_lost_start(log)
        else:
            accept_lost_start(log)
        if is_faulty(log):
            self.impair(log.topic_partition, Impairment.CORRUPT)
        else:
            self.restored(log.topic_partition, Impairment.CORRUPT)

    def _report_fault(self, topic_partition: TopicPartition) -> None:
        """Report a replica with a fault that was just found in its log."""
        self.impair(topic_partition, Impairment.CORRUPT)

    def is_impaired(self, node_id: int, topic_partition: TopicPartition) -> bool:
        """Return whether a broker has reported that its replica should not lead."""
        report = self.reports.get(node_id)
        return report is not None and bool(report.impaired) and bool(report.impairments_of(topic_partition))

    def configure(self, config: ReplicationConfig) -> None:
        """Follow the settings that may change while the broker runs."""
        self.leader_quota.configure(config.leader_throttled_rate)
        self.follower_quota.configure(config.follower_throttled_rate)
        self.alter_log_dirs_quota.configure(config.alter_log_dirs_rate)

    def broker_epoch(self, node_id: int) -> int | None:
        """Return the epoch of a live broker, or None."""
        info = self.brokers.get(node_id)
        return None if info is None else info.epoch

    def may_lead(self, node_id: int, topic_partition: TopicPartition) -> bool:
        """Return whether a replica is of a broker that is alive and stays, and is not impaired."""
        info = self.brokers.get(node_id)
        return info is not None and not info.is_shutting_down and not self.is_impaired(node_id, topic_partition)

    def may_join_isr(self, node_id: int, broker_epoch: int) -> bool:
        """Return whether a replica is of a broker that is alive, stays, and has not restarted since its fetch."""
        info = self.brokers.get(node_id)
        return info is not None and not info.is_shutting_down and info.epoch == broker_epoch
