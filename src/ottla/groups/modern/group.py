"""Holds the part of a group's state that is the same for all groups with server-side assignment."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ottla.core.errors import ErrorCode
from ottla.groups.assignors.spec import Partitions
from ottla.groups.modern.events import RequestRefused

MemberT = TypeVar("MemberT")
CurrentT = TypeVar("CurrentT")
TimerT = TypeVar("TimerT", bound=Hashable)


@dataclass(slots=True)
class ModernGroup(Generic[MemberT, CurrentT, TimerT]):
    """Holds one group. `apply` of its type changes it, live and as the log is loaded; nothing else does.

    Beside it is soft state, which the log does not have, and which the machine changes. It is left out of comparisons.
    """

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    target_wall_ms: int = 0  # when the target was computed; 0: unknown
    members: dict[str, MemberT] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)  # by member id
    is_in_log: bool = False  # the group's epoch has a record: without one there is no group
    # Soft state:
    is_dead: bool = field(default=False, compare=False)  # its deletion is being written
    is_written: bool = field(default=True, compare=False)  # all changes are durable
    timers: dict[TimerT, int] = field(default_factory=dict, compare=False)  # deadlines of the timers that are set
    early: dict[str, CurrentT] = field(default_factory=dict, compare=False)  # what members have whose record follows

    def topics(self) -> frozenset[str]:
        """Return the topics that a member subscribes to."""
        raise NotImplementedError

    def existing_member(self, member_id: str) -> MemberT:
        """Return a member. Raises RequestRefused."""
        member = self.members.get(member_id)
        if member is None:
            raise RequestRefused(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member
