"""What may go wrong in a job without being a bug, and what to call it at a shell's prompt.

The libraries that only some of these come from are not imported for it: an error is known by its class's name.
"""

from __future__ import annotations

from enum import Enum

from ottla.client.errors import CannotConnect
from ottla.core.errors import KafkaError, RequestTimedOut, UnknownTopicOrPartition
from ottla.pipeline.connector.offset_client import NoSuchTopicError
from ottla.pipeline.connector.range_reader import DataLossError
from ottla.pipeline.formats.registry import RegistryError
from ottla.pipeline.java import NoJavaError
from ottla.pipeline.lake.lease import LeaseTakenError
from ottla.pipeline.lake.port import LakeError, LostRaceError
from ottla.pipeline.log import LoadError
from ottla.pipeline.reporting.values import BadSectionError
from ottla.pipeline.session import SparkFailedError
from ottla.pipeline.stream.errors import BadExpressionError, BadFunctionError
from ottla.pipeline.stream.measures import BadMeasureError


class Ends(Enum):
    """How a command ends; the command line has a number for each."""

    FAILED = "failed"
    CANNOT_CONNECT = "cannot connect"
    NOT_FOUND = "not found"
    BAD_INPUT = "bad input"
    TIMED_OUT = "timed out"


EXPECTED = (
    BadExpressionError,
    BadFunctionError,
    BadMeasureError,
    BadSectionError,
    CannotConnect,
    DataLossError,
    KafkaError,
    LakeError,
    LeaseTakenError,
    LoadError,
    NoJavaError,
    NoSuchTopicError,
    RegistryError,
    SparkFailedError,
    OSError,
)
_OF_LIBRARIES = frozenset({"DeltaError", "CommitFailedError", "TableNotFoundError", "NoSuchTableError"})


def is_expected(error: BaseException) -> bool:
    """Whether it says enough by itself: then no traceback is shown."""
    return isinstance(error, EXPECTED) or type(error).__name__ in _OF_LIBRARIES


def end_of(error: BaseException) -> tuple[Ends, str]:
    """How a command ends that met it, and what to do."""
    match error:
        case CannotConnect():
            return Ends.CANNOT_CONNECT, "start one with `ottla server`, or name it with --brokers or in the job file"
        case NoSuchTopicError() | UnknownTopicOrPartition():
            return Ends.NOT_FOUND, "`ottla topic list` shows the topics"
        case RequestTimedOut():
            return Ends.TIMED_OUT, "the broker answered before, but not in time this time"
        case BadSectionError() | BadExpressionError() | BadMeasureError():
            return Ends.BAD_INPUT, "mend it in the job file: its expressions are Spark's SQL"
        case BadFunctionError():
            return Ends.BAD_INPUT, "the job file's `function` is module:function, DataFrame to DataFrame"
        case LeaseTakenError():
            return Ends.FAILED, "wait for it to end; what it brings need not be brought again"
        case LostRaceError():
            return Ends.FAILED, "run it again: it goes on from what the other one did"
        case _:
            return Ends.FAILED, ""


def may_pass(error: BaseException) -> bool:
    """Whether the same may work in the next round of a job that runs all day."""
    if isinstance(error, KafkaError):
        return error.retriable
    return isinstance(error, CannotConnect | LeaseTakenError | LostRaceError | RegistryError | NoSuchTopicError)
