"""Three replicas of a partition: high watermark, in-sync replicas, terms and truncation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ottla.core.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    KafkaError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StorageError,
    UnknownLeaderEpoch,
)
from ottla.metadata_store.znodes import Impairment, ReplicaReport
from ottla.replication.follower_state import FetchState
from ottla.replication.isr_proposal_queue import AlteredPartition
from ottla.replication.throttle import ReplicationQuota
from ottla.storage.config import LogConfig
from ottla.storage.state.leader_epochs import EpochEnd
from ottla.testing.sim_disk import Survival
from tests.support.replicas import Trio, changed, view
from tests.support.storage import TP
from tests.support.waiting import Woken

LAG_MS = 30_000


def with_trio(config: LogConfig | None = None, *, count: int = 3) -> Callable[[Callable[[Trio], None]], None]:
    """Run a scenario within a loop: the group commit needs one."""

    def run(scenario: Callable[[Trio], None]) -> None:
        async def main() -> None:
            scenario(Trio(config, count=count))

        asyncio.run(main())

    return run


# ---- High watermark


def test_a_record_is_replicated_once_it_is_durable_on_all_in_sync_replicas() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        acked: list[int] = []
        trio[1].produce(b"a", acked=acked.append)
        for follower in (2, 3):
            trio[follower].fetch(trio[1])
        trio[1].flush()
        for follower in (2, 3):
            assert trio[follower].fetch(trio[1]) is None, "it may not fetch before its flush"
        trio[2].flush()
        trio[2].fetch(trio[1])
        assert (trio[1].partition.high_watermark, acked) == (0, [])
        trio[3].flush()
        trio[3].fetch(trio[1])
        assert (trio[1].partition.high_watermark, acked) == (1, [0])


def test_the_leader_counts_its_own_log_only_as_far_as_it_is_flushed() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        for follower in (2, 3):
            trio[follower].fetch(trio[1])
            trio[follower].flush()
            trio[follower].fetch(trio[1])
        assert trio[1].partition.high_watermark == 0
        trio[1].flush()
        assert trio[1].partition.high_watermark == 1


def test_with_page_cache_nothing_waits_for_a_flush() -> None:
    @with_trio(LogConfig(durability="page-cache"))
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        for _ in range(2):
            for follower in (2, 3):
                trio[follower].fetch(trio[1])
        assert [trio[each].partition.high_watermark for each in (1, 2, 3)] == [1, 0, 1]
        trio[2].fetch(trio[1])
        assert trio[2].partition.high_watermark == 1


def test_a_restarted_leader_starts_from_the_checkpointed_high_watermark_and_waits_for_its_followers() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        trio[1].produce(b"b")
        trio[1].flush()
        trio[1].directory.checkpoint()
        trio[1].crash(random.Random(1), Survival.LOST)
        trio[1].start(view(1, 1), trio.brokers)
        assert (trio[1].log.end_offset, trio[1].partition.high_watermark) == (2, 1)
        trio.apply(view(1, 1), 2, 3)
        trio.replicate()
        assert trio[1].partition.high_watermark == 2


def test_the_high_watermark_waits_for_a_member_that_has_not_fetched_in_this_term() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        trio.apply(view(2, 1))
        trio[2].produce(b"b")
        trio[2].flush()
        trio[3].catch_up(trio[2])
        assert trio[2].partition.high_watermark == 1
        trio[1].catch_up(trio[2])
        assert trio[2].partition.high_watermark == 2


def test_the_high_watermark_does_not_pass_what_fewer_than_min_insync_replicas_have() -> None:
    @with_trio(LogConfig(min_insync_replicas=2))
    def _(trio: Trio) -> None:
        trio.apply(view(1, 0, isr=(1,), partition_epoch=1))
        with pytest.raises(NotEnoughReplicas):
            trio[1].produce(b"a")
        trio[1].produce(b"a", acks=1)
        trio[1].flush()
        assert trio[1].partition.high_watermark == 0
        trio[1].partition.reconfigure(replace(trio.config, min_insync_replicas=1))
        assert trio[1].partition.high_watermark == 1


def test_min_insync_replicas_asks_for_no_more_replicas_than_there_are_without_those_being_added() -> None:
    @with_trio(LogConfig(min_insync_replicas=3), count=2)
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        assert trio[1].partition.high_watermark == 1
        trio.apply(view(1, 0, isr=(1, 2), replicas=(1, 2, 3), adding=(3,), partition_epoch=1))
        trio.produce_to(b"b", 2)
        assert trio[1].partition.high_watermark == 2


def leave_out(trio: Trio) -> None:
    """Leave broker 3, which has everything, outside of the in-sync replicas: the controller refuses to add it."""
    trio[1].produce(b"a")
    trio.replicate()
    trio.apply(view(1, 0, isr=(1, 2), partition_epoch=1))
    change = trio[1].proposed()
    assert change is not None
    trio[1].partition.isr_change_decided(change, IneligibleReplica())


def test_a_caught_up_replica_that_may_join_holds_the_high_watermark_even_outside_of_the_isr() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        leave_out(trio)
        trio.produce_to(b"b", 2)
        assert trio[1].partition.high_watermark == 1
        trio.clock.now_ms += LAG_MS + 1
        trio[2].fetch(trio[1])
        trio.produce_to(b"c", 2)
        assert trio[1].partition.high_watermark == 3, "it is no longer waited for"


@pytest.mark.parametrize("dies", [True, False])
def test_acknowledgements_do_not_wait_for_another_record_once_a_replica_outside_of_the_isr_is_silent(
    dies: bool,
) -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        leave_out(trio)
        acked: list[int] = []
        trio[1].produce(b"b", acked=acked.append)
        trio[1].flush()
        trio[2].catch_up(trio[1])
        trio[1].partition.check_followers()
        assert not acked
        if dies:
            trio[1].knows({1: 0, 2: 0})
        else:
            trio.clock.now_ms += LAG_MS + 1
            trio[2].fetch(trio[1])
        trio[1].partition.check_followers()
        assert acked == [1]


def test_a_follower_whose_topic_becomes_durable_flushes_before_it_fetches_again() -> None:
    @with_trio(LogConfig(durability="page-cache"))
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio[2].fetch(trio[1])
        assert trio[2].partition.next_fetch() is not None
        trio[2].partition.reconfigure(LogConfig())
        assert trio[2].partition.next_fetch() is None
        trio[2].flush()
        assert trio[2].partition.next_fetch() is not None


# ---- The leader's checks of a fetch


def test_checks_of_a_replica_fetch() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.apply(view(1, 1))
        trio.replicate()
        position = trio[2].partition.next_fetch()
        assert position is not None

        def error(**changes: int) -> object:
            answer, _ = trio[1].serve(trio[2], changed(position, **changes))
            return type(answer)

        assert error(leader_epoch=0) is FencedLeaderEpoch
        assert error(leader_epoch=2) is UnknownLeaderEpoch
        assert error(last_fetched_epoch=5) is OffsetOutOfRange
        assert error(fetch_offset=7, last_fetched_epoch=-1) is OffsetOutOfRange
        assert error(fetch_offset=7, last_fetched_epoch=0) is EpochEnd
        trio[1].log.delete_records(1)
        assert error(fetch_offset=0) is OffsetOutOfRange
        trio[1].knows({1: 0, 2: 5, 3: 0})
        assert error() is NotLeaderOrFollower
        trio[1].knows(trio.brokers)
        trio.apply(view(1, 1, replicas=(1, 3), isr=(1, 3), partition_epoch=101), 1)
        assert error() is UnknownLeaderEpoch
        trio.apply(view(3, 2), 1)
        with pytest.raises(NotLeaderOrFollower) as refused:
            trio[1].partition.check_serving()
        assert (refused.value.leader_id, refused.value.leader_epoch) == (3, 2)
        with pytest.raises(FencedLeaderEpoch) as fenced:
            trio[1].partition.check_serving(1)
        assert (fenced.value.leader_id, fenced.value.leader_epoch) == (3, 2)


def test_a_diverging_fetch_changes_nothing() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio.produce_to(b"a", 3)
        position = trio[2].partition.next_fetch()
        assert position is not None
        answer, _ = trio[1].serve(trio[2], changed(position, fetch_offset=9, last_fetched_epoch=0))
        assert answer == EpochEnd(0, 1)
        assert trio[1].partition.high_watermark == 0


# ---- The in-sync replicas


def decide(trio: Trio, isr: tuple[int, ...] | None = None, *, partition_epoch: int = 1) -> None:
    """Have the controller accept what the leader has proposed."""
    leader = trio[1]
    change = leader.proposed()
    assert change is not None
    leader.context.isr_changes.withdraw(TP)
    members = isr or tuple(node_id for node_id, _ in change.new_isr)
    outcome = AlteredPartition(1, change.leader_epoch, members, is_recovering=False, partition_epoch=partition_epoch)
    leader.partition.isr_change_decided(change, outcome)


def test_a_follower_that_lags_leaves_and_counts_until_that_is_committed() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        trio.produce_to(b"b", 2)
        trio[1].partition.check_isr()
        assert trio[1].proposed() is None
        trio.clock.now_ms += LAG_MS + 1
        trio[2].fetch(trio[1])
        trio[1].partition.check_isr()
        change = trio[1].proposed()
        assert change is not None
        assert change.new_isr == ((1, 0), (2, 0))
        trio.produce_to(b"c", 2)
        assert trio[1].partition.high_watermark == 1, "a pending removal counts"
        decide(trio)
        assert trio[1].partition.isr == (1, 2)
        assert trio[1].partition.high_watermark == 3


def test_an_idle_partition_removes_no_follower_and_its_first_record_gives_followers_the_whole_lag_time() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        trio.clock.now_ms += 100 * LAG_MS
        trio[1].partition.check_isr()
        assert trio[1].proposed() is None
        assert not trio[1].context.lagging
        trio[1].produce(b"b")
        trio[1].partition.check_isr()
        assert trio[1].proposed() is None
        trio.clock.now_ms += LAG_MS + 1
        trio[1].partition.check_isr()
        change = trio[1].proposed()
        assert change is not None
        assert change.new_isr == ((1, 0),)


def test_a_replica_joins_when_it_has_reached_the_high_watermark_and_the_start_of_the_term() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        trio.produce_to(b"b", 2)
        trio.clock.now_ms += LAG_MS + 1
        trio.apply(view(1, 0, isr=(1, 2), partition_epoch=1))
        assert trio[1].partition.high_watermark == 2
        trio[3].fetch(trio[1])
        assert trio[1].proposed() is None
        trio[3].flush()
        trio[3].fetch(trio[1])
        change = trio[1].proposed()
        assert change is not None
        assert change.new_isr == ((1, 0), (2, 0), (3, 0))
        trio.produce_to(b"c", 2)
        assert trio[1].partition.high_watermark == 2, "a pending member counts"
        decide(trio, partition_epoch=2)
        trio[3].catch_up(trio[1])
        assert trio[1].partition.high_watermark == 3


def test_records_between_a_stale_high_watermark_and_the_start_of_the_term_must_be_there_to_join() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.produce_to(b"b", 2)
        trio[2].flush()
        assert trio[2].partition.high_watermark == 0
        trio.apply(view(2, 1, isr=(1, 2)))
        trio[3].fetch(trio[2], max_bytes=1)
        trio[3].flush()
        trio[3].fetch(trio[2], max_bytes=1)
        assert trio[2].proposed() is None, "it has the records below the stale watermark only"
        trio[3].flush()
        trio[3].fetch(trio[2])
        assert trio[2].proposed() is not None


def test_a_replica_of_a_broker_that_started_again_or_shuts_down_does_not_join() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio.apply(view(1, 0, isr=(1, 2), partition_epoch=1))
        trio[1].knows({1: 0, 2: 0})
        trio[3].catch_up(trio[1])
        assert trio[1].proposed() is None
        trio[1].knows({1: 0, 2: 0, 3: 4})
        trio[1].partition.check_isr()
        assert trio[1].proposed() is None
        trio[3].broker_epoch = 4
        info = trio[1].context.brokers[3]
        trio[1].context.brokers = {**trio[1].context.brokers, 3: info._replace(is_shutting_down=True)}
        trio[3].fetch(trio[1])
        assert trio[1].proposed() is None
        trio[1].knows({1: 0, 2: 0, 3: 4})
        trio[1].partition.check_isr()
        change = trio[1].proposed()
        assert change is not None
        assert change.new_isr == ((1, 0), (2, -1), (3, 4))


def test_an_impaired_replica_neither_joins_nor_is_waited_for_unless_its_leader_is_impaired_too() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        full = ReplicaReport(True, impaired={Impairment.FULL: frozenset({TP})})
        trio.apply(view(1, 0, isr=(1, 2), partition_epoch=1))
        trio[1].context.reports = {3: full}
        trio[3].catch_up(trio[1])
        assert trio[1].proposed() is None
        trio[1].produce(b"a record")
        trio[1].flush()
        trio[2].catch_up(trio[1])
        assert trio[1].partition.high_watermark == 1, "it was caught up a moment ago, but may not join"
        trio[1].context.reports = dict.fromkeys((1, 2, 3), full)
        trio[3].catch_up(trio[1])
        assert trio[1].proposed() is not None


@pytest.mark.parametrize("goes_back", [True, False])
def test_a_refused_change_goes_back_to_the_committed_isr_and_a_stale_one_stays_pending(goes_back: bool) -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio.apply(view(1, 0, isr=(1, 2), partition_epoch=1))
        trio[3].catch_up(trio[1])
        change, state = trio[1].proposed(), trio[1].partition.leader_state
        assert change is not None
        assert state is not None
        error: KafkaError = IneligibleReplica() if goes_back else FencedLeaderEpoch()
        trio[1].partition.isr_change_decided(change, error)
        assert state.maximal_isr == ((1, 2) if goes_back else (1, 2, 3))
        trio.apply(view(1, 0, isr=(1, 2, 3), partition_epoch=2))
        assert (state.maximal_isr, state.pending) == ((1, 2, 3), None)


def test_the_answer_to_a_change_counts_before_the_snapshot_and_an_older_snapshot_does_not() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio.apply(view(1, 0, isr=(1, 2), partition_epoch=1))
        trio[3].catch_up(trio[1])
        decide(trio, partition_epoch=3)
        trio.apply(view(1, 0, isr=(1, 2), partition_epoch=2))
        assert trio[1].partition.isr == (1, 2, 3)


def test_a_leader_of_an_unclean_election_reports_that_it_has_recovered() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio.apply(view(1, 1, isr=(1,), is_recovering=True))
        change = trio[1].proposed()
        assert change is not None
        assert (change.new_isr, change.is_recovering) == (((1, 0),), False)


# ---- Terms


def test_waiters_fail_when_leadership_is_lost_and_are_kept_in_a_term_that_continues() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        heard: list[BaseException | None] = []
        for _ in range(2):
            last = trio[1].produce(b"a")
            trio[1].partition.waiters.add(last + 1, Woken(heard.append), None)
        trio.apply(view(1, 1))
        assert heard == []
        trio.apply(view(2, 2))
        assert [type(each) for each in heard] == [NotLeaderOrFollower] * 2


def test_a_term_that_does_not_continue_the_last_one_forgets_followers_and_fails_waiters() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        heard: list[BaseException | None] = []
        last = trio[1].produce(b"a")
        trio[1].partition.waiters.add(last + 1, Woken(heard.append), None)
        trio[1].flush()
        for follower in (2, 3):
            trio[follower].fetch(trio[1])
        trio[1].partition.apply(view(1, 5))
        assert [type(each) for each in heard] == [NotLeaderOrFollower]
        state = trio[1].partition.leader_state
        assert state is not None
        assert [each.end_offset for each in state.followers.values()] == [-1, -1]


def test_an_older_view_changes_nothing() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio.apply(view(1, 3, isr=(1, 2)))
        trio.apply(view(2, 2))
        trio.apply(view(1, 3, isr=(1, 2, 3), partition_epoch=7))
        assert (trio[1].partition.leader, trio[1].partition.isr) == (1, (1, 2))


# ---- Truncation


def test_a_follower_removes_what_an_earlier_leader_did_not_replicate() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        trio[1].produce(b"lost")
        trio[1].flush()
        trio.apply(view(2, 1))
        trio[2].produce(b"b")
        trio.replicate()
        assert trio[1].values() == trio[2].values() == trio[3].values() == [(0, b"a"), (1, b"b")]
        assert trio[1].log.epochs.entries == trio[2].log.epochs.entries


def test_a_term_without_records_does_not_make_a_follower_diverge_for_ever() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        trio.apply(view(3, 1), 3)  # the others never learn of this term
        trio.apply(view(2, 2))
        assert trio[3].log.epochs.latest == 1
        trio[2].produce(b"b")
        trio.replicate()
        assert trio[3].values() == trio[2].values()
        assert trio[3].log.epochs.entries == trio[2].log.epochs.entries


def test_two_quick_failovers_leave_no_divergent_record() -> None:
    """KIP-279: an answer with an epoch that the follower does not know is followed by another comparison."""

    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        trio[1].produce(b"x")  # epoch 0, only here
        trio.apply(view(2, 1, isr=(2, 3)), 2, 3)
        trio[2].produce(b"b")  # epoch 1, only there
        trio[2].flush()
        trio.apply(view(1, 2))
        trio[1].produce(b"y")
        trio.replicate()
        assert [trio[each].values() for each in (2, 3)] == [trio[1].values()] * 2
        assert [value for _, value in trio[1].values()] == [b"a", b"x", b"y"]


def test_records_below_the_high_watermark_are_removed_only_after_an_unclean_election() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        trio[2].log.truncate_fully_and_start_at(0)  # corrupt
        trio.apply(view(2, 1))
        follower = trio[1].partition.follower
        assert follower is not None
        trio[1].fetch(trio[2])
        assert follower.fetch_state is FetchState.FAILED
        assert trio[1].values() == [(0, b"a")]
        assert trio[1].fetch(trio[2]) is None
        trio.apply(view(2, 2, last_unclean_epoch=2))
        trio[1].catch_up(trio[2])
        assert trio[1].values() == []


def test_an_answer_to_a_fetch_of_another_term_is_not_appended() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        position = trio[2].partition.next_fetch()
        assert position is not None
        answer = trio[1].serve(trio[2], position)
        trio.apply(view(3, 1))
        assert not trio[2].take(position, *answer)
        assert trio[2].values() == []


def test_an_empty_log_begins_where_the_first_batch_of_its_leader_does() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a", b"b", b"c")
        trio[1].flush()
        trio[3].catch_up(trio[1])
        trio[2].partition.restart_log_at(2)
        trio[2].catch_up(trio[1])
        assert trio[2].values() == trio[1].values()
        assert trio[2].log.end_offset == 3


def test_the_log_start_of_the_leader_reaches_followers_and_the_low_watermark() -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio[1].produce(b"b")
        trio.replicate()
        trio[1].partition.delete_records(1)
        assert trio[1].partition.low_watermark == 0
        trio.replicate()
        assert [trio[each].log.log_start_offset for each in (1, 2, 3)] == [1, 1, 1]
        assert trio[1].partition.low_watermark == 1


# ---- Invariants


@pytest.mark.parametrize("node", [1, 2])
def test_a_replica_with_contradictory_offsets_goes_out_of_service(node: int) -> None:
    @with_trio()
    def _(trio: Trio) -> None:
        trio[1].produce(b"a")
        trio.replicate()
        trio[node].log.high_watermark = 9
        trio.apply(view(1, 0, isr=(1, 2), partition_epoch=1), node)
        with pytest.raises(StorageError, match="contradict"):
            trio[node].partition.check_serving()
        assert trio[node].partition.next_fetch() is None


def test_a_follower_that_is_corrupt_where_it_is_to_be_truncated_is_fetched_again() -> None:
    @with_trio(LogConfig(index_interval_bytes=0))
    def _(trio: Trio) -> None:
        node = trio[2]
        trio[1].produce(b"a")
        trio.replicate()
        trio.apply(view(2, 1, isr=(1, 2, 3)), 2)
        for _ in range(3):
            node.produce(b"x" * 300, acks=1)
        node.flush()
        node.directory.close()
        node.disk.flip_bit(node.log.active.log_path, 8 * 200)  # in the second of the four batches
        trio.apply(view(1, 2, isr=(1, 2, 3)), 1, 3)
        trio[1].produce(b"b", acks=1)
        node.start(trio.view, trio.brokers)
        node.fetch(trio[1])
        assert node.partition.next_fetch() is None
        assert TP in node.context.contradictory
        trio.apply(view(1, 2, isr=(1, 3), partition_epoch=201))
        node.catch_up(trio[1])
        assert node.values() == [(0, b"a"), (1, b"b")]


# ---- Throttles


def test_a_leader_holds_back_throttled_replicas_until_they_are_in_sync() -> None:
    @with_trio(replace(LogConfig(), leader_throttled_replicas=("0:1",)))
    def _(trio: Trio) -> None:
        trio[1].context.leader_quota.configure(1000)
        trio[1].knows({1: 0, 2: 0})
        trio.apply(view(1, 0, isr=(1, 2), partition_epoch=1))
        for _ in range(3):
            trio[1].produce(b"x" * 5000)
        trio[1].flush()
        trio[2].catch_up(trio[1])
        assert trio[2].log.end_offset == 3, "a replica in the ISR is not held back"
        ends = []
        for _ in range(8):
            trio[3].fetch(trio[1], max_bytes=1)
            trio[3].flush()
            ends.append(trio[3].log.end_offset)
            trio.clock.now_ms += 1000
        assert ends == [1, 1, 1, 1, 1, 2, 2, 2]


def test_bytes_sent_at_a_lower_rate_do_not_count_against_a_raised_one() -> None:
    quota = ReplicationQuota(10)
    quota.record(5000, 1.0)
    quota.configure(10)  # other settings have changed
    assert quota.wait_s(1.0) == pytest.approx(499)
    quota.configure(1000)
    assert quota.wait_s(1.0) == 0
    quota.record(5000, 1.0)
    assert quota.wait_s(1.0) == pytest.approx(4)


def test_a_throttled_follower_is_one_that_is_not_in_sync() -> None:
    @with_trio(replace(LogConfig(), follower_throttled_replicas=("*",)))
    def _(trio: Trio) -> None:
        assert not trio[3].partition.is_throttled
        trio.apply(view(1, 0, isr=(1, 2), partition_epoch=1))
        assert [trio[each].partition.is_throttled for each in (2, 3)] == [False, True]
