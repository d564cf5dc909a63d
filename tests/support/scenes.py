"""What the scenes of a group's life are told with."""

from __future__ import annotations

from ottla.core.errors import ErrorCode
from ottla.groups.events import (
    Commit,
    Heartbeat,
    Leave,
    LeaveAnswer,
    Leaver,
    State,
)
from ottla.groups.group import Group, Limits
from ottla.groups.machine import Machine
from tests.support.groups import Driver

NONE = ErrorCode.NONE


def state_of(it: Driver) -> State:
    return it.state


def driver(**limits: int) -> Driver:
    return Driver(Machine(Group("team", Limits(**limits))))


def beat(it: Driver, member_id: str, *, generation: int | None = None, instance_id: str | None = None) -> ErrorCode:
    at = it.group.generation if generation is None else generation
    return it.error(it.ask(Heartbeat(member_id=member_id, generation=at, instance_id=instance_id)))


def commit(it: Driver, member_id: str = "", *, generation: int = -1, instance_id: str | None = None) -> ErrorCode:
    return it.error(it.ask(Commit(member_id=member_id, generation=generation, instance_id=instance_id)))


def leave(it: Driver, *members: Leaver) -> LeaveAnswer:
    answer = it.answer(it.ask(Leave(members)))
    assert isinstance(answer, LeaveAnswer)
    return answer
