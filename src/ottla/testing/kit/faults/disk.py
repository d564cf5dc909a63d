"""Lets the disks of brokers be full or slow, fail, return other bytes than were written, or lose the last ones.

Files in memory (`SimDisk`) and files below a directory (`LimitedFiles`) fail in the same ways; only unsynced writes can
be lost in memory alone, because the page cache of the system is not the test's.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Coroutine
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar, cast

from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition
from ottla.records.batch import HEADER_BYTES
from ottla.testing.cluster import TestCluster
from ottla.testing.kit.faults.fault import Fault
from ottla.testing.kit.faults.names import check_field
from ottla.testing.limited_files import LimitedFiles
from ottla.testing.sim_disk import SimDisk, Survival

T = TypeVar("T")

OPERATIONS = ("open", "create", "read", "write", "truncate", "sync", "mkdir", "rename", "remove")
_SPACE = "full"
_ERRORS = {name: number for number, name in errno.errorcode.items()}


class OnLoop(Protocol):
    """Runs a coroutine function of the cluster on the brokers' loop, and returns its result."""

    def __call__(self, work: Callable[[TestCluster], Coroutine[Any, Any, T]], /) -> T: ...  # noqa: D102


EndOnLoop = Callable[[Callable[[TestCluster], Coroutine[Any, Any, None]]], None]
"""The same, and nothing if the brokers were stopped."""


class DiskFault(Fault):
    """A fault of one disk. `count` is how many operations it has refused or slowed down."""

    def __init__(self, what: str, counted: Callable[[], int], *, end: Callable[[Fault], None]) -> None:
        super().__init__(what, end=end)
        self._counted, self._before = counted, counted()

    @property
    def count(self) -> int:
        """Return how many operations were refused or slowed down."""
        return self._count + self._counted() - self._before

    def remove(self) -> None:
        """End the fault; what happens later does not count."""
        self._count = self.count
        self._counted, self._before = (lambda: 0), 0
        super().remove()

    def wait(self, count: int = 1, *, timeout: float = 10) -> None:
        """Return when it has happened so often. Raises TimeoutError."""
        monotonic = SystemClock().monotonic
        until = monotonic() + timeout
        while self.count < count:
            if monotonic() > until:
                raise TimeoutError(f"{self.what} has happened {self.count} times, not {count}")
            time.sleep(0.002)


