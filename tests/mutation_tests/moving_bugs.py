"""Lists bugs of coordinators that move between brokers, and the suite of random schedules that must find them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ottla.internal_topics.coordinator_partition import CoordinatorPartition
from ottla.internal_topics.writer import PartitionWriter
from tests.coordinator_schedules.test_moving_groups import moves
from tests.mutation_tests.group_bugs import schedules
from tests.mutation_tests.patching import Bug, Patch
from tests.support.replicated_topic import ANY_EPOCH

MOVING_SUITES: dict[str, Callable[[int, int], tuple[int, str] | None]] = {
    "groups that move in simulated time": partial(schedules, moves)
}

Original = Callable[..., Any]


def _loads_to_the_high_watermark(original: Original) -> Original:
    """The new leader takes its own high watermark for the end of what was acknowledged."""

    class UpToHighWatermark:
        def __init__(self, log: Any) -> None:
            self._log = log

        def __getattr__(self, name: str) -> Any:
            return getattr(self._log, name)

        def end_offset(self, partition: int) -> int:
            return int(self._log.hw)

    async def load_once(loading: CoordinatorPartition) -> None:
        log: Any = loading._topic_log
        loading._topic_log = UpToHighWatermark(log)
        try:
            await original(loading)
        finally:
            loading._topic_log = log
        loading.writer.begin(log.end)

    return load_once


def _keeps_the_state(original: Original) -> Original:
    """Whatever happened between two terms of this broker."""

    def continue_in(partition: CoordinatorPartition, leader_epoch: int) -> bool:
        if not partition.is_ready:
            return False
        partition.writer.leader_epoch = leader_epoch
        partition.writer.begin(partition._topic_log.end_offset(0))
        return True

    return continue_in


def _appends_in_any_epoch(original: Original) -> Original:
    async def append(writer: PartitionWriter, records: Any, producer: Any) -> Any:
        own, writer.leader_epoch = writer.leader_epoch, ANY_EPOCH
        try:
            return await original(writer, records, producer)
        finally:
            writer.leader_epoch = own

    return append


def _bug(name: str, what: str, *patches: Patch, seed: int = 1) -> Bug:
    return Bug(name, what, "groups that move in simulated time", patches, seed, 60)


MOVING_BUGS = (
    _bug("loaded-to-the-high-watermark", "a new coordinator loads to its high watermark, not to the end of the log",
         Patch(CoordinatorPartition, "_load_once", _loads_to_the_high_watermark)),
    _bug("state-kept-over-another-term", "a coordinator keeps its state although another broker led in between",
         Patch(CoordinatorPartition, "continue_in", _keeps_the_state)),
    _bug("append-without-leader-epoch", "a write that was queued in an earlier term is appended in the next one",
         Patch(PartitionWriter, "_append", _appends_in_any_epoch), seed=18),
)  # fmt: skip
