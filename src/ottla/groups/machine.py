"""Declares the port of a group's state machine: the events of groups of all types, the outputs, and the machine itself.

A machine is pure: `step` never waits, never reads a clock, never touches a socket or a log. What must be durable before
it is visible is an output `AppendRecords`; the event `Stored` or `NotStored` follows later, and other events may come
in between (`machine_events.py`). Times are milliseconds of the monotonic clock unless the name contains `wall`.

The machines: `classic/machine.py`, `consumer/machine.py`, `share/machine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ottla.core.errors import ErrorCode
from ottla.groups.group import Group
from ottla.internal_topics.machine_events import NO_TICKET, Loaded, NotStored, Reply, Stored
from ottla.internal_topics.topic_log import KeyValue

NO_MEMBER = ""
"""Kafka's UNKNOWN_MEMBER_ID: the member has no id yet."""

NO_GENERATION = -1


class Now(NamedTuple):
    """Holds the time of an event by both clocks."""

    ms: int  # monotonic, for deadlines
    wall_ms: int  # since 1970, for what is stored


# ---- Events of groups of all types


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """OffsetCommit or TxnOffsetCommit: validates the member, whose session it also renews. Answered by `PlainAnswer`.

    `generation` is the generation of a classic group, or the member's epoch (KIP-848).
    """

    member_id: str
    generation: int
    instance_id: str | None = None
    is_transactional: bool = False
    api_version: int = 0


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer set by `SetTimer` has expired."""

    timer: Hashable


CommonEvent = Commit | TimerFired | Stored | NotStored | Loaded

# ---- Timers


@dataclass(frozen=True, slots=True)
class SessionTimer:
    """Expires when a member has sent no heartbeat."""

    member_id: str


# ---- Answers


class GroupAnswer(Protocol):
    """Answers a request; each machine has its own answers."""

    @property
    def error(self) -> ErrorCode:
        """Return the error of the whole request."""
        ...


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """Answers a request to which there is nothing to return but an error."""

    error: ErrorCode = ErrorCode.NONE


# ---- Outputs, to be performed in order


@dataclass(frozen=True, slots=True)
class AppendRecords:
    """Append the records as one batch; the event `Stored` or `NotStored` must follow."""

    write: int
    records: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Set or move a timer."""

    timer: Hashable
    at_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel a timer."""

    timer: Hashable


@dataclass(frozen=True, slots=True)
class Compute:
    """Call a pure function off the loop; the event that it returns must follow."""

    work: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Replace:
    """Continue with another machine, because the group has another type now. Its first event is `event`.

    The old machine still gets the results of its writes, to answer its requests. If its write `last_write`, which
    replaces the group's records, fails, then the records are written before the next ones of the new machine.
    """

    machine: GroupMachine
    event: object
    last_write: int


Output = AppendRecords | Reply[GroupAnswer] | SetTimer | CancelTimer | Compute | Replace


class GroupMachine(Protocol):
    """Changes the state of one group, which is in `group`."""

    @property
    def group(self) -> Group:
        """Return the group."""
        ...

    @property
    def outline(self) -> tuple[object, ...]:
        """Return the state of the group in short, for the log; it is asked before every step."""
        ...

    def step(self, event: Any, *, now: Now, ticket: int = NO_TICKET) -> list[Output]:
        """Handle an event and return the outputs in order. Each ticket is answered once, now or by a later step.

        The events are the common ones and those of the machine's own type. A request for another type of group
        (JoinGroup to a share group) is answered with Kafka's error for it.
        """
        ...

    def stored_late(self, records: Sequence[KeyValue]) -> None:
        """Note that the records of a write that was reported as `NotStored` are in the log all the same."""
        ...

    def begin_deletion(self) -> ErrorCode:
        """Prevent joins while the deletion of the group is written. Returns an error unless the group is empty."""
        ...

    def cancel_deletion(self) -> None:
        """Restore the group after the write of its deletion failed."""
        ...
