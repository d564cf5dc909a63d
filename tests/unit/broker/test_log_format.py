"""The lines of the log: one for a record, in the format of the setting; equal warnings are limited and counted."""

from __future__ import annotations

import io
import json
import logging

import pytest

from ottla.broker.process.log_format import formatter_of
from ottla.broker.process.log_output import TEXT_FORMAT, LimitedHandler, LineFormatter, Repeats


def _record(text: str, *, level: int = logging.WARNING, created: float = 0.0, **extra: object) -> logging.LogRecord:
    names = {"name": "ottla.a", "levelno": level, "levelname": logging.getLevelName(level), "msg": text}
    return logging.makeLogRecord({**names, "created": created, **extra})


def test_json_has_the_fields_of_a_record_and_a_traceback_in_one_line() -> None:
    try:
        raise ValueError("why\nthis")
    except ValueError as error:
        failed = (ValueError, error, error.__traceback__)
    line = formatter_of("json").format(_record("it failed", node_id=3, exc_info=failed))
    fields = json.loads(line)
    assert "\n" not in line
    assert (fields["time"], fields["level"], fields["logger"]) == ("1970-01-01T00:00:00.000Z", "WARNING", "ottla.a")
    assert (fields["message"], fields["node_id"]) == ("it failed", 3)
    assert fields["exception"].endswith("ValueError: why\nthis")


def test_key_value_quotes_what_is_not_one_word() -> None:
    line = formatter_of("key-value").format(_record('a "b"\nc', node_id=3))
    assert line == r'time=1970-01-01T00:00:00.000Z level=WARNING logger=ottla.a message="a \"b\"\nc" node_id=3'


def test_a_text_of_a_client_begins_no_other_line_and_sends_nothing_to_a_terminal() -> None:
    handler = LimitedHandler(stream := io.StringIO())
    handler.setFormatter(LineFormatter(TEXT_FORMAT))
    record = _record("of client %s", args=("a\n1970-01-01 INFO root: all is well\x1b[2J\u2028\r é",))
    try:
        raise ValueError("why")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    handler.emit(record)
    first, second, *_, last = stream.getvalue().splitlines()
    assert first.endswith(r"WARNING ottla.a: of client a\n1970-01-01 INFO root: all is well\x1b[2J\u2028\r é")
    assert (second, last) == ("Traceback (most recent call last):", "ValueError: why")


def test_equal_warnings_are_written_five_times_a_minute_and_then_counted() -> None:
    stream = io.StringIO()
    handler = LimitedHandler(stream)
    for second in range(20):
        handler.emit(_record("disk is full", created=second))
        handler.emit(_record("other", created=second, level=logging.INFO))
    handler.emit(_record("next", created=70.0))
    lines = stream.getvalue().splitlines()
    assert lines.count("disk is full") == 5
    assert lines.count("other") == 20
    assert lines[-2:] == ["disk is full (repeated 15 more times in 70 s)", "next"]


def test_warnings_of_many_texts_are_forgotten_so_that_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.process.log_output.TEXTS_MAX", 3)
    repeats = Repeats()
    for number in range(10):
        assert repeats.admit(_record(f"{number}"))
        assert not list(repeats.over(1.0))
    assert len(repeats._seen) == 3
