"""Defines the errors that Ottla raises: one hierarchy, each class with its Kafka error code.

All codes of the protocol are in core/error_codes.py; the classes here are those that are raised or caught by name.
"""

from __future__ import annotations

import logging
from typing import ClassVar, NamedTuple

from ottla.core.error_codes import NUMBERS, RETRIABLE, ErrorCode

__all__ = [
    "ErrorCode",
    "KafkaError",
    "detached",
    "error_code_for",
    "error_for",
]  # ErrorCode is exported again; the classes are public too

log = logging.getLogger(__name__)


class SyncFailed(OSError):
    """Reports a failed fsync, whatever its errno: the data may be lost, and a second fsync cannot detect that.

    Linux marks pages clean that it could not write, so that the next fsync succeeds without them. A full disk and a
    used-up quota may show here first, where the file system allocates late.
    """


class KafkaError(Exception):
    """Reports an expected error: the protocol has a code for it and the client can react to it.

    Any other exception is a bug of the broker.
    """

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    by_code: ClassVar[dict[ErrorCode, type[KafkaError]]] = {}

    def __init_subclass__(cls) -> None:
        other = KafkaError.by_code.setdefault(cls.code, cls)
        assert other is cls, f"{cls.__name__} and {other.__name__} share {cls.code!r}"

    @property
    def retriable(self) -> bool:
        """Return whether the same request may succeed on a retry."""
        return self.code in RETRIABLE

    @property
    def message(self) -> str:
        """Return the text given where the error was raised, else the docstring of the class."""
        return str(self) or (self.__doc__ or "").strip()


class RecordFault(NamedTuple):
    """Describes the error of one record of a batch (KIP-467)."""

    place: int  # in the batch, from 0
    message: str


def error_for(code: int, message: str = "") -> KafkaError:
    """Return the exception for an error code of the protocol, also for one that Ottla itself never raises."""
    known = ErrorCode(code) if code in NUMBERS else ErrorCode.UNKNOWN_SERVER_ERROR
    error_class = KafkaError.by_code.get(known)
    if error_class is not None:
        return error_class(message)
    error = KafkaError(message or (known.name if code in NUMBERS else f"unknown error code {code}"))
    error.code = known
    return error


def detached(error: BaseException) -> BaseException:
    """Remove the traceback and the causes of an error that is kept, and return it.

    A traceback keeps the frames that the error passed, and with them whatever data they worked on.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def error_code_for(error: BaseException) -> ErrorCode:
    """Return the error code of an exception, for a response."""
    match error:
        case KafkaError():
            return error.code
        case OSError():
            log.error("an operation of the operating system failed: %s", error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        case _:
            log.error("unexpected error while serving a request", exc_info=error)
            return ErrorCode.UNKNOWN_SERVER_ERROR


class OffsetNotAvailable(KafkaError):
    """The high watermark that this broker knows does not cover the offset yet."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE


class OffsetOutOfRange(KafkaError):
    """The offset is outside [log start, log end]."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessage(KafkaError):
    """A batch's length, magic or checksum is wrong."""

    code = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartition(KafkaError):
    """This broker has no such topic or partition."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailable(KafkaError):
    """The partition has no leader now."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeaderOrFollower(KafkaError):
    """This broker is not the leader of the partition; the client's metadata is stale."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER

    def __init__(self, message: str = "", *, leader_id: int = -1, leader_epoch: int = -1) -> None:
        super().__init__(message)
        self.leader_id, self.leader_epoch = leader_id, leader_epoch  # the current leader, for the response (KIP-951)


class RequestTimedOut(KafkaError):
    """The request did not finish within its own time limit."""

    code = ErrorCode.REQUEST_TIMED_OUT


class MessageTooLarge(KafkaError):
    """The batch is larger than max.message.bytes."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class OffsetMetadataTooLarge(KafkaError):
    """The text stored with an offset is longer than offset.metadata.max.bytes."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class NetworkException(KafkaError):
    """The peer closed the connection before it answered."""

    code = ErrorCode.NETWORK_EXCEPTION


class CoordinatorLoadInProgress(KafkaError):
    """The coordinator is still reading its own log, or has no metadata store."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorNotAvailable(KafkaError):
    """There is no coordinator now."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class NotCoordinator(KafkaError):
    """Another broker coordinates this group."""

    code = ErrorCode.NOT_COORDINATOR


class InvalidTopic(KafkaError):
    """The topic's name is not allowed, or the topic may not be written by clients."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class RecordListTooLarge(KafkaError):
    """The records are larger than a segment."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE


class NotEnoughReplicas(KafkaError):
    """Fewer replicas are in sync than min.insync.replicas."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppend(KafkaError):
    """The records are written, but fewer replicas are in sync than min.insync.replicas."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class InvalidRequiredAcks(KafkaError):
    """acks must be -1, 0 or 1."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


class IllegalGeneration(KafkaError):
    """The member's generation is not the current one of the group."""

    code = ErrorCode.ILLEGAL_GENERATION


class InvalidGroupId(KafkaError):
    """The group id is empty or not allowed."""

    code = ErrorCode.INVALID_GROUP_ID


