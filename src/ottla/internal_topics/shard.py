"""Declares a shard: the part of a coordinator that belongs to one partition of its internal topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ottla.core.errors import CoordinatorLoadInProgress, KafkaError
from ottla.internal_topics.coordinator_partition import CoordinatorPartition, Term
from ottla.internal_topics.failed_steps import FailedStep


class CoordinatorShard:
    """Coordinates the keys of one partition that this broker leads, in one term."""

    def __init__(self, partition: CoordinatorPartition, term: Term) -> None:
        self._partition = partition
        self._step_failed = term.step_failed

    @property
    def partition(self) -> int:
        """Return the number of its partition."""
        return self._partition.partition

    @property
    def leader_epoch(self) -> int:
        """Return the leader epoch of its term."""
        return self._partition.leader_epoch

    def continue_in(self, leader_epoch: int) -> bool:
        """Continue in the next term; returns False if the partition must be loaded again."""
        return self._partition.continue_in(leader_epoch)

    @property
    def is_ready(self) -> bool:
        """Return whether its state is loaded."""
        return self._partition.is_ready

    def check_ready(self) -> None:
        """Raise NotCoordinator or CoordinatorLoadInProgress unless its state is loaded."""
        self._partition.check_ready()

    @contextmanager
    def step_of(self, key: str, event: object) -> Iterator[None]:
        """Load the partition again if a change of a key's state fails unexpectedly.

        Raises CoordinatorLoadInProgress then; KafkaErrors of the change pass.
        """
        try:
            yield
        except KafkaError:
            raise
        except Exception as error:
            self._step_failed(FailedStep(key, event, None, error))
            raise CoordinatorLoadInProgress(f"{key!r} is being loaded again") from error

    async def wait_until_loaded(self) -> None:
        """Wait until its state is loaded."""
        await self._partition.wait_until_loaded()

    def stop(self, *, refuse_writes: bool) -> None:
        """Stop coordinating: fail the waiting requests, and the writes that are not appended yet if so asked."""
        self._partition.stop(refuse_writes=refuse_writes)

    async def close(self) -> None:
        """Wait until the queued writes of a stopped shard are written or have failed."""
        await self._partition.close()
