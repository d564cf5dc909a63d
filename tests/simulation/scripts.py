"""Scripts in place of random faults: the divergence scenarios of KIP-101, 279 and 320, the last replica standing, and more.

Each script drives three brokers into a situation, and fails if it does not come about. Then all is healed, and the
checkers look for lost records, divergent replicas and a cluster that does not become whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ottla.client.admin import delete_topics
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import PartitionView
from ottla.testing.sim_disk import Survival
from tests.simulation.cluster import DATA, Machine
from tests.simulation.run import Run, Script
from tests.simulation.scenario import Scenario
from tests.simulation.script_steps import send
from tests.simulation.scripts_of_access import right_is_taken_from_a_broker_cut_off, right_is_taken_while_the_feed_lags
from tests.simulation.scripts_of_bugs import (
    answers_of_the_store_are_lost,
    client_of_the_former_leader,
    commit_just_before_the_coordinator_dies,
    deposed_controller,
    expansion_without_an_answer,
    fetch_that_diverges,
    gap_in_the_feed,
    last_replica_loses_its_page_cache,
    leader_that_does_not_know_its_new_term,
    leader_without_records,
    marker_of_an_earlier_coordinator,
    older_state_from_the_store,
    outages_of_the_store,
    positions_of_an_earlier_term,
    removal_without_an_answer,
    replica_of_an_earlier_life,
    requests_over_two_terms,
    stale_high_watermark,
    two_leaders_with_records_of_their_own,
)

SCENARIO = Scenario(1, partitions=1, producers=0, consumers=1, duration_s=5.0, sync_s=0.0001)
SHORT_LAG = Scenario(1, partitions=1, producers=0, consumers=1, duration_s=5.0, sync_s=0.0001, lag_s=2.0)
SHORT_SESSION = Scenario(1, partitions=1, producers=0, consumers=1, duration_s=5.0, sync_s=0.0001, session_s=2.0)
FOUR_BROKERS = Scenario(
    1, brokers=4, partitions=1, producers=0, consumers=1, duration_s=5.0, sync_s=0.0001, lag_s=2.0
)  # one has no replica, and is the controller
SHORT_LAG_AND_SESSION = Scenario(
    1, partitions=1, producers=0, consumers=1, duration_s=5.0, sync_s=0.0001, lag_s=1.0, session_s=2.0
)
SHORT_SEGMENTS = Scenario(
    1, partitions=1, producers=0, consumers=1, duration_s=5.0, sync_s=0.0001, session_s=2.0, segment_bytes=600
)
SECURED = Scenario(
    1, partitions=1, producers=0, consumers=1, duration_s=5.0, sync_s=0.0001, session_s=2.0, is_secured=True
)
PAGE_CACHE = Scenario(1, partitions=1, producers=0, consumers=1, duration_s=5.0, sync_s=0.0001, is_page_cache=True)


async def follower_keeps_what_is_above_its_high_watermark(a_run: Run) -> None:
    """The second leader dies before the third replica has fetched anything from it: its log is all there is."""
    assert await send(a_run, "p1", 10) == 10
    assert await send(a_run, "p2", 1) == 1  # the followers have it and do not know that it is committed
    first = await a_run.kill_leader()
    second, third = (each for each in a_run.cluster.machines.values() if each is not first)
    a_run.cut(second, third)
    await a_run.until(lambda view: view.leader in {second.node_id, third.node_id}, "a second leader")
    if a_run.view().leader == third.node_id:
        second, third = third, second
    assert set(a_run.view().isr) == {second.node_id, third.node_id}
    second.kill()
    await a_run.until(lambda view: view.leader == third.node_id, "the last replica leads")


def two_quick_failovers(writes_between: int, first_returns: str) -> Script:
    """Each leader appends records that no other replica gets; one of them must truncate through two epochs."""

    async def script(a_run: Run) -> None:
        assert await send(a_run, "p1", 5) == 5
        first = a_run.cluster.machines[a_run.view().leader]
        a_run.cut(*a_run.cluster.machines.values())
        assert await send(a_run, "p2", 4, within_s=1.0) == 0
        first.kill()
        await a_run.until(lambda view: view.leader not in {first.node_id, -1}, "a second leader")
        second = a_run.cluster.machines[a_run.view().leader]
        if writes_between:
            assert await send(a_run, "p3", writes_between, within_s=1.0) == 0
        if first_returns == "before":
            first.restart()
            await asyncio.sleep(0.5)
        second.kill()
        await a_run.until(lambda view: view.leader not in {second.node_id, -1}, "a third leader")
        third = a_run.cluster.machines[a_run.view().leader]
        assert third not in {first, second}, "a replica that lacks committed records must not lead"
        a_run.cluster.network.heal()
        if first_returns == "after":
            first.restart()
        await a_run.until(lambda view: len(view.isr) == 2, "the first leader is in sync")
        assert await send(a_run, "p4", 3) == 3

    return script


async def leader_that_slept(a_run: Run) -> None:
    """The old leader wakes up with requests in its sockets and followers that have another leader."""
    assert await send(a_run, "p1", 5) == 5
    first = a_run.cluster.machines[a_run.view().leader]
    first.pause()
    late = asyncio.ensure_future(send(a_run, "p2", 3, within_s=15.0))
    await a_run.until(lambda view: view.leader not in {first.node_id, -1}, "a second leader")
    assert await send(a_run, "p3", 5) == 5
    first.resume()
    await late
    await a_run.until(lambda view: len(view.isr) == 3, "the old leader is in sync again")


async def last_replica_returns_last(a_run: Run) -> None:
    """Two replicas leave the ISR, then the last one dies: the one that left at min ISR leads, the other one may not."""
    assert await send(a_run, "p1", 5) == 5
    last = a_run.cluster.machines[a_run.view().leader]
    left_first, left_second = (each for each in a_run.cluster.machines.values() if each is not last)
    left_first.kill()
    await a_run.until(lambda view: len(view.isr) == 2, "one replica has left")
    assert await send(a_run, "p2", 5) == 5
    left_second.kill()
    await a_run.until(lambda view: view.isr == (last.node_id,), "another replica has left")
    assert await send(a_run, "p3", 2, within_s=1.0) == 0, "below min ISR nothing is acknowledged"
    last.kill()
    await asyncio.sleep(7)
    left_first.restart()
    await asyncio.sleep(8)
    assert a_run.view().leader == -1, "it lacks records that were acknowledged"
    left_second.restart()
    await a_run.until(lambda view: view.leader == left_second.node_id, "the eligible replica leads")
    assert await send(a_run, "p4", 5) == 5


async def last_replica_returns_first(a_run: Run) -> None:
    """All replicas die in turn; the last of them is the first to return."""
    assert await send(a_run, "p1", 5) == 5
    last = a_run.cluster.machines[a_run.view().leader]
    others = [each for each in a_run.cluster.machines.values() if each is not last]
    for machine in others:
        machine.kill()
    await a_run.until(lambda view: view.isr == (last.node_id,), "one replica is left")
    last.power_cut()
    await asyncio.sleep(1)
    last.restart()
    await a_run.until(lambda view: view.leader == last.node_id, "the last replica leads again")
    for machine in others:
        machine.restart()
    await a_run.until(lambda view: len(view.isr) == 3, "all are in sync")
    assert await send(a_run, "p2", 5) == 5


def _another_than(machine: Machine) -> Callable[[PartitionView], bool]:
    return lambda view: view.leader not in {machine.node_id, -1}


async def power_cut_of_all_after_each_acknowledgement(a_run: Run) -> None:
    """All lose their power at once; the leader returns after the others, which sync slowly, have another one."""
    machines = list(a_run.cluster.machines.values())
    for number in range(3):
        first = a_run.cluster.machines[a_run.view().leader]
        for machine in machines:
            assert machine.runtime is not None
            machine.runtime.job_s = 0.002 if machine is first else 0.2
        assert await send(a_run, f"p{number}", 3) == 3
        for machine in machines:
            machine.power_cut(Survival.LOST)
        for machine in machines:
            if machine is not first:
                machine.restart()
        await a_run.until(_another_than(first), "another leader")
        first.restart()
        await a_run.until(lambda view: len(view.isr) == 3, "all are in sync")


async def leader_below_min_isr(a_run: Run) -> None:
    """The followers leave the ISR before they have a record; then the leader dies and one of them leads."""
    assert await send(a_run, "p1", 5) == 5
    await asyncio.sleep(1)  # the followers know the high watermark
    first = a_run.cluster.machines[a_run.view().leader]
    others = [each for each in a_run.cluster.machines.values() if each is not first]
    for machine in others:
        machine.pause()
    late = asyncio.ensure_future(send(a_run, "p2", 3, within_s=9.0))
    await a_run.until(lambda view: view.isr == (first.node_id,), "the leader is alone")
    await late
    await asyncio.sleep(1)  # a consumer would receive what the high watermark has passed
    first.kill()
    for machine in others:
        machine.resume()
    await a_run.until(_another_than(first), "an eligible replica leads")
    await a_run.until(lambda view: len(view.isr) == 2, "two are in sync")
    assert await send(a_run, "p3", 5) == 5


async def leader_cut_off_from_all(a_run: Run) -> None:
    """A leader that nothing reaches has requests waiting when it learns of another leader; soon it leads again."""
    assert await send(a_run, "p1", 5) == 5
    first = a_run.cluster.machines[a_run.view().leader]
    a_run.cut(*a_run.cluster.machines.values())
    late = asyncio.ensure_future(send(a_run, "p2", 3, within_s=25.0))
    await asyncio.sleep(0.5)
    first.link.cut()
    a_run.cut_clients(first)
    a_run.cluster.network.block(first.host, "p3")
    await a_run.until(lambda view: view.leader not in {first.node_id, -1}, "a second leader")
    for one in a_run.cluster.machines.values():
        for other in a_run.cluster.machines.values():
            if first not in (one, other):
                a_run.cluster.network.unblock(one.host, other.host)
    assert await send(a_run, "p3", 6, within_s=20.0) == 6
    a_run.cluster.network.heal()
    first.link.join()
    await a_run.until(lambda view: len(view.isr) == 3, "the first leader is in sync again")
    for machine in a_run.cluster.machines.values():
        if machine.node_id == a_run.view().leader:
            machine.kill()
    await a_run.until(lambda view: view.leader == first.node_id, "the first leader leads again")
    await late
    assert await send(a_run, "p4", 3) == 3


async def topic_created_again(a_run: Run) -> None:
    """A topic is deleted and created again while a broker is down that has the records of the first one."""
    await send(a_run, "old", 8)
    down = next(
        each
        for each in a_run.cluster.machines.values()
        if each.services is not None and not each.services.controller.is_active and each.node_id != a_run.view().leader
    )
    down.pause()  # its session goes on for a while: replicas of the new topic are placed on it

    async def again() -> None:
        client = await a_run.cluster.patient_client("admin")
        for outcome in await delete_topics(client, ["web"]):
            assert outcome.error is None, outcome
        await a_run.workload.create_topic()

    assert await a_run.workload.in_process("again", again(), seconds=30, what="create the topic again")
    history = a_run.cluster.history
    history.sends.clear()
    history.seen.clear()
    history.leaders.clear()
    a_run.cluster.forget_leaders()
    down.kill()
    await a_run.until(lambda view: len(view.isr) == 2, "a broker is down")
    assert await send(a_run, "new", 5) == 5
    down.restart()
    await a_run.until(lambda view: len(view.isr) == 3, "the broker has the new topic")
    assert await send(a_run, "newer", 5) == 5


async def snapshot_without_the_topic(a_run: Run) -> None:
    """A broker starts with a snapshot of the store that lacks the topic, which follows later."""
    assert await send(a_run, "p1", 8) == 8
    machines = a_run.cluster.machines.values()
    late = next(each for each in machines if each.services is not None and not each.services.controller.is_active)
    late.kill()
    late.link.hidden = znodes.topic_path("web")
    late.restart()
    await asyncio.sleep(5)
    assert late.disk.is_directory(DATA / "web-0"), "records of a topic that the broker does not know are kept"
    late.link.reveal()
    await a_run.until(lambda view: len(view.isr) == 3, "all have the topic again")
    assert await send(a_run, "p2", 5) == 5


async def last_page_cache_replica_loses_power(a_run: Run) -> None:
    """Records count before they are synced: each replica loses its power in turn, faster than sessions end."""
    for number in range(3):
        assert await send(a_run, f"p{number}", 5) == 5
        first = a_run.cluster.machines[a_run.view().leader]
        first.power_cut(Survival.LOST)
        await asyncio.sleep(0.2)
        first.restart()
        await a_run.until(lambda view: len(view.isr) == 3, "all are in sync", seconds=40)
        await asyncio.sleep(1)


async def leader_loses_its_first_segment(a_run: Run) -> None:
    """The preferred leader loses its oldest file while it is down; it leads again, and its start must not spread."""
    for number in range(8):
        assert await send(a_run, f"p{number}", 5) == 5
    first = a_run.cluster.machines[a_run.view().leader]
    others = [each for each in a_run.cluster.machines.values() if each is not first]
    services = first.services
    assert services is not None
    for directory in services.replicas.directories.opened:
        directory.checkpoint()
    first.kill()
    assert first.corrupt(a_run.workload.partitions[0], "lose-first", 0)
    await a_run.until(lambda view: view.leader != first.node_id, "another one leads")
    first.restart()
    await a_run.until(lambda view: len(view.isr) == 3, "all are in sync")
    await a_run.lead(first, *others)
    await asyncio.sleep(1)
    assert {a_run.replica(machine).log.log_start_offset for machine in (first, *others)} == {0}


async def leader_finds_corruption(a_run: Run) -> None:
    """The leader's scrubber finds a corrupt batch: another replica leads until it is fetched again."""
    for number in range(8):
        assert await send(a_run, f"p{number}", 5) == 5
    first = a_run.cluster.machines[a_run.view().leader]
    assert first.corrupt(a_run.workload.partitions[0], "flip", 1000)
    first.scrub()
    await a_run.until(
        lambda view: view.leader != first.node_id and first.node_id not in view.isr, "another one leads without it"
    )
    await a_run.until(lambda view: len(view.isr) == 3, "it is whole again")
    assert not a_run.replica(first).log.faults.first_offsets


