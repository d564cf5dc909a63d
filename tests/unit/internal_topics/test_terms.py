"""What a coordinator does with the terms of its partitions: loads, writes and answers belong to one leader epoch."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from ottla.core.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, ErrorCode, KafkaError, NotCoordinator
from ottla.core.ids import NO_TOPIC_ID, OFFSETS_TOPIC, TopicPartition
from ottla.groups.config import GroupConfig
from ottla.groups.coordinator import GroupCoordinator
from ottla.groups.machine import Commit
from ottla.groups.offsets import CommittedOffset
from ottla.groups.records import offset_pairs
from ottla.internal_topics.coordinator_partition import CoordinatorPartition
from ottla.internal_topics.topic_log import KeyValue, ProducerIdentity
from ottla.internal_topics.writer import QUEUE_BYTES_MAX, PartitionWriter
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from ottla.testing.sim_loop import SimClock
from tests.support.topic_logs import MemoryTopicLog

pytestmark = pytest.mark.simulated_time

WEB = TopicPartition("web", 0)
ALONE = Commit(member_id="", generation=-1)
NODE, ANOTHER = 1, 2
WEB_ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)


class OffsetsPartitionHarness:
    """The coordinator of one partition of `__consumer_offsets`, whose leaders the test elects."""

    def __init__(self) -> None:
        self.log = MemoryTopicLog()
        self.coordinator = GroupCoordinator(GroupConfig(), clock=SimClock(), log=self.log, node_id=NODE)
        self._view = ClusterView()
        self._topic_id = uuid.UUID(int=9)

    def elect(self, leader: int, epoch: int) -> None:
        """Change the leader: the replica follows, then the coordinator, in the same turn."""
        self.log.epoch, self.log.is_led = epoch, leader == NODE
        self.follow(leader, epoch)

    def follow(self, leader: int, epoch: int) -> None:
        part = PartitionView(0, leader, epoch, (1, 2), (1, 2), epoch)
        topic = TopicView(OFFSETS_TOPIC, self._topic_id, (part,), {}, 0, 0)
        old, self._view = self._view, self._view.with_topics({OFFSETS_TOPIC: topic})
        self.coordinator.follow(old, self._view)

    def set_topic(self, topic_id: uuid.UUID | None) -> None:
        """Give the topic `web` this id, or delete it."""
        part = PartitionView(0, NODE, 0, (1, 2), (1, 2), 0)
        topic = None if topic_id is None else TopicView("web", topic_id, (part,), {}, 0, 0)
        old, self._view = self._view, self._view.with_topics({"web": topic})
        self.coordinator.follow(old, self._view)

    async def loaded(self) -> None:
        await self.coordinator.led.wait_until_loaded()

    async def commit(self, offset: int) -> None:
        await self.coordinator.commit("team", ALONE, {WEB: CommittedOffset(offset)})

    def committed(self) -> int | None:
        found = self.coordinator.fetch("team").get(WEB)
        return None if found is None else found.offset

    def in_log(self) -> list[int]:
        """List the commits in the log, in order."""
        values = (CommittedOffset(offset) for offset in range(100))
        known = {offset_pairs("team", {WEB: value})[0]: value.offset for value in values}
        return [known[pair] for pair in self.log.records()]


@pytest.fixture
async def harness() -> AsyncIterator[OffsetsPartitionHarness]:
    harness = OffsetsPartitionHarness()
    harness.elect(NODE, 0)
    await harness.loaded()
    yield harness
    harness.log.replicated.set()
    await harness.coordinator.close()


def written_elsewhere(offset: int) -> list[KeyValue]:
    return offset_pairs("team", {WEB: CommittedOffset(offset)})


# ---- Loading


async def test_everything_to_the_end_of_the_log_is_loaded_and_shown_once_it_is_replicated(
    harness: OffsetsPartitionHarness,
) -> None:
    await harness.commit(1)
    harness.elect(ANOTHER, 1)
    harness.log.put(0, written_elsewhere(2))  # acknowledged there, above the high watermark that is known here
    harness.log.replicated.clear()
    harness.elect(NODE, 2)
    await asyncio.sleep(1)
    with pytest.raises(CoordinatorLoadInProgress):
        harness.committed()
    harness.log.replicated.set()
    await harness.loaded()
    assert harness.committed() == 2


async def test_a_load_waits_for_the_replica_that_does_not_lead_yet(harness: OffsetsPartitionHarness) -> None:
    harness.elect(ANOTHER, 1)
    harness.follow(NODE, 2)
    await asyncio.sleep(1)
    with pytest.raises(CoordinatorLoadInProgress):
        harness.committed()
    harness.log.put(0, written_elsewhere(7))
    harness.log.epoch, harness.log.is_led = 2, True
    await harness.loaded()
    assert harness.committed() == 7


async def test_a_term_that_ends_during_the_load_is_not_loaded(harness: OffsetsPartitionHarness) -> None:
    harness.elect(ANOTHER, 1)
    harness.log.replicated.clear()
    harness.elect(NODE, 2)
    await asyncio.sleep(0.1)
    harness.elect(ANOTHER, 3)
    harness.log.replicated.set()
    await asyncio.sleep(1)
    with pytest.raises(NotCoordinator):
        harness.committed()


# ---- Continuity


async def test_the_next_epoch_of_the_same_leader_keeps_the_state(harness: OffsetsPartitionHarness) -> None:
    await harness.commit(1)
    harness.elect(NODE, 1)
    assert harness.committed() == 1, "nothing is loaded again"
    await harness.commit(2)
    assert harness.in_log() == [1, 2]


async def test_a_write_in_flight_survives_the_change_to_the_next_epoch_of_the_same_leader(
    harness: OffsetsPartitionHarness,
) -> None:
    harness.log.replicated.clear()
    first = asyncio.create_task(harness.commit(1))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(harness.commit(2))
    await asyncio.sleep(0.1)
    harness.log.is_contiguous = True
    harness.elect(NODE, 1)
    harness.log.replicated.set()
    await asyncio.gather(first, second)
    assert harness.committed() == 2
    assert harness.in_log() == [1, 2]


async def test_another_end_of_the_log_ends_the_continuity(harness: OffsetsPartitionHarness) -> None:
    await harness.commit(1)
    harness.log.put(0, written_elsewhere(5))
    harness.elect(NODE, 1)
    with pytest.raises(CoordinatorLoadInProgress):
        harness.committed()
    await harness.loaded()
    assert harness.committed() == 5


async def test_a_term_of_another_leader_in_between_ends_the_continuity(harness: OffsetsPartitionHarness) -> None:
    """Leadership may go away and come back between two snapshots that this broker sees."""
    await harness.commit(1)
    batch = harness.log.batches[0].pop()  # another leader had a log of the same length with other records
    harness.log.batches[0].append(batch._replace(records=written_elsewhere(5)))
    harness.elect(NODE, 2)
    with pytest.raises(CoordinatorLoadInProgress):
        harness.committed()
    await harness.loaded()
    assert harness.committed() == 5


async def test_a_topic_made_again_ends_the_continuity(harness: OffsetsPartitionHarness) -> None:
    await harness.commit(1)
    harness.log.batches[0].clear()
    harness._topic_id = uuid.UUID(int=10)
    harness.elect(NODE, 0)
    await harness.loaded()
    assert harness.committed() is None


# ---- Writing


async def test_a_write_that_was_queued_in_an_earlier_term_does_not_reach_the_log(
    harness: OffsetsPartitionHarness,
) -> None:
    harness.log.replicated.clear()
    in_flight = asyncio.create_task(harness.commit(1))
    await asyncio.sleep(0.1)
    queued = asyncio.create_task(harness.commit(2))
    await asyncio.sleep(0.1)
    harness.elect(ANOTHER, 1)
    harness.log.put(0, written_elsewhere(50))
    harness.elect(NODE, 2)
    harness.log.replicated.set()
    for refused in (in_flight, queued):
        with pytest.raises(NotCoordinator):
            await refused
    await harness.loaded()
    assert harness.in_log() == [1, 50]
    assert harness.committed() == 50, "a newer commit is not overwritten by a refused one"


async def test_a_writer_appends_in_its_own_epoch_only() -> None:
    log, results = MemoryTopicLog(), list[ErrorCode]()
    writer = PartitionWriter(log, 0, 3)
    writer.begin(0)
    log.epoch = 4
    writer.write([(b"key", b"value")], results.append)
    await writer.close()
    assert results == [ErrorCode.FENCED_LEADER_EPOCH]
    assert log.records() == []


async def test_writes_to_a_full_queue_fail_so_that_clients_try_again_and_leave_nothing(
    harness: OffsetsPartitionHarness,
) -> None:
    harness.log.replicated.clear()  # the in-sync replicas are too few
    results: list[int | KafkaError] = []

    async def commit(offset: int) -> None:
        try:
            await harness.coordinator.commit("team", ALONE, {WEB: CommittedOffset(offset, metadata="m" * 4000)})
            results.append(offset)
        except KafkaError as error:
            results.append(error)

    fits = QUEUE_BYTES_MAX // 4000
    commits = [asyncio.create_task(commit(offset)) for offset in range(2 * fits)]
    await asyncio.sleep(1)
    refused = [each for each in results if isinstance(each, CoordinatorNotAvailable)]
    assert refused == results
    assert fits < len(refused) < 2 * fits
    harness.log.replicated.set()
    await asyncio.gather(*commits)
    assert len(results) == len(commits)
    assert [each for each in results if isinstance(each, KafkaError)] == refused
    assert harness.committed() in results
    assert not harness.coordinator.fetch("team").in_flight, "no refused write is pending"
    await harness.commit(3)
    assert harness.committed() == 3


async def test_a_batch_that_is_not_in_memory_makes_the_coordinator_load_again(harness: OffsetsPartitionHarness) -> None:
    await harness.commit(1)
    harness.log.put(0, offset_pairs("other", {WEB: CommittedOffset(7)}))
    with pytest.raises(NotCoordinator):
        await harness.commit(2)
    with pytest.raises(CoordinatorLoadInProgress):
        harness.committed()
    await asyncio.sleep(0.1)
    assert harness.committed() == 2, "it is in the log, so the load decides it"
    assert harness.coordinator.fetch("other").get(WEB) == CommittedOffset(7)
    await harness.commit(3)


async def test_a_marker_in_the_log_is_no_difference_from_memory(harness: OffsetsPartitionHarness) -> None:
    await harness.commit(1)
    harness.coordinator.marker_appended(0, harness.log.end_transaction(0, ProducerIdentity(7, 0), commits=True))
    await harness.commit(2)
    assert harness.committed() == 2


async def test_a_write_that_timed_out_is_decided_by_the_log(harness: OffsetsPartitionHarness) -> None:
    await harness.commit(1)
    harness.log.replicated.clear()
    with pytest.raises(KafkaError) as failure:
        await harness.commit(2)
    assert failure.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.committed() == 1
    harness.log.replicated.set()
    await asyncio.sleep(0.1)
    assert harness.committed() == 2


async def test_a_marker_that_waits_for_a_load_fails_when_the_term_ends(harness: OffsetsPartitionHarness) -> None:
    """The transaction coordinator sends it again, to the leader of then."""
    harness.log.replicated.clear()
    harness.elect(ANOTHER, 1)
    harness.elect(NODE, 2)
    await asyncio.sleep(0.1)
    marker = asyncio.create_task(harness.coordinator.complete_transaction(0, 7, commit=True))
    await asyncio.sleep(0.1)
    assert not marker.done()
    harness.elect(ANOTHER, 3)
    async with asyncio.timeout(1):
        with pytest.raises(NotCoordinator):
            await marker


async def test_a_request_that_was_prepared_while_the_term_ended_is_refused(harness: OffsetsPartitionHarness) -> None:
    await harness.commit(1)
    shard = harness.coordinator.led.shard(0)
    assert shard is not None
    runtime = shard.find("team")
    assert runtime is not None
    harness.elect(ANOTHER, 1)
    with pytest.raises(NotCoordinator):
        await runtime.ask(ALONE)


# ---- Deleted topics


@pytest.mark.parametrize("present", [None, OTHER_ID])
async def test_an_offset_of_a_topic_that_was_deleted_in_another_term_is_deleted(
    harness: OffsetsPartitionHarness, present: uuid.UUID | None
) -> None:
    harness.set_topic(WEB_ID)
    for group_id, topic_id in (("team", WEB_ID), ("newer", OTHER_ID), ("old", NO_TOPIC_ID)):
        await harness.coordinator.commit(group_id, ALONE, {WEB: CommittedOffset(5, topic_id=topic_id)})
    harness.elect(ANOTHER, 1)
    harness.set_topic(None)
    await asyncio.sleep(0.1)
    harness.set_topic(present)
    harness.elect(NODE, 2)
    await harness.loaded()
    await asyncio.sleep(0.1)
    assert harness.committed() is None
    assert (harness.coordinator.fetch("newer").get(WEB) is not None) == (present == OTHER_ID)
    assert harness.coordinator.fetch("old").get(WEB) is not None, "it is not known of which topic it is"


async def test_a_topic_that_is_deleted_and_made_again_in_one_snapshot_has_no_offsets(
    harness: OffsetsPartitionHarness,
) -> None:
    harness.set_topic(WEB_ID)
    await harness.coordinator.commit("team", ALONE, {WEB: CommittedOffset(5, topic_id=WEB_ID)})
    harness.set_topic(OTHER_ID)
    await asyncio.sleep(0.1)
    assert harness.committed() is None
    await harness.coordinator.commit("team", ALONE, {WEB: CommittedOffset(1, topic_id=OTHER_ID)})
    assert harness.committed() == 1


# ---- Unloading


async def test_a_request_after_the_term_is_refused_before_the_coordinator_follows(
    harness: OffsetsPartitionHarness,
) -> None:
    await harness.commit(1)
    harness.log.is_led = False  # the replica has followed, the coordinator has not
    with pytest.raises(NotCoordinator):
        harness.committed()


async def test_a_waiting_request_is_refused_in_the_turn_in_which_the_leader_changes(
    harness: OffsetsPartitionHarness,
) -> None:
    shard = harness.coordinator.led.shard(0)
    assert shard is not None
    partition = shard._partition
    assert isinstance(partition, CoordinatorPartition)
    harness.elect(ANOTHER, 1)
    assert not partition.is_open
    with pytest.raises(NotCoordinator):
        shard.check_ready()


async def test_commits_queued_at_a_clean_stop_are_still_written(harness: OffsetsPartitionHarness) -> None:
    commits = [asyncio.create_task(harness.commit(offset)) for offset in (1, 2, 3)]
    await asyncio.sleep(0)
    harness.log.replicated.clear()
    closing = asyncio.create_task(harness.coordinator.close())
    await asyncio.sleep(0.1)
    harness.log.replicated.set()
    await closing
    await asyncio.gather(*commits, return_exceptions=True)
    assert set(harness.in_log()) == {1, 2, 3}
