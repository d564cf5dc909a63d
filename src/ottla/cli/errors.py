"""Defines the exit codes of commands, and the error that ends a command with a message.

The codes are stable: scripts may rely on them, and docs/cli.md lists them (tested).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import ContextVar
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
    AUDIT_INCOMPLETE = 8
    TOPIC_RECREATED = 9
    QUARANTINED = 10
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
    ExitCode.AUDIT_INCOMPLETE: "the audit could not compare everything, so it found neither a balance nor a difference",
    ExitCode.TOPIC_RECREATED: "the topic was deleted and created again since the table was loaded",
    ExitCode.QUARANTINED: "the load quarantined every record of a topic, or more than `quarantine_max` allows",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C",
    ExitCode.BROKEN_PIPE: "the reader of the output closed the pipe",
}


class CommandFailed(Exception):
    """Ends a command with a message on standard error: what failed and where, and in `advice` what to do next.

    `failures` are the items that failed, with their messages, if the command processed several.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ExitCode = ExitCode.FAILED,
        advice: str = "",
        failures: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.advice = advice
        self.failures = failures

    def __str__(self) -> str:
        return f"{self.args[0]}\n  {self.advice}" if self.advice else str(self.args[0])

    def json(self) -> str:
        """Format the error for programs: one line, whose field names are stable (docs/cli.md)."""
        found: dict[str, object] = {"exit_code": int(self.code), "kind": self.code.name, "message": self.args[0]}
        if self.advice:
            found["advice"] = self.advice
        if self.failures:
            found["failures"] = [{"item": item, "message": message} for item, message in self.failures]
        import json

        return json.dumps({"error": found}, ensure_ascii=False)


class OutputClosed(Exception):
    """The reader of the output closed the pipe; typer would convert a BrokenPipeError to exit code 1."""


MESSAGES_AS_JSON = ContextVar("MESSAGES_AS_JSON", default=False)
"""Whether the command line asked for JSON: then messages on standard error are lines of JSON too."""


def show_error(failure: CommandFailed) -> None:
    """Print an error to standard error."""
    if MESSAGES_AS_JSON.get():
        print(failure.json(), file=sys.stderr)
        return
    for item, message in failure.failures:
        print(f"{item}: {message}", file=sys.stderr)
    print(f"ottla: {failure}", file=sys.stderr)


def show_notice(text: str) -> None:
    """Print a message that is no error to standard error, such as a retry."""
    line = f"ottla: {text}"
    if MESSAGES_AS_JSON.get():
        import json

        line = json.dumps({"notice": text}, ensure_ascii=False)
    print(line, file=sys.stderr, flush=True)


def usage_error(message: str, advice: str = "") -> CommandFailed:
    """Return the error for an invalid command line."""
    return CommandFailed(message, code=ExitCode.USAGE, advice=advice)


def not_found(message: str, advice: str = "") -> CommandFailed:
    """Return the error for a topic, group, file or the like that does not exist."""
    return CommandFailed(message, code=ExitCode.NOT_FOUND, advice=advice)
