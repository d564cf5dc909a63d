"""What can go wrong for a person at the command line, and the exit code it ends in.

The codes are stable: scripts may rely on them, and docs/cli.md lists them (a test keeps it so).
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1  # the broker refused, or one of several items failed
    USAGE = 2  # the command line itself is wrong, before anything was asked of a broker
    CANNOT_CONNECT = 3  # no broker answered
    NOT_FOUND = 4  # the topic, group, partition, profile or file does not exist
    BAD_INPUT = 5  # the input could not be read as what it was said to be
    TIMED_OUT = 6  # a broker answered before, but not in time this time
    INTERRUPTED = 130  # Ctrl-C, as shells have it
    BROKEN_PIPE = 141  # the reader of our output went away, as shells have it


MEANINGS = {
    Exit.OK: "everything asked for was done",
    Exit.FAILED: "the broker refused, or at least one of several items failed",
    Exit.USAGE: "the command line is wrong; nothing was asked of a broker",
    Exit.CANNOT_CONNECT: "no broker could be reached",
    Exit.NOT_FOUND: "the topic, partition, group, broker, profile or file does not exist",
    Exit.BAD_INPUT: "the input is not what it was said to be; the message names the line",
    Exit.TIMED_OUT: "a broker did not answer in time",
    Exit.INTERRUPTED: "stopped by Ctrl-C",
    Exit.BROKEN_PIPE: "the reader of the output went away",
}


class Failure(Exception):
    """Ends a command with one clear line on standard error: what, where, and what to do about it."""

    def __init__(self, message: str, *, code: Exit = Exit.FAILED, advice: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.args[0]}\n  {self.advice}" if self.advice else str(self.args[0])


def usage(message: str, advice: str = "") -> Failure:
    """The command line is wrong."""
    return Failure(message, code=Exit.USAGE, advice=advice)


def not_found(message: str, advice: str = "") -> Failure:
    """The thing named does not exist."""
    return Failure(message, code=Exit.NOT_FOUND, advice=advice)
