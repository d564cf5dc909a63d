"""Reads records for `produce` from files or standard input: lines, JSON lines or whole files.

A thread reads standard input into a bounded queue, so that a slow writer of the pipe does not block the event loop and
Ctrl-C works while it is idle.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from ottla.cli.errors import CommandFailed, ExitCode, not_found
from ottla.cli.record_json import InvalidLine, TextRecord, from_json
from ottla.core.clock import Clock
from ottla.records.builder import NewRecord

_BLOCK_BYTES = 256 << 10
_BLOCKS_AHEAD = 8
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
    repartition: bool = False  # ignore the partitions that JSON lines name
    defaults: TextRecord = field(default_factory=TextRecord)
    """The key and timestamp of records that have none, headers for all; a topic or partition here replaces theirs."""


class RecordChunk(NamedTuple):
    """Records of one topic that were read together, and their positions in the input."""

    source: str
    topic: str
    lines: Sequence[int]  # the number of each record's line; empty if the whole file is one record
    records: Sequence[NewRecord]
    partitions: Sequence[int | None] | None = None  # the partition of each record; None: none has one
    timestamp_ms: int | None = None  # that of all records; None: they may differ

    def position(self, index: int) -> str:
        """Describe where a record was read, for an error message."""
        return f"{self.source} line {self.lines[index]}" if self.lines else self.source


async def read_input(files: list[str], reading: ReaderOptions, *, clock: Clock) -> AsyncIterator[RecordChunk]:
    """Yield the records of all files in turn ("-" is standard input). Raises `CommandFailed` naming file and line.

    A record without a timestamp gets the time at which it was read. Before an invalid line is reported, the records
    before it have been yielded.
    """
    for name in files or [STDIN]:
        source = "standard input" if name == STDIN else name
        if reading.kind is InputFormat.FILE:
            whole = b"".join([block async for block in _blocks(name)])
            ((chunk,), _) = _text_chunks(
                source, 1, [whole], replace(reading, key_separator=None, null=None), clock.wall_ms()
            )
            yield chunk._replace(lines=())
            continue
        async for first, lines in _line_blocks(name, source):
            parse = _json_chunks if reading.kind is InputFormat.JSON else _text_chunks
            chunks, invalid = parse(source, first, lines, reading, clock.wall_ms())
            for chunk in chunks:
                yield chunk
            if invalid is not None:
                raise invalid


def parse_lines(
    lines: Sequence[bytes], reading: ReaderOptions, *, now_ms: int
) -> tuple[list[NewRecord], InvalidLine | None]:
    """Convert lines of text to records, up to the first invalid line.

    >>> parse_lines([b"k:v"], ReaderOptions(InputFormat.LINES, key_separator=b":"), now_ms=5)[0]
    [NewRecord(key=b'k', value=b'v', timestamp_ms=5, headers=[])]
    """
    defaults, null, separator = reading.defaults, reading.null, reading.key_separator
    key, headers = defaults.key, defaults.headers
    timestamp_ms = now_ms if defaults.timestamp_ms is None else defaults.timestamp_ms
    if separator is None:
        if null is None:
            return [NewRecord(key, line, timestamp_ms, headers) for line in lines], None
        return [NewRecord(key, None if line == null else line, timestamp_ms, headers) for line in lines], None
    records: list[NewRecord] = []
    for line in lines:
        found_key, found_separator, value = line.partition(separator)
        if not found_separator:
            shown = separator.decode("utf-8", "replace")
            return records, InvalidLine(f"it has no {shown!r} between key and value")
        records.append(
            NewRecord(
                key if null is not None and found_key == null else found_key,
                None if null is not None and value == null else value,
                timestamp_ms,
                headers,
            )
        )
    return records, None


def parse_json_line(line: bytes, reading: ReaderOptions) -> TextRecord | None:
    """Parse one line as a record, with the defaults; None for an empty line. Raises `InvalidLine`."""
    if not line.strip():
        return None
    record, defaults = from_json(line), reading.defaults
    partition = None if reading.repartition else record.partition
    return replace(
        record,
        key=defaults.key if record.key is None else record.key,
        headers=[*record.headers, *defaults.headers],
        timestamp_ms=defaults.timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
        partition=partition if defaults.partition is None else defaults.partition,
        topic=record.topic if defaults.topic is None else defaults.topic,
    )


def _text_chunks(
    source: str, first: int, lines: Sequence[bytes], reading: ReaderOptions, now_ms: int
) -> tuple[list[RecordChunk], CommandFailed | None]:
    records, invalid = parse_lines(lines, reading, now_ms=now_ms)
    chunk = RecordChunk(
        source,
        reading.defaults.topic or "",
        range(first, first + len(records)),
        records,
        None if reading.defaults.partition is None else [reading.defaults.partition] * len(records),
        records[0].timestamp_ms if records else None,
    )
    return [chunk] if records else [], None if invalid is None else _invalid(
        f"{source} line {first + len(records)}", invalid
    )


def _json_chunks(
    source: str, first: int, lines: Sequence[bytes], reading: ReaderOptions, now_ms: int
) -> tuple[list[RecordChunk], CommandFailed | None]:
    """Convert lines of JSON to one chunk for each topic."""
    chunks: dict[str, tuple[list[int], list[NewRecord], list[int | None]]] = {}
    failure = None
    for number, line in enumerate(lines, first):
        try:
            record = parse_json_line(line, reading)
        except InvalidLine as error:
            failure = _invalid(f"{source} line {number}", error)
            break
        if record is None:
            continue
        if record.topic is None:
            failure = CommandFailed(
                f"{source} line {number}: it has no topic", code=ExitCode.BAD_INPUT, advice="write: ottla produce TOPIC"
            )
            break
        numbers, records, partitions = chunks.setdefault(record.topic, ([], [], []))
        timestamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
        numbers.append(number)
        records.append(NewRecord(record.key, record.value, timestamp_ms, record.headers))
        partitions.append(record.partition)
    return [RecordChunk(source, topic, *columns) for topic, columns in chunks.items()], failure


def _invalid(position: str, error: InvalidLine) -> CommandFailed:
    return CommandFailed(f"{position}: {error}", code=ExitCode.BAD_INPUT)


async def _line_blocks(name: str, source: str) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Yield the number of a first line, and the lines that follow, as they arrive."""
    number, rest = 1, b""
    async for block in _blocks(name):
        text = rest + block
        *lines, rest = text.split(b"\n")
        if b"\r" in text:
            lines = [line.removesuffix(b"\r") for line in lines]
        if lines:
            yield number, lines
        number += len(lines)
        if len(rest) > LINE_BYTES_MAX:
            raise CommandFailed(
                f"{source} line {number} is longer than {LINE_BYTES_MAX} bytes", code=ExitCode.BAD_INPUT
            )
    if rest:
        yield number, [rest.removesuffix(b"\r")]


