"""Truncates the log of a follower where it diverges from its leader's, with all syncs off the event loop.

From the first step to the last nothing of the log may be read, appended, flushed or fetched. A term in which this
broker is to lead the partition is held meanwhile, and begins afterwards. `truncations.py` runs the steps.
"""

from __future__ import annotations

from typing import Protocol

from ottla.coordination.view import PartitionView
from ottla.core.errors import CorruptMessage, StorageError
from ottla.replication.commit import Flushable, GroupCommit
from ottla.replication.follower_state import FetchState, FollowerState
from ottla.replication.partition_logging import LoggedPartition, log_failed_truncation
from ottla.replication.replication_context import ReplicationContext
from ottla.storage.log.truncation import Truncation, run_truncation


class TruncatedReplica(Flushable, LoggedPartition, Protocol):
    """A replica whose log is truncated."""

    follower: FollowerState | None
    truncation: FollowerTruncation | None

    @property
    def durable_end(self) -> int:
        """Below it everything counts as written here."""
        ...

    def take_out_of_service(self, why: str) -> None:
        """Serve nothing until the log is fetched again: it would lose or invent records."""
        ...

    def begin_held_term(self, view: PartitionView) -> None:
        """Lead in a term that was held until the log was truncated."""
        ...


class FollowerTruncation:
    """One truncation off the loop, and the term as leader that it holds."""

    __slots__ = ("_commit", "_context", "_replica", "held_view")

    def __init__(self, replica: TruncatedReplica, commit: GroupCommit, context: ReplicationContext) -> None:
        self._replica, self._commit, self._context = replica, commit, context
        self.held_view: PartitionView | None = None

    def run(self, steps: Truncation) -> None:
        """Run the steps, with the replica out of use until the last one; on the loop without an executor for them."""
        replica, follower, truncations = self._replica, self._replica.follower, self._commit.truncations
        if truncations is None:
            try:
                run_truncation(steps, replica.log.checkpoint)
                continue_after_truncation(replica, self._commit)
            except CorruptMessage as error:
                self.truncation_ended(error)
            return
        assert follower is not None
        assert replica.truncation is None
        follower.begin_truncation()
        replica.truncation = self
        self._commit.forget(replica)
        truncations.add(self, steps)

    def hold(self, view: PartitionView | None) -> None:
        """Begin this term as leader afterwards; with None another broker leads."""
        self.held_view = view

    def abandon(self) -> None:
        """Run no further step: the replica is removed or offline."""
        if self._commit.truncations is not None:
            self._commit.truncations.abandon(self)
        self._replica.truncation = None

    def truncation_ended(self, error: Exception | None) -> None:
        """Go on: as the leader of a term that began meanwhile, or as a follower.

        After an error nothing was truncated, or the log is neither as before nor truncated: it goes out of service.
        """
        replica, held = self._replica, self.held_view
        log, follower = replica.log, replica.follower
        replica.truncation = None
        if log.health.failure is not None:
            replica.fail_flush(StorageError(log.health.failure))
        elif error is not None and (log.is_truncating or not isinstance(error, StorageError)):
            replica.take_out_of_service(log_failed_truncation(replica, error))
            if held is not None:
                self._context.on_leading(replica.topic_partition)  # and refuses what a coordinator asks
        elif follower is not None:
            continue_after_truncation(replica, self._commit)
            follower.truncation_ended(error)
        else:
            if log.is_dirty or replica.durable_end < log.end_offset:
                self._commit.schedule(replica)
            if held is not None:
                replica.begin_held_term(held)
                self._context.on_leading(replica.topic_partition)


def continue_after_truncation(replica: TruncatedReplica, commit: GroupCommit) -> None:
    """Flush what is left of the log, if something has to be, and fetch on then."""
    follower, log = replica.follower, replica.log
    if follower is not None and follower.fetch_state is not FetchState.FAILED:
        is_durable = replica.durable_end == log.end_offset
        follower.continue_after_truncation(is_durable=is_durable)
        if not is_durable or log.is_dirty:
            commit.schedule(replica)
