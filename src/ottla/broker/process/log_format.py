"""Formats the lines of the log for programs, each record as one line."""

from __future__ import annotations

import json
import logging
from typing import Final

from ottla.core.events import time_text

_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def formatter_of(name: str) -> logging.Formatter:
    """Return the formatter for a value of the setting ottla.log.format other than text."""
    match name:
        case "json":
            return JsonFormatter()
        case "key-value":
            return KeyValueFormatter()
        case _:
            raise ValueError(name)


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = {
        "time": time_text(int(record.created * 1000)),
        "level": record.levelname,
        "logger": record.name,
        "message": record.getMessage(),
    }
    fields |= {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
    if record.exc_info:
        fields["exception"] = formatter.formatException(record.exc_info)
    if record.stack_info:
        fields["stack"] = record.stack_info
    return fields


class JsonFormatter(logging.Formatter):
    """Writes a record as one object of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps(_fields(self, record), default=str, ensure_ascii=False)


class KeyValueFormatter(logging.Formatter):
    """Writes a record as `key=value` pairs; values with spaces or quotes are quoted as in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return " ".join(f"{name}={_quoted(value)}" for name, value in _fields(self, record).items())


def _quoted(value: object) -> str:
    """Quote what would not be one word.

    >>> _quoted(3), _quoted("a b"), _quoted(""), _quoted("a=b")
    ('3', '"a b"', '""', '"a=b"')
    """
    text = str(value)
    is_word = text and text.isprintable() and not any(character in text for character in ' "=')
    return text if is_word else json.dumps(text, ensure_ascii=False)
