"""What `produce` reads: lines, JSON lines or whole files, from files or standard input, turned into records.

Standard input is read by a thread of its own with a bounded queue, so that a slow writer at the other end of the pipe
holds nothing up and Ctrl-C works while it is silent.
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
# One line is one record: what is longer than any broker takes is not text in lines but something else.
LINE_BYTES_MAX = 64 << 20
STDIN = "-"


class InputFormat(StrEnum):
    """What the input is made of."""

    LINES = "lines"
    JSON = "json"
    FILE = "file"  # each file is one record


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """How text becomes a record."""

    kind: InputFormat
    key_separator: bytes | None = None  # in lines: what stands between key and value
    null: bytes | None = None  # a key or value that reads so is null
    defaults: TextRecord = field(
        default_factory=TextRecord
    )  # key, headers, timestamp and partition of records that bring none


class SourcedRecord(NamedTuple):
    """A record and where it was read, for messages about it."""

    line: TextRecord
    source: str


async def read_records(files: list[str], reading: ReaderOptions) -> AsyncIterator[SourcedRecord]:
    """The records of all files in turn ("-" is standard input). Raises `CommandFailed` naming file and line."""
    for name in files or [STDIN]:
        shown = "standard input" if name == STDIN else name
        if reading.kind is InputFormat.FILE:
            whole = b"".join([chunk async for chunk in _chunks(name)])
            yield SourcedRecord(_filled(TextRecord(value=whole), reading), shown)
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
    """One line as a record; None for an empty line of JSON. Raises `InvalidLine`.

    >>> parse_line(b"k:v", ReaderOptions(InputFormat.LINES, key_separator=b":")).value
    b'v'
    """
    if reading.kind is InputFormat.JSON:
        return _filled(from_json(text), reading) if text.strip() else None
    key, value = None, text
    if reading.key_separator is not None:
        found_key, separator, value = text.partition(reading.key_separator)
        if not separator:
            raise InvalidLine(f"no {reading.key_separator.decode('utf-8', 'replace')!r} between key and value")
        key = _or_null(found_key, reading.null)
    return _filled(TextRecord(key=key, value=_or_null(value, reading.null)), reading)


def _or_null(text: bytes, null: bytes | None) -> bytes | None:
    return None if null is not None and text == null else text


def _filled(line: TextRecord, reading: ReaderOptions) -> TextRecord:
    given = reading.defaults
    return replace(
        line,
        key=given.key if line.key is None else line.key,
        headers=[*line.headers, *given.headers],
        timestamp_ms=given.timestamp_ms if line.timestamp_ms is None else line.timestamp_ms,
        partition=line.partition if given.partition is None else given.partition,
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
    """A file's bytes as they come; a file that can be waited for (a pipe, a terminal) is waited for off the loop."""
    try:
        descriptor = os.dup(0) if name == STDIN else os.open(Path(name), os.O_RDONLY)
    except OSError as error:
        raise not_found(f"{name}: {error.strerror}") from None
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)

    def pump() -> None:
        try:
            for item in _blocks(descriptor):
                room.acquire()
                loop.call_soon_threadsafe(ready.put_nowait, item)
        except RuntimeError:
            return  # the loop is closed: nobody reads any more

    # a daemon: blocked in a read when the command ends, it must not keep the process
    threading.Thread(target=pump, name="read-input", daemon=True).start()
    while True:
        item = await ready.get()
        room.release()
        if isinstance(item, OSError):
            raise CommandFailed(f"{name}: {item.strerror}", code=ExitCode.BAD_INPUT)
        if not item:
            return
        yield item


def _blocks(descriptor: int) -> Iterator[bytes | OSError]:
    """Blocks until the end, which is an empty one, or an error."""
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
