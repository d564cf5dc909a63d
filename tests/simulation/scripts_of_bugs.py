"""Drives whole brokers into the orders of events that show planted bugs, each in a script of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.client.groups import commit_offsets, committed_offsets
from ottla.client.producer import Producer, ProducerOptions
from ottla.client.transactions import TransactionalProducer
from ottla.core.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from ottla.internal_topics.partitioning import partition_of
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import PartitionView
from ottla.testing.sim_disk import Survival
from ottla.testing.sim_loop import SimClock
from tests.simulation.cluster import Machine
from tests.simulation.history import Commit, Outcome, Value
from tests.simulation.run import Run, Script
from tests.simulation.script_steps import send


def _path(a_run: Run) -> str:
    return znodes.state_path(*a_run.workload.partitions[0])


def _block(a_run: Run, source: Machine, target: Machine) -> None:
    """Hold what one broker sends to another, both requests and answers."""
    a_run.cluster.network.block(source.host, target.host)


def _unblock(a_run: Run, source: Machine, target: Machine) -> None:
    a_run.cluster.network.unblock(source.host, target.host)


def _isr(*machines: Machine) -> Callable[[PartitionView], bool]:
    wanted = {machine.node_id for machine in machines}
    return lambda view: set(view.isr) == wanted


def _leads(machine: Machine) -> Callable[[PartitionView], bool]:
    return lambda view: view.leader == machine.node_id


def _is_fetching(follower: Machine, leader: Machine) -> Callable[[], bool]:
    """Return whether a broker has connected to fetch from another one: its first request is on its way then."""

    def is_connected() -> bool:
        services = follower.services
        fetchers = None if services is None else services.replicas._fetchers
        found = None if fetchers is None else fetchers._fetchers.get((leader.node_id, 0))
        return found is not None and found._channel is not None

    return is_connected


async def _leave(a_run: Run, follower: Machine, leader: Machine) -> None:
    """Let a follower leave the ISR: what it sends to the leader waits, and it lags."""
    _block(a_run, follower, leader)
    assert await send(a_run, "before", 1) == 1
    await a_run.until(lambda view: follower.node_id not in view.isr, "a replica has left the ISR")


async def _left_alone(a_run: Run, last: Machine, *others: Machine) -> None:
    """Kill the others at once; the last broker leads only if it is in the ISR that the store has."""
    may_lead = last.node_id in a_run.stored_isr()
    for machine in others:
        machine.kill()
    if may_lead:
        await a_run.until(_leads(last), "the last replica leads")
        a_run.cluster.network.heal()
        last.link.release()
        for machine in a_run.cluster.machines.values():
            if machine.state == "down":
                machine.restart()
        await a_run.until(lambda view: len(view.isr) == 3, "all are in sync")
        assert await send(a_run, "last", 3) == 3
    else:
        await asyncio.sleep(a_run.scenario.session_s + 1.5)
        assert a_run.view().leader != last.node_id, "it is not in sync"


async def expansion_without_an_answer(a_run: Run) -> None:
    """The controller adds a replica to the ISR; the leader does not learn of it, and the replica fetches no more."""
    controller, leader, joining, third = a_run.roles()
    await a_run.lead(leader, third, joining)
    assert await send(a_run, "p1", 5) == 5
    await _leave(a_run, joining, leader)
    _unblock(a_run, joining, leader)

    def is_proposed() -> bool:
        state = a_run.replica(leader).leader_state
        return state is not None and state.pending is not None and len(state.maximal_isr) == 3

    await a_run.moment(is_proposed, "the leader proposes to add it")
    leader.link.hold()
    a_run.cut(joining, leader)
    await a_run.moment(lambda: len(a_run.stored_isr()) == 3, "the controller has added it")
    _block(a_run, controller, leader)
    await send(a_run, "p2", 3, within_s=1.5)
    await _left_alone(a_run, joining, leader, third)


async def removal_without_an_answer(a_run: Run) -> None:
    """A leader that the controller does not hear proposes to remove a replica from the ISR."""
    controller, leader, lagging, third = a_run.roles()
    await a_run.lead(leader, third, lagging)
    assert await send(a_run, "p1", 5) == 5
    await asyncio.sleep(1)
    a_run.cut(leader, lagging)
    a_run.cut(leader, controller)
    leader.link.hold()
    late = asyncio.ensure_future(send(a_run, "p2", 3, within_s=6.0))

    def is_proposed() -> bool:
        state = a_run.replica(leader).leader_state
        return state is not None and state.pending is not None

    await a_run.moment(is_proposed, "the leader proposes to remove it")
    await late
    assert len(a_run.stored_isr()) == 3
    await _left_alone(a_run, lagging, leader, third)


async def last_replica_loses_its_page_cache(a_run: Run) -> None:
    """The last replica in the ISR loses its power; another one, which left before, has all records."""
    left_first, leader, left_second = a_run.roles()
    await a_run.lead(leader, left_second, left_first)
    assert await send(a_run, "p0", 5) == 5  # the first batch of a segment is synced
    left_first.kill()
    await a_run.until(lambda view: len(view.isr) == 2, "one replica has left")
    assert await send(a_run, "p1", 5) == 5
    left_second.kill()
    await a_run.until(_isr(leader), "another replica has left")
    leader.power_cut(Survival.LOST)
    await asyncio.sleep(1)
    leader.restart()
    await a_run.moment(lambda: leader.services is not None, "the last one has started again")
    await asyncio.sleep(1)
    left_second.restart()
    left_first.restart()
    await a_run.until(lambda view: len(view.isr) == 3, "all are in sync")
    assert await send(a_run, "p2", 5) == 5


async def client_of_the_former_leader(a_run: Run) -> None:
    """A producer goes on at a leader that has stepped down, while others write to the new one."""
    third, first, second = a_run.roles()
    partition, sends = a_run.workload.partitions[0], []
    await a_run.lead(first, second, third)

    async def begin() -> None:
        client = await a_run.cluster.patient_client("old")
        producer = Producer(
            client, clock=SimClock(), options=ProducerOptions(delivery_timeout_s=8.0, linger_s=0.001, auto_create=False)
        )
        sends.append(await a_run.workload._send(producer, partition, Value("old", 0)))
        await producer.flush()
        await a_run.lead(second, first, third)
        sends.extend([await a_run.workload._send(producer, partition, Value("old", at)) for at in range(1, 4)])

    assert await a_run.workload.in_process("old", begin(), seconds=20, what="send to a leader that steps down")
    await send(a_run, "new", 6, within_s=5.0)
    deadline = a_run.loop.time() + 8
    while a_run.loop.time() < deadline and any(each.outcome is Outcome.UNKNOWN for each in sends):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.sleep(1)


async def gap_in_the_feed(a_run: Run) -> None:
    """A follower's watches lose what happened while it was cut off from the store: it has another leader."""
    third, leader, follower = a_run.roles()
    await a_run.lead(leader, third, follower)
    assert await send(a_run, "p1", 5) == 5
    follower.link.cut_with_gap()
    await a_run.lead(third, leader, follower)
    await asyncio.sleep(0.5)
    follower.link.join()
    await a_run.until(lambda _: a_run.replica(follower).leader == third.node_id, "the follower knows it", seconds=10)
    assert await send(a_run, "p2", 5) == 5


