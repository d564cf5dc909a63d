"""Declares the events of a consumer group's state machine (`machine.py`), its outputs and its answers (KIP-848).

Values only. Members that still use the classic protocol send the events Join, Sync, Heartbeat and Leave of
`classic/events.py`, and get its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from ottla.core.errors import ErrorCode
from ottla.groups.assignors.spec import Partitions
from ottla.groups.classic import events as classic
from ottla.groups.machine import CommonEvent, SessionTimer
from ottla.groups.modern.events import TopicsChanged

STATIC_LEAVE_EPOCH = -2
"""Epoch of a static member that left and will return: its partitions are kept for it until its session times out."""

NO_TIMEOUT_MS = -1
"""As rebalance timeout: unchanged since the last heartbeat."""


class GroupState(Enum):
    """Lists the states of a consumer group, with Kafka's names in ListGroups and ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


# ---- Events


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHeartbeat:
    """ConsumerGroupHeartbeat. None: unchanged since the last heartbeat."""

    member_id: str
    member_epoch: int
    new_member_id: str = ""  # its member id from now on, if it has none
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT_MS
    topics: frozenset[str] | None = None
    regex: str | None = None  # empty: no regular expression any more
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    may_describe: Callable[[str], bool] | None = None  # whether the client may describe a topic; None: it may any

    @property
    def is_full(self) -> bool:
        """Return whether it has all that a member sends when it joins or is unsure: the answer has its assignment."""
        has_subscription = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != NO_TIMEOUT_MS and has_subscription and self.owned is not None


@dataclass(frozen=True, slots=True)
class RegexesResolved:
    """Regular expressions are resolved to these topics; the result of the output `Compute`."""

    topics: Mapping[str, frozenset[str]]
    version: int  # of the topics' image that they were resolved with
    may_describe: Callable[[str], bool] | None = None  # as in MemberHeartbeat: the other topics match none


Event = (
    MemberHeartbeat
    | classic.Join
    | classic.Sync
    | classic.Heartbeat
    | classic.Leave
    | TopicsChanged
    | RegexesResolved
    | CommonEvent
)

# ---- Timers


@dataclass(frozen=True, slots=True)
class RebalanceTimer:
    """Expires when a member has not released the partitions that it must."""

    member_id: str


@dataclass(frozen=True, slots=True)
class MemberJoinTimer:
    """Expires when a member of the classic protocol has not joined after it was asked to."""

    member_id: str


@dataclass(frozen=True, slots=True)
class MemberSyncTimer:
    """Expires when a member of the classic protocol has not requested its assignment after it joined."""

    member_id: str


Timer = SessionTimer | RebalanceTimer | MemberJoinTimer | MemberSyncTimer


# ---- Answers


class CommitAnswer(NamedTuple):
    """Answers a Commit. A member with an older epoch may commit the partitions that it has had since (KIP-1251)."""

    error: ErrorCode = ErrorCode.NONE
    accepted: frozenset[tuple[UUID, int]] | None = None  # by topic id; None: all
    refusal: ErrorCode = ErrorCode.NONE  # the error of the other partitions
