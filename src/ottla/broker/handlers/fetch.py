"""Fetch (key 1), versions 4 to 18.

What it does
  Finds, for each partition, the region of a file that begins with the batch that holds the offset asked for, up to the
  high watermark or (read_committed) the last stable offset. Waits for `min_bytes` up to `max_wait_ms`, woken by each
  move of a high watermark. At least one whole batch is sent even above the size limits (KIP-74).

What it does not do
  Followers fetch here once there are several brokers; today a replica id is refused like any other stranger's.
  There is no rack-aware choice of a closer replica (KIP-392): preferred_read_replica is -1.

Versions
  v5   log_start_offset
  v7   sessions (KIP-227)
  v9   current_leader_epoch fences (KIP-320)
  v11  rack
  v12  flexible encoding; last_fetched_epoch and diverging_epoch (KIP-595)
  v13  topics by id
  v15  replica state; v16 the leader, where it is another (KIP-951)
  v17  replica directory ids; v18 high watermark of the follower

Station 8 of 9 on a batch's journey. Before: replication/partition.py. After: net/outbound.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ottla.broker.context import RequestContext
from ottla.broker.fetch_sessions import NO_SESSION, Fetched, FetchSession
from ottla.core.errors import KafkaError, NotLeaderOrFollower, UnknownTopicId, error_code_for
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.replication.partition import ANY_EPOCH, Partition
from ottla.storage.state.transactions import AbortedTransaction
from ottla.wire.messages.fetch import AbortedTransaction as WireAborted
from ottla.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)

READ_COMMITTED = 1
FIRST_WITH_TOPIC_IDS = 13
FIRST_WITH_LEADERS = 16
CONSUMER, DEBUGGER = -1, -2
_CHECKS_MAX = 4
"""How many portions of old data, a megabyte each, one response may verify (storage/integrity/verified_ranges.py)."""


def handle(ctx: RequestContext, request: FetchRequest) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
    """Answer at once if there is enough, an error, or no wish to wait; otherwise wait."""
    by_id = ctx.api_version >= FIRST_WITH_TOPIC_IDS
    services = ctx.services
    try:
        session, wanted = services.fetch_sessions.resolve(request, by_id=by_id, now=services.clock.monotonic())
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    fetch = _Fetch(ctx, request, session, wanted)
    fetch.read()
    if fetch.enough or request.max_wait_ms <= 0 or not wanted:
        return fetch.response()
    return fetch.wait()


class _Fetch:
    """One fetch under way: what is wanted, and what has been found so far."""

    def __init__(
        self, ctx: RequestContext, request: FetchRequest, session: FetchSession | None, wanted: list[Fetched]
    ) -> None:
        self._services = ctx.services
        self._tells_leader = ctx.api_version >= FIRST_WITH_LEADERS
        self._request = request
        self._session = session
        self._wanted = wanted
        self._found: list[tuple[Fetched, PartitionData]] = []
        self._bytes = 0
        self._checks = 0
        self._failed = False
        self._put_off = False

    @property
    def enough(self) -> bool:
        """Whether there is something to say before the time is up."""
        return self._failed or self._put_off or self._bytes >= self._request.min_bytes

    # ---- Reading -----------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Look at every partition once, from the first in turn, within the limits of the request."""
        left = min(self._request.max_bytes, self._services.config.server.fetch_bytes_max)
        self._found, self._bytes, self._failed = [], 0, False
        self._checks, self._put_off = 0, False
        for fetched in self._wanted:
            data = self._one(fetched, left)
            size = data.records.size if data.records is not None else 0  # type: ignore[union-attr]
            left = max(0, left - size)
            self._bytes += size
            self._found.append((fetched, data))

    def _one(self, fetched: Fetched, left: int) -> PartitionData:
        asked = fetched.asked
        try:
            partition = self._partition(fetched)
            partition.check_serving(max(asked.current_leader_epoch, ANY_EPOCH))
            if (diverging := self._diverging(partition, fetched)) is not None:
                self._failed = True
                return diverging
            committed_only = self._request.isolation_level == READ_COMMITTED
            segments, checks = partition.log.segment_list, partition.log.segment_list.checks
            may_check = self._checks < _CHECKS_MAX
            found = partition.read(
                asked.fetch_offset,
                max_bytes=min(asked.partition_max_bytes, left),
                committed_only=committed_only,
                at_least_one=not self._bytes,
                may_check=may_check,
            )
            self._checks += segments.checks - checks
            if not may_check and found.region is None:
                end_offset = found.last_stable_offset if committed_only else found.high_watermark
                self._put_off = self._put_off or asked.fetch_offset < end_offset
        except (KafkaError, OSError) as error:
            self._failed = True
            return PartitionData(
                partition_index=asked.partition,
                error_code=error_code_for(error),
                high_watermark=-1,
                aborted_transactions=None,
                current_leader=self._leader(fetched, error),
            )
        return PartitionData(
            partition_index=asked.partition,
            high_watermark=found.high_watermark,
            last_stable_offset=found.last_stable_offset,
            log_start_offset=found.log_start_offset,
            aborted_transactions=None if found.aborted is None else [*map(_told, found.aborted)],
            records=found.region,
        )

    def _partition(self, fetched: Fetched) -> Partition:
        """By name or by id. Raises what the client must be told."""
        name = fetched.topic
        if fetched.topic_id != NO_TOPIC_ID or not name:
            topic = self._services.cluster.current.topic_by_id.get(fetched.topic_id.bytes)
            if topic is None:
                raise UnknownTopicId
            name = topic.name
        partition = self._services.replicas.partition(TopicPartition(name, fetched.asked.partition))
        if self._request.replica_id >= 0 or self._request.replica_state.replica_id >= 0:
            raise NotLeaderOrFollower("no other broker replicates from this one")
        return partition

    @staticmethod
    def _diverging(partition: Partition, fetched: Fetched) -> PartitionData | None:
        """The reader's last epoch ended earlier here: it must cut its log there first (KIP-595)."""
        last_epoch = fetched.asked.last_fetched_epoch
        if last_epoch < 0:
            return None
        epoch, end_offset = partition.log.epoch_end_offset(last_epoch)
        if epoch == last_epoch and end_offset >= fetched.asked.fetch_offset:
            return None
        return PartitionData(
            partition_index=fetched.asked.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset),
            aborted_transactions=None,
        )

    def _leader(self, fetched: Fetched, error: BaseException) -> LeaderIdAndEpoch:
        """Who leads instead, where that is the trouble (KIP-951)."""
        if not self._tells_leader or not isinstance(error, NotLeaderOrFollower):
            return LeaderIdAndEpoch()
        view = self._services.cluster.current
        topic = view.topic_by_id.get(fetched.topic_id.bytes) or view.topics.get(fetched.topic)
        if topic is None or fetched.asked.partition >= len(topic.partitions):
            return LeaderIdAndEpoch()
        partition = topic.partitions[fetched.asked.partition]
        return LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)

    # ---- Waiting -----------------------------------------------------------------------------------------------

    async def wait(self) -> FetchResponse:
        """Read again at each change until there is enough or the time is up."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        wake = changed.set
        partitions = self._watch(wake)
        timer = loop.call_later(self._request.max_wait_ms / 1000, wake)
        deadline = loop.time() + self._request.max_wait_ms / 1000
        try:
            while True:
                await changed.wait()
                changed.clear()
                self.read()
                if self.enough or loop.time() >= deadline - 0.001 or self._services.stopping.is_set():
                    return self.response()
        finally:
            timer.cancel()
            for partition in partitions:
                partition.forget(wake)
            self._services.replicas.forget_stop(wake)

    def _watch(self, wake: Any) -> list[Partition]:
        watched = []
        for fetched, data in self._found:
            if not data.error_code:
                partition = self._partition(fetched)
                partition.on_change(wake)
                watched.append(partition)
        self._services.replicas.on_stop(wake)
        return watched

    # ---- Answering ---------------------------------------------------------------------------------------------

    def response(self) -> FetchResponse:
        """All partitions, or those with news where a session remembers the rest."""
        session = self._session
        found = self._found
        if session is not None:
            if self._request.session_epoch > 0:
                found = [(fetched, data) for fetched, data in found if _is_news(fetched, data)]
            session.turn([fetched for fetched, data in found if data.records is not None])
        for fetched, data in found:
            fetched.sent_high_watermark, fetched.sent_log_start = data.high_watermark, data.log_start_offset
        return FetchResponse(
            session_id=session.session_id if session is not None else NO_SESSION, responses=_by_topic(found)
        )


def _is_news(fetched: Fetched, data: PartitionData) -> bool:
    return bool(
        data.records is not None
        or data.error_code
        or data.diverging_epoch.epoch >= 0
        or data.high_watermark != fetched.sent_high_watermark
        or data.log_start_offset != fetched.sent_log_start
    )


def _by_topic(found: list[tuple[Fetched, PartitionData]]) -> list[FetchableTopicResponse]:
    """Neighbours of one topic share an entry; the order of partitions stays."""
    topics: list[FetchableTopicResponse] = []
    for fetched, data in found:
        last = topics[-1] if topics else None
        if last is None or last.topic != fetched.topic or last.topic_id != fetched.topic_id:
            last = FetchableTopicResponse(topic=fetched.topic, topic_id=fetched.topic_id)
            topics.append(last)
        if data.records is None:
            data.records = b""  # null means trouble to librdkafka and sarama; empty is the end of the log
        last.partitions.append(data)
    return topics


def _told(aborted: AbortedTransaction) -> WireAborted:
    return WireAborted(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