async def answers_of_the_store_are_lost(a_run: Run) -> None:
    """The controller does not learn what became of its commits, and goes on."""
    controller, leader, follower = a_run.roles()
    await a_run.lead(leader, controller, follower)
    assert await send(a_run, "p1", 5) == 5
    controller.link.unknown_share = 1.0
    follower.kill()
    await a_run.until(lambda view: follower.node_id not in view.isr, "a follower has left the ISR")
    controller.link.unknown_share = 0.0
    follower.restart()
    await a_run.until(lambda view: len(view.isr) == 3, "it has joined again")
    assert await send(a_run, "p2", 5) == 5


async def deposed_controller(a_run: Run) -> None:
    """A controller sleeps while another one is elected and a follower loses its disk; then it decides on what it knew."""
    leader, third, follower = a_run.roles()
    await a_run.lead(leader, third, follower)
    assert await send(a_run, "p1", 5) == 5
    await _leave(a_run, follower, leader)
    _unblock(a_run, follower, leader)

    def is_proposed() -> bool:
        state = a_run.replica(leader).leader_state
        return state is not None and state.pending is not None and len(state.maximal_isr) == 3

    await a_run.moment(is_proposed, "the leader proposes to add it")
    assert leader.process is not None
    a_run.loop.pause(leader.process)  # for less than the timeout of its session
    leader.link.hold()
    _block(a_run, leader, follower)
    follower.power_cut(Survival.NOTHING)
    a_run.loop.run_in(a_run.cluster.store_process, a_run.cluster.depose_controller())
    follower.restart()
    await a_run.moment(lambda: follower.services is not None, "the follower has started without its records")
    await a_run.moment(
        lambda: any(each.services is not None and each.services.controller.is_active for each in (third, follower)),
        "another controller",
    )
    await asyncio.sleep(0.5)
    assert a_run.stored_isr() in {(leader.node_id, third.node_id), (third.node_id, leader.node_id)}
    a_run.loop.resume(leader.process)
    await asyncio.sleep(1)
    await _left_alone(a_run, follower, leader, third)


