"""Writes the security audit log to a file of JSON lines, which is rotated by size: so many files are kept at most.

The file is opened for each write, so that it may be moved away at any time. A thread writes, one write at a time; what
comes meanwhile goes into the next.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import PurePath

from ottla.core.clock import Clock
from ottla.core.executors import MakeExecutor
from ottla.core.files import FileSystem
from ottla.security.audit_log import AuditEntry, AuditQueue

log = logging.getLogger(__name__)

ENTRIES_PER_WRITE = 1_000


class _Write:
    """One write, off the loop."""

    def __init__(self, output: AuditFile, data: bytes, events: int) -> None:
        self._output, self._data, self.events = output, data, events
        self.error: OSError | None = None

    def run(self) -> None:
        """Append the lines, in a new file if the present one would become too long."""
        try:
            self._output.append(self._data)
        except OSError as error:
            self.error = error

    def finished(self) -> None:
        """Go on with what came meanwhile."""
        self._output.written(self)


class AuditFile:
    """Appends entries to a file. `file.1` is the one before it, and so on."""

    def __init__(
        self,
        path: PurePath,
        *,
        files: FileSystem,
        clock: Clock,
        make_executor: MakeExecutor,
        node_id: int,
        entries_max: int,
        bytes_max: int,
        files_max: int,
    ) -> None:
        self._path, self._files, self._clock, self._node_id = path, files, clock, node_id
        self._bytes_max, self._files_max = bytes_max, files_max
        self.queue = AuditQueue(entries_max=entries_max)
        self._executor = make_executor("audit log", asyncio.get_running_loop().call_soon_threadsafe)
        self._is_writing = self._is_failing = self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, entry: AuditEntry, now_ms: int) -> None:
        """Have the entry written soon."""
        self.queue.put(entry, now_ms)
        self._write()

    def _write(self) -> None:
        if self._is_writing or self._is_closed or not len(self.queue):
            return
        lines, events = self.queue.take(self._node_id, ENTRIES_PER_WRITE)
        self._is_writing = True
        self._idle.clear()
        self._executor.submit(_Write(self, b"\n".join(lines) + b"\n", events))

    def append(self, data: bytes) -> None:
        """Append whole lines; runs in the thread. Raises OSError, and then the file has none of them."""
        files = self._files
        file = files.open(self._path, create=True)
        try:
            size = file.size()
            if size and size + len(data) > self._bytes_max:
                file.close()
                self._rotate()
                file, size = files.open(self._path, create=True), 0
            try:
                file.append(data)
            except OSError:
                file.truncate(size)
                raise
        finally:
            file.close()

    def _rotate(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            older = self._named(number - 1)
            if self._files.exists(older):
                self._files.rename(older, self._named(number))
        if self._files_max == 1:
            self._files.remove(self._path)

    def _named(self, number: int) -> PurePath:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")

    def written(self, write: _Write) -> None:
        """Note the outcome of a write, and begin the next. What could not be written is counted as dropped."""
        self._is_writing = False
        if write.error is not None:
            self.queue.note_dropped(write.events, self._clock.wall_ms())
            if not self._is_failing:
                log.error(
                    "the audit log %s cannot be written: %s. Its entries are dropped and counted until it can be",
                    self._path,
                    write.error.strerror or write.error,
                )
            self._is_failing = True
            self._idle.set()
            return  # the next entry tries again
        if self._is_failing:
            log.info("the audit log %s is written again", self._path)
        self._is_failing = False
        self._write()
        if not self._is_writing:
            self._idle.set()

    async def close(self) -> None:
        """Write what waits, and end the thread."""
        self._write()
        await self._idle.wait()
        self._is_closed = True
        self._executor.close()
