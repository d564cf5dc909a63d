"""Keeps what a leader knows of one term: how far each follower is, the in-sync replicas, a proposed change of them.

The high watermark is the minimum of the leader's durable end and of the ends of all replicas that count:

- members of the maximal ISR, which is the committed one and a replica whose expansion is pending. A replica whose
  removal is pending still counts: the controller may not have applied it, and may elect that replica;
- other replicas that were caught up within `replica.lag.time.max.ms` and may join, so that they do join.

A member that has not fetched in this term has an unknown end, and the high watermark waits for it.
"""

from __future__ import annotations

from typing import Final

from ottla.core.errors import NotLeaderOrFollower, UnknownLeaderEpoch
from ottla.core.events import EventKind
from ottla.core.ids import UNKNOWN_BROKER_EPOCH, TopicPartition
from ottla.metadata_store.cluster_view import PartitionView
from ottla.records.batch import NO_END_OFFSET
from ottla.replication.isr_proposal_queue import REFUSED, AlteredPartition, IsrChange, OnDecided, Outcome
from ottla.replication.partition_logging import log_isr_change
from ottla.replication.replication_context import ReplicationContext
from ottla.storage.log.partition_log import PartitionLog

UNKNOWN_OFFSET = -1
NEVER = float("-inf")

REFUSAL_SECONDS = 0.5
"""After the controller has refused a change, no other is proposed for this long."""


class FollowerReplica:
    """A follower's position as of its last fetch in this term."""

    __slots__ = (
        "broker_epoch",
        "end_offset",
        "last_caught_up_s",
        "last_fetch_s",
        "leader_end_at_last_fetch",
        "log_start_offset",
        "node_id",
    )

    def __init__(self, node_id: int, last_caught_up_s: float) -> None:
        self.node_id = node_id
        self.end_offset = UNKNOWN_OFFSET  # everything below it is durable there
        self.log_start_offset = UNKNOWN_OFFSET
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.last_fetch_s = NEVER
        self.leader_end_at_last_fetch = UNKNOWN_OFFSET
        self.last_caught_up_s = last_caught_up_s

    def update(
        self, end_offset: int, log_start_offset: int, broker_epoch: int, *, leader_end: int, now_s: float
    ) -> None:
        """Note a fetch; `leader_end` is the leader's end before the fetch is answered."""
        if end_offset >= leader_end:
            self.last_caught_up_s = max(self.last_caught_up_s, now_s)
        elif end_offset >= self.leader_end_at_last_fetch and self.leader_end_at_last_fetch >= 0:
            self.last_caught_up_s = max(self.last_caught_up_s, self.last_fetch_s)
        self.end_offset = end_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.leader_end_at_last_fetch = leader_end
        self.last_fetch_s = now_s

    def is_caught_up(self, leader_end: int, now_s: float, lag_max_s: float) -> bool:
        """Return whether it is at the leader's end, or was within the lag time."""
        return self.end_offset == leader_end or now_s - self.last_caught_up_s <= lag_max_s


_NO_FOLLOWERS: Final[dict[int, FollowerReplica]] = {}  # one for all partitions that have none; never changed


