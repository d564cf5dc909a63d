"""What was acknowledged, through the real `Partition` and the real group commit, when the disk stops or an fsync fails.

A producer sends batch after batch, alone and in groups that share a flush; a consumer reads up to the high watermark.
Then a power cut loses everything that was not synced: all records that were acknowledged to the producer or read by the
consumer must be left. The group commit syncs in a thread of its own, and each wait ends with the ack or with the power.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ottla.core.errors import KafkaError
from ottla.metadata_store.cluster_view import PartitionView
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import PowerCut, SimDisk
from tests.support.storage import NOW_MS, TP, StillClock, batch, everything, open_directory, records_in
from tests.support.waiting import Woken, thread_executor

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=200)
ROUNDS = (1, 1, 3, 1, 4, 2, 1)  # batches that share a flush
VIEW = PartitionView(index=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), partition_epoch=0)


@dataclass
class Acknowledgements:
    """Records what clients know of the log: acknowledged and fetched records."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    seen: dict[int, bytes | None] = field(default_factory=dict)
    refused: int = 0


def produce(disk: SimDisk) -> Acknowledgements:
    """Run the whole scenario, or the part before the disk fails."""
    outcome = Acknowledgements()
    asyncio.run(_produce(disk, outcome))
    return outcome


async def _produce(disk: SimDisk, outcome: Acknowledgements) -> None:
    power_is_gone = asyncio.Event()
    with _a_power_cut_ends_all_waits(power_is_gone.set):
        try:
            directory = open_directory(disk, CONFIG)
            log = directory.create_log(TP, uuid.UUID(int=7), CONFIG)
        except (PowerCut, KafkaError, OSError):
            return
        executor = thread_executor()
        commit = GroupCommit(directory.health, executor=executor, clock=StillClock())
        try:
            partition = Partition(log, VIEW, node_id=1, commit=commit)
            for size in ROUNDS:
                await _one_round(partition, size, outcome, power_is_gone)
                if not power_is_gone.is_set():
                    _read_committed(partition, outcome)
        except PowerCut:
            pass
        finally:
            await asyncio.to_thread(executor.close)  # its thread ends, unless the power has ended it


async def _one_round(partition: Partition, size: int, outcome: Acknowledgements, power_is_gone: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    answers = []
    for nth in range(size):
        value = b"%d of %d at %d" % (nth, size, partition.log.end_offset) + bytes(150)
        try:
            appended = partition.append_as_leader(batch(value), acks=-1, now_ms=NOW_MS)
        except KafkaError:
            outcome.refused += 1
            continue
        answer: asyncio.Future[BaseException | None] = loop.create_future()
        partition.waiters.add(appended.last_offset + 1, Woken(answer.set_result), None)
        answers.append((appended.first_offset, value, answer))
    gone = asyncio.ensure_future(power_is_gone.wait())
    for offset, value, answer in answers:
        both: set[asyncio.Future[Any]] = {answer, gone}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if answer.done() and answer.result() is None:
            outcome.acknowledged[offset] = value
        else:
            outcome.refused += 1
    gone.cancel()


def _read_committed(partition: Partition, outcome: Acknowledgements) -> None:
    """As a consumer does, up to the high watermark."""
    offset = partition.log.log_start_offset
    while offset < partition.high_watermark:
        try:
            found = partition.read(offset, max_bytes=1 << 20, committed_only=False, at_least_one=True)
        except KafkaError:
            return
        if found.region is None:
            return
        for record in records_in(found.region.read()):
            outcome.seen[record.offset] = record.value
            offset = record.offset + 1


@contextmanager
def _a_power_cut_ends_all_waits(gone: Callable[[], None]) -> Iterator[None]:
    """The group commit dies of a power cut, in its thread or in a turn of the loop, as it should: end all waits."""
    loop, before = asyncio.get_running_loop(), threading.excepthook

    def on_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), PowerCut):
            gone()
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_loop)

    def hook(args: threading.ExceptHookArgs) -> None:
        if isinstance(args.exc_value, PowerCut):
            loop.call_soon_threadsafe(gone)
        else:
            before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def broken_after(disk: SimDisk, outcome: Acknowledgements) -> str | None:
    """Cut the power, lose everything unsynced, and return a violated guarantee to a client, if any."""
    left = disk.state(0)
    log = open_directory(left, CONFIG).logs.get(TP)
    held = dict(everything(log)) if log is not None else {}
    for what, offsets in (("acknowledged", outcome.acknowledged), ("seen", outcome.seen)):
        gone = [offset for offset, value in offsets.items() if held.get(offset) != value]
        if gone:
            return f"{len(gone)} of {len(offsets)} records that were {what} are lost, the first at {gone[0]}"
    return None


def stops() -> Iterator[tuple[str, SimDisk, Acknowledgements]]:
    """Run the scenario once for each change of the disk, stopped before it."""
    dry = SimDisk()
    produce(dry)
    for nth in range(1, dry.changes + 2):
        disk = SimDisk()
        disk.stop_at(nth)
        yield f"stopped before change {nth}", disk, produce(disk)


def failed_syncs() -> Iterator[tuple[str, SimDisk, Acknowledgements]]:
    """Run the scenario once for each sync, which fails; the producer continues until it is refused."""
    dry = SimDisk()
    produce(dry)
    opening = next(at for at, line in enumerate(dry.history) if str(TP) in line)
    for nth, line in enumerate(dry.history, start=1):
        if line.startswith("sync") and nth > opening:
            disk = SimDisk()
            disk.fail_at(nth, errno.EIO)
            yield f"change {nth} failed ({line})", disk, produce(disk)