class Disks:
    """The disks of all brokers of a kit: `k.disk`."""

    def __init__(self, on_loop: OnLoop, end_on_loop: EndOnLoop) -> None:
        self._on_loop, self._end_on_loop = on_loop, end_on_loop
        self.faults: tuple[Fault, ...] = ()

    def full(self, broker: int = 1) -> Fault:
        """Leave no space on a broker's disk, until the fault is removed, or `free`."""

        async def fill(cluster: TestCluster) -> Fault:
            files = _files(cluster, broker)
            cluster.fill_disk(broker)
            return self._fault(f"full disk of broker {broker}", files, _SPACE, lambda: self._end_on_loop(give_space))

        async def give_space(cluster: TestCluster) -> None:
            cluster.free_disk(broker)
            if broker in cluster.brokers:
                for directory in cluster.services(broker).replicas.directories.opened:
                    directory.health.space_found()  # it would look for space later

        return self._add(fill)

    def free(self, broker: int = 1) -> None:
        """Give space again."""
        for fault in self.faults:
            if fault.what == f"full disk of broker {broker}":
                fault.remove()

    def fail(self, operation: str, *, error: str = "EIO", broker: int = 1) -> Fault:
        """Let all operations of a kind fail: read, write, sync, open, create, truncate, mkdir, rename, remove.

        A failed sync takes the log directory out of service until the broker starts again, as in Kafka.
        """
        check_field(operation, OPERATIONS, "a disk")
        check_field(error, _ERRORS, "errno")

        async def refuse(cluster: TestCluster) -> Fault:
            files = _files(cluster, broker)
            files.refuse(_ERRORS[error], operation)
            what = f"{error} at {operation} of broker {broker}"
            return self._fault(what, files, operation, lambda: files.stop_refusing(operation))

        return self._add(refuse)

    def slow(self, ms: float, *, operation: str = "sync", broker: int = 1) -> Fault:
        """Let each operation of a kind take so much longer, in real time.

        Without `data` all brokers wait with it, because they have no threads for their disks.
        """
        check_field(operation, OPERATIONS, "a disk")
        slowed = 0

        def wait() -> None:
            nonlocal slowed
            slowed += 1
            time.sleep(ms / 1000)

        async def slow_down(cluster: TestCluster) -> Fault:
            files = _files(cluster, broker)
            files.before[operation] = wait

            def end(fault: Fault) -> None:
                files.before.pop(operation, None)
                self._forget(fault)

            return DiskFault(f"slow {operation} of broker {broker}", lambda: slowed, end=end)

        return self._add(slow_down)

    def lose_unsynced(self, broker: int = 1) -> Fault:
        """Cut the power of a broker, and start it again without what was not synced. `count`: the files that differ.

        What is acknowledged survives it with `durability=fsync`, and not with `durability=page-cache`. Raises
        ValueError with files below a directory: what the system has written of them is not known.
        """

        async def cut_power(cluster: TestCluster) -> Fault:
            disk = _files(cluster, broker)
            if not isinstance(disk, SimDisk):
                raise ValueError(  # noqa: TRY004 - of what the test has asked for
                    "unsynced writes can be lost in memory only: start the brokers without data="
                )
            is_up = broker in cluster.brokers
            if is_up:
                await cluster.kill(broker)
            before = dict(_files_of(disk.image()))
            disk.power_cut(random.Random(0), Survival.LOST)
            after = dict(_files_of(disk.image()))
            if is_up:
                await cluster.restart(broker)
            differing = sum(after.get(path) != content for path, content in before.items())
            return Fault(f"power cut of broker {broker}", count=differing)

        return self._on_loop(cut_power)

    def flip_bit(self, topic: str, partition: int = 0, offset: int = 0, *, broker: int | None = None) -> Fault:
        """Change one bit of the batch with this offset, on the leader's disk or another's. `remove` changes it back.

        The broker reads its files as after a start, so that it verifies them; it refuses the batch.
        """

        async def flip(cluster: TestCluster) -> Fault:
            node_id = broker or _leader(cluster, topic, partition)
            path, byte = _place_of(cluster, node_id, TopicPartition(topic, partition), offset)
            _flip(_files(cluster, node_id), path, byte)
            what = f"flipped bit in {topic}-{partition} at offset {offset}, broker {node_id}"

            def flip_back(fault: Fault) -> None:
                self._forget(fault)
                self._end_on_loop(repair)

            async def repair(cluster: TestCluster) -> None:
                if _files(cluster, node_id).exists(path):
                    _flip(_files(cluster, node_id), path, byte)
                    if node_id in cluster.brokers:
                        _verify_again(cluster, node_id, TopicPartition(topic, partition))

            _verify_again(cluster, node_id, TopicPartition(topic, partition))
            return Fault(what, count=1, end=flip_back)

        return self._add(flip)

    # ---- Parts of these methods

    def _add(self, make: Callable[[TestCluster], Coroutine[Any, Any, Fault]]) -> Fault:
        fault = self._on_loop(make)
        self.faults = (*self.faults, fault)
        return fault

    def _forget(self, fault: Fault) -> None:
        self.faults = tuple(each for each in self.faults if each is not fault)

    def _fault(self, what: str, files: SimDisk | LimitedFiles, kind: str, undo: Callable[[], None]) -> DiskFault:
        def end(fault: Fault) -> None:
            undo()
            self._forget(fault)

        return DiskFault(what, lambda: files.refusals[kind], end=end)


def _files(cluster: TestCluster, broker: int) -> SimDisk | LimitedFiles:
    if broker not in cluster.ports:
        raise ValueError(f"there is no broker {broker}")
    return cast("SimDisk | LimitedFiles", cluster.files(broker))


def _files_of(image: tuple[tuple[str, object], ...], above: str = "") -> list[tuple[str, bytes]]:
    files: list[tuple[str, bytes]] = []
    for name, content in image:
        path = f"{above}/{name}"
        if isinstance(content, bytes):
            files.append((path, content))
        else:
            files.extend(_files_of(cast("tuple[tuple[str, object], ...]", content), path))
    return files


def _leader(cluster: TestCluster, topic: str, partition: int) -> int:
    view = cluster.services(cluster.controller).cluster.current.topics.get(topic)
    if view is None or not 0 <= partition < len(view.partitions):
        raise ValueError(f"there is no partition {partition} of topic {topic!r}")
    return view.partitions[partition].leader


def _place_of(cluster: TestCluster, broker: int, topic_partition: TopicPartition, offset: int) -> tuple[PurePath, int]:
    """Find a byte of the records of a batch: the file, and where in it."""
    replica = cluster.services(broker).replicas.partitions.get(topic_partition)
    if replica is None:
        raise ValueError(f"broker {broker} has no replica of {topic_partition}")
    for segment in replica.log.segment_list.from_offset(offset):
        batch = segment.find(offset)
        if batch is not None:
            first = batch.position + HEADER_BYTES
            return segment.log_path, (first + batch.end) // 2
    raise ValueError(f"{topic_partition} has no offset {offset}")


def _flip(files: SimDisk | LimitedFiles, path: PurePath, byte: int) -> None:
    if isinstance(files, SimDisk):
        files.flip_bit(path, byte * 8)
        return
    descriptor = os.open(Path(path), os.O_RDWR)
    try:
        (content,) = os.pread(descriptor, 1, byte)
        os.pwrite(descriptor, bytes([content ^ 1]), byte)
    finally:
        os.close(descriptor)


def _verify_again(cluster: TestCluster, broker: int, topic_partition: TopicPartition) -> None:
    log = cluster.services(broker).replicas.partitions[topic_partition].log
    for segment in log.segment_list.items:
        segment.distrust()
    log.segment_list.forget_positions()
