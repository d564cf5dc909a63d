"""Defines the exit codes of commands, and the error that ends a command with a message.

The codes are stable: scripts may rely on them, and docs/cli.md lists them (tested).
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a command; `EXIT_CODE_MEANINGS` describes them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CANNOT_CONNECT = 3
    NOT_FOUND = 4
    BAD_INPUT = 5
    TIMED_OUT = 6
    INTERRUPTED = 130  # 128 + SIGINT, as in shells
    BROKEN_PIPE = 141  # 128 + SIGPIPE, as in shells


EXIT_CODE_MEANINGS = {
    ExitCode.OK: "the command succeeded",
    ExitCode.FAILED: "the broker returned an error, or at least one of several items failed",
    ExitCode.USAGE: "the command line is invalid; no request was sent to a broker",
    ExitCode.CANNOT_CONNECT: "no broker could be reached",
    ExitCode.NOT_FOUND: "the topic, partition, group, broker, profile or file does not exist",
    ExitCode.BAD_INPUT: "the input is not in the expected format; the message names the line",
    ExitCode.TIMED_OUT: "a broker did not respond in time",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C",
    ExitCode.BROKEN_PIPE: "the reader of the output closed the pipe",
}


class CommandFailed(Exception):
    """Ends a command with a message on standard error: what failed and where, and in `advice` what to do next."""

    def __init__(self, message: str, *, code: ExitCode = ExitCode.FAILED, advice: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.args[0]}\n  {self.advice}" if self.advice else str(self.args[0])


def usage_error(message: str, advice: str = "") -> CommandFailed:
    """An invalid command line."""
    return CommandFailed(message, code=ExitCode.USAGE, advice=advice)


def not_found(message: str, advice: str = "") -> CommandFailed:
    """A topic, group, file or the like that does not exist."""
    return CommandFailed(message, code=ExitCode.NOT_FOUND, advice=advice)
