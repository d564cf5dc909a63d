"""A broker with many partitions: what it does in one turn of the event loop, counted in partitions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from ottla.core.error_codes import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.core.slices import SLICE_WORK
from ottla.metadata_store.cluster_view import BrokerInfo, ClusterView, PartitionView, TopicView
from ottla.replication.fetcher import NAMES_MAX, PARTITION_BACKOFF_MIN_S
from ottla.replication.isr_proposal_queue import IsrChange, Outcome
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.replication.view_changes import APPLY_WORK
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import SimDisk
from ottla.testing.sim_executor import SimExecutor
from ottla.wire.generated.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tests.support.async_tests import setup_of
from tests.support.replicas import TOPIC_ID
from tests.support.storage import StillClock, batch, open_directories
from tests.unit.replication.test_fetcher import Leader, LeaderConnection

pytestmark = pytest.mark.simulated_time

PARTITIONS = 1_100
assert PARTITIONS > 4 * NAMES_MAX
assert PARTITIONS > 2 * SLICE_WORK


class Peer:
    """The other broker: it answers that there is nothing to fetch, and takes proposals without an answer."""

    def __init__(self) -> None:
        self.requests: list[FetchRequest] = []

    async def connect(self, node_id: int) -> Any:
        return LeaderConnection(cast("Leader", self))

    async def answer(self, request: FetchRequest, named: asyncio.Event) -> FetchResponse:
        self.requests.append(request)
        if request.session_epoch > 0:  # nothing new: wait, or until the next request comes
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(named.wait(), request.max_wait_ms / 1000)
        return FetchResponse(session_id=7)

    async def send(self, changes: Sequence[IsrChange]) -> Sequence[Outcome]:
        await asyncio.sleep(3600)
        raise AssertionError


def view_of(partitions: Sequence[PartitionView]) -> ClusterView:
    view = ClusterView(brokers={node: BrokerInfo(node, {}, None, 0, {}) for node in (1, 2)}, number=1)
    return view.with_topics({"t": TopicView("t", TOPIC_ID, tuple(partitions), {}, 0, -1)})


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
async def replicas(request: pytest.FixtureRequest, clock: StillClock) -> Replicas:
    """The replicas of broker 2, which has all partitions of a topic; broker 1 has them, too, and one of the two leads."""
    replicas = Replicas(
        open_directories(SimDisk()),
        node_id=2,
        defaults=LogConfig(),
        clock=clock,
        make_executor=lambda name, post: SimExecutor(lambda job: 0.001),
    )
    leader = setup_of(request)["leader"]
    partitions = tuple(
        PartitionView(index, leader, leader_epoch=0, replicas=(1, 2), isr=(1, 2), partition_epoch=0)
        for index in range(PARTITIONS)
    )
    waiting = replicas.follow(ClusterView(), view_of(partitions))
    assert waiting is not None
    await waiting
    return replicas


@pytest.mark.setup(leader=1)
async def test_a_session_of_many_partitions_is_named_in_several_requests(replicas: Replicas) -> None:
    peer = Peer()
    replicas.start_replication(peer.connect, peer)
    await asyncio.sleep(0.1)
    counts = [sum(len(topic.partitions) for topic in request.topics) for request in peer.requests]
    named = [each.partition for request in peer.requests for topic in request.topics for each in topic.partitions]
    assert max(counts) == NAMES_MAX
    assert sorted(named) == list(range(PARTITIONS)), "each is named once"
    assert [request.session_epoch for request in peer.requests] == list(range(len(peer.requests)))


@pytest.mark.setup(leader=1)
async def test_a_session_is_fetched_if_the_first_partitions_cannot_be_named(replicas: Replicas) -> None:
    peer = Peer()
    replicas.start_replication(peer.connect, peer)
    fetchers = replicas._fetchers
    assert fetchers is not None
    (fetcher,) = fetchers._fetchers.values()
    for each in list(fetcher._partitions.values())[: 2 * NAMES_MAX + 1]:
        each.is_paused = True
    await asyncio.sleep(0.1)
    named = [each.partition for request in peer.requests for topic in request.topics for each in topic.partitions]
    assert sorted(named) == list(range(2 * NAMES_MAX + 1, PARTITIONS))


@pytest.mark.setup(leader=1)
async def test_a_refused_partition_is_named_again_although_its_leader_has_sent_a_high_watermark_meanwhile(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader may have begun to lead it, but knows the position only from a request that it does not refuse."""

    class SlowLeader(Peer):
        async def answer(self, request: FetchRequest, named: asyncio.Event) -> FetchResponse:
            await asyncio.sleep(PARTITION_BACKOFF_MIN_S * 2)  # the others are named later than the back-off ends
            response = await super().answer(request, named)
            if len(self.requests) <= 2:
                code = ErrorCode.UNKNOWN_LEADER_EPOCH if len(self.requests) == 1 else ErrorCode.NONE
                data = [PartitionData(partition_index=index, error_code=code) for index in range(NAMES_MAX)]
                response.responses = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=data)]
            return response

    caplog.set_level(logging.INFO)
    peer = SlowLeader()
    replicas.start_replication(peer.connect, peer)
    await asyncio.sleep(60)
    named = [each.partition for request in peer.requests for topic in request.topics for each in topic.partitions]
    assert sorted(named) == sorted([*range(PARTITIONS), *range(NAMES_MAX)])
    assert "does not serve" not in caplog.text, "it was for a moment"


