"""Translates errors of writes to an internal topic into the errors that Kafka returns to clients.

Clients must not get the errors of a topic that they do not use: they would act on them. They get errors after which
they find their coordinator again or retry.
"""

from __future__ import annotations

from ottla.core.errors import ErrorCode

_RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_NOT_LEADER = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE})


def coordinator_write_error(error: ErrorCode) -> ErrorCode:
    """Translate the error of a write of a coordinator's state."""
    if error in _RETRIABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in _NOT_LEADER:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.UNKNOWN_SERVER_ERROR if error in _TOO_LARGE else error