async def outages_of_the_store(a_run: Run) -> None:
    """All sessions end while the controller has a change to write; its own session is the first to be renewed."""
    leader, follower, third = a_run.roles()
    for number in range(6):
        await a_run.lead(leader, third, follower)
        assert await send(a_run, f"p{number}", 2) == 2
        machines = list(a_run.cluster.machines.values())
        _block(a_run, follower, leader)
        late = asyncio.ensure_future(send(a_run, f"late{number}", 1, within_s=9.0))
        for machine in machines:
            machine.link.cut()
        await asyncio.sleep(a_run.scenario.session_s + 0.1)  # the follower lags, and is to leave the ISR
        leader.link.join()
        await asyncio.sleep(0.1)
        for machine in machines:
            machine.link.join()
        _unblock(a_run, follower, leader)
        await late
        await asyncio.sleep(1)
        await a_run.until(lambda view: len(view.isr) == 3 and view.leader > 0, "all are in sync")
        await asyncio.sleep(0.5)
        leader, follower, third = a_run.roles()


def two_leaders_with_records_of_their_own(first_writes: int, second_writes: int) -> Script:
    """Leadership moves to another broker and back, and each appends what no other gets (KIP-279)."""

    async def script(a_run: Run) -> None:
        third, first, second = a_run.roles()
        await a_run.lead(first, second, third)
        assert await send(a_run, "p1", 5) == 5
        await asyncio.sleep(1)
        a_run.cut(first, second, third)
        assert await send(a_run, "p2", first_writes, within_s=1.0) == 0
        await a_run.lead(second, first, third)
        assert await send(a_run, "p3", second_writes, within_s=1.0) == 0
        await a_run.lead(first, second, third)
        await asyncio.sleep(0.2)
        a_run.cluster.network.heal()

        def are_equal(_: PartitionView) -> bool:
            return len({a_run.replica(each).log.end_offset for each in (first, second, third)}) == 1

        await a_run.until(are_equal, "all have the same, without a record of the new term", seconds=10)
        assert await send(a_run, "p4", 3) == 3

    return script


async def leader_without_records(a_run: Run) -> None:
    """A broker leads and appends nothing; the next leader does not know its epoch."""
    third, first, second = a_run.roles()
    await a_run.lead(first, second, third)
    assert await send(a_run, "p1", 5) == 5
    await a_run.lead(second, first, third)
    await asyncio.sleep(0.5)
    await a_run.lead(third, first, second)
    assert await send(a_run, "p2", 5) == 5
    await a_run.until(lambda view: len(view.isr) == 3, "all are in sync")


