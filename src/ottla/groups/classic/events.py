"""Declares the events, timers, snapshots and answers of a classic group's state machine (`machine.py`). Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ottla.core.errors import ErrorCode
from ottla.groups.machine import NO_GENERATION, NO_MEMBER, CommonEvent, SessionTimer


class State(Enum):
    """Lists the states of a group, with Kafka's names in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# ---- Events


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """JoinGroup. `protocols` are (name, opaque metadata) in the member's order of preference."""

    member_id: str
    new_member_id: str  # its member id from now on, if it has none
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    requires_member_id: bool = True  # v4 and newer (KIP-394): the first join only gets a member id
    may_skip_assignment: bool = False  # v9 and newer (KIP-814)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """SyncGroup. Only the leader's assignments count. None as protocol: the version has no such field."""

    member_id: str
    generation: int
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Heartbeat of a live member; the answer reports a rebalance."""

    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """One member to remove. An administrator names a static member by its instance id alone (KIP-345)."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""  # the client's, from version 5 of LeaveGroup on (KIP-800)


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup of one or, from v3, many."""

    leavers: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True)
class GroupConverted:
    """The group was a consumer group until now (KIP-848). `rebalance`: its members must join again."""

    rebalance: bool


@dataclass(frozen=True, slots=True)
class GroupDisbanded:
    """The members continue in a consumer group (KIP-848). Their waiting requests fail with REBALANCE_IN_PROGRESS."""


Event = Join | Sync | Heartbeat | Leave | GroupConverted | GroupDisbanded | CommonEvent

# ---- Timers


@dataclass(frozen=True, slots=True)
class JoinTimer:
    """Expires when a rebalance has waited long enough for members to join."""


@dataclass(frozen=True, slots=True)
class SyncTimer:
    """Expires when members that joined have not requested their assignment."""


Timer = SessionTimer | JoinTimer | SyncTimer

# ---- Snapshots, as written to the log


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """Holds one member as written to the log."""

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
    """Holds a group as written to the log."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_since_wall_ms: int = -1
    members: tuple[MemberSnapshot, ...] = ()


# ---- Answers


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """Holds a member as reported to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """Answers a Join. Only the leader gets the members."""

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
    """Answers a Sync."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """Answers a Leave: one error per leaver, in their order, or one for the whole request."""

    errors: tuple[ErrorCode, ...] = ()
    error: ErrorCode = ErrorCode.NONE
