"""Holds the part of a group's state that is the same for all groups with server-side assignment."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ottla.core.errors import ErrorCode
from ottla.groups.assignors.spec import Partitions
from ottla.groups.modern.events import RequestRefused

MemberT = TypeVar("MemberT")
TimerT = TypeVar("TimerT", bound=Hashable)


@dataclass(slots=True)
class ModernGroup(Generic[MemberT, TimerT]):
    """Holds one group. Only its machine changes it."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    target_wall_ms: int = 0  # when the target was computed; 0: unknown
    members: dict[str, MemberT] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)  # by member id
    is_dead: bool = False  # its deletion is being written
    is_written: bool = True  # all changes are durable
    timers: dict[TimerT, int] = field(default_factory=dict)  # deadlines of the timers that are set

    def topics(self) -> frozenset[str]:
        """Return the topics that a member subscribes to."""
        raise NotImplementedError

    def set_target(self, target: dict[str, Partitions], wall_ms: int) -> None:
        """Replace the target assignment by one that was computed for the group's epoch."""
        self.target, self.target_epoch, self.target_wall_ms = target, self.epoch, wall_ms

    def existing_member(self, member_id: str) -> MemberT:
        """Return a member. Raises RequestRefused."""
        member = self.members.get(member_id)
        if member is None:
            raise RequestRefused(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member
