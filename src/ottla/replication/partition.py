"""Serves one partition as its leader: the rules around one log.

    log start <= high watermark <= durable end <= log end

Below the high watermark records are replicated: on every in-sync replica, and there fsynced (`durability=fsync`) or at
least written (`durability=page-cache`, Kafka's own guarantee). Consumers see nothing above it; acks=all waits for it.

Step 5 of 9 of a batch's journey. Before: broker/handlers/produce.py. Next: storage/log/partition_log.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ottla.coordination.view import PartitionView
from ottla.core.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageError,
    UnknownLeaderEpoch,
)
from ottla.core.files import FileRegion
from ottla.core.ids import INTERNAL_TOPICS, TopicPartition
from ottla.core.settings import LONG_MAX
from ottla.records.batch import BatchHeader
from ottla.replication.commit import GroupCommit
from ottla.replication.waiters import OffsetWaiters
from ottla.storage.config import LogConfig
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.partition_log import AppendInfo, AppendOrigin, PartitionLog
from ottla.storage.state.producer_state_manager import VerificationGuard
from ottla.storage.state.transactions import AbortedTransaction, Marker, MarkerType, build_marker

FIRST_VERSION_WITH_EPOCH_BUMP = 2  # of transactions (KIP-890)
ANY_EPOCH = -1  # what a client sends that does not track epochs (KIP-320)


class FetchDataInfo:
    """The result of a read: a region of a file, not bytes, and the partition's offsets at that moment."""

    __slots__ = ("aborted", "high_watermark", "last_stable_offset", "log_start_offset", "region")

    def __init__(
        self,
        region: FileRegion | None,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        aborted: Sequence[AbortedTransaction] | None,
    ) -> None:
        self.region = region
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.aborted = aborted  # for readers of committed records: the transactions to skip


class PartitionWatcher(Protocol):
    """Who waits for a change of a partition, maybe of several."""

    def partition_changed(self, partition: Partition) -> None:
        """Called at each move of the high watermark, the log start or the leader. Must not raise."""
        ...


