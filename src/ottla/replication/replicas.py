"""Keeps all partitions of this broker: they follow the snapshots of the cluster, and handlers find them here.

A replica is served, or it is offline: its directory failed, its log is in none of the directories that can be used, or
no directory takes it yet (the disk is full). The last kind is tried again until it works.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple, cast

from ottla.core import garbage_collection, runtime
from ottla.core.clock import Clock
from ottla.core.errors import (
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidTopic,
    NotLeaderOrFollower,
    ReplicaNotAvailable,
    StorageError,
    UnknownTopicOrPartition,
)
from ottla.core.events import EventLog
from ottla.core.executors import MakeExecutor
from ottla.core.ids import NO_TOPIC_ID, TopicPartition, may_be_topic_id
from ottla.limits.loop_slices import LoopSlices
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView, PartitionView, TopicView
from ottla.metadata_store.znodes import Impairment
from ottla.replication.config import ReplicationConfig
from ottla.replication.directory_checkpoints import DirectoryCheckpoints
from ottla.replication.due_deletions import LogDeletions
from ottla.replication.group_commit import Flushable, GroupCommit
from ottla.replication.isr_proposal_queue import AlterPartitionSender
from ottla.replication.log_dir_moves import LogDirMoves
from ottla.replication.partition import ANY_EPOCH, Partition
from ottla.replication.replica_inspection import ReplicaInspection
from ottla.replication.replication_context import ReplicationContext
from ottla.replication.truncations import Truncations
from ottla.replication.unknown_logs import report_unknown_logs
from ottla.replication.view_changes import APPLY_WORK, PARTITION_WORK, gone_topic, is_small, partitions_to_apply
from ottla.storage.config import LogConfig, topic_config
from ottla.storage.directories.checkpoint_job import CheckpointJob
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.directory_names import NAME_CHARS_MAX, future_directory_name
from ottla.storage.log.partition_log import PartitionLog

if TYPE_CHECKING:  # imported with the first replica that follows another broker
    from ottla.client.connection import ConnectTo
    from ottla.replication.alter_log_dirs import LogDirMove
    from ottla.replication.fetcher_manager import ReplicaFetcherManager
    from ottla.replication.log_repairs import LogRepairs

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
ISR_CHECK_SECONDS = 1.0
_NAMED_MAX = 10

LAGGING_AT_ONCE_MAX = 100
"""More partitions with a lagging follower are checked in slices when brokers have changed."""

_EXCLUDED_AT_ONCE = 100  # new replicas that are excluded from collections together: each has about 70 objects

Availability = Callable[[TopicPartition, bool], None]
"""Called when a replica goes offline (False), or comes into service after all (True)."""


def _named(partitions: Sequence[str]) -> str:
    return ", ".join(partitions[:_NAMED_MAX]) + (", ..." if len(partitions) > _NAMED_MAX else "")


class _Offline(NamedTuple):
    why: str
    is_tried_again: bool


class Replicas:
    """The partitions that lie on this broker's disks."""

    def __init__(
        self,
        directories: LogManager,
        *,
        node_id: int,
        defaults: LogConfig,
        clock: Clock,
        missing: str = "",
        deleted_topics: Collection[uuid.UUID] = (),
        slices: LoopSlices | None = None,
        on_availability: Availability = lambda _, __: None,
        on_all_lost: Callable[[], None] = lambda: None,
        make_executor: MakeExecutor = runtime.make_executor,
        config: ReplicationConfig | None = None,
        events: EventLog | None = None,
        slow_fsync_s: float = math.inf,
    ) -> None:
        self.directories = directories
        self.defaults = defaults
        self.partitions: dict[TopicPartition, Partition] = {}
        self._by_name = cast("Mapping[tuple[str, int], Partition]", self.partitions)
        self._node_id = node_id
        self._clock = clock
        self._missing = missing  # which directories had logs and are not here, in words; nothing if all are
        self._deletions = LogDeletions(deleted_topics)
        self._on_availability, self._on_all_lost = on_availability, on_all_lost
        self._slices = slices or LoopSlices()
        self._view = ClusterView()
        self._config = config or ReplicationConfig()
        # leader epochs of the last run, which must not be continued; another topic of the same name begins at 0
        self._led: dict[tuple[uuid.UUID, TopicPartition], int] = {}
        self._fetchers: ReplicaFetcherManager | None = None  # one broker alone has none
        self._repairs: LogRepairs | None = None
        self._isr_check: asyncio.Task[None] | None = None
        self._broker_epoch = -1  # of this broker's last registration
        self.context = ReplicationContext(clock, self._config, self._leads)
        self.context.events, self._slow_fsync_s = events, slow_fsync_s
        self._is_loaded = False
        self._offline: dict[TopicPartition, _Offline] = {}
        self._lost: list[str] = []  # to be named in one line
        self._created: list[str] = []  # of the first snapshot, without a directory; to be named in one line
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self.group_commits: dict[LogDirectory, GroupCommit] = {}
        self._moves = LogDirMoves(directories, self.partitions, self.group_commits, self.context)
        self._checkpoints: dict[LogDirectory, DirectoryCheckpoints] = {}
        for directory in directories.opened:
            self.group_commits[directory] = self._group_commit(directory, make_executor)
            directory.health.events = events
            directory.health.on_failure = partial(self._pass_failure_to_loop, directory)

    def _group_commit(self, directory: LogDirectory, make_executor: MakeExecutor) -> GroupCommit:
        health, post = directory.health, self._loop.call_soon_threadsafe
        executor = make_executor(f"truncation {health.name}", post)
        checkpoints = self._checkpoints[directory] = DirectoryCheckpoints(partial(self._begin_checkpoint, directory))
        return GroupCommit(
            health,
            executor=make_executor(f"group-commit {health.name}", post),
            clock=self._clock,
            check_present=directory.lock.check_linked,
            on_missing=self._log_is_missing,
            truncations=Truncations(checkpoints, health, executor),
            slow_s=self._slow_fsync_s,
        )

    async def _begin_checkpoint(self, directory: LogDirectory) -> CheckpointJob:
        return await self._slices.run(directory.begin_checkpoint_slices(self._slices))

    def continue_after(self, inspection: ReplicaInspection) -> None:
        """Lead no partition in a term of the last run. Call before the first snapshot."""
        self._led = dict(inspection.led)

    def start_replication(self, connect: ConnectTo, sender: AlterPartitionSender) -> None:
        """Fetch what this broker follows, and propose changes of the ISR of what it leads."""
        from ottla.replication.fetcher_manager import ReplicaFetcherManager
        from ottla.replication.log_repairs import LogRepairs

        self._repairs = LogRepairs(
            connect, self.partitions, node_id=self._node_id, config=self._config, context=self.context
        )
        self._fetchers = ReplicaFetcherManager(
            connect, node_id=self._node_id, config=self._config, context=self.context
        )
        for partition in self.partitions.values():
            if partition.follower is not None:
                self._fetchers.assign(partition)
        self.context.isr_changes.start(sender)
        self._isr_check = self._loop.create_task(self._check_isrs(), name="check in-sync replicas")

    async def _check_isrs(self) -> None:
        """Remove followers that lag from the in-sync replicas; propose again what the controller has refused.

        A follower that has everything sends no fetch that could lead to another proposal. In slices: all partitions
        that this broker leads may have a follower that lags, after a broker has died.
        """
        while True:
            async for topic_partition in self._slices.each(tuple(self.context.lagging)):
                try:
                    self._check_followers(topic_partition)
                except Exception:
                    log.exception("unexpected error while the in-sync replicas of %s were checked", topic_partition)
            await asyncio.sleep(min(self.context.lag_max_s / 2, ISR_CHECK_SECONDS))

    def _check_followers(self, topic_partition: TopicPartition) -> None:
        if (partition := self.partitions.get(topic_partition)) is not None:
            partition.check_followers()

    # ---- Lookup

    def find(self, topic: str, index: int) -> Partition:
        """Return the replica on this broker. Raises UnknownTopicOrPartition, NotLeaderOrFollower or StorageError."""
        partition = self._by_name.get((topic, index))
        return partition if partition is not None else self.partition(TopicPartition(topic, index))

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Return the replica on this broker. Raises as `find` does."""
        partition = self.partitions.get(topic_partition)
        if partition is not None:
            return partition
        if (offline := self._offline.get(topic_partition)) is not None:
            raise StorageError(offline.why)
        view = self._view.partition(*topic_partition)
        if view is None:
            raise UnknownTopicOrPartition
        raise NotLeaderOrFollower(leader_id=view.leader, leader_epoch=view.leader_epoch)

    def leader(self, topic: str, index: int, leader_epoch: int = ANY_EPOCH) -> Partition:
        """Return the partition, led by this broker in this epoch.

        Raises the KafkaError to respond with; NotLeaderOrFollower and FencedLeaderEpoch name the current leader.
        """
        partition = self.find(topic, index)
        if leader_epoch != ANY_EPOCH or not partition.is_serving:
            partition.check_serving(leader_epoch)
        return partition

    def is_offline(self, topic: str, partition: int) -> bool:
        """Return whether this broker has the replica and cannot serve it."""
        return bool(self._offline) and TopicPartition(topic, partition) in self._offline

    def is_held(self, topic: str, partition: int) -> bool:
        """Return whether this broker leads the partition only after a truncation that runs has ended."""
        return (found := self._by_name.get((topic, partition))) is not None and found.is_held

    @property
    def offline_partitions(self) -> Collection[TopicPartition]:
        """Return the replicas that this broker has and cannot serve."""
        return self._offline.keys()

    @property
    def contradictory_partitions(self) -> set[TopicPartition]:
        """Return the replicas that are out of service, because their offsets contradict each other."""
        return set(self.context.contradictory)

    @property
    def impaired_partitions(self) -> Mapping[Impairment, frozenset[TopicPartition]]:
        """Return the replicas that should not lead while another one can, by the reason."""
        found: dict[Impairment, set[TopicPartition]] = {}
        for topic_partition, reasons in self.context.impaired.items():
            for why in reasons:
                found.setdefault(why, set()).add(topic_partition)
        full = [directory.health for directory in self.directories.opened if directory.health.is_full]
        if full:
            held = (
                partition
                for partition in self.partitions.values()
                if len(partition.replicas) > 1 and partition.log.health in full
            )
            found[Impairment.FULL] = {partition.topic_partition for partition in held}
        return {why: frozenset(partitions) for why, partitions in found.items()}

    @property
    def is_any_lost(self) -> bool:
        """Whether a replica is offline because its log is in no directory that can be used."""
        return any(not offline.is_tried_again for offline in self._offline.values())

    # ---- Moves between log directories

    def alter_log_dir(self, topic_partition: TopicPartition, path: str) -> None:
        """Move the replica to another log directory; where it is already, a move elsewhere is cancelled.

        A replica that comes to this broker later is created there. Raises the KafkaError to respond with.
        """
        if len(future_directory_name(topic_partition, NO_TOPIC_ID)) > NAME_CHARS_MAX:
            raise InvalidTopic("The topic name is too long.")
        target = self._moves.online_directory(path)
        if (offline := self._offline.get(topic_partition)) is not None:
            raise StorageError(offline.why)
        if target.path in self.directories.cordoned:
            raise InvalidReplicaAssignment(f"The log directory {path} is cordoned.")
        self._moves.cancel_elsewhere(topic_partition, target)
        partition = self.partitions.get(topic_partition)
        if partition is not None:
            self._moves.begin(partition, target)
            return
        self.directories.prefer(topic_partition, target)
        try:
            self.partition(topic_partition)
        except NotLeaderOrFollower:
            raise ReplicaNotAvailable from None

    def log_dir_move(self, topic_partition: TopicPartition) -> LogDirMove | None:
        """Return the move of a replica to another log directory, if one is under way."""
        return self._moves.find(topic_partition)

    def continue_moves(self) -> None:
        """Continue the moves that the last run had begun. Call once the settings are known that limit their rate."""
        self._moves.continue_all()

    # ---- Metadata changes

    def follow(self, old: ClusterView, new: ClusterView) -> Awaitable[None] | None:
        """Create, change and delete replicas as the cluster has decided. A subscriber of `Cluster`: never raises.

        Of a topic that comes later than the first snapshot nothing can be on the disk yet; a partition of the first
        snapshot that is not found may lie in a directory that cannot be used.

        Where there are many partitions to apply the caller has to wait: they are applied in slices, and are not leader
        or unknown until then. No newer snapshot comes meanwhile.
        """
        self._view = new
        lagging: Sequence[TopicPartition] = ()
        if old.deleted_topics is not new.deleted_topics:
            self._deletions.note(new.deleted_topics - old.deleted_topics)
            self._delete_logs()
        self.context.reports = new.replica_reports
        if old.brokers is not new.brokers:
            self.context.brokers = new.brokers
            self._broker_epoch = self.context.broker_epoch(self._node_id) or self._broker_epoch
            lagging = tuple(self.context.lagging)
        is_new, self._is_loaded = self._is_loaded, True
        is_changed = old.topics is not new.topics or old.configs is not new.configs
        delta = new.changes_since(old).topics if is_changed else {}
        applying = self._follow(old, new, delta, lagging, is_new=is_new)
        if len(lagging) <= LAGGING_AT_ONCE_MAX and is_small(old, new, delta):
            for _ in applying:
                pass
            return None
        return self._apply_many(applying)

    async def _apply_many(self, applying: Generator[None, None, None]) -> None:
        await self._slices.run(applying)
        garbage_collection.exclude_present_objects()

    def _follow(
        self,
        old: ClusterView,
        new: ClusterView,
        delta: Mapping[str, Sequence[int]],
        lagging: Sequence[TopicPartition],
        *,
        is_new: bool,
    ) -> Generator[None, None, None]:
        """Apply partition by partition; yields when a slice of work is spent."""
        for topic_partition in lagging:
            self._check_followers(topic_partition)
            if self._slices.spend():
                yield
        for name in delta:
            gone = gone_topic(old.topics.get(name), new.topics.get(name))
            if gone is not None:
                yield from self._drop_all(gone)
            if self._slices.spend():
                yield
        for name, indexes in delta.items():
            topic = new.topics.get(name)
            if topic is None:
                continue
            views = partitions_to_apply(old.topics.get(name), topic, indexes)
            config = self._config_of(topic) if is_new else topic_config(self.defaults, topic.config)
            for view in views:
                count, created = len(self.partitions), len(self._created)
                self._apply(topic, view, config, is_new=is_new)
                is_same = len(self.partitions) == count
                if not is_same and len(self.partitions) % _EXCLUDED_AT_ONCE == 0:
                    garbage_collection.exclude_present_objects()
                is_found = not is_new and len(self._created) == created  # its log was loaded by the start
                if self._slices.spend(APPLY_WORK if is_same or is_found else PARTITION_WORK):
                    yield
        if self._lost:
            why = (
                self._missing or "restore their directories and restart the broker, or create empty ones in their place"
            )
            log.error(
                "%d partitions are offline, their logs are missing: %s (%s)", len(self._lost), why, _named(self._lost)
            )
            self._lost = []
        if self._created:
            log.warning(
                "%d partitions had no directory and were created empty: a crash interrupted their creation, or another "
                "program has removed them (%s)",
                len(self._created),
                _named(self._created),
            )
            self._created = []

    def _drop_all(self, gone: TopicView) -> Generator[None, None, None]:
        """Remove the replicas of a deleted topic one by one."""
        for view in gone.partitions:
            self._drop(TopicPartition(gone.name, view.index), deleted_topic=gone.topic_id)
            self._delete_logs()
            if self._slices.spend(PARTITION_WORK):
                yield

    def reconfigure(self, defaults: LogConfig) -> None:
        """Apply the broker's changed defaults to every log."""
        if defaults == self.defaults:
            return
        self.defaults = defaults
        for topic in self._view.topics.values():
            config = self._config_of(topic)
            if config is None:
                continue
            for view in topic.partitions:
                if (partition := self.partitions.get(TopicPartition(topic.name, view.index))) is not None:
                    partition.reconfigure(config)

    def _config_of(self, topic: TopicView) -> LogConfig | None:
        """Return a topic's settings; None if they are invalid, maybe only together with this broker's own."""
        try:
            return topic_config(self.defaults, topic.config)
        except InvalidConfig as error:
            log.error(  # noqa: TRY400 - the message says all
                "the settings of topic %s are invalid and are not applied: %s", topic.name, error.message
            )
            return None

    async def note_log_starts(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, StorageError]:
        """Return once the log starts of these would survive a power cut; what could not be noted, and why."""
        refused: dict[TopicPartition, StorageError] = {}
        for directory in self.directories.online:
            held = [topic_partition for topic_partition in topic_partitions if topic_partition in directory.logs]
            if not held:
                continue
            try:
                await self._checkpoints[directory].write()
            except OSError as error:
                refused |= dict.fromkeys(held, directory.health.refused("noting where logs start", error))
        return refused

    def _apply(self, topic: TopicView, view: PartitionView, config: LogConfig | None, *, is_new: bool) -> None:
        topic_partition = TopicPartition(topic.name, view.index)
        partition = self.partitions.get(topic_partition)
        if self._node_id not in view.replicas:
            if partition is not None or topic_partition in self._offline:
                self._drop(topic_partition)  # a reassignment has removed it: the others have all records
                self._delete_logs()
            return
        if self._led and view.leader == self._node_id:
            led = topic.topic_id, topic_partition
            if view.leader_epoch <= self._led.get(led, -1):
                view = replace(view, leader=NO_LEADER)  # a term of the last run: the controller begins another one
            else:
                self._led.pop(led, None)
        if partition is not None:
            self._change(partition, view, config)
        elif topic_partition in self._offline:
            return
        elif config is None:
            self._go_offline(topic_partition, "the settings of the topic are invalid", is_tried_again=True)
        else:
            self._open(topic_partition, topic, view, config, is_new=is_new)
        if self.context.not_removed:
            self._try_later()

    def _change(self, partition: Partition, view: PartitionView, config: LogConfig | None) -> None:
        """Apply settings and a decision of the cluster to a replica. If that fails it alone is taken out of service."""
        try:
            if config is not None:
                partition.reconfigure(config)
            partition.apply(view)
            if self._fetchers is not None:
                self._fetchers.assign(partition)
        except Exception as error:
            log.exception("unexpected error while %s was applied to %s", view, partition.topic_partition)
            partition.take_out_of_service(f"applying a change of the cluster failed: {error!r}")

    def _open(
        self, topic_partition: TopicPartition, topic: TopicView, view: PartitionView, config: LogConfig, *, is_new: bool
    ) -> None:
        """Find the log or make it; serve the replica, or say why not. Never raises."""
        try:
            place = self._find(topic_partition, topic, view)
            if place is None:
                if not is_new and (why := self._why_missing(topic_partition, topic, view)):
                    self._lost.append(str(topic_partition))
                    self._go_offline(topic_partition, why)
                    return
                if not is_new:
                    self._created.append(str(topic_partition))
                place = self.directories.create_log(topic_partition, topic.topic_id, config)
            directory, partition_log = place
            if directory.health.failure is not None:
                self._go_offline(topic_partition, directory.health.failure)
                return
            if partition_log.topic_id != topic.topic_id:
                if partition_log.topic_id != NO_TOPIC_ID:
                    log.warning("%s has a corrupt partition.metadata, which is replaced", partition_log.directory)
                directory.replace_topic_id(partition_log, topic.topic_id)
        except StorageError as error:
            self._go_offline(topic_partition, error.message, is_tried_again=True)
            return
        self._deletions.topic_is_back(topic.topic_id)
        partition_log.reconfigure(config)
        commit = self.group_commits[directory]
        partition = self.partitions[partition_log.topic_partition] = Partition(
            partition_log,
            view,
            node_id=self._node_id,
            commit=commit,
            context=self.context,
            refetch_from=directory.corrupt.get(topic_partition) if len(view.replicas) > 1 else None,
        )
        directory.corrupt.pop(topic_partition, None)
        if self._fetchers is not None:
            self._fetchers.assign(partition)
        self._moves.partition_opened(partition, directory)
        if self._offline.pop(topic_partition, None) is not None:
            self._on_availability(topic_partition, True)

    def _why_missing(self, topic_partition: TopicPartition, topic: TopicView, view: PartitionView) -> str:
        """Return why a log that is in no directory must not be created; empty if it may be.

        Where another replica may lead the log is created and fetched again: this one may not lead until then.
        """
        if self._missing:
            return f"its log is in none of the log directories: {self._missing}"
        if {*view.isr, *view.elr} - {self._node_id}:
            return ""
        for directory in self.directories.opened:
            lost = directory.lost_logs.get(topic_partition)
            if lost is not None and lost.topic_id == topic.topic_id:
                path = str(directory.path / str(topic_partition))
                return directory.health.missing(f"loading {topic_partition}", path).message
        return ""

    def _find(
        self, topic_partition: TopicPartition, topic: TopicView, view: PartitionView
    ) -> tuple[LogDirectory, PartitionLog] | None:
        """Find the log and its directory. Removes one of a deleted topic of the same name. Raises StorageError."""
        found = None
        for directory in self.directories.holding(topic_partition):
            there = directory.logs[topic_partition]
            if may_be_topic_id(there.topic_id, topic.topic_id) and not self._is_of_former_topic(there, topic, view):
                found = directory, there
            elif directory.health.failure is None:
                if there.topic_id in self._deletions.noted_topics:
                    directory.delete_log(topic_partition)
                else:
                    aside = directory.set_aside_log(topic_partition)
                    log.warning(
                        "%s belongs to an unknown topic of the same name; it is kept as %s", topic_partition, aside
                    )
        return found

    def _is_of_former_topic(self, found: PartitionLog, topic: TopicView, view: PartitionView) -> bool:
        """Return whether a log without the id of its topic may be that of a deleted topic of the same name.

        It is, if it has a later leader epoch than the partition. A member of the ISR has been a replica of this topic:
        one cannot be created on dead brokers alone. Another replica is fetched again: others have all records.
        """
        if found.topic_id != NO_TOPIC_ID or topic.topic_id == NO_TOPIC_ID or not found.end_offset:
            return False
        return found.epochs.latest > view.leader_epoch or (
            self._node_id not in view.isr and self._node_id not in view.elr
        )

    def _drop(self, topic_partition: TopicPartition, deleted_topic: uuid.UUID | None = None) -> None:
        """Serve the replica no longer; its log is deleted by `_delete_logs`."""
        self._offline.pop(topic_partition, None)
        for directory in self.directories.opened:
            directory.forget_lost({topic_partition})
        partition = self.partitions.pop(topic_partition, None)
        if partition is not None:
            self._stop_fetching(partition)
            partition.remove()
            self._moves.stop(topic_partition)
            for directory in self.directories.opened:
                if directory.logs.get(topic_partition) is partition.log:
                    if deleted_topic is None:
                        self._deletions.add(directory, partition.log)
                    else:
                        self._deletions.add_of_missing_topic(directory, partition.log, deleted_topic)
                if (future := directory.future_logs.get(topic_partition)) is not None:
                    self._deletions.add(directory, future)

    def _delete_logs(self) -> None:
        """Delete the logs that are due; those that the disk refuses are tried again later."""
        if not self._deletions.run():
            self._try_later()

    async def handle_strays(self) -> None:
        """Delete the logs of deleted topics and of partitions that other brokers got while this one was down.

        The deletion of the topics must have begun. Logs of unknown topics are reported and kept. Call once, after the
        first snapshot.
        """
        unserved: list[tuple[LogDirectory, PartitionLog]] = []
        async for directory, partition_log in self._slices.each(list(self.directories.logs())):
            if not self._is_served(partition_log):
                unserved.append((directory, partition_log))
        unknown: list[tuple[LogDirectory, PurePath]] = []
        for directory, partition_log in unserved:
            if self._is_served(partition_log) or directory.health.failure is not None:
                continue
            if partition_log.topic_id in self._deletions.noted_topics or self._is_assigned_to_others(partition_log):
                self._deletions.add(directory, partition_log)
            elif partition_log.topic_partition.topic not in self._view.unreadable_topics:
                unknown.append((directory, partition_log.directory))
        for directory, future in self.directories.future_logs():
            if future.topic_partition not in self.partitions and directory.health.failure is None:
                if future.topic_id in self._deletions.noted_topics or self._is_assigned_to_others(future):
                    self._deletions.add(directory, future)
                elif future.topic_partition not in self._offline:
                    unknown.append((directory, future.directory))
        self._delete_logs()
        for directory in self.directories.opened:
            directory.forget_lost(
                {topic_partition for topic_partition in directory.lost_logs if topic_partition not in self._offline}
            )
        await report_unknown_logs(unknown, self.directories.online)

    def _is_served(self, found: PartitionLog) -> bool:
        partition = self.partitions.get(found.topic_partition)
        return partition is not None and partition.log is found

    def _is_assigned_to_others(self, found: PartitionLog) -> bool:
        """Return whether a log's partition exists, and a reassignment took this broker's replica away."""
        name, index = found.topic_partition
        topic, partition = self._view.topics.get(name), self._view.partition(name, index)
        if topic is None or partition is None or found.topic_id != topic.topic_id or topic.topic_id == NO_TOPIC_ID:
            return False
        return bool(partition.replicas) and self._node_id not in partition.replicas

    def completed_deletions(self, topic_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
        """Return those of the deleted topics that have no log in any directory; a missing directory may have one."""
        if self._missing or self.directories.offline:
            return set()
        kept = {found.topic_id for _, found in self.directories.logs()}
        done = set(topic_ids) - kept - {found.topic_id for _, found in self.directories.future_logs()}
        self._deletions.completed(done)
        return done

    # ---- Failures

    def _go_offline(self, topic_partition: TopicPartition, why: str, *, is_tried_again: bool = False) -> None:
        is_news = topic_partition not in self._offline
        self._offline[topic_partition] = _Offline(why, is_tried_again)
        if is_tried_again:
            self._try_later()
        if is_news:
            self._on_availability(topic_partition, False)

    def _try_later(self) -> None:
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        """Retry what the disk refused: to create logs, to delete logs, to fetch corrupt logs again."""
        self._retry = None
        self._delete_logs()
        for partition in [self.partitions[topic_partition] for topic_partition in self.context.not_removed]:
            partition.follow_again()
            if self._fetchers is not None:
                self._fetchers.assign(partition)
        if self.context.not_removed:
            self._try_later()
        for topic_partition in [each for each, offline in self._offline.items() if offline.is_tried_again]:
            topic, view = self._view.topics.get(topic_partition.topic), self._view.partition(*topic_partition)
            if topic is None or view is None:
                del self._offline[topic_partition]
            else:
                config = self._config_of(topic)
                if config is None:
                    self._try_later()
                else:
                    self._open(topic_partition, topic, view, config, is_new=True)

    def _pass_failure_to_loop(self, directory: LogDirectory, error: StorageError) -> None:
        """Pass a directory's failure to the loop; it may come from a worker thread, or in the midst of an append."""
        self._loop.call_soon_threadsafe(self._directory_failed, directory, error)

    def _directory_failed(self, directory: LogDirectory, error: StorageError) -> None:
        """Take its partitions offline and fail those who wait for them. The others go on."""
        self.group_commits[directory].fail(error)
        gone = [partition for partition in self.partitions.values() if partition.log.health is directory.health]
        for partition in gone:
            del self.partitions[partition.topic_partition]
            self._offline[partition.topic_partition] = _Offline(error.message, is_tried_again=False)
        for partition in gone:
            self._stop_fetching(partition)
            self._moves.stop(partition.topic_partition)
            partition.fail_flush(error)
            self._on_availability(partition.topic_partition, False)
        log.error("%d partitions are offline with %s", len(gone), directory.path)
        if not self.directories.online:
            self._on_all_lost()

    def _log_is_missing(self, flushed: Flushable, error: StorageError) -> None:
        """Take a partition offline whose files another program has removed. The others go on."""
        for partition in self.partitions.values():
            if partition is flushed:
                self._lose(partition, error)
                return

    def check_logs(self, directory: LogDirectory, missing: Collection[TopicPartition]) -> None:
        """Take the partitions offline whose directory or active segment is missing; reads of other segments fail."""
        for partition in [found for each in missing if (found := self.partitions.get(each)) is not None]:
            topic_partition, log = partition.topic_partition, partition.log
            is_lost = directory.is_missing(topic_partition)
            for path in (log.directory,) if is_lost else log.segment_list.release_removed():
                error = directory.health.missing(f"log of {topic_partition}", str(path))
                if is_lost or path == log.active.log_path:
                    partition.fail_flush(error)
                    self._lose(partition, error)

    def _lose(self, partition: Partition, error: StorageError) -> None:
        topic_partition = partition.topic_partition
        self._stop_fetching(partition)
        self._moves.stop(topic_partition)
        del self.partitions[topic_partition]
        for directory in self.directories.holding(topic_partition):
            if directory.logs[topic_partition] is partition.log:
                self.group_commits[directory].forget(partition)
                directory.lose_log(topic_partition)
        self._go_offline(topic_partition, error.message)

    def _leads(self, topic_partition: TopicPartition) -> None:
        self._on_availability(topic_partition, True)

    def _stop_fetching(self, partition: Partition) -> None:
        if self._fetchers is not None:
            self._fetchers.remove(partition)

    # ---- Shutdown

    async def close(self) -> None:
        """Flush everything and leave each directory as a clean stop leaves it."""
        if self._isr_check is not None:
            self._isr_check.cancel()
            await asyncio.gather(self._isr_check, return_exceptions=True)
        await self.context.isr_changes.close()
        if self._repairs is not None:
            await self._repairs.close()
        if self._fetchers is not None:
            await self._fetchers.close()
            self._fetchers = None
        if self._retry is not None:
            self._retry.cancel()
        await self._moves.close()
        for commit in self.group_commits.values():
            await commit.close()
        await asyncio.to_thread(partial(self.directories.close, broker_epoch=self._broker_epoch))
