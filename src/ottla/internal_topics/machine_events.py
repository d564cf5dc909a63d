"""Declares the events and outputs that the state machines of groups and of transactional ids have in common.

Values only. A machine has what must be durable written with an output of its own; the event `Stored` or `NotStored`
follows later, and other events may come in between. A ticket is a number that identifies a waiting request;
the machine's answer has the same ticket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from ottla.core.errors import ErrorCode

AnswerT_co = TypeVar("AnswerT_co", covariant=True)

NO_TICKET = -1
"""The ticket of an event without a waiting request: a timer, the log, the coordinator itself."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The write with this number is durable."""

    write: int


@dataclass(frozen=True, slots=True)
class NotStored:
    """The write with this number failed; `error` is the one to answer with."""

    write: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Loaded:
    """The state was loaded from the log: the sessions of members start again, a decided transaction is completed."""


@dataclass(frozen=True, slots=True)
class Reply(Generic[AnswerT_co]):
    """Answer the request with this ticket."""

    ticket: int
    answer: AnswerT_co
