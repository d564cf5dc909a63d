"""Names the errors of a job that are no bugs, as the command line reports them.

The libraries that only some of these come from are not imported for it: an error is known by its class's name.
"""

from __future__ import annotations

from enum import Enum

from ottla.client.errors import CannotConnect
from ottla.core.errors import KafkaError, RequestTimedOut, UnknownTopicOrPartition
from ottla.pipeline.connector.offset_client import NoSuchTopic
from ottla.pipeline.connector.range_reader import DataLoss, TopicRecreated
from ottla.pipeline.formats.registry import RegistryFailed
from ottla.pipeline.java import JavaNotFound
from ottla.pipeline.lake.lake_store import LeaseTaken, StoreError
from ottla.pipeline.lake.lake_table import CommitConflict, InconsistentTopicId, TableMismatch
from ottla.pipeline.loading.plan import CannotLoad
from ottla.pipeline.reporting.values import InvalidReportSection
from ottla.pipeline.session import SparkFailed
from ottla.pipeline.stream.errors import InvalidExpression, InvalidFunction
from ottla.pipeline.stream.measures import InvalidMeasure


class InvalidDeclaration(Exception):
    """Offsets that cannot be declared as deleted."""


class FailureKind(Enum):
    """The kinds of failures of a command; the command line has an exit code for each."""

    FAILED = "failed"
    CANNOT_CONNECT = "cannot connect"
    NOT_FOUND = "not found"
    BAD_INPUT = "bad input"
    TIMED_OUT = "timed out"
    TOPIC_RECREATED = "topic recreated"
    QUARANTINED = "quarantined"


EXPECTED = (
    InvalidDeclaration,
    InvalidExpression,
    InvalidFunction,
    InvalidMeasure,
    InvalidReportSection,
    CannotConnect,
    DataLoss,
    KafkaError,
    TableMismatch,
    LeaseTaken,
    CannotLoad,
    JavaNotFound,
    NoSuchTopic,
    RegistryFailed,
    SparkFailed,
    OSError,
)
_OF_LIBRARIES = frozenset({"DeltaError", "CommitFailedError", "TableNotFoundError", "NoSuchTableError"})


def is_expected(error: BaseException) -> bool:
    """Return whether an error says enough by itself: then no traceback is shown."""
    return isinstance(error, EXPECTED) or type(error).__name__ in _OF_LIBRARIES


def failure_kind_of(error: BaseException) -> tuple[FailureKind, str]:
    """Classify an error; return its kind, and advice for the user."""
    match error:
        case CannotConnect():
            return (
                FailureKind.CANNOT_CONNECT,
                "name the brokers with --brokers or in the job file; `--wait 5m` waits for one that is starting",
            )
        case NoSuchTopic() | UnknownTopicOrPartition():
            return FailureKind.NOT_FOUND, "`ottla topic list` shows the topics"
        case InconsistentTopicId() | TopicRecreated():
            return FailureKind.TOPIC_RECREATED, "load the new topic into another table: `--table NAME`"
        case InvalidDeclaration():
            return FailureKind.BAD_INPUT, ""
        case RequestTimedOut():
            return FailureKind.TIMED_OUT, "the broker answered before, but not in time this time"
        case InvalidReportSection() | InvalidExpression() | InvalidMeasure():
            return FailureKind.BAD_INPUT, "correct it in the job file: its expressions are Spark's SQL"
        case InvalidFunction():
            return (
                FailureKind.BAD_INPUT,
                "the job file's `function` is module:function, DataFrame to DataFrame, allowed by --function",
            )
        case LeaseTaken():
            return FailureKind.FAILED, "wait for it to end; what it brings need not be brought again"
        case CommitConflict():
            return FailureKind.FAILED, "run it again: it goes on from what the other one did"
        case _:
            return FailureKind.FAILED, ""


def is_retriable(error: BaseException) -> bool:
    """Return whether the same may work in the next round of a job that runs all day."""
    if isinstance(error, KafkaError):
        return error.retriable
    return isinstance(error, CannotConnect | StoreError | LeaseTaken | CommitConflict | RegistryFailed | NoSuchTopic)