class LeaderState:
    """One term of a partition on its leader."""

    __slots__ = (
        "_context",
        "_node_id",
        "_refused_until_s",
        "_topic_partition",
        "epoch",
        "followers",
        "is_recovering",
        "isr",
        "maximal_isr",
        "pending",
        "replicas",
        "term_start",
    )

    def __init__(
        self,
        view: PartitionView,
        topic_partition: TopicPartition,
        *,
        node_id: int,
        term_start: int,
        context: ReplicationContext,
    ) -> None:
        self._context, self._node_id, self._topic_partition = context, node_id, topic_partition
        self.epoch = view.leader_epoch
        self.term_start = term_start
        self.followers = _NO_FOLLOWERS
        self.pending: IsrChange | None = None
        self._refused_until_s = NEVER
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()  # the committed one
        self.maximal_isr: tuple[int, ...] = ()
        self.is_recovering = False
        self.follow(view)

    def follow(self, view: PartitionView) -> None:
        """Take over a newer state of the partition, in the same term or in one that continues it."""
        self.epoch = view.leader_epoch
        self.is_recovering = view.is_recovering
        self.commit_isr(view.isr)
        if view.replicas == self.replicas:
            return
        self.replicas = view.replicas
        followers: dict[int, FollowerReplica] = {}
        now_s = self._context.clock.monotonic() if len(view.replicas) > 1 else NEVER
        for replica in view.replicas:
            if replica != self._node_id:
                is_in_sync = replica in view.isr
                since_s = now_s if is_in_sync else NEVER
                followers[replica] = self.followers.get(replica) or FollowerReplica(replica, since_s)
        self.followers = followers or _NO_FOLLOWERS

    def continue_term(self, view: PartitionView, term_start: int) -> None:
        """Continue in the next leader epoch, which begins here: the positions of the followers still count."""
        self.term_start = term_start
        self.follow(view)

    def commit_isr(self, isr: tuple[int, ...]) -> None:
        """Set the committed ISR, with no change proposed."""
        self.isr = self.maximal_isr = isr
        self.pending = None

    def follower(self, node_id: int, broker_epoch: int, *, is_epoch_named: bool) -> FollowerReplica:
        """Return the follower that fetches, and maybe named the leader epoch. Raises the KafkaError to respond with."""
        follower = self.followers.get(node_id)
        if follower is None and not is_epoch_named:
            raise NotLeaderOrFollower(leader_id=self._node_id, leader_epoch=self.epoch)
        if follower is None:
            raise UnknownLeaderEpoch(f"broker {node_id} is not a replica of {self._topic_partition} in this epoch")
        known = self._context.brokers.get(node_id)
        if broker_epoch >= 0 and known is not None and broker_epoch < known.epoch:
            raise NotLeaderOrFollower(f"broker {node_id} has started again since epoch {broker_epoch}")
        return follower

    # ---- High watermark

    def is_alone(self, min_isr: int) -> bool:
        """Return whether only the leader's own writes move the high watermark.

        That is so if no other replica is in sync or has to be.
        """
        return len(self.maximal_isr) == 1 and min_isr <= 1

    def replicated_end(self, durable_end: int, log_end: int, high_watermark: int, min_isr: int) -> int:
        """Return the offset below which everything is on all replicas that count; never less than the watermark."""
        if len(self.isr) < min_isr:
            return high_watermark
        end, maximal = durable_end, self.maximal_isr
        context, now_s = self._context, NEVER
        for node_id, follower in self.followers.items():
            reached = follower.end_offset
            if reached >= end:
                continue
            if node_id not in maximal:
                if reached == UNKNOWN_OFFSET:
                    continue
                if now_s == NEVER:
                    now_s = context.clock.monotonic()
                if not follower.is_caught_up(log_end, now_s, context.lag_max_s) or not self._is_eligible(follower):
                    continue
            if reached <= high_watermark:
                return high_watermark
            end = reached
        return max(end, high_watermark)

    @property
    def lowest_log_start(self) -> int:
        """Return the lowest log start among the followers on live brokers; UNKNOWN_OFFSET while one is unknown."""
        brokers = self._context.brokers
        starts = [follower.log_start_offset for follower in self.followers.values() if follower.node_id in brokers]
        return min(starts, default=NO_END_OFFSET)

    # ---- Changes of the ISR

    def note_append(self, end_before: int) -> None:
        """Note that the log end moves off followers that were there until now, whenever they fetched last."""
        self._context.lagging[self._topic_partition] = None
        for follower in self.followers.values():
            if follower.end_offset == end_before:
                follower.last_caught_up_s = self._context.clock.monotonic()

    @property
    def is_lagging(self) -> bool:
        """Return whether a replica is outside of the ISR, or a proposal is pending."""
        return self.pending is not None or self.is_recovering or len(self.isr) < len(self.replicas)

    def needs_check(self, log_end: int) -> bool:
        """Return whether time alone may change the ISR: a replica is outside, or not at the log end."""
        return self.is_lagging or any(follower.end_offset != log_end for follower in self.followers.values())

    def proposed_isr(self, log_end: int, high_watermark: int, now_s: float) -> tuple[int, ...] | None:
        """Return the ISR to propose now, or None. Replicas that lag leave before another one joins."""
        if self.pending is not None or now_s < self._refused_until_s:
            return None
        context = self._context
        lagging = {
            node_id
            for node_id, follower in self.followers.items()
            if node_id in self.isr and not follower.is_caught_up(log_end, now_s, context.lag_max_s)
        }
        if lagging:
            return tuple(each for each in self.isr if each not in lagging)
        for node_id, follower in self.followers.items():
            if (
                node_id not in self.isr
                and self.may_join(follower, high_watermark)
                and follower.is_caught_up(log_end, now_s, context.lag_max_s)  # otherwise it would leave at once
            ):
                return (*self.isr, node_id)
        return self.isr if self.is_recovering else None

    def may_join(self, follower: FollowerReplica, high_watermark: int) -> bool:
        """Return whether a follower has all that it must have as a member of the ISR."""
        return (
            follower.end_offset >= high_watermark
            and follower.end_offset >= self.term_start
            and self._is_eligible(follower)
        )

    def _is_eligible(self, follower: FollowerReplica) -> bool:
        """Return whether a follower is of a broker that stays, and is not impaired unless the leader is, too."""
        context, node_id = self._context, follower.node_id
        if not context.may_join_isr(node_id, follower.broker_epoch):
            return False
        return not context.is_impaired(node_id, self._topic_partition) or all(
            context.is_impaired(each, self._topic_partition) for each in (self._node_id, *self.isr)
        )

    def check_isr(self, log: PartitionLog, partition_epoch: int, on_decided: OnDecided) -> None:
        """Propose to remove followers that lag, or to add one that has caught up."""
        context = self._context
        if not self.needs_check(log.end_offset):
            context.lagging.pop(self._topic_partition, None)
            return
        context.lagging[self._topic_partition] = None
        isr = self.proposed_isr(log.end_offset, log.high_watermark, context.clock.monotonic())
        if isr is None:
            return
        members, partition = self.with_epochs(isr), self._topic_partition.partition
        change = IsrChange(log.topic_id, partition, self.epoch, partition_epoch, members, is_recovering=False)
        self._begin_change(change)
        if len(isr) < len(self.isr):
            log_isr_change("shrinks", self._topic_partition, self.isr, isr)
            self._record_shrink(isr, log.end_offset)
        context.isr_changes.propose(self._topic_partition, change, on_decided)

    def _record_shrink(self, isr: tuple[int, ...], end_offset: int) -> None:
        """Record why replicas leave the ISR."""
        events = self._context.events
        if events is None:
            return
        left = [node_id for node_id in self.isr if node_id not in isr]
        followers = [follower for node_id in left if (follower := self.followers.get(node_id)) is not None]
        lag = max((end_offset - follower.end_offset for follower in followers), default=0)
        why = f"did not catch up within {self._context.lag_max_s:g} s (replica.lag.time.max.ms)"
        if any(self._context.broker_epoch(node_id) is None for node_id in left):
            why = "is not registered any more: its process has ended or has lost the metadata store"
        self._record_isr(why, left, isr, lag)

    def _record_isr(self, why: str, replicas: list[int], isr: tuple[int, ...], lag: int = 0) -> None:
        events = self._context.events
        if events is not None and replicas:
            named = ", ".join(map(str, replicas))
            events.record(
                EventKind.ISR_CHANGE,
                f"broker {named} {why}; in sync now: {', '.join(map(str, isr))}",
                topic=self._topic_partition.topic,
                partition=self._topic_partition.partition,
                node=replicas[0],
                numbers={"isr": len(isr), "isr_before": len(self.isr), "offset_lag": lag},
            )

    def _begin_change(self, change: IsrChange) -> None:
        """Begin a proposed change. What it adds counts from now on, what it removes counts until it is committed."""
        self.pending = change
        added = tuple(node_id for node_id, _ in change.new_isr if node_id not in self.isr)
        self.maximal_isr = self.isr + added

    def change_decided(self, outcome: Outcome, partition_epoch: int) -> bool:
        """Apply the controller's decision on the pending change to the partition of this epoch.

        Return False where there is a newer state: the change is pending until the snapshot has it.
        """
        if isinstance(outcome, AlteredPartition):
            if outcome.leader_epoch != self.epoch or outcome.partition_epoch < partition_epoch:
                return False
            if len(outcome.isr) > len(self.isr):
                log_isr_change("grows", self._topic_partition, self.isr, outcome.isr)
                self._context.isr_changes.expands += 1
                if self._context.events is not None:
                    joined = sorted(set(outcome.isr).difference(self.isr))
                    self._record_isr(f"caught up with the leader, broker {self._node_id}", joined, outcome.isr)
            elif len(outcome.isr) < len(self.isr):
                self._context.isr_changes.shrinks += 1
            self.commit_isr(outcome.isr)
            self.is_recovering = outcome.is_recovering
            return True
        if outcome.code in REFUSED:  # the committed ISR counts
            self.commit_isr(self.isr)
            self._refused_until_s = self._context.clock.monotonic() + REFUSAL_SECONDS
            return True
        return False

    def withdraw_change(self) -> None:
        """Drop the proposed change, if there is one, because a newer state is to come."""
        if self.pending is not None:
            self.pending = None
            self._context.isr_changes.withdraw(self._topic_partition)

    def end(self) -> None:
        """End the term: nothing is checked or proposed any more."""
        self.withdraw_change()
        self._context.lagging.pop(self._topic_partition, None)

    def with_epochs(self, isr: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Return each member with the broker epoch of its last fetch."""
        found: list[tuple[int, int]] = []
        for node_id in isr:
            if node_id == self._node_id:
                own = self._context.broker_epoch(node_id)
                found.append((node_id, UNKNOWN_BROKER_EPOCH if own is None else own))
            else:
                follower = self.followers.get(node_id)
                found.append((node_id, UNKNOWN_BROKER_EPOCH if follower is None else follower.broker_epoch))
        return tuple(found)
