"""Runs one group: passes events to its state machine and performs the outputs (responses, timers, writes)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, assert_never

from ottla.core.clock import Clock
from ottla.core.errors import KafkaError, NotCoordinator
from ottla.core.events import EventLog
from ottla.groups.consumer.events import MemberHeartbeat
from ottla.groups.group import Group
from ottla.groups.group_events import CHANGING, cause_of, record_change
from ottla.groups.machine import (
    AppendRecords,
    CancelTimer,
    Compute,
    GroupAnswer,
    GroupMachine,
    Now,
    Output,
    Replace,
    SetTimer,
    TimerFired,
)
from ottla.groups.offsets import GroupOffsets
from ottla.internal_topics.failed_steps import FailedStep
from ottla.internal_topics.machine_events import NO_TICKET, NotStored, Reply, Stored
from ottla.internal_topics.machine_runtime import MachineRuntime
from ottla.internal_topics.topic_log import KeyValue
from ottla.internal_topics.writer import PartitionWriter


class _Timer:
    """Holds a timer of a group. One that is set to a later time, as every heartbeat does, moves when it fires."""

    __slots__ = ("armed_ms", "at_ms", "handle")

    def __init__(self, at_ms: int, handle: asyncio.TimerHandle) -> None:
        self.at_ms = self.armed_ms = at_ms
        self.handle = handle


class GroupRuntime(MachineRuntime[GroupMachine, Any, GroupAnswer]):
    """Holds one group of this coordinator: its machine, offsets, timers and waiting requests.

    The offsets belong to the group's id, not to its type: they stay when the type changes (`replace_machine`).
    """

    def __init__(
        self,
        machine: GroupMachine,
        writer: PartitionWriter,
        clock: Clock,
        *,
        write_timeout_ms: int,
        on_failed: Callable[[FailedStep], None],
        events: EventLog | None = None,
    ) -> None:
        super().__init__(machine.group.group_id, writer, on_failed)
        self.machine = machine
        self.offsets = GroupOffsets()
        self.in_log = False  # the log has a record of the group itself, which a deletion must cover
        self.is_being_deleted = False
        self.is_started = True  # False while the log is being loaded: nothing is decided yet
        self._clock, self._write_timeout_ms, self._events = clock, write_timeout_ms, events
        self._timers: dict[Hashable, _Timer] = {}
        self._unwritten: list[KeyValue] = []  # records of a replaced machine that could not be written
        self._written_first: dict[tuple[GroupMachine, int], list[KeyValue]] = {}  # those in a pending write
        self._last_writes: dict[GroupMachine, int] = {}  # of replaced machines: the write that replaces their records
        self._computing: set[asyncio.Task[None]] = set()

    @property
    def group(self) -> Group:
        """Return the group."""
        return self.machine.group

    @property
    def group_id(self) -> str:
        """Return the group's id."""
        return self.machine.group.group_id

    def replace_machine(self, machine: GroupMachine) -> None:
        """Continue with a group of another type. The old machine still gets the results of its writes."""
        self._cancel_timers()
        self.machine = machine

    def write_first(self, records: Sequence[KeyValue]) -> None:
        """Write records before the next ones of the machine."""
        self._unwritten.extend(records)

    def feed(self, event: Any, ticket: int = NO_TICKET) -> None:
        """Do one step of the machine and perform its outputs. It never raises: see `fail`."""
        self._step_or_fail(self.machine, event, ticket)

    def _step_or_fail(self, machine: GroupMachine, event: Any, ticket: int = NO_TICKET, at_least_ms: int = 0) -> None:
        if not self.is_open:
            return
        before = machine.outline
        cause = ""
        if (
            self._events is not None
            and type(event) in CHANGING
            and not (type(event) is MemberHeartbeat and event.member_epoch > 0 and event.topics is None)
        ):
            cause = cause_of(machine.group, event)  # before the step, which may remove a member
        try:
            self._step(machine, event, ticket, at_least_ms)
            if cause and machine.outline != before and self._events is not None:
                record_change(self._events, machine, before, event, cause)
        except Exception as error:  # noqa: BLE001  # it is logged there
            self.fail(event, before, error)

    def _step(self, machine: GroupMachine, event: Any, ticket: int = NO_TICKET, at_least_ms: int = 0) -> None:
        now = Now(max(round(self._clock.monotonic() * 1000), at_least_ms), self._clock.wall_ms())
        for output in machine.step(event, now=now, ticket=ticket):
            self._perform(machine, output, now)

    def close(self, reason: Callable[[], KafkaError] = NotCoordinator) -> None:
        """Stop the group: cancel its timers and fail the waiting requests; results of pending writes are ignored."""
        self._cancel_timers()
        super().close(reason)

    def _perform(self, machine: GroupMachine, output: Output, now: Now) -> None:
        match output:
            case Reply(ticket, answer):
                self._requests.answer(ticket, answer)
            case SetTimer(timer, at_ms):
                self._set_timer(timer, at_ms, now.ms)
            case CancelTimer(timer):
                self._cancel(timer)
            case AppendRecords(write, records):
                self.in_log = True
                if self._unwritten:
                    self._written_first[machine, write] = self._unwritten
                    records, self._unwritten = (*self._unwritten, *records), []
                self._store(machine, write, records, self._write_timeout_ms / 1000)
            case Compute(work):
                task = asyncio.get_running_loop().create_task(self._compute(machine, work))
                self._computing.add(task)
                task.add_done_callback(self._computing.discard)
            case Replace():
                self._last_writes[machine] = output.last_write
                self.replace_machine(output.machine)
                self._step(self.machine, output.event)
            case _:
                assert_never(output)

    def _cancel_timers(self) -> None:
        for pending in self._timers.values():
            pending.handle.cancel()
        self._timers.clear()

    def _set_timer(self, timer: Hashable, at_ms: int, now_ms: int) -> None:
        pending = self._timers.get(timer)
        if pending is not None and pending.armed_ms <= at_ms:
            pending.at_ms = at_ms
        else:
            self._cancel(timer)
            self._arm(timer, at_ms, now_ms)

    def _arm(self, timer: Hashable, at_ms: int, now_ms: int) -> None:
        handle = asyncio.get_running_loop().call_later(max(0, at_ms - now_ms) / 1000, self._fire, timer)
        self._timers[timer] = _Timer(at_ms, handle)

    def _cancel(self, timer: Hashable) -> None:
        pending = self._timers.pop(timer, None)
        if pending is not None:
            pending.handle.cancel()

    def _fire(self, timer: Hashable) -> None:
        fired = self._timers.pop(timer)
        # The loop's clock and ours may differ by rounding; a timer that fired is due.
        if fired.at_ms > fired.armed_ms:
            self._arm(timer, fired.at_ms, max(fired.armed_ms, round(self._clock.monotonic() * 1000)))
        else:
            self._step_or_fail(self.machine, TimerFired(timer), at_least_ms=fired.at_ms)

    def _feed_result(self, machine: GroupMachine, records: Sequence[KeyValue], result: Stored | NotStored) -> None:
        is_last = self._last_writes.get(machine) == result.write
        if is_last:
            del self._last_writes[machine]
            if isinstance(result, NotStored):
                self._unwritten.extend(records)
        written_first = self._written_first.pop((machine, result.write), [])
        if isinstance(result, NotStored) and not is_last:
            self._unwritten = written_first + self._unwritten
        self._step_or_fail(machine, result)

    def _stored_late(self, machine: GroupMachine, records: Sequence[KeyValue]) -> None:
        machine.stored_late(records)

    async def _compute(self, machine: GroupMachine, work: Callable[[], object]) -> None:
        try:
            event = await asyncio.to_thread(work)
        except Exception as error:  # noqa: BLE001  # it is logged there
            self.fail(work, machine.outline, error)
            return
        if machine is self.machine:
            self.feed(event)
