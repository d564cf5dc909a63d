"""Follows which partitions of an internal topic this broker leads, with one shard of a coordinator for each.

A shard belongs to a partition and a leader epoch. It is kept in the next epoch only if this broker leads in that one
too, and the log ends where the shard's state does; otherwise it is closed and the partition is loaded again.

It is loaded again, too, when a step of one of its keys failed and may have changed the state by half. Who fails again
is refused for a while, so that the keys beside it go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from ottla.core.errors import CoordinatorLoadInProgress, KafkaError, NotCoordinator
from ottla.core.repeated_failures import RepeatedFailures
from ottla.internal_topics.coordinator_partition import Term
from ottla.internal_topics.failed_steps import KEY_CHARS_MAX, FailedStep
from ottla.internal_topics.partitioning import partition_of
from ottla.internal_topics.session_check import SessionCheck
from ottla.internal_topics.shard import CoordinatorShard
from ottla.internal_topics.topic_log import TopicLog
from ottla.metadata_store.cluster_view import ClusterView

log = logging.getLogger(__name__)

S = TypeVar("S", bound=CoordinatorShard)


class LedPartitions(Generic[S]):
    """Holds the shards of one coordinator. Call `follow` with each new cluster snapshot, and `close` at the end."""

    def __init__(self, topic: str, topic_log: TopicLog, node_id: int, new_shard: Callable[[Term], S]) -> None:
        self.topic = topic
        self._topic_log, self._node_id, self._new_shard = topic_log, node_id, new_shard
        self._shards: dict[int, S] = {}
        self._led: dict[int, int] = {}  # partition -> leader epoch
        self._reloading: set[int] = set()  # partitions whose old shard has writes in flight yet
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._load_turn = asyncio.Lock()
        self._failed_keys, self._failed_partitions = RepeatedFailures(), RepeatedFailures()
        self._delayed: dict[int, asyncio.TimerHandle] = {}  # partitions that wait before they are loaded again
        self.session_check: SessionCheck | None = None  # None: the session with the store does not end by time

    # ---- Leadership

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Load the partitions that this broker now leads, and unload the others."""
        before, now = old.topics.get(self.topic), new.topics.get(self.topic)
        if now is before:
            return
        self._led = (
            {part.index: part.leader_epoch for part in now.partitions if part.leader == self._node_id} if now else {}
        )
        is_another = before is not None and now is not None and before.topic_id != now.topic_id
        for partition, shard in list(self._shards.items()):
            leader_epoch = self._led.get(partition)
            is_same = leader_epoch == shard.leader_epoch and not is_another
            if not is_same and (leader_epoch is None or is_another or not shard.continue_in(leader_epoch)):
                self.resign(partition)
        for partition in sorted(self._led):
            self.lead_again(partition)

    def lead(self, partition: int, leader_epoch: int = 0) -> None:
        """Load a partition that this broker leads. Requests fail with a retriable error until then."""
        assert partition not in self._shards, f"{self.topic}-{partition} is already led"
        self._led[partition] = leader_epoch
        shard: S  # the one that asks to be loaded again: maybe it is closed, and another one has its place

        def load_again() -> None:
            if self._shards.get(partition) is shard:
                self._load_again(partition)

        def step_failed(step: FailedStep) -> None:
            if self._shards.get(partition) is shard:
                self._step_failed(partition, step)

        self._end_delay(partition)
        for key in self._failed_keys.not_loaded():
            if self.partition_for(str(key)) == partition:
                self._failed_keys.loading(key)
        shard = self._shards[partition] = self._new_shard(
            Term(partition, leader_epoch, load_again, step_failed, self._load_turn)
        )

    def lead_again(self, partition: int) -> None:
        """Load a partition that this broker leads, unless it is loaded or its disk is offline."""
        leader_epoch = self._led.get(partition)
        if leader_epoch is not None and partition not in self._shards and not self.is_offline(partition):
            self.lead(partition, leader_epoch)

    def resign(self, partition: int) -> None:
        """Unload a partition: its term has ended or its disk is offline. Waiting requests fail, and queued writes."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.stop(refuse_writes=True)
            self.run(shard.close())

    def _load_again(self, partition: int, not_before_s: float = 0.0) -> None:
        """Unload a partition and load it from the log, which differs from its state in memory."""
        shard = self._shards.pop(partition)
        shard.stop(refuse_writes=True)
        self._reloading.add(partition)
        self.run(self._close_and_lead(shard, partition, not_before_s))

    async def _close_and_lead(self, shard: S, partition: int, not_before_s: float) -> None:
        await shard.close()
        loop = asyncio.get_running_loop()
        if not_before_s > loop.time() and partition in self._led and partition not in self._shards:
            self._delayed[partition] = loop.call_at(not_before_s, self._lead_after_delay, partition)
        else:
            self._lead_after_delay(partition)

    def _lead_after_delay(self, partition: int) -> None:
        self._end_delay(partition)
        self.lead_again(partition)

    def _end_delay(self, partition: int) -> None:
        self._reloading.discard(partition)
        delayed = self._delayed.pop(partition, None)
        if delayed is not None:
            delayed.cancel()

    def is_offline(self, partition: int) -> bool:
        """Return whether this broker's replica is offline, so that its keys have no coordinator."""
        return self._topic_log.is_offline(partition)

    # ---- Failures

    def _step_failed(self, partition: int, step: FailedStep) -> None:
        """Log a failed step, refuse a key that fails again, and load the partition from its log.

        A key that failed as it was loaded stays unloaded until its delay is over; the others are there.
        """
        now_s = asyncio.get_running_loop().time()
        failure = self._failed_keys.note(step.key or partition, now_s, is_loaded=not step.is_load)
        place, delay_s = f"{self.topic}-{partition}", round(failure.until_s - now_s)
        if failure.times > 1:
            text = "%s: %r failed again, %d times now: %r; its requests are refused for %d s"
            log.error(text, place, step.key[:KEY_CHARS_MAX], failure.times, step.error, delay_s)
        else:
            text = "%s: a step of %r failed and may have changed the state by half: %s. Please report this as a bug: %s"
            then = "its requests are refused" if step.is_load else f"loading again, to {self._end_offset(partition)}"
            log.error(text, place, step.key[:KEY_CHARS_MAX], then, step.description, exc_info=step.error)
        if not step.is_load:
            self._load_again(partition, self._failed_partitions.note(partition, now_s).until_s)

    def _end_offset(self, partition: int) -> int | None:
        try:
            return self._topic_log.end_offset(partition)
        except KafkaError:
            return None

    def _check_failures(self, key: str, partition: int) -> None:
        """Raise CoordinatorLoadInProgress for a key that fails again and again, or could not be loaded."""
        failure = self._failed_keys.find(key)
        if failure is None:
            return
        remaining_s = failure.until_s - asyncio.get_running_loop().time()
        if remaining_s > 0:
            raise CoordinatorLoadInProgress(f"{key!r} failed {failure.times} times; refused for {remaining_s:.0f} s")
        if not failure.is_loaded:
            self._load_again(partition)
            raise CoordinatorLoadInProgress(f"{key!r} could not be loaded; it is loaded again")

    # ---- Shards

    @property
    def exists(self) -> bool:
        """Return whether the topic exists; without it no key has a coordinator."""
        return self._topic_log.partitions > 0

    def partition_for(self, key: str) -> int:
        """Return the partition of a key. Raises NotCoordinator before the topic exists."""
        if not self.exists:
            raise NotCoordinator(f"{self.topic} does not exist yet")
        return partition_of(key, self._topic_log.partitions)

    def shard_of(self, key: str) -> S:
        """Return the loaded shard of a key. Raises NotCoordinator, CoordinatorLoadInProgress."""
        partition = self.partition_for(key)
        if self.session_check is not None and not self.session_check.is_confirmed():
            raise NotCoordinator(f"this broker did not run for a while; another one may coordinate {key!r} now")
        shard = self._shards.get(partition)
        if shard is None:
            if partition in self._reloading and partition in self._led:
                raise CoordinatorLoadInProgress(f"{self.topic}-{partition} is being loaded again")
            raise NotCoordinator(f"another broker coordinates {key!r}")
        shard.check_ready()
        self._check_failures(key, partition)
        return shard

    def shard(self, partition: int) -> S | None:
        """Return the shard of a partition, loaded or not; None if another broker leads it."""
        return self._shards.get(partition)

    def shards(self) -> list[S]:
        """Return all shards, loaded or not."""
        return list(self._shards.values())

    def ready_shards(self) -> list[S]:
        """Return the loaded shards."""
        return [shard for shard in self._shards.values() if shard.is_ready]

    def check_all_loaded(self) -> None:
        """Raise CoordinatorLoadInProgress unless all is loaded: a partial list would look like deletions."""
        if self._reloading.intersection(self._led) or not all(shard.is_ready for shard in self._shards.values()):
            raise CoordinatorLoadInProgress(f"{self.topic} is being loaded")

    async def wait_until_loaded(self) -> None:
        """Wait until all shards are loaded, for tests and tools."""
        for shard in self.shards():
            await shard.wait_until_loaded()

    # ---- Tasks

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Run work of the coordinator that `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def close(self) -> None:
        """Fail the waiting requests, complete the queued writes and stop."""
        self._led = {}
        for partition in tuple(self._delayed):
            self._end_delay(partition)
        shards, self._shards = self._shards, {}
        for shard in shards.values():
            shard.stop(refuse_writes=False)
            self.run(shard.close())
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
