"""Maps each key to its latest offset, in bounded memory: 24 bytes a key, whatever the keys' length.

A key is known by a digest of 16 bytes. The digest is keyed with a secret of the process, so that no client can make two
keys that collide; by chance it does not happen. The table begins small and doubles; while it does, the smaller one is
given back to the system part by part, so that both together take hardly more than the larger.
"""

from __future__ import annotations

import mmap
from types import ModuleType

from ottla.core.runtime import random_bytes
from ottla.records import compaction

SLOT_BYTES = 24
_FIRST_SLOTS = 1 << 12
_FULL_BEFORE_GROWTH = 0.7
_MOVED_SLOTS = 1 << 18  # moved at a time: whole pages, whatever their size


class OffsetMap:
    """Made for one pass over one log, of whole batches in the order of the log. `close` gives the memory back."""

    __slots__ = (
        "_digest",
        "_full",
        "_key",
        "_loop",
        "_memory",
        "_slots",
        "_slots_max",
        "_table",
        "count",
        "latest_offset",
    )

    def __init__(
        self, *, memory_bytes: int, load_factor: float, secret: bytes | None = None, loop: ModuleType = compaction.LOOP
    ) -> None:
        secret = secret or random_bytes(compaction.KEY_BYTES)
        self._loop = loop
        self._digest = compaction.digest_of(loop, secret)
        self._key = compaction.halves(secret)
        self._slots_max = max(memory_bytes // SLOT_BYTES, 2)
        self._full = min(max(int(self._slots_max * load_factor), 1), self._slots_max - 1)  # one slot is always free
        self._slots = min(_FIRST_SLOTS, self._slots_max)
        self._memory, self._table = _table(self._slots)
        self.count = 0  # of different keys
        self.latest_offset = -1  # up to here the log is in the map

    @property
    def memory_bytes(self) -> int:
        """Return the memory that the table takes now."""
        return self._slots * SLOT_BYTES

    def note(self, data: bytes, at: int, end: int, *, count: int, base_offset: int, from_offset: int) -> bool:
        """Take in a batch's records, which are in `data` from `at` to `end`; False if the map was full before its end.

        Then `latest_offset` is that of the last record taken in. ValueError or IndexError on malformed records.
        """
        left = count
        while True:
            limit = self._full
            if self._slots < self._slots_max:
                limit = min(limit, int(self._slots * _FULL_BEFORE_GROWTH))
            taken, at, new, last = self._loop.note_keys(
                data,
                at,
                end,
                left,
                base_offset,
                from_offset,
                self._table,
                self._slots,
                limit - self.count,
                *self._key,
                self._digest,
            )
            self.count += new
            self.latest_offset = max(self.latest_offset, last)
            left -= taken
            if not left:
                return True
            if self._slots == self._slots_max or self.count == self._full:
                return False
            self._grow()

    def update_latest_offset(self, offset: int) -> None:
        """Note that everything up to and including `offset` has been noted, or has nothing to note."""
        self.latest_offset = max(self.latest_offset, offset)

    def choose(
        self,
        data: bytes,
        at: int,
        end: int,
        *,
        count: int,
        base_offset: int,
        drops_tombstones: bool,
        extents: list[int],
    ) -> tuple[int, int, int, int, int]:
        """Choose which of a batch's records stay: see `records/_compaction.py`."""
        chosen: tuple[int, int, int, int, int] = self._loop.choose(
            data,
            at,
            end,
            count,
            base_offset,
            self.latest_offset,
            drops_tombstones,
            self._table,
            self._slots,
            *self._key,
            self._digest,
            extents,
        )
        return chosen

    def close(self) -> None:
        """Release the memory."""
        self._table.release()
        self._memory.close()

    def _grow(self) -> None:
        slots = min(self._slots * 2, self._slots_max)
        memory, table = _table(slots)
        for first in range(0, self._slots, _MOVED_SLOTS):
            end = min(first + _MOVED_SLOTS, self._slots)
            self._loop.move_slots(self._table, first, end, table, slots)
            if end < self._slots:
                self._memory.madvise(mmap.MADV_DONTNEED, first * SLOT_BYTES, _MOVED_SLOTS * SLOT_BYTES)
        self.close()
        self._memory, self._table, self._slots = memory, table, slots


def _table(slots: int) -> tuple[mmap.mmap, memoryview]:
    memory = mmap.mmap(-1, slots * SLOT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memory, memoryview(memory).cast("Q")
