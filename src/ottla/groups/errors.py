"""What a failed write to `__consumer_offsets` is called towards clients (as Kafka calls it).

Group members must not see the errors of a topic they do not know: they would act on them. They are told to look for
their coordinator anew, or to try again.
"""

from __future__ import annotations

from ottla.core.errors import ErrorCode

_TRY_AGAIN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_LOOK_ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE})


def group_write_error(error: ErrorCode) -> ErrorCode:
    """For joins, syncs, leaves and deletions."""
    if error in _TRY_AGAIN:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in _LOOK_ELSEWHERE:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.UNKNOWN_SERVER_ERROR if error in _TOO_LARGE else error


def offset_write_error(error: ErrorCode) -> ErrorCode:
    """For commits."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error in _TOO_LARGE else group_write_error(error)