async def fetch_that_diverges(a_run: Run) -> None:
    """A follower has more than its new leader, which appends other records; it is elected before it gets them."""
    follower, first, leader = a_run.roles()
    await a_run.lead(first, leader, follower)
    assert await send(a_run, "p1", 5) == 5
    await asyncio.sleep(1)
    a_run.cut(first, leader)
    assert await send(a_run, "p2", 4, within_s=1.0) == 0
    assert a_run.replica(follower).log.end_offset == 9
    first.kill()
    await a_run.until(_leads(leader), "a second leader")
    await a_run.moment(_is_fetching(follower, leader), "the follower fetches from it")
    _block(a_run, leader, follower)
    assert set(a_run.stored_isr()) == {leader.node_id, follower.node_id}
    await send(a_run, "p3", 2, within_s=2.0)
    leader.kill()
    await a_run.until(_leads(follower), "the follower leads")
    a_run.cluster.network.heal()
    first.restart()
    leader.restart()
    await a_run.until(lambda view: len(view.isr) == 3, "all are in sync")
    assert await send(a_run, "p4", 3) == 3


async def leader_that_does_not_know_its_new_term(a_run: Run) -> None:
    """A leader's term ends and another one of it begins, which only its followers know; the ISR has grown meanwhile."""
    _, leader, last, second = a_run.roles()
    await a_run.lead(leader, second, last)
    assert await send(a_run, "p1", 5) == 5
    a_run.cut(leader, last)
    await _leave(a_run, last, leader)
    leader.link.hold()
    await a_run.lead(second, leader, last)
    await a_run.until(lambda view: len(view.isr) == 3, "it has joined the ISR again")
    await a_run.lead(last, second, leader)
    await a_run.moment(
        lambda: a_run.replica(second).log.epochs.latest < a_run.replica(second).leader_epoch - 1,
        "the second leader has forgotten its empty epoch",
    )
    await a_run.lead(leader, second, last)
    await a_run.moment(lambda: a_run.replica(second).leader == leader.node_id, "the second leader follows the first")
    assert a_run.replica(leader).leader_epoch < a_run.view().leader_epoch
    assert len(a_run.stored_isr()) == 3
    await send(a_run, "p2", 3, within_s=1.0)
    await _left_alone(a_run, last, leader, second)


async def stale_high_watermark(a_run: Run) -> None:
    """A new leader does not know that its last record is committed; a replica that lacks it fetches, and is elected."""
    leader, first, joining = a_run.roles()
    await a_run.lead(first, leader, joining)
    assert await send(a_run, "p1", 8) == 8
    await asyncio.sleep(1)
    joining.kill()
    await a_run.until(_isr(first, leader), "a replica has left the ISR")
    a_run.cut(first, joining)
    joining.restart()
    await a_run.moment(lambda: joining.services is not None, "it is there again, and cannot join")
    assert await send(a_run, "p2", 1) == 1
    first.kill()
    await a_run.until(_leads(leader), "a second leader")
    assert a_run.replica(leader).log.high_watermark == 8
    assert a_run.replica(leader).log.end_offset == 9
    await a_run.moment(_is_fetching(joining, leader), "the replica fetches from it")
    _block(a_run, leader, joining)
    deadline = a_run.loop.time() + 2
    while a_run.loop.time() < deadline and joining.node_id not in a_run.stored_isr():  # noqa: ASYNC110
        await asyncio.sleep(0.0005)
    await _left_alone(a_run, joining, leader)


async def replica_of_an_earlier_life(a_run: Run) -> None:
    """A follower returns without its records; the leader knows the position of its earlier life."""
    third, leader, follower = a_run.roles()
    await a_run.lead(leader, third, follower)
    assert await send(a_run, "p1", 5) == 5
    await asyncio.sleep(1)
    follower.power_cut(Survival.NOTHING)
    await a_run.until(_isr(leader, third), "it has left the ISR")
    _block(a_run, follower, leader)
    follower.restart()
    await a_run.moment(lambda: follower.services is not None, "it has started without its records")
    await asyncio.sleep(2)
    await _left_alone(a_run, follower, leader, third)


