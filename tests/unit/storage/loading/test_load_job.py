"""In how many threads the logs of a start are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from ottla.storage.loading.load_job import Loaders, LoadJob


class NotedJob:
    """Notes its number when it runs."""

    def __init__(self, number: int, ran: list[int]) -> None:
        self.number, self.ran = number, ran

    def run(self) -> None:
        self.ran.append(self.number)


class Disk:
    """Counts the blocks that were read."""

    def __init__(self) -> None:
        self.blocks = 0

    def read(self) -> int:
        return self.blocks


def jobs_of(count: int, ran: list[int]) -> Sequence[LoadJob]:
    return cast("Sequence[LoadJob]", [NotedJob(number, ran) for number in range(count)])


def test_one_thread_loads_what_is_in_memory_and_several_what_is_read_from_the_disk() -> None:
    disk = Disk()
    loaders, ran = Loaders(16, disk.read), list[int]()
    used = []
    for blocks in (0, 0, 11, 500, 10, 0):  # read by the loads before
        disk.blocks += blocks
        used.append(len(loaders.split(jobs_of(10, ran))))
    assert used == [1, 1, 2, 2, 1, 1]


@pytest.mark.parametrize("blocks", [0, 1000])
def test_each_log_is_loaded_once(blocks: int) -> None:
    disk = Disk()
    loaders, ran = Loaders(16, disk.read), list[int]()
    loaders.split([])
    disk.blocks = blocks
    for load in loaders.split(jobs_of(11, ran)):
        load()
    assert sorted(ran) == list(range(11))


def test_where_no_thread_may_run_all_is_loaded_in_order() -> None:
    disk = Disk()
    loaders, ran = Loaders(1, disk.read), list[int]()
    loaders.split([])
    disk.blocks = 1000
    (load,) = loaders.split(jobs_of(5, ran))
    load()
    assert ran == [0, 1, 2, 3, 4]
