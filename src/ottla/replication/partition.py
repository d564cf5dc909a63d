"""Holds one replica of a partition: as the leader of a term, as a follower, or without a leader.

    log start <= high watermark <= durable end <= log end

Below the high watermark records are replicated: on every in-sync replica, and there fsynced (`durability=fsync`) or at
least written (`durability=page-cache`, Kafka's own guarantee). Consumers see nothing above it; acks=all waits for it.
`Partition` alone moves it; the log keeps the only copy, because checkpoints and retention need it there. It begins with
the checkpointed one: a leader moves it once the followers confirm (`leader_state.py`), at once if it has none.

Step 5 of 9 on the path of a batch (ARCHITECTURE.md).
Before: broker/delayed_produce.py. Next: storage/log/partition_log.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from ottla.core.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageError,
    UnknownLeaderEpoch,
)
from ottla.core.ids import INTERNAL_TOPICS, TopicPartition
from ottla.metadata_store.cluster_view import PartitionView
from ottla.metadata_store.znodes import Impairment
from ottla.records.batch import HEADER_BYTES, BatchHeader
from ottla.replication import partition_logging
from ottla.replication.config import ReplicationConfig
from ottla.replication.fetch_data_info import FetchDataInfo, aborted_in
from ottla.replication.follower_state import FETCHING, FetchPosition, FetchState, FollowerState
from ottla.replication.group_commit import GroupCommit
from ottla.replication.high_watermark_waiters import OffsetWaiters
from ottla.replication.isr_proposal_queue import AlteredPartition, IsrChange, Outcome
from ottla.replication.leader_state import LeaderState
from ottla.replication.log_divergence import diverging_end, may_truncate, truncation_offset
from ottla.replication.replication_context import ReplicationContext
from ottla.replication.throttle import is_throttled, read_up_to_log_end
from ottla.storage.config import LogConfig
from ottla.storage.log.faulty_ranges import is_faulty, refetch_from, replace_producers
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.partition_log import AppendInfo, AppendOrigin, PartitionLog
from ottla.storage.log.truncation_steps import Truncation, run_truncation
from ottla.storage.state.leader_epochs import EpochEnd
from ottla.storage.state.producer_state_manager import VerificationGuard

ANY_EPOCH = -1  # what a client sends that does not track epochs (KIP-320)


class PartitionWatcher(Protocol):
    """Receives the changes of partitions for which it waits."""

    def partition_changed(self, partition: Partition) -> None:
        """React to a change, of those that were asked for. Must not raise."""
        ...


_NO_WATCHERS: Final[dict[PartitionWatcher, None]] = {}  # one for all partitions; replaced before one is added


class Partition:
    """A replica on this broker. All its state is touched on the loop only."""

    __slots__ = (
        "_commit",
        "_context",
        "_counted_replicas",
        "_has_followers",
        "_refetch_from",
        "_removed",
        "end_watchers",
        "failed",
        "follower",
        "held_view",
        "internal",
        "is_serving",
        "isr",
        "last_unclean_epoch",
        "leader",
        "leader_epoch",
        "leader_state",
        "log",
        "node_id",
        "partition_epoch",
        "replicas",
        "topic_partition",
        "truncation",
        "waiters",
        "watchers",
    )

    def __init__(
        self,
        log: PartitionLog,
        view: PartitionView,
        *,
        node_id: int,
        commit: GroupCommit,
        context: ReplicationContext | None = None,
        refetch_from: int | None = None,
    ) -> None:
        self.log = log
        self._refetch_from = refetch_from  # as a follower it fetches all from there on again
        self.topic_partition: TopicPartition = log.topic_partition
        self.node_id = node_id
        self.internal = log.topic_partition.topic in INTERNAL_TOPICS
        self.leader = self.leader_epoch = self.partition_epoch = self.last_unclean_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()  # the committed one
        self.leader_state: LeaderState | None = None  # while this broker leads
        self.follower: FollowerState | None = None  # while another one leads
        self._counted_replicas = 0  # without those that a reassignment adds: the most that min.insync.replicas can ask
        self._has_followers = False
        self._commit = commit
        self._context = context or ReplicationContext(commit.clock, ReplicationConfig())
        self.waiters = OffsetWaiters(log)
        self.watchers = _NO_WATCHERS  # a dict keeps the order of arrival
        self.end_watchers = _NO_WATCHERS  # for followers
        self.failed: StorageError | None = None  # the disk lost what was written: only a restart may begin again
        self._removed = False
        self.is_serving = False  # as leader; if it is not, `check_serving` raises the reason
        self.truncation: Truncation | None = None  # nothing is read, appended, flushed or fetched meanwhile
        self.held_view: PartitionView | None = None  # of a term to lead in, which begins after the truncation
        self._context.watch_faults(log, has_peers=len(view.replicas) > 1)
        self.apply(view)

    # ---- Faults of the log

    @property
    def may_be_repaired(self) -> bool:
        """Whether this broker follows a leader, and the log is not being truncated."""
        follower = self.follower
        return follower is not None and follower.fetch_state in {FetchState.FETCHING, FetchState.SYNCING}

    def repaired(self) -> None:
        """Report this replica no longer, if nothing of its log is faulty any more. Raises CorruptMessage."""
        if not is_faulty(self.log):
            replace_producers(self.log)
            self._context.restored(self.topic_partition, Impairment.CORRUPT)
            partition_logging.log_repaired(self.topic_partition)
        if self.log.is_dirty and self.truncation is None and not self._removed:
            self._commit.schedule(self)

    @property
    def may_hand_over(self) -> bool:
        """Return whether another member of the ISR can lead instead of this replica, which is impaired."""
        context = self._context
        return self.topic_partition in context.impaired and any(
            node_id != self.node_id and context.may_lead(node_id, self.topic_partition) for node_id in self.isr
        )

    # ---- Role

    def apply(self, view: PartitionView) -> None:
        """Follow the cluster's decision. A new leader epoch is noted in the log before anything is served under it.

        A view that is older than the state which is applied changes nothing: an answer of the controller to an ISR
        change may come before the snapshot that has it.
        """
        if view.leader_epoch < self.leader_epoch or view.partition_epoch < self.partition_epoch or self._removed:
            return
        is_new_term = view.leader_epoch > self.leader_epoch or view.leader != self.leader
        is_newer = view.partition_epoch > self.partition_epoch or view.replicas != self.replicas
        continues = view.leader == self.leader and view.leader_epoch == self.leader_epoch + 1
        self.leader, self.leader_epoch, self.partition_epoch = view.leader, view.leader_epoch, view.partition_epoch
        self.replicas, self.isr, self.last_unclean_epoch = view.replicas, view.isr, view.last_unclean_epoch
        self._counted_replicas = len(view.replicas) - len(view.adding)
        if is_new_term:
            self.held_view = None
            if view.leader != self.node_id:
                self._become_follower()
            elif self.truncation is not None:
                self.held_view, self.follower = view, None
            else:
                self._become_leader(view, continues=continues)
        elif self.held_view is not None:
            self.held_view = view
        elif is_newer and self.leader_state is not None:
            self.leader_state.withdraw_change()
            self.leader_state.follow(view)
        self._refetch_if_contradictory(view)
        self._role_applied()

    def _role_applied(self) -> None:
        if self.leader_state is not None:
            self._has_followers = bool(self.leader_state.followers)
            if self.failed is None:
                self._advance(self.durable_end)
            if self._has_followers:
                self.check_isr()
        self.check_offsets()
        self._notify_watchers()

    def _become_leader(self, view: PartitionView, *, continues: bool) -> None:
        state, self.follower = self.leader_state, None
        self.log.begin_epoch(view.leader_epoch)
        if state is not None and continues:
            state.withdraw_change()
            state.continue_term(view, self.log.end_offset)
        else:
            if state is not None:
                self._end_term()
            self.leader_state = LeaderState(
                view, self.topic_partition, node_id=self.node_id, term_start=self.log.end_offset, context=self._context
            )
        self.is_serving = self.failed is None

    def _become_follower(self) -> None:
        if self.leader_state is not None:
            self._end_term()
        self.follower = None
        if self.leader >= 0 and self.failed is None:
            if self._refetch_from is not None and not self._remove_corrupt_log(self._refetch_from):
                return
            is_durable = self.durable_end == self.log.end_offset
            self.follower = FollowerState(is_durable=is_durable)
            if self.truncation is not None:
                self.follower.begin_truncation()
            elif not is_durable:
                self._commit.schedule(self)

    def _remove_corrupt_log(self, offset: int) -> bool:
        """Remove all from an offset on, to fetch it again from the leader; return False if the disk refuses."""
        not_removed = self._context.not_removed
        if self.topic_partition not in not_removed:
            partition_logging.log_removal(self.topic_partition, self.leader)
        try:
            refetch_from(self.log, offset)
        except StorageError:
            not_removed[self.topic_partition] = None  # if the directory has failed the partition goes offline
            return False
        self._refetch_from = None
        self._context.watch_faults(self.log, has_peers=True)
        not_removed.pop(self.topic_partition, None)
        return True

    def follow_again(self) -> None:
        """Follow the leader, if this replica does not because the disk refused to remove its corrupt log."""
        if self.follower is not None or self.leads or self._removed:
            self._context.not_removed.pop(self.topic_partition, None)
            return
        failed, self.failed = self.failed, None
        self._become_follower()
        if self.topic_partition in self._context.not_removed:
            self.failed = failed  # it may not lead either
        else:
            self._context.contradictory.pop(self.topic_partition, None)

    def _end_term(self) -> None:
        """Fail those who wait and wake readers, because this broker leads no longer."""
        self._drop_leader_state()
        self.waiters.fail(self._not_leader())
        self._notify_end_watchers()

    def _drop_leader_state(self) -> None:
        self.is_serving = False
        if self.leader_state is not None:
            self.leader_state.end()
        self.leader_state, self._has_followers = None, False

    def check_offsets(self) -> None:
        """Take the replica out of service if its offsets contradict each other: it would lose or invent records."""
        log, end = self.log, self.log.end_offset
        if not (log.log_start_offset <= log.high_watermark <= end >= log.flushed_offset or self.failed):
            self.take_out_of_service(partition_logging.log_contradiction(log, self.replicas))

    def take_out_of_service(self, why: str) -> None:
        """Serve nothing until all records are fetched again: see `_refetch_if_contradictory`."""
        self._context.contradictory[self.topic_partition] = None
        self.fail_flush(StorageError(why))

    def _refetch_if_contradictory(self, view: PartitionView) -> None:
        """Fetch a contradictory replica again once it counts for nothing: others have all that was committed."""
        counts = view.leader in (-1, self.node_id) or self.node_id in view.isr or self.node_id in view.elr
        if not counts and self.topic_partition in self._context.contradictory:
            self.follower, self._refetch_from = None, 0
            self.follow_again()

    def reconfigure(self, config: LogConfig) -> None:
        """Apply changed settings of the topic. Those of durability count for what was written before, too."""
        self.log.reconfigure(config)
        if self.log.end_offset > self.log.flushed_offset and self.truncation is None:
            if config.durability == "fsync":
                if self.follower is not None:
                    self.follower.require_sync()  # its position counts only what is durable now
                self._commit.schedule(self)
            else:
                self._commit.schedule_by_rule(self, self.log)
        if self._has_followers:  # min.insync.replicas may be lower
            self._advance(self.durable_end)

    def replace_log(self, log: PartitionLog, commit: GroupCommit) -> None:
        """Continue with a log of another directory, which has the same records, on the disk unless that has failed."""
        self._commit.release(self)
        self.log, self._commit = log, commit
        self._context.watch_faults(log, has_peers=len(self.replicas) > 1)
        self.waiters.move_to(log)
        if log.health.failure is not None:
            self.fail_flush(StorageError(log.health.failure))
        elif self.follower is not None:
            self._synced()
        else:
            self._advance(self.durable_end)

    def remove(self) -> None:
        """Fail all who wait, because the topic is deleted or the replica moved."""
        self._removed = True
        self._abandon_truncation()
        self._context.forget(self.topic_partition)
        self._commit.forget(self)
        self._drop_leader_state()
        self.follower = None
        self.waiters.fail(NotLeaderOrFollower("the partition has been removed"))
        self._notify_watchers()
        self._notify_end_watchers()

    @property
    def leads(self) -> bool:
        """Whether this broker is the leader."""
        return self.leader == self.node_id and not self._removed

    @property
    def is_truncating(self) -> bool:
        """Whether the log is truncated off the loop, or waits for it."""
        return self.truncation is not None

    @property
    def is_held(self) -> bool:
        """Whether this broker leads only after a truncation that runs has ended."""
        return self.held_view is not None

    @property
    def durable_end(self) -> int:
        """Below it everything counts as written here: fsynced, or only written with `durability=page-cache`."""
        log = self.log
        return log.flushed_offset if log.config.durability == "fsync" else log.end_offset

    @property
    def min_isr(self) -> int:
        """Return `min.insync.replicas`, which cannot ask for more replicas than there are."""
        return min(self.log.config.min_insync_replicas, self._counted_replicas)

    def check_serving(self, leader_epoch: int = ANY_EPOCH) -> None:
        """Refuse what only the leader of this epoch may serve (KIP-320). Raises the KafkaError to respond with."""
        if self.failed is not None:
            raise StorageError(self.failed.message)  # a new one: one that is raised again keeps all frames it passed
        if leader_epoch not in (ANY_EPOCH, self.leader_epoch):
            if leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(leader_id=self.leader, leader_epoch=self.leader_epoch)
            raise UnknownLeaderEpoch
        if not self.leads or self.is_held:
            raise self._not_leader()

    def _not_leader(self) -> NotLeaderOrFollower:
        return NotLeaderOrFollower(leader_id=self.leader, leader_epoch=self.leader_epoch)

    # ---- Writing

    def append_as_leader(
        self,
        records: memoryview,
        *,
        acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        validated_for: LogConfig | None = None,
        header: BatchHeader | None = None,
        guard: VerificationGuard | None = None,
    ) -> AppendInfo:
        """Check a producer's batch, assign its offsets, write it. It is replicated later: see `waiters`.

        `validated_for` is the config for which its records were validated, if they were; `header` is the batch's, if
        the caller has read it; `guard` is that of its verification with the transaction coordinator, if it had one.
        Raises the KafkaError to respond with; then nothing has been written.
        """
        if not self.is_serving:
            self.check_serving()
        log = self.log
        if acks == -1 and len(self.isr) < log.config.min_insync_replicas and len(self.isr) < self._counted_replicas:
            raise NotEnoughReplicas(f"{len(self.isr)} in sync; {self.min_isr} required")
        appended = log.append(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            validated_for=validated_for,
            header=header,
            guard=guard,
        )
        state = self.leader_state
        if self._has_followers and state is not None and not appended.duplicate:
            state.note_append(appended.first_offset)
            if self.end_watchers:
                self._notify_end_watchers()  # followers that wait at the old end have something to fetch
        if log.config.durability == "fsync":
            self._commit.schedule(self)
        else:
            self._advance(log.end_offset)
            if appended.begins_segment or log.config.flushes_by_rule:
                self._commit.schedule_by_rule(self, log, begins_segment=appended.begins_segment)
        return appended

    def begin_flush(self) -> FlushJob:
        """Begin a flush, because a round of the group commit begins."""
        return self.log.begin_flush()

    def complete_flush(self, job: FlushJob) -> None:
        """Complete a flush after its round. Raises StorageError where the disk refused or lost the data."""
        if self._removed:  # its files may be gone already
            return
        self.log.complete_flush(job)
        if self.follower is not None:
            self._synced()
        else:
            self._advance(self.log.flushed_offset)

    def fail_flush(self, error: StorageError) -> None:
        """Stop serving: the disk lost what was written. Only a restart, which scans the files, may begin again."""
        self.failed = error
        self._context.not_removed.pop(self.topic_partition, None)
        self._abandon_truncation()
        self._drop_leader_state()
        if self.follower is not None:
            self.follower.fail()
        self.waiters.fail(error)
        self._notify_watchers()
        self._notify_end_watchers()

    def give_up_waiting(self, error: StorageError) -> None:
        """Fail all waits: the flush is put off until the disk accepts it; the written records may yet be replicated."""
        self.waiters.fail(error)

    def _advance(self, end_offset: int) -> None:
        """Move the high watermark as far as the followers allow: everything below `end_offset` is durable here."""
        log, high_watermark = self.log, self.log.high_watermark
        if end_offset <= high_watermark:
            return
        error = None
        if self._has_followers:
            state, min_isr = self.leader_state, self.min_isr
            assert state is not None
            end_offset = state.replicated_end(end_offset, log.end_offset, high_watermark, min_isr)
            if end_offset <= high_watermark:
                return
            if len(state.maximal_isr) < min_isr:
                error = NotEnoughReplicasAfterAppend()
        elif self.leader_state is None:
            return
        log.update_high_watermark(end_offset)
        if self._has_followers:
            self.check_offsets()
        self.waiters.advance(end_offset, error)
        if self.watchers:
            self._notify_watchers()

    # ---- Followers

    def read_for_replica(
        self,
        replica: tuple[int, int],
        *,
        fetch_offset: int,
        last_fetched_epoch: int,
        current_leader_epoch: int,
        log_start_offset: int,
        max_bytes: int,
        at_least_one: bool,
        now_s: float,
    ) -> FetchDataInfo | EpochEnd:
        """Serve the fetch of a follower, which confirms by it that it has everything below `fetch_offset`.

        `replica` is its node id and broker epoch. Returns an EpochEnd where its log diverges from this one: it must
        truncate, and nothing has changed here. Otherwise its position is noted, the high watermark may move, and it may
        join the in-sync replicas. Raises the KafkaError to respond with.
        """
        if not self.is_serving or current_leader_epoch not in (ANY_EPOCH, self.leader_epoch):
            self.check_serving(current_leader_epoch)
        state, log = self.leader_state, self.log
        assert state is not None
        node_id, broker_epoch = replica
        follower = state.follower(node_id, broker_epoch, is_epoch_named=current_leader_epoch != ANY_EPOCH)
        diverging = diverging_end(log, fetch_offset, last_fetched_epoch)
        if diverging is not None:
            return diverging
        is_moved = fetch_offset != follower.end_offset
        is_start_moved = log_start_offset != follower.log_start_offset
        end = log.end_offset
        follower.update(fetch_offset, log_start_offset, broker_epoch, leader_end=end, now_s=now_s)
        if is_moved:  # as `durable_end`, whose call each partition of a follower's fetch would pay for
            self._advance(log.flushed_offset if log.config.durability == "fsync" else end)
        if is_start_moved:
            self._notify_watchers()  # a deletion of records may have reached all replicas
        if state.is_lagging:
            self.check_isr()
        throttled = log.config.leader_throttled_replicas
        quota = self._context.leader_quota if throttled and self._is_limited(node_id, throttled) else None
        region = read_up_to_log_end(log, fetch_offset, max_bytes, at_least_one=at_least_one, quota=quota, now_s=now_s)
        stable = log.high_watermark if log.producers.is_stable else self.last_stable_offset
        return FetchDataInfo(region, log.high_watermark, stable, log.log_start_offset, None)

    @property
    def low_watermark(self) -> int:
        """Return the lowest log start of the live replicas: below it records are deleted everywhere."""
        start = self.log.log_start_offset
        return start if self.leader_state is None else min(start, self.leader_state.lowest_log_start)

    def check_followers(self) -> None:
        """Stop waiting for followers that do not count and check the ISR: time has passed or brokers have changed."""
        if self._has_followers and self.is_serving:
            self._advance(self.durable_end)
        self.check_isr()

    def check_isr(self) -> None:
        """Propose to remove followers that lag, or to add one that has caught up."""
        if self.leader_state is not None and self.is_serving:
            self.leader_state.check_isr(self.log, self.partition_epoch, self.isr_change_decided)

    def isr_change_decided(self, change: IsrChange, outcome: Outcome) -> None:
        """Apply the controller's answer to a proposed change, unless a newer state has come meanwhile."""
        state = self.leader_state
        if state is None or state.pending is not change or not state.change_decided(outcome, self.partition_epoch):
            return
        if isinstance(outcome, AlteredPartition):
            self.isr, self.partition_epoch = outcome.isr, outcome.partition_epoch
        self._advance(self.durable_end)
        self.check_isr()

    # ---- Following

    def next_fetch(self) -> FetchPosition | None:
        """Return the position to fetch from; None if this replica must not fetch now.

        The only source of fetch offsets: the leader counts each as durable on this broker.
        """
        follower, log = self.follower, self.log
        if follower is None or follower.fetch_state is not FETCHING:
            return None
        end = log.end_offset
        assert self.durable_end == end, "a replica is fetched only when its whole log is durable"
        return FetchPosition(self.leader_epoch, end, log.epochs.latest, log.log_start_offset, log.truncations.count)

    @property
    def is_throttled(self) -> bool:
        """Return whether this follower is held back by `follower.replication.throttled.rate`."""
        throttled = self.log.config.follower_throttled_replicas
        return bool(throttled) and self._is_limited(self.node_id, throttled)

    def _is_limited(self, follower: int, throttled: Sequence[str]) -> bool:
        return follower not in self.isr and is_throttled(throttled, self.topic_partition.partition, self.node_id)

    def append_as_follower(self, records: memoryview, *, high_watermark: int, log_start: int, now_ms: int) -> None:
        """Append what the leader sent for `next_fetch`, with its high watermark and log start; flush it.

        Raises CorruptMessage; then nothing has been written. Raises StorageError where the disk refuses.
        """
        follower, log = self.follower, self.log
        assert follower is not None
        assert follower.fetch_state is FETCHING
        follower.note_leader_offsets(high_watermark, log_start)
        appended: AppendInfo | None = None
        if records.nbytes >= HEADER_BYTES:
            appended = log.append_as_follower(records, now_ms=now_ms, leader_epoch=self.leader_epoch)
        if appended is not None and log.config.durability == "fsync":
            follower.require_sync()
            self._commit.schedule(self)
            return
        if appended is not None and (appended.begins_segment or log.config.flushes_by_rule):
            self._commit.schedule_by_rule(self, log, begins_segment=appended.begins_segment)
        self._synced()

    def _synced(self) -> None:
        """Follow the leader's high watermark and log start as far as the log is durable."""
        follower, log = self.follower, self.log
        assert follower is not None
        durable_end = self.durable_end
        if follower.follow_leader(log, durable_end) and self.watchers:
            self._notify_watchers()
        self.check_offsets()
        if durable_end == log.end_offset:
            follower.synced()

    def truncate_to_leader(self, leader_end: EpochEnd) -> bool:
        """Truncate where this log diverges from the leader's, whose largest epoch not above ours ends there.

        Return False if it must not be done: see `truncate`.
        """
        return self.truncate(truncation_offset(self.log, leader_end))

    def truncate(self, offset: int) -> bool:
        """Truncate a follower's log. Return False, and fetch no longer, if replicated records would go."""
        log = self.log
        if not may_truncate(log, offset, self.last_unclean_epoch):
            partition_logging.log_refused_truncation(log, offset, self.leader, self.leader_epoch)
            if self.follower is not None:
                self.follower.fail()
            return False
        if offset >= log.end_offset:
            log.truncate_to(offset)  # epochs without records: nothing waits for the disk
            self._continue_after_truncation()
            return True
        partition_logging.log_truncation(log, offset, self.leader_epoch)
        self._begin_truncation(log.truncation(offset))
        return self.failed is None

    def restart_log_at(self, offset: int) -> None:
        """Begin the log at the leader's start, which is above the end of this one: no record of both remains."""
        partition_logging.log_truncation(self.log, offset, self.leader_epoch)
        self._begin_truncation(self.log.full_truncation(offset))

    def _begin_truncation(self, steps: Truncation) -> None:
        """Run the steps off the loop, with this replica out of use until the last; on the loop if none can run them."""
        follower, truncations = self.follower, self._commit.truncations
        if truncations is None:
            try:
                run_truncation(steps, self.log.checkpoint)
                self._continue_after_truncation()
            except CorruptMessage as error:
                self._truncation_ended(error)
            return
        assert follower is not None
        assert self.truncation is None
        follower.begin_truncation()
        self.truncation = steps
        self._commit.forget(self)
        truncations.add(steps, self._truncation_ended)

    def _abandon_truncation(self) -> None:
        """Run no further step: the replica is removed or offline."""
        if self.truncation is not None and self._commit.truncations is not None:
            self._commit.truncations.abandon(self.truncation)
        self.truncation = self.held_view = None

    def _truncation_ended(self, error: Exception | None) -> None:
        """Go on: as the leader of a term that began meanwhile, or as a follower.

        After an error nothing was truncated, or the log is neither as before nor truncated: it goes out of service.
        """
        log, follower, held_view = self.log, self.follower, self.held_view
        self.truncation = self.held_view = None
        if log.health.failure is not None:
            self.fail_flush(StorageError(log.health.failure))
        elif error is not None and (log.is_truncating or not isinstance(error, StorageError)):
            why = partition_logging.log_failed_truncation(self.topic_partition, error, self.replicas)
            self.take_out_of_service(why)
            if held_view is not None:
                self._context.on_leading(self.topic_partition)  # and refuses what a coordinator asks
        elif follower is not None:
            self._continue_after_truncation()
            follower.truncation_ended(error)
        else:
            if log.is_dirty or self.durable_end < log.end_offset:
                self._commit.schedule(self)
            if held_view is not None:
                self._become_leader(held_view, continues=False)
                self._role_applied()
                self._context.on_leading(self.topic_partition)

    def _continue_after_truncation(self) -> None:
        """Flush what is left of the log, if something has to be, and fetch on then."""
        if self.follower is not None:
            is_durable = self.durable_end == self.log.end_offset
            self.follower.continue_after_truncation(is_durable=is_durable)
            if self.follower.fetch_state is not FetchState.FAILED and (self.log.is_dirty or not is_durable):
                self._commit.schedule(self)

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
        """Read whole batches from the one that holds `offset`.

        Without `may_check` data from before this process began is left out where it would have to be verified first.
        Raises OffsetOutOfRange, StorageError, or CorruptMessage where the log is corrupt. While another replica can
        serve it, which will lead soon, that is a StorageError: clients retry it.
        """
        log, high_watermark = self.log, self.log.high_watermark
        stable = high_watermark if log.producers.is_stable else min(log.last_stable_offset, high_watermark)
        end = stable if committed_only else high_watermark
        try:
            region = log.read(
                offset, max_bytes=max_bytes, end_offset=end, at_least_one=at_least_one, may_check=may_check
            )
            aborted = aborted_in(log, offset, region, stable) if committed_only else None
        except CorruptMessage as error:
            if self.may_hand_over:
                raise StorageError(f"another replica is about to lead: {error.message}") from error
            raise
        except OSError as error:
            raise self.not_readable(error) from error
        return FetchDataInfo(region, high_watermark, stable, log.log_start_offset, aborted)

    def not_readable(self, error: OSError) -> StorageError:
        """Return a refused read's error: without a file handle this request fails, else the directory (as in Kafka)."""
        return self.log.refused(f"reading {self.topic_partition}", error)

    def delete_records(self, before_offset: int) -> int:
        """Move the log start; -1 means the high watermark. Returns the new start. Raises OffsetOutOfRange."""
        before = self.high_watermark if before_offset == -1 else before_offset
        if not 0 <= before <= self.high_watermark:
            raise OffsetOutOfRange(f"cannot delete before {before}: the high watermark is {self.high_watermark}")
        start = self.log.delete_records(before)
        self._notify_watchers()
        return start

    # ---- Watching

    def watch(self, watcher: PartitionWatcher) -> None:
        """Inform a watcher of each move of the high watermark, the log start or the leader."""
        if self.watchers is _NO_WATCHERS:
            self.watchers = {}
        self.watchers[watcher] = None

    def unwatch(self, watcher: PartitionWatcher) -> None:
        """Inform a watcher no more, if it watches."""
        self.watchers.pop(watcher, None)

    def watch_end(self, watcher: PartitionWatcher) -> None:
        """Inform a watcher of each move of the log end while this broker leads, and of the end of its term."""
        if self.end_watchers is _NO_WATCHERS:
            self.end_watchers = {}
        self.end_watchers[watcher] = None

    def unwatch_end(self, watcher: PartitionWatcher) -> None:
        """Inform a watcher of the log end no more, if it watches."""
        self.end_watchers.pop(watcher, None)

    def _notify_watchers(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.partition_changed(self)

    def _notify_end_watchers(self) -> None:
        for watcher in tuple(self.end_watchers):
            watcher.partition_changed(self)
