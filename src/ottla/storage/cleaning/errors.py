"""Declares how a cleaning can end without a result."""

from __future__ import annotations

import traceback

from ottla.storage.cleaning.worker_messages import Failure


class Uncleanable(Exception):
    """The log cannot be compacted as it is: a corrupt batch, or one that no longer fits. It is left untouched."""


class SegmentGone(Exception):
    """A file was deleted while it was read: by retention, with its topic, or by a truncation."""


def failure_of(error: Exception) -> Failure:
    """Return why a pass ended that raised an error."""
    match error:
        case Uncleanable():
            return Failure.CORRUPT
        case SegmentGone() | FileNotFoundError():
            return Failure.GONE
        case OSError():
            return Failure.DISK
        case _:
            return Failure.ERROR


def described(error: Exception) -> str:
    """Describe the error for the broker's log: with its traceback if it is a defect."""
    return "".join(traceback.format_exception(error)) if failure_of(error) is Failure.ERROR else str(error)
