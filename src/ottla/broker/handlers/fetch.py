"""Fetch (key 1), versions 4 to 18.

What it does
  Finds, for each partition, the region of a file that begins with the batch that holds the offset asked for, up to the
  high watermark or (read_committed) the last stable offset. Waits for `min_bytes` up to `max_wait_ms`; each move of a
  high watermark has its partition read again. At least one whole batch is sent even above the size limits (KIP-74).

  Followers fetch up to the log end, in sessions of their own (broker/fetch/replica_sessions.py). A consumer may read
  from a follower, up to the high watermark that it knows; with `replica.selector.class` the leader directs a consumer
  to an in-sync replica in its rack (KIP-392).

What it does not do
  Replica selectors of the operator's own: there is no plug-in for one.

Versions
  v5   log_start_offset
  v7   sessions (KIP-227)
  v9   current_leader_epoch fences (KIP-320)
  v11  rack
  v12  flexible encoding; last_fetched_epoch and diverging_epoch (KIP-595)
  v13  topics by id
  v15  replica state; v16 the leader and its endpoint, where it is another (KIP-951)
  v17  replica directory ids; v18 high watermark of the follower

Step 8 of 9 on the path of a batch (ARCHITECTURE.md). Before: replication/partition.py. Next: net/outbound.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from ottla.broker.context import Services
from ottla.broker.delayed_operations import DelayedOperation
from ottla.broker.fetch.fetch_data import current_name, data_of, divergence, offsets_of, refusal, size_of
from ottla.broker.fetch.fetch_sessions import INITIAL_EPOCH, NO_SESSION, FetchSession, FetchSessionPartition
from ottla.broker.handler_parts.new_leaders import current_leader, endpoint_of
from ottla.broker.requests.handler import Deferred
from ottla.broker.requests.request import Request
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
from ottla.core.runtime import new_random
from ottla.limits.loop_slices import LoopSlices
from ottla.net.connection import PendingResponse
from ottla.replication.partition import ANY_EPOCH, Partition
from ottla.storage.state.leader_epochs import UNDEFINED
from ottla.wire import codec
from ottla.wire.apis import READ_COMMITTED, ApiKey
from ottla.wire.compiled_codec import Slicing
from ottla.wire.hot.fetch import (
    FIRST_WITH_LEADERS,
    FIRST_WITH_TOPIC_IDS,
    NO_LEADER,
    FetchedTopic,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    decode_fetch_request,
    encode_fetch_response,
    encode_fetch_slices,
)
from ottla.wire.hot.reading import SHORT_ELEMENTS_MAX
from ottla.wire.messages.fetch import AbortedTransaction, LeaderIdAndEpoch, NodeEndpoint, PartitionData
from ottla.wire.messages.fetch import FetchRequest as PlainFetchRequest

log = logging.getLogger(__name__)

FIRST_WITH_RACK: Final = 11
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_AT_ONCE: Final = 50  # partitions of a long response between two looks at the slice of work
_PARTITION_WORK: Final = 4  # to read one takes ten to twenty microseconds
_CHECKS_MAX: Final = 4
"""Maximum portions of old data, a megabyte each, that one response verifies (storage/log/verified_ranges.py)."""

decode = decode_fetch_request


def handle(
    ctx: Request, request: FetchRequest, response: PendingResponse
) -> Coroutine[Any, Any, Coroutine[Any, Any, None] | None] | None:
    """Respond at once if there is enough, an error, or no time to wait; otherwise wait.

    Returns what is left to be run as a task if the session has many partitions.
    """
    services, version = ctx.services, ctx.api_version
    if request.replica_id >= 0 or request.replica_state.replica_id >= 0:
        _serve_replica(ctx, request, response)
        return None
    try:
        session, wanted = services.fetch_sessions.resolve(
            request, by_id=version >= FIRST_WITH_TOPIC_IDS, now=services.clock.monotonic()
        )
    except KafkaError as error:
        response.send(encode_fetch_response((), version, response.correlation_id, error_code=error.code))
        return None
    if len(wanted) > SHORT_ELEMENTS_MAX:
        return LongFetch(services, version, ctx.listener, request, session, list(wanted), response).serve()
    fetch = DelayedFetch(services, version, ctx.listener, request, session, wanted, response)
    fetch.read_all()
    if fetch.has_enough or request.max_wait_ms <= 0 or not wanted or services.delayed_operations.is_stopping:
        fetch.complete()
    else:
        fetch.wait()
    return None


async def handle_long(
    ctx: Request, frame: bytes, at: int, response: PendingResponse
) -> Coroutine[Any, Any, None] | None:
    """Decode, handle and answer a request of many partitions in slices of work.

    Returns what is left to do if the request has to wait.
    """
    services, version = ctx.services, ctx.api_version
    slices = services.slices
    request = await _decode_in_slices(frame, version, at, slices)
    if request.replica_id >= 0 or request.replica_state.replica_id >= 0:
        _serve_replica(ctx, request, response)
        return None
    now = services.clock.monotonic()
    try:
        session = services.fetch_sessions.find(request, by_id=version >= FIRST_WITH_TOPIC_IDS, now=now)
    except KafkaError as error:
        response.send(encode_fetch_response((), version, response.correlation_id, error_code=error.code))
        return None
    partitions = session if session is not None else FetchSession(NO_SESSION, by_id=False, now=now)
    await partitions.apply_in_slices(request, slices)
    wanted = list(partitions.partitions.values())
    return await LongFetch(services, version, ctx.listener, request, session, wanted, response).serve()


def _serve_replica(ctx: Request, request: FetchRequest, response: PendingResponse) -> None:
    """Serve a follower's fetch."""
    from ottla.broker.fetch.replica_sessions import ReplicaSessions
    from ottla.broker.replica_fetch import ReplicaFetch

    services, version = ctx.services, ctx.api_version
    sessions = services.replica_sessions
    if sessions is None:
        sessions = services.replica_sessions = ReplicaSessions(new_random())
    try:
        session = sessions.resolve(request, by_id=version >= FIRST_WITH_TOPIC_IDS, connection_id=ctx.connection_id)
    except KafkaError as error:
        response.send(encode_fetch_response((), version, response.correlation_id, error_code=error.code))
        return
    if session.epoch == INITIAL_EPOCH:
        ctx.call_when_lost("replica session", partial(sessions.remove_those_of, ctx.connection_id))
    ReplicaFetch(services, version, request, session, response).begin()


