"""Declares the events and answers that are the same for all groups with server-side assignment. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ottla.core.errors import ErrorCode

JOIN_EPOCH = 0
LEAVE_EPOCH = -1


class RequestRefused(Exception):
    """Refuses a request; the group is unchanged."""

    def __init__(self, error: ErrorCode, message: str = "") -> None:
        super().__init__(message)
        self.error, self.message = error, message


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """The cluster has a new snapshot, which the machine already has, with these topics changed."""

    topics: frozenset[str]


class HeartbeatAnswer(NamedTuple):
    """Answers a heartbeat. An assignment is present if it changed or the member asked for it."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Mapping[UUID, frozenset[int]] | None = None
