"""A replica fetcher and a leader that answers as a test wants: sessions, errors, back-off, flushes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from ottla.client.addresses import Address
from ottla.client.errors import CannotConnect
from ottla.core.error_codes import ErrorCode
from ottla.core.errors import NetworkException
from ottla.replication.config import ReplicationConfig
from ottla.replication.fetch_data_info import FetchDataInfo
from ottla.replication.fetcher import FetchedPartition
from ottla.replication.fetcher_manager import ReplicaFetcherManager
from ottla.replication.follower_state import FetchState
from ottla.storage.config import LogConfig
from ottla.storage.state.leader_epochs import EpochEnd
from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode_request, encode_response
from ottla.wire.generated.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.wire.generated.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.wire.headers import parse_request_header, response_header
from ottla.wire.hot.replica_fetch import FetchedData
from tests.support.replicas import TOPIC_ID, Trio, view
from tests.support.storage import StillClock
from tests.support.waiting import until

pytestmark = pytest.mark.simulated_time


class LeaderConnection(asyncio.Transport):
    """One connection to the leader: the client's half, and the transport to which it is handed over."""

    client_id = "broker-2"
    address = Address("leader", 9092)

    def __init__(self, leader: Leader) -> None:
        super().__init__()
        self.leader = leader
        self.protocol: asyncio.BufferedProtocol | None = None
        self.is_closed = False
        self.answering: deque[asyncio.Task[None]] = deque()
        self.named = asyncio.Event()  # by a request that came after the one that waits

    # ---- As client.connection.Connection

    def version_for(self, key: ApiKey, *, at_most: int) -> int:
        assert key is ApiKey.FETCH
        return at_most

    def hand_over(self, protocol: asyncio.BufferedProtocol) -> tuple[LeaderConnection, asyncio.Protocol]:
        self.protocol = protocol
        return self, asyncio.Protocol()

    async def request(self, key: ApiKey, request: Any, *, timeout_s: float) -> Any:
        assert key is ApiKey.LIST_OFFSETS
        await asyncio.sleep(0.001)
        return self.leader.offsets(request)

    async def close(self) -> None:  # type: ignore[override]
        self.is_closed = True
        for task in self.answering:
            task.cancel()

    # ---- As transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.is_closed

    def writelines(self, list_of_data: Any) -> None:
        (frame,) = list_of_data
        body = memoryview(frame)[4:]
        header = parse_request_header(body)
        assert (header[0], header[1]) == (ApiKey.FETCH, 18)
        request = decode_request(ApiKey.FETCH, 18, bytes(body), header[4])
        self.named.set()
        self.named = asyncio.Event()
        before = self.answering[-1] if self.answering else None
        self.answering.append(asyncio.ensure_future(self._answer(request, header[2], self.named, before)))

    async def _answer(
        self, request: Any, correlation_id: int, named: asyncio.Event, before: asyncio.Task[None] | None
    ) -> None:
        await asyncio.sleep(0.001)
        if before is not None:
            await before
        try:
            response = await self.leader.answer(request, named)
        except NetworkException as error:
            assert self.protocol is not None
            self.protocol.connection_lost(error)
            return
        frame = bytes(response_header(ApiKey.FETCH, 18, correlation_id))
        frame += bytes(encode_response(ApiKey.FETCH, 18, response))
        frame = len(frame).to_bytes(4, "big") + frame
        while frame and not self.is_closed:
            assert self.protocol is not None
            buffer = memoryview(self.protocol.get_buffer(len(frame)))
            size = min(len(buffer), len(frame))
            buffer[:size] = frame[:size]
            frame = frame[size:]
            self.protocol.buffer_updated(size)
        self.answering.popleft()


