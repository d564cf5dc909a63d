"""What can happen to a consumer group and what must be done about it: the words `machine.py` speaks.

Rule of the file: values only. Whoever asked is known to the machine as a ticket, a number the shell chose; the answer
carries it back. Times are milliseconds of the monotonic clock unless the name says `wall`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ottla.core.errors import ErrorCode

NO_TICKET = -1
"""Nobody waits for an answer: a timer, the log, the coordinator itself."""

NO_MEMBER = ""
"""Kafka's UNKNOWN_MEMBER_ID: the member does not know its name yet."""

NO_GENERATION = -1


class State(Enum):
    """Kafka's own names: ListGroups and DescribeGroups show them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Now(NamedTuple):
    """The time of an event, by both clocks."""

    ms: int  # monotonic, for deadlines
    wall_ms: int  # since 1970, for what is written down


# ---- What can happen ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup. `protocols` are (name, opaque metadata) in the member's order of preference."""

    member_id: str
    new_member_id: str  # its name from now on, if it comes without one
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    must_know_its_id: bool = True  # v4 and newer (KIP-394): the first join only learns a member id
    may_skip_assignment: bool = False  # v9 and newer (KIP-814)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """SyncGroup. Only the leader's assignments count. None as protocol: the version does not say."""

    member_id: str
    generation: int
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Heartbeat: the member is alive, and asks whether anything changed."""

    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """One of those who leave. An administrator names a static member by its instance id alone (KIP-345)."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup of one or, from v3, many."""

    leavers: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """May this member commit offsets now? A commit also shows that it is alive."""

    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer set by `SetTimer` has run out."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Stored:
    """The snapshot of this `Store` is durable."""

    store: int


@dataclass(frozen=True, slots=True)
class NotStored:
    """The snapshot of this `Store` could not be written."""

    store: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Loaded:
    """The group was read back from the log; its members' sessions begin anew."""


Event = Join | Sync | Heartbeat | Leave | Commit | TimerFired | Stored | NotStored | Loaded

# ---- What must be done, in this order ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionTimer:
    """Runs out when nothing was heard of a member."""

    member_id: str


@dataclass(frozen=True, slots=True)
class JoinTimer:
    """Runs out when a rebalance has waited long enough for members to join."""


@dataclass(frozen=True, slots=True)
class SyncTimer:
    """Runs out when members that joined have not asked for their assignment."""


Timer = SessionTimer | JoinTimer | SyncTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """One member as the log remembers it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes  # its metadata for the chosen protocol
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group as the log remembers it."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_since_wall_ms: int = -1
    members: tuple[MemberSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Write the snapshot, then say `Stored` or `NotStored`."""

    store: int
    snapshot: GroupSnapshot


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer whoever holds the ticket."""

    ticket: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Set or move a timer."""

    timer: Timer
    at_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget a timer."""

    timer: Timer


Output = Store | Reply | SetTimer | CancelTimer

# ---- Answers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """To a Join. Only the leader is told the members."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """To a Sync."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """To a Leave: one error per leaver, in their order, or one for the whole request."""

    errors: tuple[ErrorCode, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """To a Heartbeat or a Commit."""

    error: ErrorCode = ErrorCode.NONE


Answer = JoinAnswer | SyncAnswer | LeaveAnswer | PlainAnswer
