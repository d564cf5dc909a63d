"""Records requests that are refused, as events: off the paths of those that are served."""

from __future__ import annotations

from typing import Final

from ottla.core.error_codes import ErrorCode
from ottla.core.errors import KafkaError, error_code_for
from ottla.core.events import EventKind, EventLog

_PASSING: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""Errors after which clients ask again, as whenever a leader moves: elections and rebalances are events themselves."""


def record_refusal(
    events: EventLog,
    error: BaseException,
    *,
    topic: str = "",
    partition: int = -1,
    group: str = "",
    client: str = "",
    request: str = "",
) -> None:
    """Record that a client's request was refused for a partition or a group."""
    code = error_code_for(error)
    if code in _PASSING:
        return
    message = error.message if isinstance(error, KafkaError) else str(error)
    events.record(
        EventKind.REFUSED,
        f"{request}: {message}" if request else message,
        topic=topic,
        partition=partition,
        group=group,
        client=client,
        error=ErrorCode(code).name,
    )
