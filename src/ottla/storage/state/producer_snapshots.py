"""Producer snapshots: `<20 digits>.snapshot`, the state before the record of that offset.

One is written at each roll and at a clean stop, so that a start replays one segment at most. A damaged one is passed
over for an older one; without any, the log is replayed from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from ottla.core.files import FileSystem, read_file
from ottla.storage.file_names import SNAPSHOT_SUFFIX, offset_name
from ottla.storage.state.producer_state import ProducerStates, read_snapshot


class ProducerSnapshots:
    """The snapshot files of one log."""

    __slots__ = ("_directory", "_files", "_offsets")

    def __init__(self, files: FileSystem, directory: PurePath, offsets: Iterable[int] = ()) -> None:
        self._files = files
        self._directory = directory
        self._offsets = set(offsets)

    @property
    def offsets(self) -> list[int]:
        """Of which offsets there are snapshots, ascending."""
        return sorted(self._offsets)

    @property
    def files(self) -> FileSystem:
        """Where they are."""
        return self._files

    def path(self, offset: int) -> PurePath:
        """The file of one snapshot."""
        return self._directory / offset_name(offset, SNAPSHOT_SUFFIX)

    def moved(self, directory: PurePath) -> None:
        """The partition's directory was renamed."""
        self._directory = directory

    def write(self, offset: int, states: ProducerStates) -> PurePath:
        """Write the state at `offset`; the caller sees to the sync. Raises OSError."""
        path = self.path(offset)
        self._offsets.add(offset)
        file = self._files.open(path, create=True)
        try:
            file.truncate(0)
            file.append(states.to_snapshot())
        finally:
            file.close()
        return path

    def load_newest(self, states: ProducerStates, *, not_after: int, end_offset: int, now_ms: int) -> int | None:
        """Load the newest whole snapshot at or below `not_after`; drop damaged ones and those after the log's end.

        Gives the offset to replay from, or None if the replay must begin with the log.
        """
        for offset in reversed(self.offsets):
            data = self._read(offset) if offset <= end_offset else b""
            if not_after < offset <= end_offset:
                if read_snapshot(data) is None:  # of a write that a crash cut short
                    self.drop(offset)
            elif offset <= end_offset and states.load_snapshot(data, now_ms=now_ms):
                return offset
            else:
                self.drop(offset)
        states.clear()
        return None

    def _read(self, offset: int) -> bytes:
        try:
            return read_file(self._files, self.path(offset))
        except FileNotFoundError:
            return b""

    def drop(self, offset: int) -> None:
        """Remove one snapshot, if it is there."""
        self._offsets.discard(offset)
        self._files.remove(self.path(offset))

    def drop_all(self) -> None:
        """Remove all of them."""
        for offset in self.offsets:
            self.drop(offset)

    def drop_above(self, offset: int) -> None:
        """Remove those of a stretch that a crash may have changed."""
        for newer in [at for at in self._offsets if at > offset]:
            self.drop(newer)

    def drop_below(self, offset: int) -> None:
        """Remove those that retention has made useless."""
        for old in [at for at in self._offsets if at < offset]:
            self.drop(old)
