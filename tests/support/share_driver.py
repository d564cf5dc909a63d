"""Drives a share partition in simulated time: random members, a log with holes, a share coordinator that fails.

`run_schedule(seed)` runs one schedule and checks it; the seed replays it.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ottla.core.errors import ErrorCode
from ottla.internal_topics.topic_log import KeyValue
from ottla.share_coordinator.machine import ShareCoordinatorMachine, StateWrite
from ottla.share_coordinator.records import SharePartitionKey, StateRecord, decode, encode
from ottla.share_coordinator.states import RecordState
from ottla.share_partitions.acknowledgements import AcknowledgementBatch, AcknowledgeType, AcquiredRecords, AcquireMode
from ottla.share_partitions.events import (
    Acknowledge,
    Acquire,
    AvailabilityChanged,
    DeadLetters,
    DeadLettersDone,
    Event,
    Extent,
    LocksDue,
    NotPersisted,
    Output,
    Persist,
    Persisted,
    Release,
    SharePartitionLimits,
    ShareReply,
    WriteDeadLetters,
)
from ottla.share_partitions.machine import NEVER_MS, PartitionMachine

KEY = SharePartitionKey("team", uuid.UUID(int=7), 0)
MEMBERS = ("ada", "bob", "cyd")


@dataclass
class ShareDriver:
    """Feeds one share partition, performs its writes when the test wants, and remembers every reply."""

    limits: SharePartitionLimits = field(default_factory=SharePartitionLimits)
    start_offset: int = 0
    now_ms: int = 1_000
    machine: PartitionMachine = field(init=False)
    writes: list[Persist] = field(default_factory=list)
    replies: dict[int, ErrorCode] = field(default_factory=dict)
    dead_letters: list[tuple[DeadLetters, ...]] = field(default_factory=list)
    changes: int = 0
    tickets: int = 0

    def __post_init__(self) -> None:
        self.machine = PartitionMachine(self.start_offset, (), self.limits)

    def perform(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case ShareReply(ticket, error):
                    assert ticket not in self.replies, "a ticket is answered once"
                    self.replies[ticket] = error
                case Persist():
                    self.writes.append(output)
                case WriteDeadLetters(letters):
                    self.dead_letters.append(letters)
                case AvailabilityChanged():
                    self.changes += 1

    def ask(self, event: Event) -> int:
        """Feed a request; returns its ticket."""
        self.tickets += 1
        self.perform(self.machine.step(event, now_ms=self.now_ms, ticket=self.tickets))
        return self.tickets

    def feed(self, event: Event) -> None:
        self.perform(self.machine.step(event, now_ms=self.now_ms))

    def acquire(
        self,
        member: str,
        *batches: tuple[int, int],
        max_records: int = 500,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
        batch_size: int = 500,
        aborted: Sequence[tuple[int, int]] = (),
        fetch_offset: int | None = None,
    ) -> list[AcquiredRecords]:
        request = Acquire(
            member=member,
            fetch_offset=self.machine.next_fetch_offset if fetch_offset is None else fetch_offset,
            batches=[Extent(*batch) for batch in batches],
            max_records=max_records,
            batch_size=batch_size,
            mode=mode,
            aborted=[Extent(*extent) for extent in aborted],
        )
        acquired, outputs = self.machine.acquire(request, now_ms=self.now_ms)
        self.perform(outputs)
        return acquired

    def acknowledge(self, member: str, first: int, last: int, *types: int) -> int:
        batch = AcknowledgementBatch(first, last, types or (AcknowledgeType.ACCEPT,))
        return self.ask(Acknowledge(member=member, batches=[batch]))

    def persist(self) -> None:
        """Complete all writes."""
        while self.writes:
            self.feed(Persisted(self.writes.pop(0).write))

    def acknowledge_durably(self, member: str, first: int, last: int, *types: int) -> ErrorCode:
        ticket = self.acknowledge(member, first, last, *types)
        self.persist()
        return self.replies[ticket]

    def wait(self, ms: int) -> None:
        """Let time pass; locks expire."""
        self.now_ms += ms
        if self.machine.next_expiry_ms != NEVER_MS and self.machine.next_expiry_ms <= self.now_ms:
            self.feed(LocksDue())

    def states(self) -> list[tuple[int, int, str, int]]:
        """Return (first, last, state, delivery count) of all ranges."""
        return [(each.first, each.last, each.state.name, each.delivery_count) for each in self.machine.ranges()]


class StateLog:
    """A share coordinator and its log. After every change its state is that which is loaded from the log."""

    def __init__(self, rng: random.Random, *, snapshot_interval: int) -> None:
        self.rng, self.interval = rng, snapshot_interval
        self.records: list[KeyValue] = []
        self.machine = ShareCoordinatorMachine(snapshot_interval, lambda _topic, _partition: True)
        self.keep(self.machine.initialize(KEY, 0, 0, now_wall_ms=1).records)

    def keep(self, records: Sequence[StateRecord]) -> None:
        for record in records:
            self.machine.apply(record, len(self.records))
            self.records.append(encode(record))
        assert self.replayed().states() == self.machine.states(), "a restart would change the state"

    def write(self, persist: Persist, leader_epoch: int) -> None:
        write = StateWrite(0, leader_epoch, persist.start_offset, persist.delivery_complete_count, persist.batches)
        result = self.machine.write(KEY, write, now_wall_ms=1)
        assert result.error is ErrorCode.NONE, result
        self.keep(result.records)

    def reload(self) -> None:
        self.machine = self.replayed()

    def replayed(self) -> ShareCoordinatorMachine:
        """Load the log from its first needed record, as after a restart."""
        first = self.machine.first_needed_offset or 0
        machine = ShareCoordinatorMachine(self.interval, lambda _topic, _partition: True)
        for offset, (key, value) in enumerate(self.records[first:], first):
            machine.apply(decode(key, value), offset)
        return machine


class SharePartitionModel:
    """One share partition, its members and what must hold."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.limits = SharePartitionLimits(
            lock_duration_ms=rng.choice((50, 500)),
            delivery_count_max=rng.choice((2, 3, 5)),
            record_locks_max=rng.choice((5, 20, 200)),
            has_dead_letter_queue=rng.random() < 0.5,
        )
        self.batches = self._new_log()
        self.exists = {offset for first, last, holes in self.batches for offset in range(first, last + 1)} - {
            offset for _, _, holes in self.batches for offset in holes
        }
        self.end = self.batches[-1][1] + 1
        self.driver = ShareDriver(self.limits)
        self.log = StateLog(rng, snapshot_interval=rng.choice((0, 1, 5)))
        self.epoch = 0
        self.held: dict[int, tuple[str, int]] = {}  # offset -> its holder and the end of the lock
        self.exhausted: set[int] = set()  # delivered for the last time
        self.counts: dict[int, int] = {}  # deliveries, as far as they are known
        self.accepting: dict[int, list[int]] = {}  # by ticket
        self.accepted: Counter[int] = Counter()
        self.maybe_accepted: set[int] = set()  # the write failed, or the broker was killed before the answer
        self.dropped: set[int] = set()  # rejected, or maybe
        self.queue: set[int] = set()  # offsets in the dead letter queue
        self.failing = rng.choice((0.0, 0.2))

    def _new_log(self) -> list[tuple[int, int, set[int]]]:
        rng, batches, offset = self.rng, [], 0
        for _ in range(rng.randrange(2, 12)):
            offset += rng.choice((0, 0, 0, 1, 3))
            size = rng.randrange(1, 12)
            inside = range(offset + 1, offset + size - 1)
            holes = {hole for hole in inside if rng.random() < 0.1}
            batches.append((offset, offset + size - 1, holes))
            offset += size
        return batches

    # ---- What happens

    def run(self, steps: int) -> None:
        actions = [self.fetch] * 6 + [self.acknowledge] * 5 + [self.complete] * 5
        actions += [self.pass_time, self.write_dead_letters] * 2 + [self.leave, self.renew, self.steal]
        for _ in range(steps):
            self.rng.choice(actions)()
            self.check_restart()
            if self.rng.random() < 0.02:
                self.restart()
        self.failing = 0.0
        for _ in range(1_000):
            if self.driver.machine.start_offset >= self.end:
                break
            self.complete_all()
            self.write_dead_letters()
            self.fetch(kind=AcknowledgeType.ACCEPT)
            self.complete_all()
            if self.driver.machine.start_offset < self.end and not self.held_now():
                self.pass_time()
            self.accept_all()
        self.complete_all()
        self.check_end()

    def fetch(self, kind: AcknowledgeType | None = None) -> None:
        machine = self.driver.machine
        if not machine.can_acquire:
            return
        at = machine.next_fetch_offset
        found = [Extent(first, last) for first, last, _ in self.batches if last >= at]
        if not found:
            assert at >= self.end
            return
        found = found[: self.rng.randrange(1, 4)] if kind is None else found
        member = self.rng.choice(MEMBERS)
        mode = self.rng.choice(tuple(AcquireMode))
        max_records = self.rng.choice((1, 3, 10, 500))
        acquired = self.driver.acquire(
            member, *found, max_records=max_records, mode=mode, batch_size=self.rng.choice((1, 4, 500)), fetch_offset=at
        )
        if mode is AcquireMode.RECORD_LIMIT:
            assert sum(one.last - one.first + 1 for one in acquired) <= max_records
        for one in acquired:
            for offset in range(one.first, one.last + 1):
                assert offset not in self.accepted, f"{offset} was accepted and is delivered again"
                assert offset not in self.held, f"{offset} is held by {self.held[offset]}"
                expected = self.counts.get(offset, one.delivery_count - 1) + 1
                assert one.delivery_count == expected, f"{offset} is delivered for the {expected}th time, not {one}"
                self.counts[offset] = one.delivery_count
                assert one.delivery_count <= self.limits.delivery_count_max, f"{offset} is past its delivery limit"
                self.held[offset] = (member, self.driver.now_ms + self.limits.lock_duration_ms)
                if one.delivery_count == self.limits.delivery_count_max:
                    self.exhausted.add(offset)

    def held_now(self) -> bool:
        return bool(self.held)

    def acknowledge(self) -> None:
        if self.held:
            offset = self.rng.choice(sorted(self.held))
            self._acknowledge_from(offset, self.rng.choice((0, 1, 2, 5)))

    def accept_all(self) -> None:
        while self.held:
            self._acknowledge_from(min(self.held), 1_000, AcknowledgeType.ACCEPT)
            self.complete_all()

    def _acknowledge_from(self, first: int, more: int, only: AcknowledgeType | None = None) -> None:
        member, last = self.held[first][0], first
        while last < first + more and self.held.get(last + 1, ("",))[0] == member:
            last += 1
        kinds = (AcknowledgeType.ACCEPT, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
        types = [
            (only or self.rng.choice(kinds)) if offset in self.exists else AcknowledgeType.GAP
            for offset in range(first, last + 1)
        ]
        if len(set(types)) == 1 and self.rng.random() < 0.5:
            types = types[:1]
        ticket = self.driver.acknowledge(member, first, last, *types)
        types = types * (last - first + 1) if len(types) == 1 else types
        self.accepting[ticket] = []
        for offset, kind in zip(range(first, last + 1), types, strict=True):
            del self.held[offset]
            if kind is AcknowledgeType.ACCEPT:
                self.accepting[ticket].append(offset)
            elif kind in (AcknowledgeType.REJECT, AcknowledgeType.GAP):
                self.dropped.add(offset)
        self._note_replies()

    def renew(self) -> None:
        if self.held:
            offset = self.rng.choice(sorted(self.held))
            member = self.held[offset][0]
            ticket = self.driver.acknowledge(member, offset, offset, AcknowledgeType.RENEW)
            assert self.driver.replies[ticket] is ErrorCode.NONE
            self.held[offset] = (member, self.driver.now_ms + self.limits.lock_duration_ms)

    def steal(self) -> None:
        """Acknowledge what another member holds: that is refused and changes nothing."""
        if self.held:
            offset = self.rng.choice(sorted(self.held))
            thief = self.rng.choice([member for member in MEMBERS if member != self.held[offset][0]])
            ticket = self.driver.acknowledge(thief, offset, offset)
            assert self.driver.replies.get(ticket) is ErrorCode.INVALID_RECORD_STATE, f"{thief} may accept {offset}"

    def leave(self) -> None:
        member = self.rng.choice(MEMBERS)
        self.accepting[self.driver.ask(Release(member))] = []
        self.held = {offset: held for offset, held in self.held.items() if held[0] != member}
        self._note_replies()

    def pass_time(self) -> None:
        self.driver.wait(self.rng.choice((10, 60, 600)))
        now_ms = self.driver.now_ms
        self.held = {offset: held for offset, held in self.held.items() if held[1] > now_ms}

    def write_dead_letters(self) -> None:
        """Write the oldest dead letters."""
        if self.driver.dead_letters:
            letters = self.driver.dead_letters.pop(0)
            self.queue.update(offset for one in letters for offset in range(one.first, one.last + 1))
            self.driver.feed(DeadLettersDone(letters))

    def complete(self) -> None:
        """Complete the oldest write; it may fail and be durable all the same."""
        if not self.driver.writes:
            return
        write = self.driver.writes.pop(0)
        fails = self.rng.random() < self.failing
        if not fails or self.rng.random() < 0.5:
            self.log.write(write, self.epoch)
        if not fails:
            self.driver.feed(Persisted(write.write))
        else:
            ended = [each for each in self.driver.machine.ranges() if each.write == write.write]
            self.driver.feed(NotPersisted(write.write, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            for each in ended:  # the member holds them again, unless its lock has expired
                self._hold_again(each.first, each.last)
        self._note_replies()

    def _hold_again(self, first: int, last: int) -> None:
        for each in self.driver.machine.ranges():
            for offset in range(max(first, each.first), min(last, each.last) + 1):
                if each.is_acquired:
                    self.held[offset] = (each.member, each.lock_ms)

    def complete_all(self) -> None:
        while self.driver.writes:
            self.complete()

    def _note_replies(self) -> None:
        for ticket in [ticket for ticket in self.accepting if ticket in self.driver.replies]:
            offsets = self.accepting.pop(ticket)
            if self.driver.replies[ticket] is ErrorCode.NONE:
                self.accepted.update(offsets)
            else:
                self.maybe_accepted.update(offsets)

    def restart(self) -> None:
        """Kill the broker: what it did not persist is forgotten. Members lose what they hold."""
        for write in self.driver.writes:
            if self.rng.random() < 0.5:
                self.log.write(write, self.epoch)
        self.driver.writes.clear()
        for offsets in self.accepting.values():
            self.maybe_accepted.update(offsets)
        self.accepting.clear()
        self.held.clear()
        self.counts.clear()
        self.log.reload()
        self.epoch += 1
        result = self.log.machine.read(KEY, self.epoch, now_wall_ms=1)
        self.log.keep(result.records)
        assert result.state is not None
        self.driver.machine = PartitionMachine(result.state.start_offset, result.state.batches, self.limits)
        self.driver.dead_letters.clear()
        letters = self.driver.machine.unwritten_dead_letters()
        if letters:
            self.driver.dead_letters.append(letters)

    # ---- What must hold

    def check_restart(self) -> None:
        """What would be loaded is what is in flight, but for what is acquired, and what the log itself shows again.

        Not so while a write has not ended, nor after one that failed.
        """
        if self.failing:
            return
        persisted = self.log.replayed().summary(KEY).state
        assert persisted is not None
        loaded = PartitionMachine(persisted.start_offset, persisted.batches, self.limits)
        assert loaded.start_offset <= self.driver.machine.start_offset
        found = {offset: each for each in loaded.ranges() for offset in range(each.first, each.last + 1)}
        writing = [batch for write in self.driver.writes for batch in write.batches]
        for each in self.driver.machine.ranges():
            for offset in range(each.first, each.last + 1):
                if any(batch.first <= offset <= batch.last for batch in writing):
                    continue
                state, count = (
                    (found[offset].state, found[offset].delivery_count)
                    if offset in found
                    else (RecordState.AVAILABLE, 0)
                )
                if each.state is RecordState.ACQUIRED:
                    expected = RecordState.AVAILABLE, each.delivery_count - 1
                elif each.state is RecordState.ARCHIVED and state is RecordState.AVAILABLE:
                    continue
                else:
                    expected = each.state, each.delivery_count
                assert (state, count) == expected, f"a restart changes {offset} from {each} to {state}, {count}"

    # ---- What must hold at the end

    def check_end(self) -> None:
        assert self.driver.machine.start_offset >= self.end, f"not done: {self.driver.states()}"
        twice = {offset: times for offset, times in self.accepted.items() if times > 1}
        assert not twice, f"accepted twice: {twice}"
        assert not self.accepting, f"never answered: {self.accepting}"
        lost = self.exists - self.accepted.keys() - self.maybe_accepted - self.dropped - self.exhausted
        assert not lost, f"lost: {sorted(lost)}"
        if self.limits.has_dead_letter_queue:
            dead = self.exists - self.accepted.keys() - self.maybe_accepted - self.queue
            assert not dead, f"neither accepted nor in the dead letter queue: {sorted(dead)}"


def run_schedule(seed: int, steps: int = 120) -> None:
    """Run one schedule and check it."""
    SharePartitionModel(seed).run(steps)
