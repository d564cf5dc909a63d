"""The scrubber's clock: a look through everything, at a rate, that a stop ends at once."""

import asyncio
import threading
from pathlib import PurePath

import pytest

from ottla.broker.maintenance.scrub_scheduler import ScrubScheduler
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.integrity.block_checksums import checksums_path
from ottla.storage.scrubbing.scrubber import REPORT_FILE, read_report
from ottla.storage.scrubbing.scrubber_config import ScrubberConfig
from ottla.storage.small_files import PARTITION_METADATA
from ottla.storage.state.leader_epochs import FILE_NAME as EPOCHS_FILE
from ottla.testing.sim_disk import SimDisk, SimFile
from ottla.testing.sim_loop import SimClock, SimLoop
from tests.support.storage import NOW_MS, ROOT, TP, StillClock, batch, open_directory

LOG = ROOT / str(TP) / "00000000000000000000.log"


def filled(disk: SimDisk) -> LogDirectory:
    directory = open_directory(disk)
    log = directory.create_log(TP)
    for _ in range(5):
        log.append(batch(b"x" * 5000), leader_epoch=0, now_ms=NOW_MS)
    log.roll()
    log.append(batch(b"y"), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    return directory


def scrubbing_of(disk: SimDisk, directory: LogDirectory, config: ScrubberConfig) -> ScrubScheduler:
    return ScrubScheduler([directory], files=disk, config=lambda: config, clock=StillClock())


async def test_a_pass_looks_at_everything_and_leaves_a_report() -> None:
    disk = SimDisk()
    directory = filled(disk)
    disk.flip_bit(LOG, 8 * 6000)

    scrubbing = scrubbing_of(disk, directory, ScrubberConfig(bytes_per_second=1 << 40))
    await scrubbing.one_pass(scrubbing.scrubbers[0])
    await scrubbing.stop()

    report = read_report(disk, ROOT)
    assert report is not None
    assert (report["passes"], report["segments_seen"]) == (1, 2)
    assert isinstance(report["findings"], list)
    assert [finding["file"] for finding in report["findings"]] == [str(LOG)]


class ThreadsOfReads(SimDisk):
    """Remembers which threads opened partitions' small files."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[threading.Thread] = set()

    def open(self, path: PurePath, *, create: bool = False) -> SimFile:
        if path.name in {PARTITION_METADATA, EPOCHS_FILE}:
            self.threads.add(threading.current_thread())
        return super().open(path, create=create)


async def test_the_loop_does_not_read_the_small_files_of_partitions() -> None:
    disk = ThreadsOfReads()
    directory = filled(disk)
    scrubbing = scrubbing_of(disk, directory, ScrubberConfig(bytes_per_second=1 << 40))
    disk.threads.clear()

    await scrubbing.one_pass(scrubbing.scrubbers[0])
    await scrubbing.stop()

    assert disk.threads
    assert threading.main_thread() not in disk.threads


async def test_a_stop_does_not_wait_for_a_look_that_takes_hours() -> None:
    disk = SimDisk()
    directory = filled(disk)

    scrubbing = scrubbing_of(disk, directory, ScrubberConfig(bytes_per_second=1))
    look = asyncio.create_task(scrubbing.one_pass(scrubbing.scrubbers[0]))
    await asyncio.sleep(0)
    await scrubbing.stop()
    await asyncio.wait([look], timeout=30)
    assert look.done()

    assert not disk.exists(checksums_path(LOG.parent, 0))


class FastClock(StillClock):
    """Each look at it is an hour later."""

    def monotonic(self) -> float:
        self.now_ms += 3_600_000
        return super().monotonic()


async def test_passes_begin_by_themselves() -> None:
    disk = SimDisk()
    directory = filled(disk)
    config = ScrubberConfig(bytes_per_second=1 << 40, interval_ms=86_400_000)
    scrubbing = ScrubScheduler([directory], files=disk, config=lambda: config, clock=FastClock())
    while not disk.exists(ROOT / REPORT_FILE):  # noqa: ASYNC110 - the pass runs in a thread; the test's own deadline ends this
        await asyncio.sleep(0.01)  # the report is what a pass writes last
    await scrubbing.stop()
    assert scrubbing.scrubbers[0].passes


@pytest.mark.simulated_time
async def test_with_a_rate_of_zero_no_pass_begins() -> None:
    disk = SimDisk()
    directory = filled(disk)
    config = ScrubberConfig(bytes_per_second=0, interval_ms=60_000)
    scrubbing = ScrubScheduler([directory], files=disk, config=lambda: config, clock=SimClock())
    await asyncio.sleep(300)
    await scrubbing.stop()
    assert not disk.exists(ROOT / REPORT_FILE)


@pytest.mark.simulated_time
async def test_a_scheduler_that_is_turned_off_leaves_the_loop_idle() -> None:
    disk = SimDisk()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    config = ScrubberConfig(bytes_per_second=0, interval_ms=1000)
    scrubbing = ScrubScheduler([filled(disk)], files=disk, config=lambda: config, clock=SimClock(loop))
    before = loop.turns
    await asyncio.sleep(3600)
    assert loop.turns - before < 3600
    await scrubbing.stop()