async def _decode_in_slices(frame: bytes, version: int, at: int, slices: LoopSlices) -> FetchRequest:
    """Decode by the plans, which know slices; the shapes with a topic id are exchanged for those of `wire/hot`."""
    read: PlainFetchRequest = await slices.run(
        codec.decode_request_slices(ApiKey.FETCH, version, frame, at, slices=slices)
    )
    request = FetchRequest()
    request.cluster_id, request.replica_state, request.replica_id = read.cluster_id, read.replica_state, read.replica_id
    request.max_wait_ms, request.min_bytes, request.max_bytes = read.max_wait_ms, read.min_bytes, read.max_bytes
    request.isolation_level, request.rack_id = read.isolation_level, read.rack_id
    request.session_id, request.session_epoch = read.session_id, read.session_epoch
    async for topic in slices.each(read.topics):
        request.topics.append(FetchTopic(topic.topic, topic.topic_id.bytes, topic.partitions))
    async for forgotten in slices.each(read.forgotten_topics_data):
        name, topic_id = forgotten.topic, forgotten.topic_id.bytes
        request.forgotten_topics_data.append(ForgottenTopic(name, topic_id, forgotten.partitions))
    return request


class DelayedFetch(DelayedOperation):
    """One request until its response is sent: the partitions it wants, and what was read of them so far."""

    __slots__ = (
        "_api_version",
        "_bytes",
        "_checks",
        "_endpoints",
        "_failed",
        "_found",
        "_is_incremental",
        "_is_scheduled",
        "_listener",
        "_moved",
        "_put_off",
        "_reads_again",
        "_request",
        "_services",
        "_session",
        "_unknown",
        "_wanted",
        "_watched",
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
        self._wanted = wanted
        self._found: list[PartitionData | None] = []  # parallel to `_wanted`; None: nothing new to send
        self._bytes = 0  # of all records found
        self._checks = 0
        self._failed = False
        self._unknown = 0  # partitions that the cluster does not have: they do not end the wait of the others
        self._put_off = False  # some old data was left out, to be verified for the next request
        self._watched: Sequence[Partition] = ()
        self._moved: dict[Partition, None] = {}
        self._is_scheduled = False  # the partitions that moved are read at the end of this turn of the loop
        self._reads_again = False  # before it responds
        self._endpoints: dict[int, NodeEndpoint] = {}  # of the new leaders that the response names

    @property
    def has_enough(self) -> bool:
        """Whether to respond before the deadline."""
        return (
            self._failed
            or self._put_off
            or self._bytes >= self._request.min_bytes
            or self._unknown >= len(self._wanted)  # then nothing can come
        )

    # ---- Reading

    def read_all(self) -> None:
        """Read every partition once, from the first in rotation, within the limits of the request."""
        left = min(self._request.max_bytes, self._services.config.server.fetch_bytes_max)
        found: list[PartitionData | None] = []
        self._found, self._bytes, self._failed, self._unknown = found, 0, False, 0
        self._checks, self._put_off = 0, False
        for each in self._wanted:
            data = self._read(each, left)
            if data is not None and data.records is not None:
                size = size_of(data.records)
                left = max(0, left - size)
                self._bytes += size
            found.append(data)

    def _read(self, each: FetchSessionPartition, left: int) -> PartitionData | None:
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
            if self._request.rack_id and partition.is_serving and (closer := self._closer_replica(each, partition)):
                self._failed = True
                return closer
            return self._read_log(each, partition, left)
        except (UnknownTopicOrPartition, UnknownTopicId) as error:
            self._unknown += 1
            return refusal(asked.partition, error)
        except (KafkaError, OSError) as error:
            self._failed = True
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

    def _closer_replica(self, each: FetchSessionPartition, partition: Partition) -> PartitionData | None:
        """Return a response that directs the consumer to a follower in its rack; None if it is to read here."""
        services = self._services
        if self._api_version < FIRST_WITH_RACK or services.config.server.replica_selector != RACK_AWARE_SELECTOR:
            return None
        node_id = _replica_in_rack(services, partition, self._request.rack_id, each.asked.fetch_offset, self._listener)
        if node_id == services.node_id:
            return None
        return offsets_of(partition, preferred_read_replica=node_id)

    def _read_log(self, each: FetchSessionPartition, partition: Partition, left: int) -> PartitionData | None:
        asked, log = each.asked, partition.log
        committed_only = self._request.isolation_level == READ_COMMITTED
        if (
            self._is_incremental
            and asked.fetch_offset == log.high_watermark == each.sent_high_watermark
            and log.log_start_offset == each.sent_log_start
        ):
            return None  # at the end, and nothing has changed since the last response
        segments = log.segment_list
        checks, may_check = segments.checks, self._checks < _CHECKS_MAX
        found = partition.read(
            asked.fetch_offset,
            max_bytes=min(asked.partition_max_bytes, left),
            committed_only=committed_only,
            at_least_one=not self._bytes,
            may_check=may_check,
        )
        self._checks += segments.checks - checks
        if found.region is None:
            if not may_check:
                end_offset = found.last_stable_offset if committed_only else found.high_watermark
                self._put_off = self._put_off or asked.fetch_offset < end_offset
            if (
                self._is_incremental
                and found.high_watermark == each.sent_high_watermark
                and found.log_start_offset == each.sent_log_start
            ):
                return None
        aborted = None
        if found.aborted is not None:
            aborted = [
                AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in found.aborted
            ]
        return data_of(partition, found, aborted)

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

    def wait(self) -> None:
        """Wait until the partitions that change have enough data, or for the deadline."""
        self._wanted = list(self._wanted)
        watched: list[Partition] = []
        for each, data in zip(self._wanted, self._found, strict=True):
            if each.partition is not None and (data is None or not data.error_code):
                each.partition.watch(self)
                watched.append(each.partition)
        self._watched = watched
        self._services.delayed_operations.add(self, self._request.max_wait_ms / 1000)

    def partition_changed(self, partition: Partition) -> None:
        """Read the partition again at the end of this turn of the loop, with all others that change in it."""
        self._moved[partition] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._read_moved)

    def _read_moved(self) -> None:
        """Read the partitions that changed; respond if that is enough."""
        self._is_scheduled = False
        if self.is_completed:
            return
        moved, self._moved = self._moved, {}
        limit = min(self._request.max_bytes, self._services.config.server.fetch_bytes_max)
        try:
            for place, each in self._places_of(moved):
                before = self._found[place]
                if before is not None and before.records is not None:
                    self._bytes -= size_of(before.records)
                data = self._found[place] = self._read(each, max(0, limit - self._bytes))
                if data is not None:
                    self._failed = self._failed or data.error_code != 0  # its topic was deleted meanwhile
                    self._bytes += size_of(data.records) if data.records is not None else 0
        except Exception:
            log.exception("unexpected error while partitions were read again for a fetch")
            self.abandon()
            return
        if self.has_enough:
            self.complete()

    def _places_of(self, moved: dict[Partition, None]) -> list[tuple[int, FetchSessionPartition]]:
        """Return where in the request these partitions are, and those whose records are still in a file."""
        places: list[tuple[int, FetchSessionPartition]] = []
        for place, each in enumerate(self._wanted):
            data = self._found[place]
            is_stale = data is not None and isinstance(data.records, FileRegion)  # its file may have been deleted
            if is_stale or each.partition in moved:
                places.append((place, each))
        return places

    def expire(self) -> None:
        """Respond with what there is."""
        self._reads_again = True
        self.complete()

    def stop(self) -> None:
        """Complete now because the broker stops: there is nothing to wait for."""
        self.expire()

    def _stop_watching(self) -> None:
        for partition in self._watched:
            partition.unwatch(self)
        self._watched = ()

    def abandon(self) -> None:
        """Release the partitions, too."""
        self._stop_watching()
        self._wanted, self._found, self._session = (), [], None
        super().abandon()

    # ---- Responding

    def respond(self, response: PendingResponse) -> None:
        """Send all partitions, or only those with something new if the session has the others."""
        self._stop_watching()
        if self._reads_again:
            self.read_all()
        topics: list[FetchedTopic] = []
        served: list[FetchSessionPartition] = []
        self._collect(self._wanted, self._found, topics, served)
        session_id = NO_SESSION
        if self._session is not None:
            session_id = self._session.session_id
            self._session.rotate(served)
        self._wanted, self._found, self._session = (), [], None
        response.send(
            encode_fetch_response(
                topics,
                self._api_version,
                response.correlation_id,
                session_id=session_id,
                endpoints=tuple(self._endpoints.values()),
            )
        )

    def _collect(
        self,
        wanted: Collection[FetchSessionPartition],
        found: list[PartitionData | None],
        topics: list[FetchedTopic],
        served: list[FetchSessionPartition],
    ) -> None:
        """Add to a response the partitions that have something new; `served` gets those with records."""
        for each, data in zip(wanted, found, strict=True):
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


