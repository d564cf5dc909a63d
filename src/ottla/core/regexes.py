"""Compiles and matches the regular expressions of clients with RE2, as Kafka does with RE2/J.

RE2 matches in time linear in the text, whatever the expression is: a client cannot keep a broker busy with one. Where
it is not installed (docs/design/build.md) every expression is refused, with that reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PROGRAM_BYTES_MAX = 1 << 20
"""Bound on the memory of one compiled expression."""

_NOT_INSTALLED = "this broker was installed without RE2 (the extra `standard`)"


class InvalidRegex(ValueError):
    """Reports an expression that cannot be compiled; its text is the reason."""


def why_invalid(regex: str) -> str | None:
    """Explain why an expression cannot be compiled; None if it can."""
    try:
        compile_regex(regex)
    except InvalidRegex as error:
        return str(error)
    return None


def invalid_regex_message(regex: str, reason: str) -> str:
    """Return the message of INVALID_REGULAR_EXPRESSION."""
    return f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}."


def matching_topics(regexes: Iterable[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the names that match each expression as a whole. An invalid expression matches none."""
    found = {}
    all_names = list(names)
    for regex in regexes:
        try:
            fullmatch = compile_regex(regex).fullmatch
        except InvalidRegex:
            found[regex] = frozenset[str]()
        else:
            found[regex] = frozenset(name for name in all_names if fullmatch(name) is not None)
    return found


def compile_regex(regex: str) -> Any:
    """Compile an expression. Raises `InvalidRegex`."""
    try:
        import re2  # when the first client needs it: most brokers never do
    except ModuleNotFoundError:
        raise InvalidRegex(_NOT_INSTALLED) from None
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(regex, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown reason"
        raise InvalidRegex(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
