"""Keeps what a follower knows of one term: whether it may fetch, and what its leader has reported.

A partition is fetched only while everything in its log is durable: a fetch offset confirms to the leader what is
durable here, and the high watermark moves up to it. So each append is followed by a flush before the partition is
fetched further.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ottla.storage.log.partition_log import PartitionLog


class FetchState(Enum):
    """The states of a follower."""

    FETCHING = 1  # everything in the log is durable
    SYNCING = 2  # a flush is to come or under way
    TRUNCATING = 4  # the log is being truncated: nothing may be read or appended
    FAILED = 3  # it must not continue before a new term, or a restart


FETCHING: Final = FetchState.FETCHING  # each look-up in the class takes as long as a small function
SYNCING: Final = FetchState.SYNCING


class FetchPosition:
    """The position of a partition in a fetch request; its response is compared with it."""

    __slots__ = ("fetch_offset", "last_fetched_epoch", "leader_epoch", "log_start_offset", "truncation_count")

    def __init__(
        self,
        leader_epoch: int,
        fetch_offset: int,
        last_fetched_epoch: int,
        log_start_offset: int,
        truncation_count: int,
    ) -> None:
        self.leader_epoch = leader_epoch
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.truncation_count = truncation_count

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FetchPosition)
            and self.fetch_offset == other.fetch_offset
            and self.leader_epoch == other.leader_epoch
            and self.last_fetched_epoch == other.last_fetched_epoch
            and self.log_start_offset == other.log_start_offset
            and self.truncation_count == other.truncation_count
        )

    def __hash__(self) -> int:
        return hash((self.leader_epoch, self.fetch_offset, self.truncation_count))


class SyncListener:
    """A partition of a replica fetcher, which is not fetched further before everything in its log is durable."""

    def follower_synced(self) -> None:
        """Note that everything in the partition's log is durable, or will not be in this term."""
        raise NotImplementedError

    def truncation_ended(self, error: Exception | None) -> None:
        """Note that the log is truncated, or was not: then it must be tried again."""
        raise NotImplementedError


class FollowerState:
    """One term of a partition on a follower."""

    __slots__ = ("fetch_state", "fetcher", "leader_high_watermark", "leader_log_start")

    def __init__(self, *, is_durable: bool) -> None:
        self.fetch_state = FetchState.FETCHING if is_durable else FetchState.SYNCING
        self.fetcher: SyncListener | None = None
        self.leader_high_watermark = -1
        self.leader_log_start = -1

    def attach(self, fetcher: SyncListener) -> None:
        """Inform this listener from now on, which fetches the partition."""
        self.fetcher = fetcher

    def note_leader_offsets(self, high_watermark: int, log_start: int) -> None:
        """Note what the leader has reported; it counts as far as the log is durable."""
        self.leader_high_watermark, self.leader_log_start = high_watermark, log_start

    def require_sync(self) -> None:
        """Fetch nothing until everything in the log is durable, which it is no more."""
        if self.fetch_state is FETCHING:
            self.fetch_state = SYNCING

    def follow_leader(self, log: PartitionLog, durable_end: int) -> bool:
        """Follow the leader's high watermark and log start as far as the log is durable; return if the former moved."""
        end = min(self.leader_high_watermark, durable_end)
        is_moved = end > log.high_watermark
        if is_moved:
            log.update_high_watermark(end)
        if (start := min(self.leader_log_start, log.high_watermark)) > log.log_start_offset:
            log.delete_records(start)
        return is_moved

    def synced(self) -> None:
        """Fetch on, if the fetch waits for this: everything in the log is durable."""
        if self.fetch_state is SYNCING:
            self.fetch_state = FETCHING
            if self.fetcher is not None:
                self.fetcher.follower_synced()

    def begin_truncation(self) -> None:
        """Fetch nothing until the log is truncated. What the leader has reported counts no more."""
        self.fetch_state = FetchState.TRUNCATING
        self.leader_high_watermark = self.leader_log_start = -1

    def continue_after_truncation(self, *, is_durable: bool) -> None:
        """Fetch on, once everything in the log is durable. What the leader has reported counts no more."""
        if self.fetch_state is not FetchState.FAILED:
            self.fetch_state = FetchState.FETCHING if is_durable else FetchState.SYNCING
            self.leader_high_watermark = self.leader_log_start = -1

    def truncation_ended(self, error: Exception | None) -> None:
        """Inform the fetcher that the log is truncated, or was not."""
        if self.fetcher is not None:
            self.fetcher.truncation_ended(error)

    def fail(self) -> None:
        """Fetch nothing more in this term."""
        self.fetch_state = FetchState.FAILED
        if self.fetcher is not None:
            self.fetcher.follower_synced()