class ScriptedRun(NamedTuple):
    """A script, and what it needs."""

    name: str
    script: Script
    acknowledged: int  # so many records at least
    scenario: Scenario = SCENARIO


SCRIPTED_RUNS: tuple[ScriptedRun, ...] = (
    ScriptedRun("kip-101", follower_keeps_what_is_above_its_high_watermark, 11),
    *(
        ScriptedRun(f"kip-279-{writes}-{returns}", two_quick_failovers(writes, returns), 8)
        for writes in (0, 1, 3)
        for returns in ("before", "after")
    ),
    ScriptedRun("kip-320", leader_that_slept, 10),
    ScriptedRun("last-replica-returns-last", last_replica_returns_last, 15),
    ScriptedRun("last-replica-returns-first", last_replica_returns_first, 10),
    ScriptedRun("power-cut-of-all", power_cut_of_all_after_each_acknowledgement, 9),
    ScriptedRun("leader-below-min-isr", leader_below_min_isr, 10, SHORT_LAG),
    ScriptedRun("leader-cut-off", leader_cut_off_from_all, 14, SHORT_SESSION),
    ScriptedRun("topic-created-again", topic_created_again, 10),
    ScriptedRun("snapshot-without-the-topic", snapshot_without_the_topic, 13),
    ScriptedRun("page-cache-power-cuts", last_page_cache_replica_loses_power, 15, PAGE_CACHE),
    ScriptedRun("expansion-without-an-answer", expansion_without_an_answer, 5, FOUR_BROKERS),
    ScriptedRun("removal-without-an-answer", removal_without_an_answer, 5, FOUR_BROKERS),
    ScriptedRun(
        "last-page-cache-replica", last_replica_loses_its_page_cache, 15, replace(SHORT_SESSION, is_page_cache=True)
    ),
    ScriptedRun("client-of-the-former-leader", client_of_the_former_leader, 10),
    ScriptedRun("gap-in-the-feed", gap_in_the_feed, 10),
    ScriptedRun("lost-answers-of-the-store", answers_of_the_store_are_lost, 10, SHORT_SESSION),
    ScriptedRun("deposed-controller", deposed_controller, 5, SHORT_LAG),
    ScriptedRun("outages-of-the-store", outages_of_the_store, 12, SHORT_LAG_AND_SESSION),
    *(
        ScriptedRun(f"two-leaders-{first}-{second}", two_leaders_with_records_of_their_own(first, second), 8)
        for first, second in ((3, 4), (4, 3))
    ),
    ScriptedRun("leader-without-records", leader_without_records, 10),
    ScriptedRun("fetch-that-diverges", fetch_that_diverges, 8, SHORT_SESSION),
    ScriptedRun("unknown-new-term", leader_that_does_not_know_its_new_term, 5, FOUR_BROKERS),
    ScriptedRun("stale-high-watermark", stale_high_watermark, 9, SHORT_LAG_AND_SESSION),
    ScriptedRun("replica-of-an-earlier-life", replica_of_an_earlier_life, 5, SHORT_SESSION),
    ScriptedRun("positions-of-an-earlier-term", positions_of_an_earlier_term, 5, SHORT_SESSION),
    ScriptedRun("older-state-from-the-store", older_state_from_the_store, 5, SHORT_LAG),
    ScriptedRun("requests-over-two-terms", requests_over_two_terms, 14),
    ScriptedRun("commit-before-a-kill", commit_just_before_the_coordinator_dies, 5, SHORT_SESSION),
    ScriptedRun("first-segment-lost", leader_loses_its_first_segment, 40, SHORT_SEGMENTS),
    ScriptedRun("corruption-on-the-leader", leader_finds_corruption, 40, SHORT_SEGMENTS),
    ScriptedRun("right-taken-from-a-broker-cut-off", right_is_taken_from_a_broker_cut_off, 5, SECURED),
    ScriptedRun("right-taken-while-the-feed-lags", right_is_taken_while_the_feed_lags, 5, SECURED),
    ScriptedRun("marker-of-an-earlier-coordinator", marker_of_an_earlier_coordinator, 6, SHORT_SESSION),
)
