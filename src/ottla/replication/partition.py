"""One partition as this broker serves it: the leader's rules around one log.

    log start <= high watermark <= durable end <= log end

The high watermark is how far records count: on every in-sync replica, and there fsynced (`durability=fsync`) or at
least written (`durability=page-cache`, Kafka's own promise). Consumers see nothing above it and acks=all answers at it.

Station 5 of 9 on a batch's journey. Before: broker/handlers/produce.py. After: storage/log/partition_log.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ottla.coordination.view import PartitionView
from ottla.core.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageError,
    UnknownLeaderEpoch,
)
from ottla.core.ids import INTERNAL_TOPICS, TopicPartition
from ottla.core.settings import LONG_MAX
from ottla.replication.commit import GroupCommit
from ottla.replication.waiters import OffsetWaiters, Woken
from ottla.storage.config import LogConfig
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.partition_log import AppendInfo, AppendOrigin, FileRegion, PartitionLog
from ottla.storage.state.transactions import AbortedTransaction

ANY_EPOCH = -1  # what a client sends that does not track epochs (KIP-320)


@dataclass(frozen=True, slots=True)
class Readable:
    """What a fetch found: a region of a file, not bytes, and where the partition stood."""

    region: FileRegion | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[AbortedTransaction] | None = None  # for readers of committed records: what they must skip


class Partition:
    """A replica on this broker. All its state is touched on the loop only."""

    __slots__ = (
        "_changed", "_commit", "_failed", "_removed", "_waiters", "high_watermark", "internal", "isr", "leader",
        "leader_epoch", "log", "node_id", "topic_partition",
    )  # fmt: skip

    def __init__(self, log: PartitionLog, view: PartitionView, *, node_id: int, commit: GroupCommit) -> None:
        self.log = log
        self.topic_partition: TopicPartition = log.topic_partition
        self.node_id = node_id
        self.internal = log.topic_partition.topic in INTERNAL_TOPICS
        self.leader = -1
        self.leader_epoch = -1
        self.isr: tuple[int, ...] = ()
        self.high_watermark = log.end_offset  # recovery kept only what is valid, and flushed it
        self._commit = commit
        self._waiters = OffsetWaiters(self.high_watermark)
        log.update_high_watermark(self.high_watermark)
        self._changed: dict[Callable[[], None], None] = {}
        self._failed: StorageError | None = None
        self._removed = False
        self.apply(view)

    # ---- What the cluster decides ------------------------------------------------------------------------------

    def apply(self, view: PartitionView) -> None:
        """Follow the cluster's decision. A new leader epoch is noted in the log before anything is served under it."""
        if view.leader_epoch > self.leader_epoch:
            self.leader, self.leader_epoch = view.leader, view.leader_epoch
            if self.leads:
                self.log.begin_epoch(view.leader_epoch)
            else:
                self._waiters.fail(NotLeaderOrFollower())
        self.isr = view.isr
        self._tell_readers()

    def reconfigure(self, config: LogConfig) -> None:
        """The topic's settings have changed. Those of durability count for what was written before, too."""
        self.log.reconfigure(config)
        if self.log.end_offset > self.log.flushed_offset:
            if config.durability == "fsync":
                self._commit.schedule(self)
            else:
                self._flush_by_rule(config)

    def remove(self) -> None:
        """The topic is gone or the replica moved: nobody will get what they wait for."""
        self._removed = True
        self._commit.forget(self)
        self._waiters.fail(NotLeaderOrFollower("the partition has been removed"))
        self._tell_readers()

    @property
    def leads(self) -> bool:
        """Whether this broker is the leader."""
        return self.leader == self.node_id and not self._removed

    def check_serving(self, leader_epoch: int = ANY_EPOCH) -> None:
        """Refuse a client whose idea of the leader is not ours (KIP-320). Raises what the client must be told."""
        if self._failed is not None:
            raise self._failed
        if not self.leads:
            raise NotLeaderOrFollower
        if leader_epoch not in (ANY_EPOCH, self.leader_epoch):
            raise FencedLeaderEpoch if leader_epoch < self.leader_epoch else UnknownLeaderEpoch

    # ---- Writing -----------------------------------------------------------------------------------------------

    def append_as_leader(
        self, records: memoryview, *, acks: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT,
        inspected: LogConfig | None = None,
    ) -> AppendInfo:  # fmt: skip
        """Check a producer's batch, give it its offsets, write it. Durable later: see `when_replicated`.

        `inspected` are the settings it was looked into for, if it was. Raises the KafkaError to answer with; then
        nothing has been written.
        """
        self.check_serving()
        log = self.log
        if acks == -1 and len(self.isr) < log.config.min_insync_replicas:
            raise NotEnoughReplicas(f"{len(self.isr)} in sync; {log.config.min_insync_replicas} required")
        appended = log.append(
            records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin, validated_for=inspected
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

    def _flush_by_rule(self, config: LogConfig) -> None:
        """With durability=page-cache: after `flush.messages` records or `flush.ms`, whichever comes first."""
        if self.log.end_offset - self.log.flushed_offset >= config.flush_messages:
            self._commit.schedule(self)
        elif config.flush_ms != LONG_MAX:
            self._commit.schedule_within(self, config.flush_ms / 1000)

    def when_replicated(self, end_offset: int, woken: Woken) -> None:
        """Call back once everything below `end_offset` is below the high watermark."""
        self._waiters.add(end_offset, woken)

    def begin_flush(self) -> FlushJob:
        """Group commit takes the log as it stands now."""
        return self.log.begin_flush()

    def complete_flush(self, job: FlushJob) -> None:
        """Group commit is done with what it took. Raises StorageError where the disk refused or lost it."""
        if self._removed:  # its files may be gone already
            return
        self.log.complete_flush(job)
        self._advance(self.log.flushed_offset)

    def fail_flush(self, error: StorageError) -> None:
        """The disk lost what was written: stop serving. Only a restart, which scans the files, may begin again."""
        self._failed = error
        self._waiters.fail(error)
        self._tell_readers()

    def give_up_waiting(self, error: StorageError) -> None:
        """The flush is put off until the disk takes it: the records are there and may still come to count."""
        self._waiters.fail(error)

    def _advance(self, end_offset: int) -> None:
        if end_offset > self.high_watermark:
            self.high_watermark = end_offset
            self.log.update_high_watermark(end_offset)
            self._waiters.advance(end_offset)
            self._tell_readers()

    # ---- Reading -----------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided (KIP-98)."""
        return min(self.log.last_stable_offset, self.high_watermark)

    def read(
        self, offset: int, *, max_bytes: int, committed_only: bool, at_least_one: bool, may_check: bool = True
    ) -> Readable:
        """Whole batches from the one that holds `offset`.

        Without `may_check` what lay on the disk before this process began is left out where it would have to be checked
        first. Raises OffsetOutOfRange, StorageError, or CorruptMessage where the log is damaged.
        """
        stable = self.last_stable_offset
        end = stable if committed_only else self.high_watermark
        try:
            region = self.log.read(
                offset, max_bytes=max_bytes, end_offset=end, at_least_one=at_least_one, may_check=may_check
            )
            aborted = self._aborted_in(offset, region, stable) if committed_only else None
        except OSError as error:
            raise self.not_readable(error) from error
        return Readable(region, self.high_watermark, stable, self.log.log_start_offset, aborted)

    def _aborted_in(self, offset: int, region: FileRegion | None, stable: int) -> Sequence[AbortedTransaction]:
        """The aborted transactions a region may hold records of. It ends with its segment, the next one at most."""
        log = self.log
        if region is None or not log.transactions.any_aborted(log.files, log.directory):
            return ()
        behind = log.segment_list.from_offset(region.first_offset)[2:3]
        return log.aborted_transactions(offset, min(stable, behind[0].base_offset) if behind else stable)

    def not_readable(self, error: OSError) -> StorageError:
        """The disk refused a read: without a file handle this request fails, otherwise the directory (as in Kafka)."""
        return self.log.health.refused(f"reading {self.topic_partition}", error)

    def delete_records(self, before_offset: int) -> int:
        """Move the log start; -1 means the high watermark. Returns the new start. Raises OffsetOutOfRange."""
        before = self.high_watermark if before_offset == -1 else before_offset
        if not 0 <= before <= self.high_watermark:
            raise OffsetOutOfRange(f"cannot delete before {before}: the high watermark is {self.high_watermark}")
        start = self.log.delete_records(before)
        self._tell_readers()
        return start

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back at each move of the high watermark, the log start or the leader, until `forget`."""
        self._changed[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        """The reverse of `on_change`."""
        self._changed.pop(callback, None)

    def _tell_readers(self) -> None:
        if self._changed:
            for callback in tuple(self._changed):
                callback()