@pytest.mark.setup(leader=2)
async def test_a_diverging_replica_ignores_the_high_watermark_of_a_later_answer_until_it_is_truncated(
    replicas: Replicas, clock: StillClock
) -> None:
    """The answer does not compare its log with the leader's: records that it has to remove would count as replicated."""
    diverging = range(NAMES_MAX, 2 * NAMES_MAX)  # each is truncated in a turn of its own, the last one long after

    class LeaderOfTheNextTerm(Peer):
        async def answer(self, request: FetchRequest, named: asyncio.Event) -> FetchResponse:
            response = await super().answer(request, named)
            if request.session_epoch == 1:
                data = [
                    PartitionData(partition_index=index, diverging_epoch=EpochEndOffset(epoch=0, end_offset=0))
                    for index in diverging
                ]
            elif request.session_epoch == 2:
                data = [PartitionData(partition_index=diverging[-1], high_watermark=2, log_start_offset=0)]
            else:
                return response
            response.responses = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=data)]
            return response

    partition = replicas.partitions[TopicPartition("t", diverging[-1])]
    partition.append_as_leader(batch(b"not", b"replicated"), acks=1, now_ms=clock.wall_ms())
    await asyncio.sleep(0.1)
    before = replicas._view.topics["t"].partitions
    after = [replace(each, leader=1, leader_epoch=1, partition_epoch=1) for each in before]
    waiting = replicas.follow(view_of(before), view_of(after))
    assert waiting is not None
    await waiting
    assert partition.durable_end == 2
    peer = LeaderOfTheNextTerm()
    replicas.start_replication(peer.connect, peer)
    await asyncio.sleep(1)
    assert partition.high_watermark == 0
    assert partition.log.end_offset == 0
    assert partition.next_fetch() is not None, "the replica follows its leader"
    named = [each.partition for request in peer.requests for topic in request.topics for each in topic.partitions]
    assert named.count(diverging[-1]) == 2


@pytest.mark.setup(leader=2)
async def test_the_in_sync_replicas_of_many_partitions_are_checked_in_slices(
    replicas: Replicas, clock: StillClock
) -> None:
    peer, waiting = Peer(), replicas.context.isr_changes._waiting
    for topic_partition in replicas.partitions:
        replicas.context.lagging[topic_partition] = None
    clock.now_ms += 60_000
    replicas.start_replication(peer.connect, peer)
    proposed = [0]
    while proposed[-1] < PARTITIONS:
        await asyncio.sleep(0)
        proposed.append(len(waiting))
        assert len(proposed) < 100
    assert max(after - before for before, after in itertools.pairwise(proposed)) <= SLICE_WORK


@pytest.mark.setup(leader=2)
async def test_a_checkpoint_of_many_partitions_is_begun_in_slices(replicas: Replicas) -> None:
    (directory,) = replicas.directories.online
    turns = 0
    job = asyncio.ensure_future(replicas._begin_checkpoint(directory))
    while not job.done():
        await asyncio.sleep(0)
        turns += 1
        assert turns < 100
    assert turns > PARTITIONS // SLICE_WORK
    assert len((await job)._contents["recovery-point-offset-checkpoint"]) == PARTITIONS


@pytest.mark.setup(leader=1)
async def test_the_next_states_of_many_replicas_are_applied_several_in_a_slice(replicas: Replicas) -> None:
    before = replicas._view.topics["t"].partitions
    after = [replace(each, leader=2, leader_epoch=1, partition_epoch=1) for each in before]
    waiting = replicas.follow(view_of(before), view_of(after))
    assert waiting is not None
    applying = asyncio.ensure_future(waiting)
    leading = [0]
    while leading[-1] < PARTITIONS:
        await asyncio.sleep(0)
        leading.append(sum(each.leader_epoch == 1 for each in replicas.partitions.values()))
    await applying
    steps = [after - before for before, after in itertools.pairwise(leading) if after > before]
    assert max(steps) <= SLICE_WORK // APPLY_WORK
    assert len(steps) <= 2 * PARTITIONS * APPLY_WORK // SLICE_WORK


@pytest.mark.setup(leader=2)
async def test_checkpoints_that_are_wanted_at_the_same_time_do_not_overtake_each_other(replicas: Replicas) -> None:
    wanted, noting = [TopicPartition("t", 0)], []
    (directory,) = replicas.directories.online
    before = directory._newest_checkpoint[0]
    for _ in range(3):
        noting.append(asyncio.ensure_future(replicas.note_log_starts(wanted)))
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*noting), 60)
    assert directory._newest_checkpoint[0] - before == 2, "those that come during the first one share another"


@pytest.mark.plain_form("patches a method of Partition, so that it fails after it has done its work")
@pytest.mark.setup(leader=1)
async def test_a_partition_to_which_a_decision_cannot_be_applied_is_out_of_service_and_the_others_follow(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Partition.apply

    def apply_and_fail(self: Partition, view: PartitionView) -> None:
        real(self, view)
        if self.topic_partition.partition == 3:
            raise AssertionError("planted")

    old = [PartitionView(index, 1, 0, (1, 2), (1, 2), 0) for index in range(PARTITIONS)]
    new = [replace(part, leader=2, leader_epoch=1, partition_epoch=1) for part in old]
    monkeypatch.setattr(Partition, "apply", apply_and_fail)
    waiting = replicas.follow(view_of(old), view_of(new))
    assert waiting is not None
    await waiting
    broken = replicas.partitions[TopicPartition("t", 3)]
    assert broken.failed is not None
    assert replicas.contradictory_partitions == {TopicPartition("t", 3)}, "the controller chooses another leader"
    serving = [part.topic_partition.partition for part in replicas.partitions.values() if part.is_serving]
    assert serving == [index for index in range(PARTITIONS) if index != 3]