class UnknownMemberId(KafkaError):
    """The group has no such member."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidSessionTimeout(KafkaError):
    """The session timeout is outside the broker's limits."""

    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgress(KafkaError):
    """The group is rebalancing; join again."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class InvalidTimestamp(KafkaError):
    """A record's timestamp is outside the topic's limits."""

    code = ErrorCode.INVALID_TIMESTAMP

    def __init__(self, message: str = "", *, records: tuple[RecordFault, ...] = ()) -> None:
        super().__init__(message)
        self.records = records  # the invalid ones; empty if the error concerns the whole batch


class UnsupportedVersion(KafkaError):
    """This broker does not support that version of the request."""

    code = ErrorCode.UNSUPPORTED_VERSION


class TopicAlreadyExists(KafkaError):
    """A topic of that name exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitions(KafkaError):
    """The number of partitions is not allowed."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(KafkaError):
    """The replication factor is below one or above the number of brokers."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(KafkaError):
    """The assignment is empty, or has unknown or duplicate brokers."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidConfig(KafkaError):
    """A setting's name or value is not allowed."""

    code = ErrorCode.INVALID_CONFIG


class NotController(KafkaError):
    """This broker is not the controller."""

    code = ErrorCode.NOT_CONTROLLER


class InvalidRequest(KafkaError):
    """The request is well formed but contradicts itself."""

    code = ErrorCode.INVALID_REQUEST


class PolicyViolation(KafkaError):
    """The request breaks a rule set by the operator."""

    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequenceNumber(KafkaError):
    """The producer's sequence has a gap."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(KafkaError):
    """A newer incarnation of this producer has written."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class TransactionalIdAuthorizationFailed(KafkaError):
    """The principal may not use the transactional id."""

    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class InvalidTxnState(KafkaError):
    """The transaction is not in a state that allows this."""

    code = ErrorCode.INVALID_TXN_STATE


class TransactionCoordinatorFenced(KafkaError):
    """A newer transaction coordinator has replaced the sender."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class LogDirNotFound(KafkaError):
    """No log directory of this broker has that path."""

    code = ErrorCode.LOG_DIR_NOT_FOUND


class ReplicaNotAvailable(KafkaError):
    """This broker has no replica of the partition."""

    code = ErrorCode.REPLICA_NOT_AVAILABLE


class StorageError(KafkaError):
    """The disk failed. The log directory is taken offline."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    missing_path: str = ""  # the file of one log that another program has removed; the log directory is there


class NonEmptyGroup(KafkaError):
    """The group still has members."""

    code = ErrorCode.NON_EMPTY_GROUP


class GroupIdNotFound(KafkaError):
    """There is no such group."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class FetchSessionIdNotFound(KafkaError):
    """The fetch session has expired or never existed."""

    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class InvalidFetchSessionEpoch(KafkaError):
    """The fetch session's epoch is not the next one."""

    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH


class TopicDeletionDisabled(KafkaError):
    """delete.topic.enable is false."""

    code = ErrorCode.TOPIC_DELETION_DISABLED


class FencedLeaderEpoch(KafkaError):
    """The client's leader epoch is older than the broker's."""

    code = ErrorCode.FENCED_LEADER_EPOCH

    def __init__(self, message: str = "", *, leader_id: int = -1, leader_epoch: int = -1) -> None:
        super().__init__(message)
        self.leader_id, self.leader_epoch = leader_id, leader_epoch  # the current leader, for the response (KIP-951)


class UnknownLeaderEpoch(KafkaError):
    """The client's leader epoch is newer than the broker's."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class UnsupportedCompressionType(KafkaError):
    """The codec is not allowed in this version of the request."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class FencedInstanceId(KafkaError):
    """Another member has taken over this group.instance.id."""

    code = ErrorCode.FENCED_INSTANCE_ID


class InvalidRecord(KafkaError):
    """The batch breaks a rule of the topic."""

    code = ErrorCode.INVALID_RECORD

    def __init__(self, message: str = "", *, records: tuple[RecordFault, ...] = ()) -> None:
        super().__init__(message)
        self.records = records  # the invalid ones; empty if the error concerns the whole batch


class UnknownTopicId(KafkaError):
    """This broker has no topic with that id."""

    code = ErrorCode.UNKNOWN_TOPIC_ID


class InconsistentTopicId(KafkaError):
    """The topic of that name has another id now: it was deleted and created again."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID


class FetchSessionTopicIdError(KafkaError):
    """The session mixes topic names and topic ids."""

    code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


class StaleBrokerEpoch(KafkaError):
    """The broker has been registered again since."""

    code = ErrorCode.STALE_BROKER_EPOCH


class InvalidUpdateVersion(KafkaError):
    """The state of the partition has changed since."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class IneligibleReplica(KafkaError):
    """A replica cannot be in sync."""

    code = ErrorCode.INELIGIBLE_REPLICA


class NewLeaderElected(KafkaError):
    """The change was made, and another replica leads now."""

    code = ErrorCode.NEW_LEADER_ELECTED


class PreferredLeaderNotAvailable(KafkaError):
    """The preferred leader was not available."""

    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class EligibleLeadersNotAvailable(KafkaError):
    """Eligible topic partition leaders are not available."""

    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class ElectionNotNeeded(KafkaError):
    """Leader election not needed for topic partition."""

    code = ErrorCode.ELECTION_NOT_NEEDED


class NoReassignmentInProgress(KafkaError):
    """No partition reassignment is in progress."""

    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
