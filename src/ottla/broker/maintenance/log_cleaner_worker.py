"""Runs the cleaner's worker process: started when a log must be cleaned, stopped when none must be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Protocol

from ottla.storage.cleaning.cleaning_plan import CleanedGroup, CleaningPlan, PassDone
from ottla.storage.cleaning.worker_messages import LENGTH, Failure, framed, step_of

_STOP_SECONDS = 2.0


class PassFailed(Exception):
    """A pass ended without a result."""

    def __init__(self, kind: Failure, why: str) -> None:
        self.kind = kind
        super().__init__(why)


class WorkerDied(Exception):
    """The process is gone: killed, or out of memory. Nothing is lost but its work."""


class Worker(Protocol):
    """Cleans one log at a time, for one pass at a time."""

    def steps(self, plan: CleaningPlan) -> AsyncIterator[CleanedGroup | PassDone]:
        """Yield the steps of a pass; the worker continues after a group when the next step is requested.

        Raises PassFailed, WorkerDied. A caller that stops before the end calls `kill`.
        """
        ...

    async def stop(self) -> None:
        """End it kindly: it has nothing to do."""
        ...

    async def kill(self) -> object:
        """End it at once, in the middle of what it does. When this returns it writes no more."""
        ...


class ProcessWorker:
    """Runs one cleaner process at a time, for one pass at a time."""

    def __init__(self) -> None:
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """Return the id of the process, or None if there is none."""
        return self._process.pid if self._process is not None else None

    async def steps(self, plan: CleaningPlan) -> AsyncIterator[CleanedGroup | PassDone]:
        """Yield the steps of a pass; the worker continues after a group when the next step is requested.

        Raises PassFailed, WorkerDied. A caller that stops before the end calls `kill`.
        """
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "ottla.storage.cleaning.worker", stdin=PIPE, stdout=PIPE
            )
        try:
            await self._send({"clean": plan.to_json()})
            while True:
                message = await self._receive()
                if "failed" in message:
                    raise PassFailed(Failure(message["failed"]["kind"]), message["failed"]["why"])
                step = step_of(message)
                yield step
                if isinstance(step, PassDone):
                    return
                await self._send({"next": {}})
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            code = await self.kill()
            raise WorkerDied(f"the cleaner's process ended with {code}") from error

    async def stop(self) -> None:
        """End it kindly: it has nothing to do."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
            self._process = None
        except TimeoutError:
            await self.kill()

    async def kill(self) -> int | None:
        """End it at once, in the middle of what it does; its exit code. When this returns it writes no more."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()

    async def _send(self, message: dict[str, object]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(framed(message))
        await self._process.stdin.drain()

    async def _receive(self) -> dict[str, dict[str, str]]:
        assert self._process is not None
        assert self._process.stdout is not None
        (size,) = LENGTH.unpack(await self._process.stdout.readexactly(LENGTH.size))
        message: dict[str, dict[str, str]] = json.loads(await self._process.stdout.readexactly(size))
        return message