class Partition:
    """A replica on this broker. All its state is touched on the loop only."""

    __slots__ = (
        "_commit", "_failed", "_removed", "_replication_factor", "internal", "is_serving", "isr", "leader",
        "leader_epoch", "log", "node_id", "topic_partition", "waiters", "watchers",
    )  # fmt: skip

    def __init__(self, log: PartitionLog, view: PartitionView, *, node_id: int, commit: GroupCommit) -> None:
        self.log = log
        self.topic_partition: TopicPartition = log.topic_partition
        self.node_id = node_id
        self.internal = log.topic_partition.topic in INTERNAL_TOPICS
        self.leader = -1
        self.leader_epoch = -1
        self.isr: tuple[int, ...] = ()
        self._replication_factor = len(view.replicas)
        self._commit = commit
        log.update_high_watermark(log.end_offset)  # recovery kept only what is valid, and flushed it
        self.waiters = OffsetWaiters(log.end_offset)
        self.watchers: dict[PartitionWatcher, None] = {}  # a dict keeps the order of arrival
        self._failed: StorageError | None = None
        self._removed = False
        self.is_serving = False  # as leader; if it is not, `check_serving` raises the reason
        self.apply(view)

    # ---- Leadership

    def apply(self, view: PartitionView) -> None:
        """Follow the cluster's decision. A new leader epoch is noted in the log before anything is served under it."""
        if view.leader_epoch > self.leader_epoch:
            self.leader, self.leader_epoch = view.leader, view.leader_epoch
            self.is_serving = self.leads and self._failed is None
            if self.leads:
                self.log.begin_epoch(view.leader_epoch)
            else:
                self.waiters.fail(NotLeaderOrFollower())
        self.isr = view.isr
        self._replication_factor = len(view.replicas)
        self._notify_watchers()

    def reconfigure(self, config: LogConfig) -> None:
        """The topic's settings have changed. Those of durability count for what was written before, too."""
        self.log.reconfigure(config)
        if self.log.end_offset > self.log.flushed_offset:
            if config.durability == "fsync":
                self._commit.schedule(self)
            else:
                self._flush_by_rule(config)

    def remove(self) -> None:
        """The topic is deleted or the replica moved: fail all who wait."""
        self._removed = True
        self.is_serving = False
        self._commit.forget(self)
        self.waiters.fail(NotLeaderOrFollower("the partition has been removed"))
        self._notify_watchers()

    @property
    def leads(self) -> bool:
        """Whether this broker is the leader."""
        return self.leader == self.node_id and not self._removed

    def check_serving(self, leader_epoch: int = ANY_EPOCH) -> None:
        """Refuse what only the leader of this epoch may serve (KIP-320). Raises the KafkaError to respond with."""
        if self._failed is not None:
            raise StorageError(self._failed.message)  # a new one: one that is raised again keeps all frames it passed
        if not self.leads:
            raise NotLeaderOrFollower
        if leader_epoch not in (ANY_EPOCH, self.leader_epoch):
            raise FencedLeaderEpoch if leader_epoch < self.leader_epoch else UnknownLeaderEpoch

    # ---- Writing

    def append_as_leader(
        self, records: memoryview, *, acks: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT,
        validated_for: LogConfig | None = None, header: BatchHeader | None = None,
        guard: VerificationGuard | None = None,
    ) -> AppendInfo:  # fmt: skip
        """Check a producer's batch, assign its offsets, write it. It is replicated later: see `waiters`.

        `validated_for` is the config for which its records were validated, if they were; `header` is the batch's, if
        the caller has read it; `guard` is what `begin_transaction_verification` returned, if the batch was verified.
        Raises the KafkaError to respond with; then nothing has been written.
        """
        if not self.is_serving:
            self.check_serving()
        log = self.log
        if acks == -1 and len(self.isr) < log.config.min_insync_replicas and len(self.isr) < self._replication_factor:
            required = min(log.config.min_insync_replicas, self._replication_factor)
            raise NotEnoughReplicas(f"{len(self.isr)} in sync; {required} required")
        appended = log.append(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            validated_for=validated_for,
            header=header,
            guard=guard,
        )
        if log.config.durability == "fsync":
            self._commit.schedule(self)
        else:
            self._advance(log.end_offset)
            log.active.sync_is_awaited = False
            if appended.first_offset == log.active.base_offset:  # as Kafka: a segment that was sealed goes to the disk
                self._commit.schedule(self)
            else:
                self._flush_by_rule(log.config)
        return appended

    def begin_transaction_verification(
        self, producer_id: int, base_sequence: int, epoch: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard | None:
        """Return the guard under which a transactional batch must be verified with the transaction coordinator.

        None if the producer's transaction is open on this partition already: then it is verified. The caller passes the
        guard on to `append_as_leader` after the verification. Raises the KafkaError to respond with.
        """
        if not self.is_serving:
            self.check_serving()
        return self.log.producers.begin_verification(
            producer_id, base_sequence, epoch, supports_epoch_bump=supports_epoch_bump, now_ms=now_ms
        )

    def append_end_txn_marker(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append the marker that ends a producer's transaction. It is replicated later: see `waiters`.

        `epoch` is the producer's; from transaction version 2 on it is one above that of the records. Raises
        InvalidProducerEpoch, TransactionCoordinatorFenced, or another KafkaError; then nothing has been written.
        """
        if not self.is_serving:
            self.check_serving()
        if transaction_version >= FIRST_VERSION_WITH_EPOCH_BUMP:
            self.log.producers.check_epoch_bump(producer_id, epoch)
        marker = Marker(MarkerType.COMMIT if commit else MarkerType.ABORT, coordinator_epoch)
        batch = build_marker(marker, producer_id=producer_id, epoch=epoch, now_ms=now_ms)
        return self.append_as_leader(memoryview(batch), acks=-1, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)

    def _flush_by_rule(self, config: LogConfig) -> None:
        """With durability=page-cache: after `flush.messages` records or `flush.ms`, whichever comes first."""
        if self.log.end_offset - self.log.flushed_offset >= config.flush_messages:
            self._commit.schedule(self)
        elif config.flush_ms != LONG_MAX:
            self._commit.schedule_within(self, config.flush_ms / 1000)

    def begin_flush(self) -> FlushJob:
        """A round of the group commit begins."""
        return self.log.begin_flush()

    def complete_flush(self, job: FlushJob) -> None:
        """A round of the group commit has ended. Raises StorageError where the disk refused or lost the data."""
        if self._removed:  # its files may be gone already
            return
        self.log.complete_flush(job)
        self._advance(self.log.flushed_offset)

    def fail_flush(self, error: StorageError) -> None:
        """The disk lost what was written: stop serving. Only a restart, which scans the files, may begin again."""
        self._failed = error
        self.is_serving = False
        self.waiters.fail(error)
        self._notify_watchers()

    def give_up_waiting(self, error: StorageError) -> None:
        """The flush is put off until the disk accepts it: the records are written and may still be replicated."""
        self.waiters.fail(error)

    def _advance(self, end_offset: int) -> None:
        if end_offset > self.log.high_watermark:
            self.log.update_high_watermark(end_offset)
            self.waiters.advance(end_offset)
            if self.watchers:
                self._notify_watchers()

    # ---- Reading

    @property
    def high_watermark(self) -> int:
        """Below it all records are replicated. The log keeps it."""
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided (KIP-98)."""
        return min(self.log.last_stable_offset, self.log.high_watermark)

    def read(
        self, offset: int, *, max_bytes: int, committed_only: bool, at_least_one: bool, may_check: bool = True
    ) -> FetchDataInfo:
        """Whole batches from the one that holds `offset`.

        Without `may_check` data from before this process began is left out where it would have to be verified first.
        Raises OffsetOutOfRange, StorageError, or CorruptMessage where the log is corrupt.
        """
        log = self.log
        high_watermark = log.high_watermark
        stable = min(log.last_stable_offset, high_watermark)
        end = stable if committed_only else high_watermark
        try:
            region = log.read(
                offset, max_bytes=max_bytes, end_offset=end, at_least_one=at_least_one, may_check=may_check
            )
            aborted = self._aborted_in(offset, region, stable) if committed_only else None
        except OSError as error:
            raise self.not_readable(error) from error
        return FetchDataInfo(region, high_watermark, stable, log.log_start_offset, aborted)

    def _aborted_in(self, offset: int, region: FileRegion | None, stable: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions that the region, which was read just now, may have records of.

        By their first offset: some clients stop at the first one that begins after the batch at hand.
        """
        log = self.log
        if region is None or not log.may_have_aborted_transactions():
            return ()
        found = log.aborted_transactions(offset, min(stable, log.segment_list.region_end_offset))
        return sorted(found, key=_first_offset) if len(found) > 1 else found

    def not_readable(self, error: OSError) -> StorageError:
        """The disk refused a read: without a file handle this request fails, otherwise the directory (as in Kafka)."""
        return self.log.refused(f"reading {self.topic_partition}", error)

    def delete_records(self, before_offset: int) -> int:
        """Move the log start; -1 means the high watermark. Returns the new start. Raises OffsetOutOfRange."""
        before = self.high_watermark if before_offset == -1 else before_offset
        if not 0 <= before <= self.high_watermark:
            raise OffsetOutOfRange(f"cannot delete before {before}: the high watermark is {self.high_watermark}")
        start = self.log.delete_records(before)
        self._notify_watchers()
        return start

    def _notify_watchers(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.partition_changed(self)


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset
