"""Requests of coordinators to other brokers: markers to the leaders of partitions, verifications to coordinators."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from ottla.broker.remote.add_partitions_to_txn import AddPartitionsToTxnManager
from ottla.broker.remote.node_channels import BatchingQueues, NodeChannels
from ottla.broker.remote.transaction_marker_channel import TransactionMarkerChannelManager
from ottla.broker.remote.transaction_verification import PartitionAdder
from ottla.client.errors import CannotConnect
from ottla.core.errors import ErrorCode, NetworkException, RequestTimedOut
from ottla.core.ids import TRANSACTIONS_TOPIC, TopicPartition
from ottla.internal_topics.partitioning import partition_of
from ottla.metadata_store.cluster_view import BrokerInfo, ClusterView, PartitionView, TopicView
from ottla.transactions.marker_port import TransactionMarker
from ottla.transactions.metadata import TransactionVersion
from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode_request, decode_response, encode_request, encode_response
from ottla.wire.generated import add_partitions_to_txn as adding
from ottla.wire.generated import write_txn_markers as markers

pytestmark = pytest.mark.simulated_time

MARKER = TransactionMarker(7, 1, True, 3, TransactionVersion.TV_2)
HERE, THERE, NOWHERE, UNKNOWN = (TopicPartition("web", index) for index in range(4))
THERE_TOO = TopicPartition("other", 0)


def view_of(leaders: Mapping[str, tuple[int, ...]], brokers: Mapping[int, int]) -> ClusterView:
    """Return a snapshot: the leader of each partition, and the epoch of each broker."""
    topics = {
        name: TopicView(
            name,
            uuid.UUID(int=at),
            tuple(PartitionView(index, leader, 0, (1, 2), (1, 2), 0) for index, leader in enumerate(led)),
            {},
            0,
            0,
        )
        for at, (name, led) in enumerate(leaders.items())
    }
    alive = {node_id: BrokerInfo(node_id, {}, None, epoch, {}) for node_id, epoch in brokers.items()}
    return ClusterView(topics=topics, brokers=alive)


VIEW = view_of({"web": (1, 2, -1), "other": (2,)}, {1: 1, 2: 1})


class Snapshot:
    def __init__(self, view: ClusterView = VIEW) -> None:
        self.current = view


class Connection:
    """A connection to a broker that is a function; messages are encoded and decoded as on the wire."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.usable = True
        self._closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def request(self, key: ApiKey, request: Any, *, timeout_s: float) -> Any:
        version = 5 if key is ApiKey.ADD_PARTITIONS_TO_TXN else 2
        sent = decode_request(key, version, encode_request(key, version, request), 0)
        self._network.requests.append(sent)
        answering = asyncio.ensure_future(self._network.serve(sent))
        await asyncio.wait([answering, self._closed], return_when=asyncio.FIRST_COMPLETED)
        if self._closed.done():
            answering.cancel()
            raise NetworkException("the connection was closed")
        answer = encode_response(key, version, answering.result())
        return decode_response(key, version, bytes(answer), 0)

    async def close(self) -> None:
        self.usable = False
        if not self._closed.done():
            self._closed.set_result(None)


class Network:
    """Connects to broker 2, whose responses the test writes."""

    def __init__(self, serve: Callable[[Any], Awaitable[Any]]) -> None:
        self.serve = serve
        self.requests: list[Any] = []
        self.connections: list[Connection] = []
        self.is_down = False

    async def connect_to(self, node_id: int) -> Any:
        assert node_id == 2
        await asyncio.sleep(0.01)
        if self.is_down:
            raise CannotConnect("broker 2", "it is down")
        self.connections.append(Connection(self))
        return self.connections[-1]


