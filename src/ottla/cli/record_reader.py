"""Reads records for `produce` from files or standard input: lines, JSON lines or whole files.

A thread reads standard input into a bounded queue, so that a slow writer of the pipe does not block the event loop and
Ctrl-C works while it is idle.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from ottla.cli.errors import CommandFailed, ExitCode, not_found
from ottla.cli.record_json import InvalidLine, TextRecord, from_json

_CHUNK_BYTES = 256 << 10
_CHUNKS_AHEAD = 8
# One line is one record: input with longer lines than any broker accepts is not text.
LINE_BYTES_MAX = 64 << 20
STDIN = "-"


class InputFormat(StrEnum):
    """The format of the input."""

    LINES = "lines"
    JSON = "json"
    FILE = "file"  # each file is one record


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """The conversion of input to records."""

    kind: InputFormat
    key_separator: bytes | None = None  # in lines: between key and value
    null: bytes | None = None  # a key or value equal to this is null
    defaults: TextRecord = field(default_factory=TextRecord)  # for records without key, headers, timestamp or partition


class SourcedRecord(NamedTuple):
    """A record and its position in the input, for error messages."""

    line: TextRecord
    source: str


async def read_records(files: list[str], reading: ReaderOptions) -> AsyncIterator[SourcedRecord]:
    """Yield the records of all files in turn ("-" is standard input). Raises `CommandFailed` naming file and line."""
    for name in files or [STDIN]:
        shown = "standard input" if name == STDIN else name
        if reading.kind is InputFormat.FILE:
            whole = b"".join([chunk async for chunk in _chunks(name)])
            yield SourcedRecord(_with_defaults(TextRecord(value=whole), reading), shown)
            continue
        async for number, text in _lines(name, shown):
            where = f"{shown} line {number}"
            try:
                line = parse_line(text, reading)
            except InvalidLine as error:
                raise CommandFailed(f"{where}: {error}", code=ExitCode.BAD_INPUT) from None
            if line is not None:
                yield SourcedRecord(line, where)


def parse_line(text: bytes, reading: ReaderOptions) -> TextRecord | None:
    """Parse one line as a record; None for an empty line of JSON. Raises `InvalidLine`.

    >>> parse_line(b"k:v", ReaderOptions(InputFormat.LINES, key_separator=b":")).value
    b'v'
    """
    if reading.kind is InputFormat.JSON:
        return _with_defaults(from_json(text), reading) if text.strip() else None
    key, value = None, text
    if reading.key_separator is not None:
        found_key, separator, value = text.partition(reading.key_separator)
        if not separator:
            raise InvalidLine(f"it has no {reading.key_separator.decode('utf-8', 'replace')!r} between key and value")
        key = _value_or_null(found_key, reading.null)
    return _with_defaults(TextRecord(key=key, value=_value_or_null(value, reading.null)), reading)


def _value_or_null(text: bytes, null: bytes | None) -> bytes | None:
    return None if null is not None and text == null else text


def _with_defaults(line: TextRecord, reading: ReaderOptions) -> TextRecord:
    defaults = reading.defaults
    return replace(
        line,
        key=defaults.key if line.key is None else line.key,
        headers=[*line.headers, *defaults.headers],
        timestamp_ms=defaults.timestamp_ms if line.timestamp_ms is None else line.timestamp_ms,
        partition=line.partition if defaults.partition is None else defaults.partition,
    )


async def _lines(name: str, shown: str) -> AsyncIterator[tuple[int, bytes]]:
    number, rest = 0, b""
    async for chunk in _chunks(name):
        *whole, rest = (rest + chunk).split(b"\n")
        for text in whole:
            number += 1
            yield number, text.removesuffix(b"\r")
        if len(rest) > LINE_BYTES_MAX:
            raise CommandFailed(
                f"{shown} line {number + 1} is longer than {LINE_BYTES_MAX} bytes", code=ExitCode.BAD_INPUT
            )
    if rest:
        yield number + 1, rest.removesuffix(b"\r")


async def _chunks(name: str) -> AsyncIterator[bytes]:
    """Yield the bytes of a file as they arrive. A thread waits for pipes and terminals, not the event loop."""
    try:
        descriptor = os.dup(0) if name == STDIN else os.open(Path(name), os.O_RDONLY)
    except OSError as error:
        raise not_found(f"{name}: {error.strerror}") from None
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    space = threading.Semaphore(_CHUNKS_AHEAD)

    def pump() -> None:
        try:
            for item in _blocks(descriptor):
                space.acquire()
                loop.call_soon_threadsafe(ready.put_nowait, item)
        except RuntimeError:
            return  # the event loop is closed

    # a daemon: if it is blocked in a read when the command ends, the process still exits
    threading.Thread(target=pump, name="read-input", daemon=True).start()
    while True:
        item = await ready.get()
        space.release()
        if isinstance(item, OSError):
            raise CommandFailed(f"{name}: {item.strerror}", code=ExitCode.BAD_INPUT)
        if not item:
            return
        yield item


def _blocks(descriptor: int) -> Iterator[bytes | OSError]:
    """Yield blocks until an empty one marks the end, or an error."""
    try:
        while True:
            block = os.read(descriptor, _CHUNK_BYTES)
            yield block
            if not block:
                return
    except OSError as error:
        yield error
    finally:
        os.close(descriptor)