async def positions_of_an_earlier_term(a_run: Run) -> None:
    """A leader leads again; meanwhile a follower has lost records that it had confirmed in the first term."""
    follower, leader, second = a_run.roles()
    await a_run.lead(leader, second, follower)
    assert await send(a_run, "p1", 5) == 5
    await asyncio.sleep(1)
    a_run.cut(leader, second)
    assert await send(a_run, "p2", 4, within_s=1.0) == 0
    state = a_run.replica(leader).leader_state
    assert state is not None
    assert state.followers[follower.node_id].end_offset == 9
    await a_run.lead(second, leader, follower)
    a_run.cluster.network.heal()
    await a_run.moment(
        lambda: {a_run.replica(each).log.end_offset for each in (leader, follower)} == {5}, "they have truncated"
    )
    await a_run.until(lambda view: len(view.isr) == 3, "all are in sync")
    a_run.cut(leader, follower)
    await a_run.lead(leader, second, follower)
    await send(a_run, "p3", 2, within_s=2.0)
    await _left_alone(a_run, follower, leader, second)


async def older_state_from_the_store(a_run: Run) -> None:
    """A replica leaves the ISR and joins again by the controller's answers; the store's watch reports it late."""
    third, leader, follower = a_run.roles()
    await a_run.lead(leader, third, follower)
    assert await send(a_run, "p1", 5) == 5
    await asyncio.sleep(1)
    leader.link.hold()
    replica, lag_s = a_run.replica(leader), a_run.scenario.lag_s
    await _leave(a_run, follower, leader)
    _unblock(a_run, follower, leader)
    await a_run.moment(lambda: len(replica.isr) == 3, "it has joined again")
    state = replica.leader_state
    assert state is not None
    _block(a_run, follower, leader)
    await asyncio.sleep(0.6)  # its last fetch has been answered
    late = asyncio.ensure_future(send(a_run, "p2", 3, within_s=lag_s * 2))
    position = state.followers[follower.node_id]
    await a_run.moment(lambda: a_run.loop.time() - position.last_caught_up_s > lag_s, "it lags")
    assert state.pending is None, "its removal is not proposed yet"
    leader.link.release_to(_path(a_run))
    await late
    await _left_alone(a_run, follower, leader, third)


async def requests_over_two_terms(a_run: Run) -> None:
    """Requests wait for replication at a leader that steps down; their records are replaced, and it leads again."""
    third, leader, second = a_run.roles()
    await a_run.lead(leader, second, third)
    assert await send(a_run, "p1", 5) == 5
    a_run.cut(leader, second, third)
    late = asyncio.ensure_future(send(a_run, "p2", 3, within_s=9.0))
    await a_run.moment(lambda: a_run.replica(leader).log.end_offset == 8, "records that no follower has")
    await a_run.lead(second, leader, third)
    a_run.cluster.network.heal()
    assert await send(a_run, "p3", 6) == 6
    await a_run.moment(lambda: a_run.replica(leader).log.end_offset >= 11, "the first leader has followed")
    await a_run.lead(leader, second, third)
    assert await send(a_run, "p4", 3) == 3
    await late


