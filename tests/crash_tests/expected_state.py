"""Records what a workload has done and what was acknowledged: a recovered directory is compared with it.

An `ExpectedLog` is one log from its creation to its deletion. While a call is under way that changes what may be found (a
truncation, a deletion), the old and the new contents are both allowed; when the call has returned, only the new.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.core.ids import TopicPartition
from ottla.records.batch import BatchHeader


class Written(NamedTuple):
    """One batch as it must lie in the log, byte for byte, and the time of each of its records."""

    first_offset: int
    last_offset: int
    raw: bytes
    times: tuple[int, ...]
    marker: tuple[bool, int] | None = None  # of a control batch: is it an abort, and the coordinator's epoch

    @property
    def header(self) -> BatchHeader:
        return BatchHeader(self.raw)


@dataclass
class ExpectedLog:
    """One log."""

    topic_id: uuid.UUID
    batches: list[Written] = field(default_factory=list)  # all since the beginning, but for what was truncated
    empty_at: int = 0  # where the log ends while it has no batch
    flushed: int = 0  # below this a power cut may take nothing
    written: int = 0  # below this the death of the process may take nothing
    start_least: int = 0  # the log may begin no earlier: a checkpoint has said so
    start_most: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)  # every (epoch, start) ever noted
    bases: set[int] = field(default_factory=lambda: {0})  # where the first segment has begun
    made: bool = False  # `create_log` has returned
    surely_there: bool = False  # a flush or a clean stop has made its name durable
    may_be_gone: bool = False  # its deletion has begun
    may_be_empty: bool = False  # `restart_at` has begun
    compacts: bool = False
    cleaned: bool = False  # a pass of compaction has begun
    horizon_ms: int = 0  # of the tombstones of the first pass
    tombstones_may_go: bool = False  # a second pass has begun after the horizon of the first

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.empty_at


@dataclass
class ExpectedState:
    """What is expected of one log directory."""

    logs: dict[TopicPartition, ExpectedLog] = field(default_factory=dict)
    version: int = 0  # counts changes: two equal disks with equal versions are one state

    def changed(self) -> None:
        """Count a change of what is acknowledged or allowed."""
        self.version += 1
