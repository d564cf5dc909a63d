"""A long start says how far it is; a short one says nothing."""

import logging

import pytest

from ottla.core.ids import TopicPartition
from ottla.storage.loading.loading_progress import LoadingProgress
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, ROOT, StillClock, batch, open_directory


class RunningClock(StillClock):
    """Each look at it takes a while."""

    def __init__(self, step_ms: int) -> None:
        super().__init__()
        self.step_ms = step_ms

    def monotonic(self) -> float:
        self.now_ms += self.step_ms
        return self.now_ms / 1000


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ottla.storage.loading.loading_progress"]


def test_a_line_a_second_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = StillClock()
    progress = LoadingProgress(clock, ROOT, 4)
    for _ in range(4):
        clock.now_ms += 600
        progress.scanned(3 << 20)
        progress.loaded(1)
    progress.ended()
    assert lines(caplog) == [
        "loading /data: 1 of 4 logs, 6 MiB checked",
        "loading /data: 3 of 4 logs, 12 MiB checked",
        "/data: all 4 logs loaded in 2.4 s, 12 MiB checked",
    ]


@pytest.mark.parametrize(("step_ms", "says"), [(1, False), (400, True)])
def test_opening_a_directory_logs_progress_if_it_takes_long(
    step_ms: int, says: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    for at in range(6):
        log = directory.create_log(TopicPartition("web", at))
        log.append(batch(b"a"), leader_epoch=0, now_ms=NOW_MS)
        log.flush()
    caplog.set_level(logging.INFO)
    open_directory(disk.killed()[0], clock=RunningClock(step_ms))
    assert bool(lines(caplog)) is says