async def _blocks(name: str) -> AsyncIterator[bytes]:
    """Yield the bytes of a file as they arrive. A thread waits for pipes and terminals, not the event loop."""
    try:
        descriptor = os.dup(0) if name == STDIN else os.open(Path(name), os.O_RDONLY)
    except OSError as error:
        raise not_found(f"{name}: {error.strerror}") from None
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    space = threading.Semaphore(_BLOCKS_AHEAD)

    def pump() -> None:
        try:
            for item in _read_blocks(descriptor):
                space.acquire()
                loop.call_soon_threadsafe(ready.put_nowait, item)
        except RuntimeError:
            return  # the event loop is closed

    # a daemon: if it is blocked in a read when the command ends, the process still exits
    threading.Thread(target=pump, name="read-input", daemon=True).start()  # noqa: TID251  # of a command, never simulated
    while True:
        item = await ready.get()
        space.release()
        if isinstance(item, OSError):
            raise CommandFailed(f"{name}: {item.strerror}", code=ExitCode.BAD_INPUT)
        if not item:
            return
        yield item


def _read_blocks(descriptor: int) -> Iterator[bytes | OSError]:
    """Yield blocks until an empty one marks the end, or an error."""
    try:
        while True:
            block = os.read(descriptor, _BLOCK_BYTES)
            yield block
            if not block:
                return
    except OSError as error:
        yield error
    finally:
        os.close(descriptor)