class LongFetch(DelayedFetch):
    """A request of many partitions, or of a session with many: a task reads and responds in slices of work."""

    __slots__ = ("_all", "_completed", "_places")

    def __init__(
        self,
        services: Services,
        api_version: int,
        listener: str,
        request: FetchRequest,
        session: FetchSession | None,
        wanted: list[FetchSessionPartition],
        response: PendingResponse,
    ) -> None:
        super().__init__(services, api_version, listener, request, session, wanted, response)
        self._completed: asyncio.Future[PendingResponse] = asyncio.get_running_loop().create_future()
        self._all = wanted
        self._places: dict[Partition, int] = {}  # in `_all`, of those that are watched

    async def serve(self) -> Coroutine[Any, Any, None] | None:
        """Read all partitions and respond; returns what is left to do if the request has to wait."""
        must_wait = self._request.max_wait_ms > 0
        try:
            await self._read_in_slices(watch=must_wait)
            if not must_wait or not self._wanted or self.has_enough or self._services.delayed_operations.is_stopping:
                self.complete()
                await self._respond_in_slices()
                return None
            self._services.delayed_operations.add(self, self._request.max_wait_ms / 1000)
            if self._moved:  # while the others were read
                self._read_moved()
        except BaseException:
            self._unwatch()
            raise
        return self._wait()

    async def _wait(self) -> None:
        """Respond when there is enough or the deadline has passed: with what is there by then."""
        try:
            await self._completed
            await self._read_in_slices(watch=False)
            await self._respond_in_slices()
        finally:
            self._unwatch()

    def respond(self, response: PendingResponse) -> None:
        """Let the task respond."""
        self._completed.set_result(response)

    async def _read_in_slices(self, *, watch: bool) -> None:
        slices = self._services.slices
        left = min(self._request.max_bytes, self._services.config.server.fetch_bytes_max)
        self._found, self._bytes, self._failed, self._unknown = [], 0, False, 0
        self._checks, self._put_off = 0, False
        async for each in slices.each(self._wanted, work=_PARTITION_WORK):
            data = self._read(each, left)
            if data is not None and data.records is not None:
                size = size_of(data.records)
                left = max(0, left - size)
                self._bytes += size
            if watch and each.partition is not None and (data is None or not data.error_code):
                self._places[each.partition] = len(self._found)
                each.partition.watch(self)
            self._found.append(data)

    def abandon(self) -> None:
        """Close the connection now, and end the task."""
        super().abandon()
        self._unwatch()
        self._completed.cancel()

    def _read_moved(self) -> None:
        """Read the partitions that changed, unless the first reading of all is not over."""
        if len(self._found) < len(self._all):
            self._is_scheduled = False
        else:
            super()._read_moved()

    def _places_of(self, moved: dict[Partition, None]) -> list[tuple[int, FetchSessionPartition]]:
        return [(place, self._all[place]) for place in [self._places[partition] for partition in moved]]

    async def _respond_in_slices(self) -> None:
        response = await self._completed
        slices = self._services.slices
        topics: list[FetchedTopic] = []
        served: list[FetchSessionPartition] = []
        for first in range(0, len(self._all), _AT_ONCE):
            end = first + _AT_ONCE
            self._collect(self._all[first:end], self._found[first:end], topics, served)
            if slices.spend(_AT_ONCE):
                await slices.yield_to_loop()
        session_id = NO_SESSION
        if self._session is not None:
            session_id = self._session.session_id
            self._session.rotate(served)
        response.send(
            await slices.run(
                encode_fetch_slices(
                    topics,
                    self._api_version,
                    response.correlation_id,
                    Slicing(slices),
                    session_id=session_id,
                    endpoints=tuple(self._endpoints.values()),
                )
            )
        )

    def _unwatch(self) -> None:
        """Release what the request holds, whether or not it was answered."""
        self.is_completed, self.response = True, None
        for partition in self._places:
            partition.unwatch(self)
        self._places = {}


