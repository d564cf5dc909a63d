"""Runs the loop of brokers in a thread, so that a test and its clients need no loop and may block.

A process that is forked has the thread's sockets, but not the thread: they are closed there, so that the ports are free
and clients are disconnected when the brokers stop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import itertools
import os
import stat
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ottla.core.runtime import use
from ottla.testing.kit.loop import AdvanceableLoop
from ottla.testing.kit.runtime import NamedThreads, NoThreads

T = TypeVar("T")

_numbers = itertools.count(1)
_running: weakref.WeakSet[LoopThread] = weakref.WeakSet()


class LoopThread:
    """A daemon thread with a loop. `stop` ends it; the end of the process does too."""

    def __init__(self, *, has_threads: bool) -> None:
        self.name = f"kafka-{next(_numbers)}"
        self.loop = AdvanceableLoop(self.name, has_threads=has_threads)
        self._context = contextvars.Context()  # of all that the brokers do: nothing of the test's is in it
        self._context.run(use, NamedThreads(self.name, self.loop) if has_threads else NoThreads())
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._pid = os.getpid()
        self.at_exit: Callable[[], None] | None = None  # called if the process ends before `stop`
        self.more_sockets: Callable[[], list[int]] = list  # descriptors at which the loop does not look
        self._thread.start()
        _running.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self._context.run(self.loop.run_until_complete, _end_all())
        self.loop.close()

    @property
    def is_usable(self) -> bool:
        """Return whether the thread runs, and in this process."""
        return self._thread.is_alive() and self._pid == os.getpid()

    def owns(self, thread_name: str) -> bool:
        """Return whether a thread of this name does the work of these brokers."""
        return thread_name == self.name or thread_name.startswith(f"{self.name}/")

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. Must not be called on the loop."""
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop. Raises RuntimeError if the thread has ended, or is another process's."""
        if not self.is_usable:
            work.close()
            raise RuntimeError(
                f"the brokers run in process {self._pid}, which forked this one"
                if self._pid != os.getpid()
                else "the brokers do not run: they are stopped, or were never started"
            )
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback on the brokers' loop must not wait for it")
        return self._context.copy().run(asyncio.run_coroutine_threadsafe, work, self.loop)

    def stop(self) -> None:
        """End the tasks that are left, the loop and the thread."""
        _running.discard(self)
        self.at_exit, self.more_sockets = None, list
        if not self.is_usable:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def close_in_child(self) -> None:
        """Give up in a forked process what belongs to the brokers of its parent.

        The descriptors stay taken, by nothing: the objects that have them close them once more when they are collected.
        """
        sockets = with_duplicates([*self.loop.sockets(), *self.more_sockets()])
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (*sockets, self.loop.selector_descriptor):
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)


def with_duplicates(sockets: Iterable[int]) -> list[int]:
    """Return the descriptors of these sockets that are open, and all others of the same sockets."""
    inodes = {inode for descriptor in sockets if (inode := _socket_inode(descriptor)) is not None}
    opened = [int(name) for name in os.listdir("/dev/fd")]  # noqa: PTH208 - numbers
    return [descriptor for descriptor in opened if _socket_inode(descriptor) in inodes]


def _socket_inode(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None  # not open
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


async def _end_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()


def _close_in_child() -> None:
    for thread in list(_running):
        thread.close_in_child()
    _running.clear()


def _stop_at_exit() -> None:
    for thread in list(_running):
        if thread.is_usable and thread.at_exit is not None:
            thread.loop.without_threads()
            thread.at_exit()


os.register_at_fork(after_in_child=_close_in_child)
atexit.register(_stop_at_exit)