class Local:
    """What this broker leads."""

    def __init__(self) -> None:
        self.sent: list[TopicPartition] = []

    async def send(
        self, marker: TransactionMarker, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.sent += partitions
        return {
            where: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if where == UNKNOWN else ErrorCode.NONE for where in partitions
        }


async def written(request: markers.WriteTxnMarkersRequest) -> markers.WriteTxnMarkersResponse:
    """Write every marker."""
    return answered(request, ErrorCode.NONE)


def answered(request: markers.WriteTxnMarkersRequest, error: ErrorCode) -> markers.WriteTxnMarkersResponse:
    return markers.WriteTxnMarkersResponse(
        markers=[
            markers.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    markers.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            markers.WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


@asynccontextmanager
async def running_router(
    serve: Callable[[Any], Awaitable[Any]],
) -> AsyncIterator[tuple[TransactionMarkerChannelManager, Network, Local, Snapshot]]:
    network, local, snapshot = Network(serve), Local(), Snapshot()
    router = TransactionMarkerChannelManager(local, cast("Any", snapshot), node_id=1, connect_to=network.connect_to)
    yield router, network, local, snapshot
    await router.close()
    assert not any(connection.usable for connection in network.connections)


async def test_a_marker_goes_to_the_leader_of_each_partition_with_the_epoch_of_the_coordinator() -> None:
    async with running_router(written) as (router, network, local, _):
        results = await router.send(MARKER, [HERE, THERE, THERE_TOO, NOWHERE, UNKNOWN])
        assert results == {
            HERE: ErrorCode.NONE,
            THERE: ErrorCode.NONE,
            THERE_TOO: ErrorCode.NONE,
            NOWHERE: ErrorCode.LEADER_NOT_AVAILABLE,
            UNKNOWN: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert local.sent == [HERE, UNKNOWN]
        ((sent,),) = [request.markers for request in network.requests]
        assert (sent.producer_id, sent.producer_epoch, sent.coordinator_epoch) == (7, 1, 3)
        assert (sent.transaction_result, sent.transaction_version) == (True, 2)
        assert {topic.name: topic.partition_indexes for topic in sent.topics} == {"web": [1], "other": [0]}


async def test_a_partition_that_another_broker_does_not_know_needs_its_marker_all_the_same() -> None:
    async def serve(request: Any) -> Any:
        return answered(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async with running_router(serve) as (router, *_):
        assert await router.send(MARKER, [THERE]) == {THERE: ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_markers_share_requests_while_one_is_in_flight_and_one_producer_has_one_at_a_time() -> None:
    async def serve(request: Any) -> Any:
        await asyncio.sleep(1)
        return answered(request, ErrorCode.NONE)

    async with running_router(serve) as (router, network, *_):
        sending = [
            asyncio.create_task(router.send(MARKER._replace(producer_id=each), [THERE])) for each in (1, 2, 3, 3, 4)
        ]
        await asyncio.gather(*sending)
        sent = [[marker.producer_id for marker in request.markers] for request in network.requests]
        assert sorted(each for request in sent for each in request) == [1, 2, 3, 3, 4]
        assert len(sent) == 2
        assert all(len(set(request)) == len(request) for request in sent)
        assert len(network.connections) == 1


async def test_a_marker_that_cannot_be_sent_is_reported_and_the_next_attempt_connects_again() -> None:
    async with running_router(written) as (router, network, *_):
        network.is_down = True
        assert await router.send(MARKER, [THERE]) == {THERE: ErrorCode.NETWORK_EXCEPTION}
        network.is_down = False
        assert await router.send(MARKER, [THERE]) == {THERE: ErrorCode.NONE}
        await network.connections[-1].close()
        assert await router.send(MARKER, [THERE]) == {THERE: ErrorCode.NONE}
        assert len(network.connections) == 2


@pytest.mark.parametrize("brokers", [{1: 1}, {1: 1, 2: 5}])
async def test_a_request_to_a_broker_that_is_gone_or_was_started_again_ends_at_once(brokers: dict[int, int]) -> None:
    async def serve(request: Any) -> Any:
        await asyncio.sleep(3600)

    async with running_router(serve) as (router, _network, local, snapshot):
        sending = asyncio.create_task(router.send(MARKER, [THERE]))
        await asyncio.sleep(0.1)
        old, snapshot.current = snapshot.current, view_of({"web": (1, 1, 1)}, brokers)
        router.follow(old, snapshot.current)
        async with asyncio.timeout(0.1):
            assert await sending == {THERE: ErrorCode.NETWORK_EXCEPTION}
        assert await router.send(MARKER, [THERE]) == {THERE: ErrorCode.NONE}
        assert local.sent == [THERE], "it goes to the new leader"


async def test_a_cancelled_marker_is_not_sent() -> None:
    async def serve(request: Any) -> Any:
        await asyncio.sleep(1)
        return answered(request, ErrorCode.NONE)

    async with running_router(serve) as (router, network, *_):
        first = asyncio.create_task(router.send(MARKER, [THERE]))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(router.send(MARKER._replace(producer_id=8), [THERE]))
        await asyncio.sleep(0.1)
        second.cancel()
        await first
        await asyncio.sleep(5)
        assert [[marker.producer_id for marker in request.markers] for request in network.requests] == [[7]]


@pytest.mark.real_time("it depends on the order in which a loop runs callbacks")
async def test_an_item_that_is_queued_while_the_broker_stops_ends_its_wait() -> None:
    queues = BatchingQueues[int, int](cast("Any", None), lambda item: item)
    sending = asyncio.ensure_future(queues.send(2, 7))
    await asyncio.sleep(0)  # it is queued, and the task that sends it has not begun
    await queues.close()
    await asyncio.wait([sending], timeout=1)
    assert sending.cancelled()


@pytest.mark.simulated_time
async def test_a_broker_that_disappears_while_it_is_connected_to_fails_the_request() -> None:
    async def connect_to(node_id: int) -> Any:
        await asyncio.sleep(3600)

    channels = NodeChannels(connect_to)
    asking = asyncio.create_task(channels.request(2, ApiKey.WRITE_TXN_MARKERS, None))
    await asyncio.sleep(0.1)
    channels.follow(VIEW, view_of({}, {1: 1}))
    with pytest.raises(NetworkException):
        await asking
    await channels.close()


# ---- Verification

IDS = [f"id-{number}" for number in range(20)]
OURS = next(each for each in IDS if partition_of(each, 3) == 0)
THEIRS = [each for each in IDS if partition_of(each, 3) == 1]
NO_ONES = next(each for each in IDS if partition_of(each, 3) == 2)


class Coordinator:
    """The transaction coordinator of this broker."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def add_partitions(self, transactional_id: str, *args: Any, **kwargs: Any) -> ErrorCode:
        self.asked.append(transactional_id)
        return ErrorCode.NONE


@asynccontextmanager
async def running_verifier(
    serve: Callable[[Any], Awaitable[Any]], view: ClusterView | None = None
) -> AsyncIterator[tuple[Callable[..., Awaitable[ErrorCode]], Network, Coordinator]]:
    network, local = Network(serve), Coordinator()
    snapshot = Snapshot(view or view_of({TRANSACTIONS_TOPIC: (1, 2, -1)}, {1: 1, 2: 1}))
    router = AddPartitionsToTxnManager(
        lambda: cast("PartitionAdder", local), cast("Any", snapshot), node_id=1, connect_to=network.connect_to
    )

    def ask(transactional_id: str, *partitions: TopicPartition, verify_only: bool = False) -> Awaitable[ErrorCode]:
        return router.add_partitions(
            transactional_id,
            7,
            1,
            frozenset(partitions or (HERE, THERE)),
            client_version=TransactionVersion.TV_2,
            verify_only=verify_only,
        )

    yield ask, network, local
    await router.close()


def verified(request: adding.AddPartitionsToTxnRequest, error: ErrorCode) -> adding.AddPartitionsToTxnResponse:
    """Answer each partition of each transaction with this error."""
    return adding.AddPartitionsToTxnResponse(
        results_by_transaction=[
            adding.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=[
                    adding.AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            adding.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
                            for index in topic.partitions
                        ],
                    )
                    for topic in transaction.topics
                ],
            )
            for transaction in request.transactions
        ]
    )


async def test_the_coordinator_of_the_id_is_asked_wherever_it_is() -> None:
    async def serve(request: Any) -> Any:
        return verified(request, ErrorCode.NONE)

    async with running_verifier(serve) as (ask, network, local):
        assert await ask(OURS) is ErrorCode.NONE
        assert await ask(THEIRS[0], verify_only=True) is ErrorCode.NONE
        assert await ask(NO_ONES) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert local.asked == [OURS]
        ((sent,),) = [request.transactions for request in network.requests]
        assert (sent.transactional_id, sent.producer_id, sent.producer_epoch) == (THEIRS[0], 7, 1)
        assert sent.verify_only
        assert {topic.name: topic.partitions for topic in sent.topics} == {"web": [0, 1]}


async def test_before_the_topic_of_transactions_exists_the_own_coordinator_refuses() -> None:
    async with running_verifier(written, view_of({}, {1: 1, 2: 1})) as (ask, _network, local):
        await ask(THEIRS[0])
        assert local.asked == [THEIRS[0]]


async def test_verifications_share_requests_and_each_gets_its_own_result() -> None:
    async def serve(request: Any) -> Any:
        await asyncio.sleep(1)
        answer = verified(request, ErrorCode.NONE)
        for result in answer.results_by_transaction:
            if result.transactional_id == THEIRS[0]:
                errors = ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                for partition, error in zip(result.topic_results[0].results_by_partition, errors, strict=True):
                    partition.partition_error_code = error
        return answer

    async with running_verifier(serve) as (ask, network, _local):
        one, other = THEIRS[:2]
        results = await asyncio.gather(ask(one), ask(other), ask(one))
        sent = [[each.transactional_id for each in request.transactions] for request in network.requests]
        assert sorted(each for request in sent for each in request) == sorted([one, one, other])
        assert all(len(set(request)) == len(request) for request in sent)
        assert list(results) == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]


@pytest.mark.parametrize(
    ("failure", "error"),
    [(NetworkException(), ErrorCode.NETWORK_EXCEPTION), (RequestTimedOut(), ErrorCode.NETWORK_EXCEPTION)],
)
async def test_a_coordinator_that_does_not_respond_is_a_retriable_error(failure: Exception, error: ErrorCode) -> None:
    async def serve(request: Any) -> Any:
        raise failure

    async with running_verifier(serve) as (ask, _network, _local):
        assert await ask(THEIRS[0]) is error
