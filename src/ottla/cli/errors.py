"""What can go wrong for a person at the command line, and the exit code it ends in.

The codes are stable: scripts may rely on them, and docs/cli.md lists them (a test keeps it so).
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
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


EXIT_CODE_MEANINGS = {
    ExitCode.OK: "everything asked for was done",
    ExitCode.FAILED: "the broker refused, or at least one of several items failed",
    ExitCode.USAGE: "the command line is wrong; nothing was asked of a broker",
    ExitCode.CANNOT_CONNECT: "no broker could be reached",
    ExitCode.NOT_FOUND: "the topic, partition, group, broker, profile or file does not exist",
    ExitCode.BAD_INPUT: "the input is not what it was said to be; the message names the line",
    ExitCode.TIMED_OUT: "a broker did not answer in time",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C",
    ExitCode.BROKEN_PIPE: "the reader of the output went away",
}


class CommandFailed(Exception):
    """Ends a command with one clear line on standard error: what, where, and what to do about it."""

    def __init__(self, message: str, *, code: ExitCode = ExitCode.FAILED, advice: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.args[0]}\n  {self.advice}" if self.advice else str(self.args[0])


def usage_error(message: str, advice: str = "") -> CommandFailed:
    """The command line is wrong."""
    return CommandFailed(message, code=ExitCode.USAGE, advice=advice)


def not_found(message: str, advice: str = "") -> CommandFailed:
    """The thing named does not exist."""
    return CommandFailed(message, code=ExitCode.NOT_FOUND, advice=advice)
