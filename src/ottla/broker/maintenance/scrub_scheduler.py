"""Schedules the scrubbers: verifies all log directories one after another, at a low rate, in one thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from ottla.core.clock import Clock
from ottla.core.errors import StorageError
from ottla.core.files import FileSystem
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.scrubbing.scrubber import Scrubber, ScrubStopped, ScrubTask, ScrubThrottle
from ottla.storage.scrubbing.scrubber_config import ScrubberConfig

log = logging.getLogger(__name__)

_FIRST_AFTER_SECONDS = 30.0
"""Delay after the start of the broker, when other work is more urgent."""

_IDLE_SECONDS = 5.0  # bounds the delay until a changed setting applies


class ScrubScheduler:
    """Scrubs the log directories while the broker runs."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        *,
        files: FileSystem,
        config: Callable[[], ScrubberConfig],
        clock: Clock,
    ) -> None:
        self._config, self._clock = config, clock
        self.scrubbers = [Scrubber(directory, files) for directory in directories]
        self._directories = list(directories)
        self._throttle = ScrubThrottle(config().bytes_per_second)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="scrub")

    async def stop(self) -> None:
        """Stop scrubbing; a running pass ends at its next read."""
        self._throttle.stop()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        begun = self._clock.monotonic() + _FIRST_AFTER_SECONDS - self._config().interval_ms / 1000
        while True:
            if not self._config().bytes_per_second:
                await asyncio.sleep(_IDLE_SECONDS)
                continue
            wait = begun + self._config().interval_ms / 1000 - self._clock.monotonic()
            if wait > 0:
                await asyncio.sleep(min(max(wait, 0.1), _IDLE_SECONDS))
                await self._each(self._scrub_new)
                continue
            begun = self._clock.monotonic()
            await self._each(self.one_pass)

    async def _each(self, job: Callable[[Scrubber], Awaitable[None]]) -> None:
        """Run a job in each directory without a failure. An error ends the job there; the next run retries."""
        for scrubber, directory in zip(self.scrubbers, self._directories, strict=True):
            if directory.health.failure is None:
                await self._one(job, scrubber, directory)

    async def _one(
        self, job: Callable[[Scrubber], Awaitable[None]], scrubber: Scrubber, directory: LogDirectory
    ) -> None:
        try:
            await job(scrubber)
        except ScrubStopped:
            raise asyncio.CancelledError from None
        except OSError as error:
            directory.health.refused("scrub", error)
        except StorageError:
            pass  # already reported
        except Exception:
            log.exception("scrubbing %s failed", directory.path)

    async def _scrub_new(self, scrubber: Scrubber) -> None:
        await self._scrub(scrubber, scrubber.plan_new())

    async def _scrub(self, scrubber: Scrubber, plan: Iterator[ScrubTask]) -> None:
        for work in plan:
            self._throttle.bytes_per_second = self._config().bytes_per_second or 1
            report = await asyncio.to_thread(scrubber.verify, work, self._throttle)
            if scrubber.conclude(work, report):
                await asyncio.to_thread(scrubber.write_report, now_ms=self._clock.wall_ms())

    async def one_pass(self, scrubber: Scrubber) -> None:
        """Scrub everything once. Raises OSError, StorageError or ScrubStopped."""
        known = len(scrubber.findings)
        scrubber.check_checkpoints()
        for suspect in await asyncio.to_thread(scrubber.suspects):
            scrubber.check_partition_files(suspect)
        await self._scrub(scrubber, scrubber.plan())
        scrubber.end_pass()
        await asyncio.to_thread(scrubber.write_report, now_ms=self._clock.wall_ms())
        log.info(
            "scrubbed %s: %d segments so far, %d new findings",
            scrubber.path,
            scrubber.segments_seen,
            len(scrubber.findings) - known,
        )
