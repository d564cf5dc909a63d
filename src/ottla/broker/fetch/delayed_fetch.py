"""Reads the partitions of a consumer's Fetch request, and holds its response until there is enough.

A request of any length is one `DelayedFetch`. The partitions of a short one are read in one go. Those of a long one, or
of a session with many partitions, are read, and the response is written, some at a time; between them the loop turns.

Each partition that was read is watched while the request waits. When one of them moves, only that one is read again.

Step 8 of 9 on the path of a batch (ARCHITECTURE.md). Before: broker/handlers/fetch.py. Next: net/outbound.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Final

from ottla.broker.delayed_operations import DelayedOperation
from ottla.broker.fetch.fetch_data import current_name, data_of, divergence, offsets_of, refusal, size_of
from ottla.broker.fetch.replica_selector import closer_replica
from ottla.broker.handler_parts.new_leaders import current_leader, endpoint_of
from ottla.broker.requests.allowed_topics import TopicKey, allowed_topics
from ottla.broker.requests.authorization import Access
from ottla.broker.requests.request import Request
from ottla.broker.services import Services
from ottla.broker.sessions.fetch_sessions import NO_SESSION, FetchSession, FetchSessionPartition
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import (
    FencedLeaderEpoch,
    KafkaError,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.core.files import FileRegion
from ottla.net.connection import PendingResponse
from ottla.replication.partition import ANY_EPOCH, Partition
from ottla.storage.state.leader_epochs import UNDEFINED
from ottla.wire.apis import READ_COMMITTED, ApiKey
from ottla.wire.generated.fetch import AbortedTransaction, LeaderIdAndEpoch, NodeEndpoint
from ottla.wire.hot.fetch import (
    FIRST_WITH_LEADERS,
    NO_LEADER,
    FetchedTopic,
    FetchRequest,
    PartitionData,
    encode_fetch_response,
    write_fetch_response,
)
from ottla.wire.hot.reading import AT_ONCE
from ottla.wire.schema import RecordBytes

log = logging.getLogger(__name__)

FIRST_WITH_RACK: Final = 11
READ: Final = Access(AclOperation.READ, ResourceType.TOPIC, "each topic")
_READ_AT_ONCE: Final = 50  # partitions of a long request between two looks at the slice of work
_READ_WORK: Final = 4  # to read one takes ten to twenty microseconds
_CHECKS_MAX: Final = 4
"""Maximum portions of old data, a megabyte each, that one response verifies (storage/log/verified_ranges.py)."""


class DelayedFetch(DelayedOperation):
    """One request until its response is sent: the partitions it wants, and what was read of them so far."""

    __slots__ = (
        "_api_version",
        "_bytes",
        "_bytes_max",
        "_checks",
        "_completed",
        "_data",
        "_denied",
        "_endpoints",
        "_failed",
        "_in_files",
        "_is_incremental",
        "_is_scheduled",
        "_listener",
        "_moved",
        "_places",
        "_put_off",
        "_reads_again",
        "_request",
        "_services",
        "_session",
        "_unknown",
        "_wanted",
    )

    def __init__(
        self,
        services: Services,
        api_version: int,
        listener: str,
        request: FetchRequest,
        session: FetchSession | None,
        wanted: Collection[FetchSessionPartition],
        response: PendingResponse,
    ) -> None:
        super().__init__(response)
        self._services = services
        self._api_version = api_version
        self._listener = listener  # of the client: the endpoints of new leaders are given for it
        self._request = request
        self._session = session
        self._is_incremental = session is not None and request.session_epoch > 0
        self._bytes_max = min(request.max_bytes, services.config.server.fetch_bytes_max)
        self._wanted = list(wanted)  # of a session, which may change while this waits
        self._data: list[PartitionData | None] = []  # parallel to `_wanted`; None: nothing new to send
        self._denied: set[int] | None = None  # places in `_wanted` that the client may not read; None: all may be
        self._bytes = 0  # of all records found
        self._checks = 0
        self._failed = False
        self._unknown = 0  # partitions that are unknown or denied: they do not end the wait of the others
        self._put_off = False  # some old data was left out, to be verified for the next request
        self._places: dict[Partition, int] = {}  # in `_wanted`, of those that are watched
        self._in_files: dict[int, None] = {}  # places whose records were left in a file, which may be deleted
        self._moved: dict[Partition, None] = {}
        self._is_scheduled = False  # the partitions that moved are read at the end of this turn of the loop
        self._reads_again = False  # before it responds
        self._endpoints: dict[int, NodeEndpoint] = {}  # of the new leaders that the response names
        self._completed: asyncio.Future[PendingResponse] | None = None  # of a long request, whose task responds

    @property
    def must_respond(self) -> bool:
        """Whether to respond now, because there is enough, an error, or nothing to wait for."""
        return (
            self._failed
            or self._put_off
            or self._bytes >= self._request.min_bytes
            or self._unknown >= len(self._wanted)  # then nothing can come
        )

    async def serve_in_slices(self, ctx: Request, *, is_denied: bool = False) -> Coroutine[Any, Any, None] | None:
        """Do the same as handlers/fetch.py for a short request: read, and respond or wait; some partitions at a time.

        Returns what is left to do if the request has to wait. `is_denied`: as in `authorize`.
        """
        self._completed = asyncio.get_running_loop().create_future()
        must_wait = self._request.max_wait_ms > 0
        try:
            if ctx.authorizer is not None:
                await self._authorize_in_slices(ctx, is_denied=is_denied)
            await self._read_in_slices(watch=must_wait)
            if not must_wait or self.must_respond or self._services.delayed_operations.is_stopping:
                self.complete()
                await self._respond_in_slices()
                return None
            self.wait()
        except BaseException:
            self._release()
            raise
        return self._respond_in_slices()

    # ---- Authorizing

    def authorize(self, ctx: Request, first: int = 0, end: int | None = None, *, is_denied: bool = False) -> None:
        """Note which partitions the client may not read, all if `is_denied`; unknown ones have other errors."""
        wanted, allowed = self._wanted, allowed_topics(ctx)
        decisions: dict[TopicKey, bool] | None = None  # on topics of several partitions
        for place in range(first, len(wanted) if end is None else min(end, len(wanted))):
            denied = is_denied
            if not denied:
                each = wanted[place]
                key: TopicKey = each.topic or each.topic_id
                if key in allowed.readable or not (name := self._name_of(each)):  # an unknown id is its own error
                    continue
                if decisions is None:
                    decisions = {}
                known = decisions.get(key)
                denied = decisions[key] = READ.denies(ctx, name) if known is None else known
                if not denied:
                    allowed.add(allowed.readable, key)
            if denied:
                if self._denied is None:
                    self._denied = set()
                self._denied.add(place)

    def _name_of(self, each: FetchSessionPartition) -> str:
        """Return the topic's name; empty for an id that is not known."""
        if each.topic:
            return each.topic
        topic = self._services.cluster.current.topic_by_id.get(each.topic_id)
        return each.name if topic is None else topic.name

    async def _authorize_in_slices(self, ctx: Request, *, is_denied: bool) -> None:
        slices = self._services.slices
        for first in range(0, len(self._wanted), _READ_AT_ONCE):
            self.authorize(ctx, first, first + _READ_AT_ONCE, is_denied=is_denied)
            if slices.spend(_READ_AT_ONCE):
                await slices.yield_to_loop()

    # ---- Reading

    def read_all(self, end: int | None = None) -> None:
        """Read the partitions up to a place, from where the last call ended, within the limits of the request."""
        for each in self._wanted[len(self._data) : end]:
            data: PartitionData | None
            if self._denied is not None and len(self._data) in self._denied:
                self._unknown += 1
                data = refusal(each.asked.partition, READ.error)
            else:
                data = self._read(each)
            if data is not None and (records := data.records) is not None:
                self._bytes += size_of(records)
                if isinstance(records, FileRegion):
                    self._in_files[len(self._data)] = None
            self._data.append(data)

    async def _read_in_slices(self, *, watch: bool) -> None:
        slices = self._services.slices
        for first in range(0, len(self._wanted), _READ_AT_ONCE):
            self.read_all(first + _READ_AT_ONCE)
            if watch:
                self.watch(first)
            if slices.spend(_READ_WORK * _READ_AT_ONCE):
                await slices.yield_to_loop()

    def _begin_again(self) -> None:
        """Forget what was read."""
        self._data, self._bytes, self._failed, self._unknown = [], 0, False, 0
        self._checks, self._put_off, self._in_files = 0, False, {}

    def _read(self, each: FetchSessionPartition) -> PartitionData | None:
        """Return what to send of a partition; None if that is nothing."""
        asked = each.asked
        try:
            partition = each.partition
            if partition is None or not partition.is_serving:
                partition = each.partition = self._find(each)
            if asked.current_leader_epoch > ANY_EPOCH or not partition.is_serving:
                self._check_readable(partition, max(asked.current_leader_epoch, ANY_EPOCH), asked.fetch_offset)
            if asked.last_fetched_epoch >= 0 and (diverging := _diverging(partition, each)) is not None:
                self._failed = True
                return diverging
            if self._request.rack_id and partition.is_serving and (closer := self._closer(each, partition)):
                self._failed = True
                return closer
            return self._read_log(each, partition)
        except (UnknownTopicOrPartition, UnknownTopicId) as error:
            self._unknown += 1
            self._services.request_errors.note(ApiKey.FETCH, error.code)
            return refusal(asked.partition, error)
        except (KafkaError, OSError) as error:
            self._failed = True
            errors = self._services.request_errors
            errors.refused(ApiKey.FETCH, error, topic=each.name or each.topic, partition=asked.partition)
            return refusal(asked.partition, error, self._leader(each, error))

    def _check_readable(self, partition: Partition, leader_epoch: int, fetch_offset: int) -> None:
        """Let a consumer read from the leader or from a follower (KIP-392). Raises the KafkaError to respond with."""
        if partition.follower is None or self._api_version < FIRST_WITH_RACK:
            partition.check_serving(leader_epoch)
            return
        if leader_epoch not in (ANY_EPOCH, partition.leader_epoch):
            partition.check_serving(leader_epoch)
        if partition.is_truncating:
            raise OffsetNotAvailable("the follower's log is being truncated")
        if partition.high_watermark < fetch_offset <= partition.log.end_offset:
            raise OffsetNotAvailable(f"the follower's high watermark is {partition.high_watermark}")

    def _closer(self, each: FetchSessionPartition, partition: Partition) -> PartitionData | None:
        """Return a response that directs the consumer to a replica in its rack; None if it is to read here."""
        if self._api_version < FIRST_WITH_RACK:
            return None
        node_id = closer_replica(
            self._services,
            partition,
            rack=self._request.rack_id,
            fetch_offset=each.asked.fetch_offset,
            listener=self._listener,
        )
        if node_id is None:
            return None
        data = offsets_of(partition)
        data.preferred_read_replica = node_id
        return data

    def _read_log(self, each: FetchSessionPartition, partition: Partition) -> PartitionData | None:
        asked, partition_log = each.asked, partition.log
        committed_only = self._request.isolation_level == READ_COMMITTED
        if (
            self._is_incremental
            and asked.fetch_offset == partition_log.high_watermark == each.sent_high_watermark
            and partition_log.log_start_offset == each.sent_log_start
        ):
            return None  # at the end, and nothing has changed since the last response
        segments = partition_log.segment_list
        checks, may_check = segments.checks, self._checks < _CHECKS_MAX
        info = partition.read(
            asked.fetch_offset,
            max_bytes=min(asked.partition_max_bytes, max(0, self._bytes_max - self._bytes)),
            committed_only=committed_only,
            at_least_one=not self._bytes,
            may_check=may_check,
        )
        self._checks += segments.checks - checks
        if info.region is None:
            if not may_check:
                end_offset = info.last_stable_offset if committed_only else info.high_watermark
                self._put_off = self._put_off or asked.fetch_offset < end_offset
            if (
                self._is_incremental
                and info.high_watermark == each.sent_high_watermark
                and info.log_start_offset == each.sent_log_start
            ):
                return None
        aborted = None
        if info.aborted is not None:
            aborted = [
                AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in info.aborted
            ]
        return data_of(partition, info, aborted)

    def _find(self, each: FetchSessionPartition) -> Partition:
        """Find a partition by the name or the id of its topic. Raises the KafkaError to respond with."""
        name = current_name(self._services.cluster.current, each)
        return self._services.replicas.find(name, each.asked.partition)

    def _leader(self, each: FetchSessionPartition, error: BaseException) -> LeaderIdAndEpoch:
        """Return the new leader where that is the error (KIP-951); the response gets its endpoint."""
        if self._api_version < FIRST_WITH_LEADERS or not isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch):
            return NO_LEADER
        view = self._services.cluster.current
        topic = view.topic_by_id.get(each.topic_id) or view.topics.get(each.topic)
        leader = current_leader(topic, each.asked.partition)
        endpoint = endpoint_of(view, leader.leader_id, self._listener)
        if endpoint is not None:
            self._endpoints[leader.leader_id] = endpoint
        return leader

    # ---- Waiting

    def watch(self, first: int = 0) -> None:
        """Watch the partitions that were read, from a place on."""
        for place in range(first, len(self._data)):
            each, data = self._wanted[place], self._data[place]
            if each.partition is not None and (data is None or not data.error_code):
                each.partition.watch(self)
                self._places[each.partition] = place

    def wait(self) -> None:
        """Wait until the partitions that change have enough data, or for the deadline."""
        self._services.delayed_operations.add(self, self._request.max_wait_ms / 1000)
        if self._moved:  # while the others were read
            self._read_moved()

    def partition_changed(self, partition: Partition) -> None:
        """Read the partition again at the end of this turn of the loop, with all others that change in it."""
        self._moved[partition] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._read_moved)

    def _read_moved(self) -> None:
        """Read the partitions that changed, and records that are still in a file; respond if that is enough."""
        self._is_scheduled = False
        if self.is_completed or len(self._data) < len(self._wanted):  # then the first reading is not over
            return
        moved, self._moved = self._moved, {}
        places = sorted({*self._in_files, *[self._places[partition] for partition in moved]})
        self._in_files = {}
        try:
            for place in places:
                before = self._data[place]
                if before is not None and before.records is not None:
                    self._bytes -= size_of(before.records)
                data = self._data[place] = self._read(self._wanted[place])
                if data is not None:
                    self._failed = self._failed or data.error_code != 0  # its topic was deleted meanwhile
                    if (records := data.records) is not None:
                        self._bytes += size_of(records)
                        if isinstance(records, FileRegion):
                            self._in_files[place] = None
        except Exception:
            log.exception("unexpected error while partitions were read again for a fetch")
            self.abandon()
            return
        if self.must_respond:
            self.complete()

    def expire(self) -> None:
        """Respond with what there is."""
        self._reads_again = True
        self.complete()

    def stop(self) -> None:
        """Complete now because the broker stops: there is nothing to wait for."""
        self.expire()

    def _stop_watching(self) -> None:
        for partition in self._places:
            partition.unwatch(self)
        self._places = {}

    def abandon(self) -> None:
        """Release the partitions, too, and end the task of a long request."""
        super().abandon()
        self._release()
        if self._completed is not None:
            self._completed.cancel()

    def _release(self) -> None:
        """Release what the request holds, whether or not it was answered."""
        self.is_completed, self.response = True, None
        self._stop_watching()
        self._wanted, self._data, self._session = [], [], None

    # ---- Responding

    def respond(self, response: PendingResponse) -> None:
        """Send all partitions, or only those with something new if the session has the others."""
        if self._completed is not None:
            self._completed.set_result(response)
            return
        self._stop_watching()
        if self._reads_again:
            self._begin_again()
            self.read_all()
        topics: list[FetchedTopic] = []
        if response.throttle is not None:
            if response.throttle(self._bytes) > 0:
                response.send(self._throttled(response))
                self._release()
                return
            self._count_bytes(0, len(self._data))
        served: list[FetchSessionPartition] = []
        self._collect(self._wanted, self._data, topics, served)
        session_id = NO_SESSION
        if self._session is not None:
            session_id = self._session.session_id
            self._session.rotate(served)
        response.send(
            encode_fetch_response(
                topics,
                self._api_version,
                response.correlation_id,
                session_id=session_id,
                throttle_time_ms=response.throttle_time_ms,
                endpoints=tuple(self._endpoints.values()),
            )
        )
        self._wanted, self._data, self._session = [], [], None

    async def _respond_in_slices(self) -> None:
        """Respond once there is enough or the deadline has passed."""
        assert self._completed is not None
        try:
            response = await self._completed
            self._stop_watching()
            slices = self._services.slices
            if self._reads_again:
                self._begin_again()
                await self._read_in_slices(watch=False)
            is_counted = response.throttle is not None
            if response.throttle is not None and response.throttle(self._bytes) > 0:
                response.send(self._throttled(response))
                return
            topics: list[FetchedTopic] = []
            served: list[FetchSessionPartition] = []
            for first in range(0, len(self._wanted), AT_ONCE):
                end = first + AT_ONCE
                self._collect(self._wanted[first:end], self._data[first:end], topics, served)
                if is_counted:
                    self._count_bytes(first, end)
                if slices.spend(AT_ONCE):
                    await slices.yield_to_loop()
            session_id = NO_SESSION
            if self._session is not None:
                session_id = self._session.session_id
                self._session.rotate(served)
            parts: list[RecordBytes] = []
            writing = write_fetch_response(
                parts,
                topics,
                self._api_version,
                response.correlation_id,
                session_id=session_id,
                throttle_time_ms=response.throttle_time_ms,
                endpoints=tuple(self._endpoints.values()),
            )
            async for _ in slices.each(writing, work=AT_ONCE):
                pass
            response.send(parts)
        finally:
            self._release()

    def _count_bytes(self, first: int, end: int) -> None:
        """Count what is sent of each topic, from memory or from files."""
        bytes_out = self._services.bytes_out
        for place in range(first, min(end, len(self._data))):
            data, partition = self._data[place], self._wanted[place].partition
            if data is not None and data.records is not None and partition is not None:
                topic = partition.topic_partition.topic
                bytes_out[topic] = bytes_out.get(topic, 0) + size_of(data.records)

    def _throttled(self, response: PendingResponse) -> Sequence[RecordBytes]:
        """Encode the response to a client that is over its quota: nothing is sent, and of the session nothing changes.

        A session that would begin with this response does not: a client that has to wait begins again (KIP-219).
        """
        session_id = NO_SESSION
        if self._session is not None and self._is_incremental:
            session_id = self._session.session_id
        elif self._session is not None:
            self._services.fetch_sessions.remove(self._session)
        return encode_fetch_response(
            (),
            self._api_version,
            response.correlation_id,
            session_id=session_id,
            throttle_time_ms=response.throttle_time_ms,
        )

    def _collect(
        self,
        wanted: Sequence[FetchSessionPartition],
        data_of_wanted: list[PartitionData | None],
        topics: list[FetchedTopic],
        served: list[FetchSessionPartition],
    ) -> None:
        """Add to a response the partitions that have something new; `served` gets those with records."""
        for each, data in zip(wanted, data_of_wanted, strict=True):
            if data is None or (self._is_incremental and not _is_news(each, data)):
                continue
            if data.records is not None:
                served.append(each)
            each.sent_high_watermark, each.sent_log_start = data.high_watermark, data.log_start_offset
            last = topics[-1] if topics else None  # neighbours of one topic share an entry; the order stays
            if last is None or last.topic != each.topic or last.topic_id != each.topic_id:
                topics.append(FetchedTopic(each.topic, each.topic_id, [data]))
            else:
                last.partitions.append(data)


def _diverging(partition: Partition, each: FetchSessionPartition) -> PartitionData | None:
    """Answer a reader whose last epoch ended earlier here: it must truncate its log there first (KIP-595)."""
    asked, partition_log = each.asked, partition.log
    end = partition_log.epoch_end_offset(asked.last_fetched_epoch)
    if end.epoch == UNDEFINED:
        raise OffsetOutOfRange(f"epoch {asked.last_fetched_epoch} is unknown to the leader")
    if asked.fetch_offset < partition_log.log_start_offset:
        raise OffsetOutOfRange(f"offset {asked.fetch_offset} is below the log start {partition_log.log_start_offset}")
    if end.epoch == asked.last_fetched_epoch and end.end_offset >= asked.fetch_offset:
        return None
    return divergence(partition, end)


def _is_news(each: FetchSessionPartition, data: PartitionData) -> bool:
    return bool(
        data.records is not None
        or data.error_code
        or data.preferred_read_replica >= 0
        or data.diverging_epoch.epoch >= 0
        or data.high_watermark != each.sent_high_watermark
        or data.log_start_offset != each.sent_log_start
    )