async def marker_of_an_earlier_coordinator(a_run: Run) -> None:
    """The marker of a coordinator that was replaced arrives in the midst of the next transaction (KIP-98)."""
    controller, third, other = a_run.roles()
    history, partition = a_run.cluster.history, a_run.workload.partitions[0]
    producers: list[TransactionalProducer] = []

    async def begin(name: str) -> None:
        client = await a_run.cluster.patient_client(name)
        options = ProducerOptions(delivery_timeout_s=20.0, linger_s=0.001, auto_create=False)
        producer = TransactionalProducer(client, name, clock=SimClock(), options=options, first_version=True)
        await producer.init()
        producers.append(producer)

    def coordinator(name: str) -> Machine:
        """Return the leader of the partition of a transactional id."""
        assert controller.services is not None
        topic = controller.services.cluster.current.topics[TRANSACTIONS_TOPIC]
        return a_run.cluster.machines[topic.partitions[partition_of(name, len(topic.partitions))].leader]

    names = iter(f"t{number}" for number in range(1, 20))
    while True:
        name = next(names)
        producers.clear()
        assert await a_run.workload.in_process(name, begin(name), seconds=20, what="begin")
        first = coordinator(name)
        if first is not controller:
            break
    leader = other if first is third else third
    await a_run.lead(leader, controller, first)
    producer = producers[0]
    ends: list[Commit] = []

    async def write(number: int) -> None:
        producer.begin()
        for at in range(2):
            await a_run.workload._send(producer, partition, Value(name, number * 10 + at, number))
        await producer.flush()
        ends.append(Commit(name, number, None, a_run.loop.time()))
        history.transactions.append(ends[-1])

    async def end(*, is_abort: bool) -> None:
        ends[-1].is_abort = is_abort
        await (producer.abort() if is_abort else producer.commit())
        ends[-1].completed_s, ends[-1].outcome = a_run.loop.time(), Outcome.OK

    async def in_client(work: Coroutine[Any, Any, None], what: str) -> None:
        assert await a_run.workload.in_process(name, work, seconds=30, what=what)

    await in_client(write(1), "write")
    await in_client(end(is_abort=False), "commit")
    await in_client(write(2), "write")
    assert first.services is not None
    index = TopicPartition(TRANSACTIONS_TOPIC, partition_of(name, 2))
    state = first.services.replicas.partitions[index]
    await asyncio.sleep(0.6)
    decided = state.log.high_watermark
    committing = asyncio.ensure_future(in_client(end(is_abort=False), "commit"))
    await a_run.moment(lambda: state.log.high_watermark > decided, "the commit is decided")
    _block(a_run, first, leader)
    await asyncio.sleep(0.0002)
    first.pause()
    await committing
    await a_run.until(lambda _: coordinator(name) is not first, "another coordinator")
    await in_client(write(3), "write")
    _unblock(a_run, first, leader)
    await asyncio.sleep(0.5)
    await in_client(end(is_abort=True), "abort")
    await in_client(write(4), "write")
    await in_client(end(is_abort=False), "commit")
    first.resume()


async def commit_just_before_the_coordinator_dies(a_run: Run) -> None:
    """A new coordinator has an acknowledged offset commit above its high watermark."""
    history, partition, group = a_run.cluster.history, a_run.workload.partitions[0], "g"
    first = a_run.roles()[0]

    def coordinator() -> Machine:
        services = next(each.services for each in a_run.cluster.machines.values() if each.services is not None)
        topic = services.cluster.current.topics[OFFSETS_TOPIC]
        leader = topic.partitions[partition_of(group, len(topic.partitions))].leader
        return first if leader < 0 else a_run.cluster.machines[leader]

    async def commit(number: int) -> None:
        client = await a_run.cluster.patient_client("committer")
        made = Commit(group, number, partition, a_run.loop.time())
        history.commits.append(made)
        await commit_offsets(client, group, {partition: number})
        made.completed_s, made.outcome = a_run.loop.time(), Outcome.OK

    async def read() -> None:
        client = await a_run.cluster.patient_client("committer")
        found = await committed_offsets(client, group, [partition])
        history.final_commits[group, partition] = found[partition].offset if partition in found else -1

    async def in_client(work: Coroutine[Any, Any, None], what: str) -> None:
        assert await a_run.workload.in_process("committer", work, seconds=30, what=what)

    assert await send(a_run, "p1", 5) == 5
    await in_client(commit(1), "commit")
    await asyncio.sleep(1)
    await in_client(commit(2), "commit")
    first = coordinator()
    first.kill()
    await a_run.until(lambda _: coordinator() is not first, "another coordinator")
    await in_client(read(), "read the committed offset")
