"""Whole groups in simulated time: clients that join, work, crash and come back; a log that is slow and fails."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial

import pytest

from ottla.core.errors import ErrorCode, GroupIdNotFound, KafkaError, NotCoordinator, StorageError
from ottla.core.ids import TopicPartition
from ottla.groups.classic.events import Heartbeat, JoinAnswer, Leave, Leaver, State, Sync
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.config import GroupConfig
from ottla.groups.coordinator import GroupCoordinator, Joining
from ottla.groups.machine import Commit
from ottla.groups.offsets import CommittedOffset
from ottla.internal_topics.partitioning import partition_of
from ottla.internal_topics.topic_log import AppendedBatch, KeyValue, LoadedRecords, ProducerIdentity
from ottla.testing.sim_loop import Deadlock, SimClock, TooLong, Unseen, simulate
from tests.coordinator_schedules.schedules import seeds
from tests.support.group_driver import subscription
from tests.support.topic_logs import MemoryTopicLog

WORK = [TopicPartition("web", index) for index in range(4)]
PARTITIONS = 3
WALL_MS = 1_700_000_000_000


class SlowLog(MemoryTopicLog):
    """`__consumer_offsets` that takes its time; some appends fail, and of those some were written all the same."""

    def __init__(self, rng: random.Random, *, failing: float = 0.0, slow_s: float = 0.2) -> None:
        super().__init__(PARTITIONS)
        self.busy: Counter[int] = Counter()
        self.failure_rate, self.slow_s = failing, slow_s
        self._rng = rng

    async def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        producer: ProducerIdentity | None = None,
        *,
        leader_epoch: int,
    ) -> AppendedBatch:
        assert not self.busy[partition], "the next batch was sent before the last one was done"
        self.busy[partition] += 1
        try:
            await asyncio.sleep(self._rng.random() * self.slow_s)
            fails = self._rng.random() < self.failure_rate
            if fails and self._rng.random() >= 0.3:
                await asyncio.sleep(self._rng.random() * self.slow_s)
                raise StorageError
            appended = await super().append(partition, records, producer, leader_epoch=leader_epoch)
            self.has_lied |= fails
        except BaseException:
            self.busy[partition] -= 1
            raise
        return appended._replace(replicated=self._slowly(partition, appended.replicated, fails=fails))

    async def _slowly(self, partition: int, replicated: Awaitable[None], *, fails: bool) -> None:
        try:
            await asyncio.sleep(self._rng.random() * self.slow_s)
            await replicated
            if fails:
                raise StorageError
        finally:
            self.busy[partition] -= 1

    async def read_all(self, partition: int, end_offset: int) -> AsyncIterator[LoadedRecords]:
        async for batch in super().read_all(partition, end_offset):
            yield batch
            if self._rng.random() < 0.2:
                await asyncio.sleep(self._rng.random())


class RestartingBroker:
    """One broker's coordinator, restarted at will, and what its clients know."""

    def __init__(self, rng: random.Random, log: SlowLog, config: GroupConfig | None = None) -> None:
        self.rng, self.log, self.clock = rng, log, SimClock()
        self.config = config or GroupConfig()
        self.names = iter(range(1_000_000))
        self.owners: dict[tuple[int, TopicPartition], str] = {}  # (generation, work) -> the member it is assigned to
        self.acked: dict[TopicPartition, int] = {}
        self.coordinator = self._new()

    def _new(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(
            self.config, clock=self.clock, log=self.log, node_id=1, new_id=lambda: str(next(self.names))
        )
        coordinator.start()
        for partition in range(PARTITIONS):
            coordinator.led.lead(partition)
        return coordinator

    async def restart(self) -> None:
        await self.coordinator.close()
        self.coordinator = self._new()
        await self.coordinator.led.wait_until_loaded()


def check_groups(coordinator: GroupCoordinator) -> None:
    """Assert the invariants of the groups: after heartbeats and commits their machines do not check all."""
    for shard in coordinator.led.ready_shards():
        for runtime in shard.groups():
            assert isinstance(runtime.group, ClassicGroup)
            runtime.group.check()


def joining(member_id: str, instance_id: str | None) -> Joining:
    return Joining(
        member_id=member_id,
        protocol_type="consumer",
        protocols=(("range", subscription("web")),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        instance_id=instance_id,
        client_id="sim",
        client_host="/127.0.0.1",
        requires_member_id=True,
        may_skip_assignment=False,
    )


def shared_out(answer: JoinAnswer) -> dict[str, bytes]:
    """The leader's work: partitions in turn."""
    names = [member.member_id for member in answer.members]
    shares: dict[str, list[int]] = {name: [] for name in names}
    for index, work in enumerate(WORK):
        shares[names[index % len(names)]].append(work.partition)
    return {name: bytes(share) for name, share in shares.items()}


class Member:
    """A consumer as clients write them: it joins, works, commits, and rejoins on request."""

    def __init__(self, broker: RestartingBroker, instance_id: str | None = None) -> None:
        self.broker, self.instance_id = broker, instance_id
        self.member_id, self.generation = "", -1
        self.work: list[TopicPartition] = []
        self.stop = False

    async def run(self) -> None:
        while not self.stop:
            try:
                if await self.join():
                    await self.consume()
            except KafkaError:
                await asyncio.sleep(0.1 + self.broker.rng.random())

    async def leave(self) -> None:
        self.stop = True
        try:
            await self.broker.coordinator.leave("team", Leave((Leaver(member_id=self.member_id),)))
        except KafkaError:
            pass

    async def join(self) -> bool:
        coordinator = self.broker.coordinator
        answer = await coordinator.join("team", joining(self.member_id, self.instance_id))
        self.member_id = answer.member_id if answer.error is not ErrorCode.UNKNOWN_MEMBER_ID else ""
        if answer.error is not ErrorCode.NONE:
            self.stop = self.stop or answer.error is ErrorCode.FENCED_INSTANCE_ID
            await asyncio.sleep(self.broker.rng.random())
            return False
        self.generation = answer.generation
        leads = answer.leader == self.member_id and answer.members
        shares = shared_out(answer) if leads else {}
        await asyncio.sleep(self.broker.rng.random())
        synced = await coordinator.sync(
            "team", Sync(member_id=self.member_id, generation=self.generation, assignments=shares)
        )
        if synced.error is not ErrorCode.NONE:
            return False
        self.work = [TopicPartition("web", index) for index in synced.assignment]
        for work in self.work:
            owner = self.broker.owners.setdefault((self.generation, work), self.instance_id or self.member_id)
            assert owner == (self.instance_id or self.member_id), f"{work} has two owners in one generation"
        return True

    async def consume(self) -> None:
        while not self.stop:
            await asyncio.sleep(1 + self.broker.rng.random())
            heartbeat = Heartbeat(member_id=self.member_id, generation=self.generation, instance_id=self.instance_id)
            error = await self.broker.coordinator.heartbeat("team", heartbeat)
            check_groups(self.broker.coordinator)
            if error is ErrorCode.NONE:
                error = await self.commit()
                check_groups(self.broker.coordinator)
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            if error is ErrorCode.FENCED_INSTANCE_ID:
                self.stop = True
            if error is not ErrorCode.NONE:
                return

    async def commit(self) -> ErrorCode:
        broker = self.broker
        offsets = {work: CommittedOffset(broker.acked.get(work, 0) + 1) for work in self.work}
        if not offsets:
            return ErrorCode.NONE
        commit = Commit(member_id=self.member_id, generation=self.generation, instance_id=self.instance_id)
        try:
            coordinator = broker.coordinator
            outcome = await coordinator.commit("team", commit, offsets)
        except (NotCoordinator, StorageError) as error:
            return error.code if self.stop else ErrorCode.NONE
        except KafkaError as error:
            return error.code
        assert set(outcome.values()) == {ErrorCode.NONE}
        visible = coordinator.fetch("team")
        for work, committed in offsets.items():
            found = visible.get(work)
            assert found is not None, f"an acknowledged offset of {work} is not durable"
            assert found.offset >= committed.offset, f"an acknowledged offset of {work} is not durable"
            broker.acked[work] = max(broker.acked.get(work, 0), committed.offset)
        return ErrorCode.NONE


async def settled(broker: RestartingBroker, members: Sequence[Member], *, within_s: float) -> None:
    """All members in one stable generation, and all work done by exactly one of them."""
    for _ in range(round(within_s)):
        await asyncio.sleep(1)
        generations = {member.generation for member in members}
        done = Counter(work for member in members for work in member.work)
        try:
            group = broker.coordinator.describe("team")
        except KafkaError:
            continue
        stable = group.state is State.STABLE and generations == {group.generation} and done == Counter(WORK)
        # A member whose answer was lost stays, perhaps without work, until its session expires.
        if stable and set(group.members.by_id) == {member.member_id for member in members}:
            return
    pytest.fail(f"not settled: {group.state}, {[(m.member_id, m.generation, m.work) for m in members]}")


def committed(broker: RestartingBroker) -> dict[TopicPartition, int]:
    return {work: found.offset for work, found in broker.coordinator.fetch("team").items()}


async def rolling_trouble(failing: float, rng: random.Random) -> None:
    broker = RestartingBroker(rng, SlowLog(rng))
    await broker.coordinator.led.wait_until_loaded()
    members = [Member(broker), Member(broker), Member(broker, "static")]
    tasks = {member: asyncio.create_task(member.run()) for member in members}
    await asyncio.sleep(20)
    broker.log.failure_rate = failing
    for _ in range(6):
        match rng.randrange(4):
            case 0:  # one crashes: no farewell
                gone = members.pop(rng.randrange(len(members)))
                gone.stop = True
                tasks.pop(gone).cancel()
                replacement = Member(broker, gone.instance_id)
                members.append(replacement)
                tasks[replacement] = asyncio.create_task(replacement.run())
            case 1:  # one more comes
                extra = Member(broker)
                members.append(extra)
                tasks[extra] = asyncio.create_task(extra.run())
            case 2 if len(members) > 1:  # one leaves
                dynamic = next((member for member in members if member.instance_id is None), None)
                if dynamic is not None:
                    members.remove(dynamic)
                    await dynamic.leave()
            case _:  # the broker restarts
                await broker.restart()
        await asyncio.sleep(rng.random() * 30)
    broker.log.failure_rate = 0.0
    await settled(broker, members, within_s=300)
    for member in members:
        member.stop = True
    for ended in await asyncio.gather(*tasks.values(), return_exceptions=True):
        if isinstance(ended, AssertionError):
            raise ended
    await broker.restart()
    now = committed(broker)
    lost = {work: offset for work, offset in broker.acked.items() if now.get(work, 0) < offset}
    assert not lost, f"acknowledged offsets are lost: {lost}, there is {now}"
    await broker.coordinator.close()


@pytest.mark.parametrize("seed", seeds(60))
def test_a_group_settles_after_any_trouble_and_no_acknowledged_offset_is_lost(seed: int) -> None:
    simulate(partial(rolling_trouble, 0.0), seed=seed)


@pytest.mark.parametrize("seed", seeds(60, first=100_000))
def test_a_group_settles_and_no_acknowledged_offset_is_lost_when_the_log_fails_at_times(seed: int) -> None:
    simulate(partial(rolling_trouble, 0.2), seed=seed)


async def a_static_member_restarts(rng: random.Random) -> int:
    broker = RestartingBroker(rng, SlowLog(rng))
    await broker.coordinator.led.wait_until_loaded()
    members = [Member(broker, "one"), Member(broker, "two")]
    tasks = [asyncio.create_task(member.run()) for member in members]
    await settled(broker, members, within_s=60)
    generation = members[0].generation
    tasks[1].cancel()
    await asyncio.sleep(5)
    again = Member(broker, "two")
    tasks.append(asyncio.create_task(again.run()))
    await settled(broker, [members[0], again], within_s=30)
    for task in tasks:
        task.cancel()
    await broker.coordinator.close()
    return again.generation - generation


@pytest.mark.parametrize("seed", seeds(30))
def test_a_static_member_that_restarts_in_time_causes_no_rebalance(seed: int) -> None:
    assert simulate(a_static_member_restarts, seed=seed) == 0


async def a_log_that_hangs(rng: random.Random) -> ErrorCode:
    broker = RestartingBroker(rng, SlowLog(rng, slow_s=100))
    await broker.coordinator.led.wait_until_loaded()
    commit = Commit(member_id="", generation=-1)
    began = broker.clock.monotonic()
    try:
        await broker.coordinator.commit("simple", commit, {WORK[0]: CommittedOffset(7)})
    except KafkaError as error:
        assert broker.clock.monotonic() - began == pytest.approx(5)
        assert committed_of(broker, "simple") == {}
        await asyncio.sleep(300)
        assert committed_of(broker, "simple") == {WORK[0]: 7}, "the log has it, so readers must see it"
        return error.code
    return ErrorCode.NONE


def committed_of(broker: RestartingBroker, group_id: str) -> dict[TopicPartition, int]:
    return {work: found.offset for work, found in broker.coordinator.fetch(group_id).items()}


def test_a_commit_that_is_not_durable_in_time_is_answered_as_failed() -> None:
    assert simulate(a_log_that_hangs, seed=3) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def while_loading(rng: random.Random) -> set[ErrorCode]:
    log = SlowLog(rng)
    broker = RestartingBroker(rng, log)
    await broker.coordinator.led.wait_until_loaded()
    for index in range(50):
        await broker.coordinator.commit(
            "simple", Commit(member_id="", generation=-1), {WORK[0]: CommittedOffset(index)}
        )
    await broker.coordinator.close()
    broker.coordinator = broker._new()
    seen: set[ErrorCode] = set()
    while True:
        try:
            assert committed_of(broker, "simple") == {WORK[0]: 49}
            return seen
        except KafkaError as error:
            seen.add(error.code)
            await asyncio.sleep(0.01)


def test_no_request_is_answered_while_the_log_is_loading() -> None:
    assert simulate(while_loading, seed=5) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


async def resigning(rng: random.Random) -> list[object]:
    broker = RestartingBroker(rng, SlowLog(rng))
    await broker.coordinator.led.wait_until_loaded()
    waiting = asyncio.create_task(broker.coordinator.join("team", joining("", "static")))
    writing = asyncio.create_task(
        broker.coordinator.commit("simple", Commit(member_id="", generation=-1), {WORK[0]: CommittedOffset(1)})
    )
    await asyncio.sleep(0.01)
    for group_id in ("team", "simple"):
        broker.coordinator.led.resign(partition_of(group_id, PARTITIONS))
    return list(await asyncio.gather(waiting, writing, return_exceptions=True))


def test_waiting_members_get_not_coordinator_when_the_partition_moves() -> None:
    assert [type(outcome) for outcome in simulate(resigning, seed=1)] == [NotCoordinator, NotCoordinator]


async def a_life(rng: random.Random) -> None:
    """Offsets expire with their group; deletion and deleted topics take them at once; all of it survives a restart."""
    broker = RestartingBroker(rng, SlowLog(rng))
    coordinator = broker.coordinator
    await coordinator.led.wait_until_loaded()
    alone = Commit(member_id="", generation=-1)
    gone = TopicPartition("gone", 0)
    for group_id in ("expires", "deleted", "stays"):
        await coordinator.commit(
            group_id,
            alone,
            {
                WORK[0]: CommittedOffset(7, committed_wall_ms=broker.clock.wall_ms()),
                gone: CommittedOffset(1, committed_wall_ms=broker.clock.wall_ms()),
            },
        )
    await coordinator.topics_deleted(frozenset({"gone"}))
    assert committed_of(broker, "stays") == {WORK[0]: 7}
    await coordinator.delete("deleted")
    with pytest.raises(GroupIdNotFound):
        coordinator.describe("deleted")
    await asyncio.sleep(6 * 24 * 3600)
    await coordinator.commit("stays", alone, {WORK[0]: CommittedOffset(8, committed_wall_ms=broker.clock.wall_ms())})
    await asyncio.sleep(2 * 24 * 3600)
    assert [group.group_id for group in coordinator.list_groups()] == ["stays"]
    await broker.restart()
    assert [group.group_id for group in broker.coordinator.list_groups()] == ["stays"]
    assert committed_of(broker, "stays") == {WORK[0]: 8}
    outcome = await broker.coordinator.delete_offsets("stays", [WORK[0], WORK[1]])
    assert set(outcome.values()) == {ErrorCode.NONE}
    assert broker.coordinator.list_groups() == []
    await broker.restart()
    assert broker.coordinator.list_groups() == []
    await broker.coordinator.close()


@pytest.mark.parametrize("seed", seeds(10))
def test_offsets_live_as_long_as_they_should_and_no_longer(seed: int) -> None:
    simulate(a_life, seed=seed)


async def a_deletion_that_races_a_commit(rng: random.Random) -> None:
    broker = RestartingBroker(rng, SlowLog(rng, failing=0.2))
    coordinator = broker.coordinator
    await coordinator.led.wait_until_loaded()
    alone = Commit(member_id="", generation=-1)

    async def commits() -> None:
        for index in range(20):
            await asyncio.sleep(rng.random())
            try:
                await coordinator.commit("simple", alone, {WORK[index % 4]: CommittedOffset(index)})
            except KafkaError:
                pass

    async def deletes() -> None:
        for _ in range(10):
            await asyncio.sleep(rng.random())
            try:
                await coordinator.delete("simple")
            except KafkaError:
                pass

    await asyncio.gather(commits(), commits(), deletes(), deletes())
    broker.log.failure_rate = 0.0
    # What failed may have been written all the same: it is loaded. Memory and log must agree.
    await asyncio.sleep(1)
    await coordinator.led.wait_until_loaded()
    await coordinator.commit("simple", alone, {work: CommittedOffset(100) for work in WORK[:2]})
    before = committed_of(broker, "simple")
    await coordinator.delete_offsets("simple", WORK[2:])
    await broker.restart()
    after = committed_of(broker, "simple")
    assert {work: after[work] for work in WORK[:2]} == {work: before[work] for work in WORK[:2]}


@pytest.mark.parametrize("seed", seeds(40))
def test_deletions_and_commits_leave_the_log_and_the_memory_agreed(seed: int) -> None:
    simulate(a_deletion_that_races_a_commit, seed=seed)


# ---- The simulator itself


def test_simulated_time_costs_no_time_and_the_same_seed_gives_the_same_run() -> None:
    async def main(rng: random.Random) -> list[int]:
        order: list[int] = []

        async def one(number: int) -> None:
            await asyncio.sleep(3600)
            order.append(number)

        await asyncio.gather(*(one(number) for number in range(5)))
        assert asyncio.get_running_loop().time() == 3600
        return order

    runs = [simulate(main, seed=seed) for seed in range(20)]
    assert runs == [simulate(main, seed=seed) for seed in range(20)]
    assert len({tuple(run) for run in runs}) > 5


def test_waiting_for_nothing_fails_at_once() -> None:
    async def main(rng: random.Random) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock) as failure:
        simulate(main, seed=77)
    assert "77" in str(failure.value.__notes__)


def test_going_on_for_ever_fails() -> None:
    async def main(rng: random.Random) -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(60)  # this is what must be found out

    with pytest.raises(TooLong):
        simulate(main, seed=1, limit_s=3600)


def test_an_unretrieved_failure_is_reported() -> None:
    async def main(rng: random.Random) -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 // 0)
        await asyncio.sleep(2)

    with pytest.raises(Unseen):
        simulate(main, seed=1)


@pytest.mark.simulated_time
async def test_threads_are_answered_in_simulated_time() -> None:
    assert (await asyncio.to_thread(lambda: 41 + 1)) == 42
