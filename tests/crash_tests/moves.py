"""Moves logs between two log directories step by step, with the code that the broker runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from ottla.core.executors import BlockingJob
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.metadata_store.cluster_view import NO_LEADER, PartitionView
from ottla.replication import alter_log_dirs
from ottla.replication.alter_log_dirs import AlterLogDirs, LogDirMove
from ottla.replication.config import ReplicationConfig
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.replication.replication_context import ReplicationContext
from ottla.storage.directories.log_directory import LogDirectory
from tests.support.storage import StillClock

_SIZES = {"CHUNK_BYTES": 300, "FLUSH_BYTES": 2000, "LAST_BYTES": 1000}
_STEPS_MAX = 500


class _Unused:
    """No flush of the group commit is begun: the workload flushes."""

    def submit(self, job: BlockingJob) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class StepwiseMove:
    """One move of one log, since it began or since the last start."""

    def __init__(self, directories: Sequence[LogDirectory], tp: TopicPartition, clock: StillClock) -> None:
        self._directories, self._tp, self._clock = directories, tp, clock
        self._mover: AlterLogDirs | None = None
        self._move: LogDirMove | None = None

    async def _begin(self) -> tuple[AlterLogDirs, LogDirMove]:
        if self._mover is not None and self._move is not None:
            return self._mover, self._move
        tp = self._tp
        source = next(each for each in self._directories if tp in each.logs)
        target = next(each for each in self._directories if tp in each.future_logs)
        commits = {each: GroupCommit(each.health, executor=_Unused(), clock=self._clock) for each in self._directories}
        view = PartitionView(tp.partition, NO_LEADER, 0, (1,), (1,), 0)
        partition = Partition(source.logs[tp], view, node_id=1, commit=commits[source])
        mover = self._mover = AlterLogDirs(commits, ReplicationContext(self._clock, ReplicationConfig()))
        move = self._move = mover.moves[tp] = LogDirMove(partition, source, target, target.future_logs[tp])
        return mover, move

    async def _run(self, steps: int) -> bool:
        mover, move = await self._begin()
        for _ in range(steps):
            await mover._step(move)
            if not mover.moves:
                return True
        return False

    def run(self, steps: int = _STEPS_MAX) -> bool:
        """Take so many steps; return whether the copy has replaced the log."""
        with _small_steps():
            return asyncio.run(self._run(steps))


@contextmanager
def _small_steps() -> Iterator[None]:
    before = {name: getattr(alter_log_dirs, name) for name in _SIZES}
    for name, size in _SIZES.items():
        setattr(alter_log_dirs, name, size)
    try:
        yield
    finally:
        for name, size in before.items():
            setattr(alter_log_dirs, name, size)


def complete_moves(
    directories: Sequence[LogDirectory], clock: StillClock, *, but: Collection[TopicPartition] = ()
) -> bool:
    """Complete the moves that a start has found, as the broker does; return whether there was one."""
    is_any = False
    for target in directories:
        for tp, future in list(target.future_logs.items()):
            if tp in but:
                continue
            held = [each.logs[tp] for each in directories if tp in each.logs]
            if not held or future.topic_id not in (held[0].topic_id, NO_TOPIC_ID):
                target.delete_future_log(tp)
                continue
            if future.topic_id != held[0].topic_id:
                target.corrupt_future_logs.add(tp)
            target.truncate_to_certain(tp)
            assert StepwiseMove(directories, tp, clock).run(), f"the move of {tp} does not end"
            is_any = True
    return is_any