def _diverging(partition: Partition, each: FetchSessionPartition) -> PartitionData | None:
    """Answer a reader whose last epoch ended earlier here: it must truncate its log there first (KIP-595)."""
    asked, log = each.asked, partition.log
    end = log.epoch_end_offset(asked.last_fetched_epoch)
    if end.epoch == UNDEFINED:
        raise OffsetOutOfRange(f"epoch {asked.last_fetched_epoch} is unknown to the leader")
    if asked.fetch_offset < log.log_start_offset:
        raise OffsetOutOfRange(f"offset {asked.fetch_offset} is below the log start {log.log_start_offset}")
    if end.epoch == asked.last_fetched_epoch and end.end_offset >= asked.fetch_offset:
        return None
    return divergence(partition, end)


def _replica_in_rack(services: Services, partition: Partition, rack: str, fetch_offset: int, listener: str) -> int:
    """Return the in-sync replica that a consumer of a rack reads from, as Kafka's rack-aware selector chooses it."""
    brokers, state = services.cluster.current.brokers, partition.leader_state
    this = brokers.get(services.node_id)
    if state is None or (this is not None and this.rack == rack):
        return services.node_id
    chosen, best = services.node_id, (-1, 0.0)
    for node_id, follower in state.followers.items():
        broker = brokers.get(node_id)
        if (
            broker is not None
            and broker.rack == rack
            and listener in broker.endpoints
            and node_id in partition.isr
            and follower.end_offset >= fetch_offset
            and follower.log_start_offset <= fetch_offset
            and (follower.end_offset, follower.last_caught_up_s) > best
        ):
            chosen, best = node_id, (follower.end_offset, follower.last_caught_up_s)
    return chosen


def _is_news(each: FetchSessionPartition, data: PartitionData) -> bool:
    return bool(
        data.records is not None
        or data.error_code
        or data.preferred_read_replica >= 0
        or data.diverging_epoch.epoch >= 0
        or data.high_watermark != each.sent_high_watermark
        or data.log_start_offset != each.sent_log_start
    )


HANDLER = Deferred(ApiKey.FETCH, decode=decode, handle=handle, handle_long=handle_long)
