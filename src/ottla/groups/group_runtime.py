"""Runs one group: passes events to its state machine and performs the outputs (responses, timers, writes).

Events enter the machine one at a time with no `await` in between. A response is sent only after the records before it
are durable, because the machine orders its outputs so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, assert_never

from ottla.core.clock import Clock
from ottla.core.errors import ErrorCode
from ottla.groups.group import Group
from ottla.groups.machine import (
    Answer,
    CancelTimer,
    Loaded,
    Machine,
    NotStored,
    Now,
    Output,
    Reply,
    SetTimer,
    Store,
    Stored,
    TimerFired,
)
from ottla.groups.offsets import GroupOffsets
from ottla.internal_topics.write_errors import coordinator_write_error
from ottla.internal_topics.writer import PartitionWriter


class GroupRuntime:
    """Holds one group of this coordinator: its machine, offsets, timers and waiting requests.

    The offsets belong to the group's id, not to its type: they stay when the type changes (`replace_machine`).
    """

    def __init__(self, machine: Machine, writer: PartitionWriter, clock: Clock, *, write_timeout_ms: int) -> None:
        self.machine = machine
        self.offsets = GroupOffsets()
        self.in_log = False  # the log has a record of the group itself, which a deletion must cover
        self.is_being_deleted = False
        self._writer, self._clock = writer, clock
        self._write_timeout_ms = write_timeout_ms
        self._tickets = count()
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        self._storing: dict[int, asyncio.TimerHandle] = {}  # by store: the timeout of its write

    @property
    def group(self) -> Group:
        """Return the group."""
        return self.machine.group

    @property
    def group_id(self) -> str:
        """Return the group's id."""
        return self.machine.group.group_id

    def replace_machine(self, machine: Machine) -> None:
        """Continue with a group of another type. The old machine has answered its requests."""
        self._cancel_all()
        self.machine = machine

    async def ask(self, event: Any) -> Answer:
        """Pass a request to the machine and wait for its answer, which a later event may produce."""
        ticket = next(self._tickets)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = answer
        try:
            self.feed(event, ticket)
            return await answer
        finally:
            self._answers.pop(ticket, None)

    def feed(self, event: Any, ticket: int = -1, *, at_least_ms: int = 0) -> None:
        """Do one step of the machine and perform its outputs."""
        now = Now(max(round(self._clock.monotonic() * 1000), at_least_ms), self._clock.wall_ms())
        for output in self.machine.step(event, now=now, ticket=ticket):
            self._perform(output, now)

    def loaded(self) -> None:
        """Start the sessions of the members of a group that was read from the log."""
        self.feed(Loaded())

    def close(self, refuse: Callable[[], BaseException]) -> None:
        """Stop the group: cancel its timers and fail the waiting requests."""
        self._cancel_all()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(refuse())

    def _perform(self, output: Output, now: Now) -> None:
        match output:
            case Reply(ticket, answer):
                waiting = self._answers.pop(ticket, None)  # None: the request was cancelled
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
            case SetTimer(timer, at_ms):
                self._cancel(timer)
                delay_s = max(0, at_ms - now.ms) / 1000
                self._timers[timer] = asyncio.get_running_loop().call_later(delay_s, self._fire, timer, at_ms)
            case CancelTimer(timer):
                self._cancel(timer)
            case Store():
                self._store(output)
            case _:
                assert_never(output)

    def _cancel_all(self) -> None:
        """Cancel the timers; results of pending writes are ignored."""
        for handle in (*self._timers.values(), *self._storing.values()):
            handle.cancel()
        self._timers.clear()
        self._storing.clear()

    def _cancel(self, timer: Hashable) -> None:
        handle = self._timers.pop(timer, None)
        if handle is not None:
            handle.cancel()

    def _fire(self, timer: Hashable, at_ms: int) -> None:
        del self._timers[timer]
        # The loop's clock and ours may differ by rounding; a timer that fired is due.
        self.feed(TimerFired(timer), at_least_ms=at_ms)

    def _store(self, output: Store) -> None:
        self.in_log = True
        machine, store = self.machine, output.store
        give_up = asyncio.get_running_loop().call_later(
            self._write_timeout_ms / 1000, self._written, machine, store, ErrorCode.REQUEST_TIMED_OUT
        )
        self._storing[store] = give_up
        self._writer.write(output.records, lambda error: self._written(machine, store, error))

    def _written(self, machine: Machine, store: int, error: ErrorCode) -> None:
        if machine is not self.machine:  # the group has another type now
            return
        handle = self._storing.pop(store, None)
        if handle is None:  # it timed out, or the group is closed
            return
        handle.cancel()
        self.feed(Stored(store) if error is ErrorCode.NONE else NotStored(store, coordinator_write_error(error)))