class Leader:
    """Broker 1 of a trio, at the other end of the connections of broker 2."""

    def __init__(self, trio: Trio) -> None:
        self.trio = trio
        self.requests: list[FetchRequest] = []
        self.connections = 0
        self.errors: list[int | Exception] = []  # of the next requests; an error code is that of the partition
        self.session_errors: list[int] = []
        self.late: list[PartitionData] = []  # in the answer to the request that waits
        self.before_answer: Callable[[], None] | None = None  # to the next request
        self.session: dict[int, FetchPartition] = {}

    async def connect(self, node_id: int) -> Any:
        assert node_id == self.trio[2].partition.leader
        self.connections += 1
        if self.errors and isinstance(self.errors[0], CannotConnect):
            raise self.errors.pop(0)  # type: ignore[misc]
        return LeaderConnection(self)

    async def answer(self, request: FetchRequest, named: asyncio.Event) -> FetchResponse:
        """Answer a fetch: at once if it names a partition, else after the wait, or when another one has come."""
        self.requests.append(request)
        if self.session_errors:
            return FetchResponse(error_code=self.session_errors.pop(0))
        if request.session_epoch == 0:
            self.session = {}
        for topic in request.topics:
            self.session |= {each.partition: each for each in topic.partitions}
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                del self.session[index]
        is_named = bool(request.topics)
        if not is_named:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(named.wait(), request.max_wait_ms / 1000)
        if self.errors and is_named:
            error = self.errors.pop(0)
            if isinstance(error, Exception):
                raise error
            data = [PartitionData(error_code=error)]
        else:
            data = [self._read(each) for each in self.session.values()] if is_named else self.late
            self.late = [] if not is_named else self.late
        if self.before_answer is not None:
            self.before_answer()
            self.before_answer = None
        return FetchResponse(session_id=7, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=data)])

    def _read(self, asked: FetchPartition) -> PartitionData:
        leader = self.trio[1].partition
        found = leader.read_for_replica(
            (2, 0),
            fetch_offset=asked.fetch_offset,
            last_fetched_epoch=asked.last_fetched_epoch,
            current_leader_epoch=asked.current_leader_epoch,
            log_start_offset=asked.log_start_offset,
            max_bytes=1 << 20,
            at_least_one=True,
            now_s=0,
        )
        if isinstance(found, EpochEnd):
            return PartitionData(diverging_epoch=EpochEndOffset(epoch=found.epoch, end_offset=found.end_offset))
        assert isinstance(found, FetchDataInfo)
        records = found.region.read() if found.region is not None else None
        return PartitionData(
            high_watermark=found.high_watermark, log_start_offset=found.log_start_offset, records=records
        )

    def offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Answer with the start or the end of the log."""
        assert request.replica_id == 2
        log = self.trio[1].log
        (topic,) = request.topics
        offset = log.log_start_offset if topic.partitions[0].timestamp == -2 else log.end_offset
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name="web", partitions=[ListOffsetsPartitionResponse(offset=offset)])]
        )

    def named(self) -> list[tuple[int, list[int]]]:
        """Return session epoch and fetch offsets of each request that names a partition."""
        return [
            (request.session_epoch, [each.fetch_offset for topic in request.topics for each in topic.partitions])
            for request in self.requests
            if request.topics
        ]


class BrokenClock(StillClock):
    """Fails when records are appended or truncated."""

    def wall_ms(self) -> int:
        raise RuntimeError("no time of day")


@pytest.fixture
async def trio() -> AsyncIterator[Trio]:
    """The replicas of brokers 1 and 2, flushed at once; broker 3 is always at the end."""
    trio = Trio(count=2)

    async def flush_at_once() -> None:
        while True:
            await asyncio.sleep(0.001)
            trio.clock.now_ms += 1
            for each in (1, 2):
                trio[each].commit._begin_round()
                trio[each].executor.run()

    flushing = asyncio.ensure_future(flush_at_once())
    yield trio
    flushing.cancel()


@pytest.fixture
def leader(trio: Trio) -> Leader:
    return Leader(trio)


@pytest.fixture
async def fetchers(trio: Trio, leader: Leader) -> AsyncIterator[ReplicaFetcherManager]:
    """The fetchers of broker 2, which fetches from broker 1."""
    fetchers = ReplicaFetcherManager(leader.connect, node_id=2, config=ReplicationConfig(), context=trio[2].context)
    yield fetchers
    await fetchers.close()


async def test_a_follower_reaches_the_end_and_an_idle_partition_is_not_named_again(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    trio[1].produce(b"a")
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(3)
    assert trio[2].values() == [(0, b"a")]
    assert trio[2].partition.high_watermark <= trio[1].partition.high_watermark == 1
    assert leader.named() == [(0, [0]), (1, [1])]
    assert leader.requests[0].replica_state.replica_id == 2
    assert [each.session_epoch for each in leader.requests] == list(range(len(leader.requests)))
    assert leader.connections == 1


async def test_a_changed_partition_is_named_while_the_request_before_waits_at_the_leader(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(0.3)
    (waiting,) = (each for each in leader.requests if not each.topics)
    trio[1].produce(b"a")
    trio.apply(view(1, 1, isr=(1, 2), replicas=(1, 2)))
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(0.1)  # the leader would have answered after half a second
    assert trio[2].values() == [(0, b"a")]
    assert leader.named() == [(0, [0]), (waiting.session_epoch + 1, [0]), (waiting.session_epoch + 2, [1])]
    assert leader.connections == 1


async def test_a_slow_flush_of_one_partition_does_not_hold_up_the_others(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(0.1)
    (fetcher,) = fetchers._fetchers.values()
    position = fetcher._session.position((TOPIC_ID.bytes, 0))
    assert position is not None
    fetcher._session.name((TOPIC_ID.bytes, 1), position)  # another partition of the session
    fetcher._syncing[FetchedPartition(fetcher, trio[1].partition)] = None
    count = len(leader.requests)
    await asyncio.sleep(3)
    assert len(leader.requests) > count + 2  # each waits for half a second at the leader
    assert not any(each.topics for each in leader.requests[count:])


async def test_an_answer_from_before_the_position_changed_is_not_used(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(0.3)
    leader.late = [PartitionData(high_watermark=0, diverging_epoch=EpochEndOffset(epoch=0, end_offset=0))]
    trio.apply(view(1, 1, isr=(1, 2), replicas=(1, 2)))
    trio[1].produce(b"a")
    fetchers.assign(trio[2].partition)
    count = trio[2].log.truncation_count
    await asyncio.sleep(0.1)
    assert not leader.late
    assert trio[2].values() == [(0, b"a")]
    assert trio[2].log.truncation_count == count
    assert not [each for each in fetchers._fetchers.values() if len(each._session) != 1]


@pytest.mark.parametrize("code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
async def test_a_session_error_is_followed_by_a_full_request(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager, code: ErrorCode
) -> None:
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(0.1)
    leader.session_errors = [code]
    await asyncio.sleep(2)
    assert leader.named() == [(0, [0]), (0, [0])]
    assert leader.connections == 1


@pytest.mark.parametrize("error", [NetworkException("lost"), CannotConnect("b", "refused")])
async def test_a_lost_connection_is_opened_again_and_begins_a_session(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager, error: Exception
) -> None:
    leader.errors = [error]
    trio[1].produce(b"a")
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(2)
    assert leader.connections == 2
    assert trio[2].values() == [(0, b"a")]


async def test_after_an_error_a_partition_leaves_the_session_until_its_back_off_is_over(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    leader.errors = [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    trio[1].produce(b"a")
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(1)
    assert trio[2].values() == [(0, b"a")]
    assert [offsets for _, offsets in leader.named()] == [[0], [0], [0], [1]]


@pytest.mark.parametrize("count", [3, 20])
async def test_a_refusal_is_logged_once_it_lasts_and_so_is_its_end(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    leader.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * count
    trio[1].produce(b"a")
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(60)
    assert trio[2].values() == [(0, b"a")]
    lasting = [
        "broker 1 does not serve 1 partitions (web-0): NOT_LEADER_OR_FOLLOWER",
        "broker 1 serves 1 partitions (web-0) again",
    ]
    assert caplog.messages == ([] if count == 3 else lasting), "a leader may learn of its partitions after a follower"


async def test_the_loss_of_a_leader_and_its_end_are_logged_once(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    leader.errors = [CannotConnect("b", "refused")] * 5
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(60)
    begun, ended = caplog.messages
    assert begun.startswith("fetching from broker 1 failed, and is tried again: ")
    assert ended == "fetching from broker 1 works again"


@pytest.mark.parametrize("is_refused", [True, False])
async def test_a_partition_is_named_again_if_another_is_flushed_for_longer_than_its_back_off(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager, is_refused: bool
) -> None:
    partition = trio[2].partition
    trio[1].produce(b"a")
    if is_refused:
        leader.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    fetchers.assign(partition)
    (fetcher,) = fetchers._fetchers.values()
    fetcher._syncing[FetchedPartition(fetcher, trio[1].partition)] = None  # the other one
    if not is_refused:
        assert partition.follower is not None
        leader.before_answer = partition.follower.require_sync
        await asyncio.sleep(0.1)
        partition.follower.synced()
    await asyncio.sleep(3)
    assert trio[2].values() == [(0, b"a")]


async def test_an_unexpected_error_of_one_partition_does_not_end_the_session_of_the_others(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    clock, trio[2].context.clock = trio[2].context.clock, BrokenClock()
    trio[1].produce(b"a")
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(3)
    assert (leader.connections, leader.named()) == (1, [(0, [0])])
    trio[2].context.clock = clock
    fetchers.assign(trio[2].partition)  # its state has changed
    await asyncio.sleep(1)
    assert (leader.connections, trio[2].values()) == (1, [(0, b"a")])


async def test_a_partition_is_fetched_after_its_flush_is_due_no_more(
    trio: Trio, fetchers: ReplicaFetcherManager
) -> None:
    """The records that are being flushed count at once in the next term: the topic has durability=page-cache then."""
    follower = trio[2]
    follower.executor.is_held = True
    trio[1].produce(b"a")
    fetchers.assign(follower.partition)
    await asyncio.sleep(0.1)
    assert follower.partition.follower is not None
    assert follower.partition.follower.fetch_state is FetchState.SYNCING
    follower.partition.reconfigure(replace(follower.config, durability="page-cache"))
    trio[1].produce(b"b")
    trio.apply(view(1, 1, isr=(1, 2), replicas=(1, 2)))
    fetchers.assign(follower.partition)
    follower.executor.is_held = False
    await asyncio.sleep(3)
    assert follower.values() == [(0, b"a"), (1, b"b")]


async def test_a_replica_that_was_replaced_is_not_fetched_when_its_flush_ends(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    trio[1].produce(b"a")
    replaced = trio[2].partition
    fetchers.assign(replaced)
    await asyncio.sleep(0.1)
    trio[2].crash(random.Random(1), None)
    trio[2].start(view(1, 0), {1: 0, 2: 0, 3: 0})
    fetchers.assign(trio[2].partition)
    trio[1].produce(b"b")
    await asyncio.sleep(1)
    assert (replaced.log.end_offset, trio[2].log.end_offset) == (1, 2)
    named = leader.named()
    assert replaced.follower is not None
    assert replaced.follower.fetcher is not None
    replaced.follower.fetcher.follower_synced()
    await asyncio.sleep(1)
    assert leader.named() == named


async def test_a_replica_that_is_replaced_while_its_leader_is_asked_for_its_range_leaves_the_session_to_the_new_one(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    leader.errors = [ErrorCode.OFFSET_OUT_OF_RANGE]
    fetchers.assign(trio[2].partition)
    (fetcher,) = fetchers._fetchers.values()
    await until(lambda: fetcher._range_tasks)
    trio[2].crash(random.Random(1), None)
    trio[2].start(view(1, 0), {1: 0, 2: 0, 3: 0})
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(1)
    assert not fetcher._range_tasks
    assert leader.named() == [(0, [0]), (0, [0])], "it has left the session"


@pytest.mark.parametrize("is_out_of_range", [False, True])
async def test_an_unexpected_error_of_a_truncation_stops_the_partition_until_its_state_changes(
    trio: Trio,
    leader: Leader,
    fetchers: ReplicaFetcherManager,
    *,
    is_out_of_range: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trio[1].produce(b"a")
    trio[2].catch_up(trio[1])
    trio.apply(view(2, 1, isr=(1, 2), replicas=(1, 2)), 2)
    trio[2].produce(b"lost", acks=1)
    trio.apply(view(1, 2, isr=(1, 2), replicas=(1, 2)))
    leader.errors = [ErrorCode.OFFSET_OUT_OF_RANGE] if is_out_of_range else []
    node = trio[2]
    clock, node.log.clock = node.log.clock, BrokenClock()
    fetchers.assign(node.partition)
    await asyncio.sleep(3)
    (fetcher,) = fetchers._fetchers.values()
    (each,) = fetcher._partitions.values()
    assert (each.is_stopped, each.is_paused, leader.connections) == (True, False, 1 + is_out_of_range)
    node.log.clock = clock
    trio.apply(view(1, 3, isr=(1, 2), replicas=(1, 2)))
    fetchers.assign(node.partition)
    await asyncio.sleep(1)
    assert node.values() == [(0, b"a")]
    assert "unexpected error" in caplog.text


async def test_a_closed_fetcher_leaves_no_timer(trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager) -> None:
    leader.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(0.02)
    (fetcher,) = fetchers._fetchers.values()
    (each,) = fetcher._partitions.values()
    assert each.backoff is not None
    await fetchers.close()
    assert each.backoff is None


async def test_a_fenced_partition_is_fetched_again_only_in_a_newer_term(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    leader.errors = [ErrorCode.FENCED_LEADER_EPOCH]
    trio[1].produce(b"a")
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(30)
    assert trio[2].values() == []
    trio.apply(view(1, 1, isr=(1, 2), replicas=(1, 2)))
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(1)
    assert trio[2].values() == [(0, b"a")]


async def test_a_log_below_the_leaders_start_begins_there(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    trio[1].produce(b"a")
    trio[1].produce(b"b")
    trio[1].log.high_watermark = 2
    trio[1].log.delete_records(1)
    leader.errors = [ErrorCode.OFFSET_OUT_OF_RANGE]
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(1)
    assert (trio[2].log.log_start_offset, trio[2].values()) == (1, [(1, b"b")])


async def test_a_log_that_goes_on_after_the_leaders_end_is_truncated_to_it(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    trio[1].produce(b"a")
    trio[2].catch_up(trio[1])
    trio.apply(view(2, 1, isr=(1, 2), replicas=(1, 2)), 2)
    trio[2].produce(b"lost", acks=1)
    trio.apply(view(1, 2, isr=(1, 2), replicas=(1, 2)))
    leader.errors = [ErrorCode.OFFSET_OUT_OF_RANGE]
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(1)
    assert trio[2].values() == [(0, b"a")]


async def test_a_diverging_log_is_truncated_in_a_turn_of_its_own_and_fetched_again(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    trio[1].produce(b"a")
    trio[2].catch_up(trio[1])
    trio.apply(view(2, 1, isr=(1, 2), replicas=(1, 2)), 2)
    trio[2].produce(b"lost", acks=1)
    trio.apply(view(1, 2, isr=(1, 2), replicas=(1, 2)))
    trio[1].produce(b"b", acks=1)
    trio[2].flush()
    fetchers.assign(trio[2].partition)
    (fetcher,) = fetchers._fetchers.values()
    (each,) = fetcher._partitions.values()
    position = trio[2].partition.next_fetch()
    assert position is not None
    fetcher._session.name(each.key, position)
    data = FetchedData(TOPIC_ID.bytes, 0, 0, 0, 0)
    data.diverging_epoch, data.diverging_end = 0, 1
    fetcher._take(each, position, data, {})
    assert trio[2].log.end_offset == 2, "nothing is truncated while the answer is processed"
    await asyncio.sleep(1)
    assert trio[2].values() == [(0, b"a"), (1, b"b")]
    assert leader.connections == 1


async def test_a_removed_partition_is_forgotten_and_a_fetcher_without_partitions_ends(
    trio: Trio, leader: Leader, fetchers: ReplicaFetcherManager
) -> None:
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(0.1)
    fetchers.remove(trio[2].partition)
    await asyncio.sleep(5)
    count = len(leader.requests)
    await asyncio.sleep(5)
    assert len(leader.requests) == count


async def fetch_throttled(trio: Trio, fetchers: ReplicaFetcherManager, *, rate: int) -> None:
    """Have broker 2, which is throttled, fetch a large record, and produce another one."""
    trio[2].context.follower_quota.configure(rate)
    for each in (1, 2):
        trio[each].partition.reconfigure(replace(LogConfig(), follower_throttled_replicas=("0:2",)))
    trio.apply(view(1, 0, isr=(1,), replicas=(1, 2), partition_epoch=1))
    trio[1].produce(b"x" * 5000, acks=1)
    fetchers.assign(trio[2].partition)
    await asyncio.sleep(1)
    trio[1].produce(b"last", acks=1)


async def test_a_throttled_follower_waits_for_its_rate(trio: Trio, fetchers: ReplicaFetcherManager) -> None:
    await fetch_throttled(trio, fetchers, rate=1000)
    await asyncio.sleep(2.5)
    assert trio[2].log.end_offset == 1
    await asyncio.sleep(3)
    assert trio[2].log.end_offset == 2


@pytest.mark.parametrize(
    "is_raised", [True, False], ids=["the rate is raised", "the replica is not throttled any more"]
)
async def test_a_throttled_follower_goes_on_soon_after_its_throttle_changes(
    trio: Trio, fetchers: ReplicaFetcherManager, *, is_raised: bool
) -> None:
    await fetch_throttled(trio, fetchers, rate=10)
    await asyncio.sleep(20)
    assert trio[2].log.end_offset == 1
    if is_raised:
        trio[2].context.follower_quota.configure(1 << 40)
    else:
        trio[2].partition.reconfigure(LogConfig())
    await asyncio.sleep(2)
    assert trio[2].log.end_offset == 2
