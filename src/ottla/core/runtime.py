"""Declares the ports to randomness and threads: what a process takes from its system besides files, time and sockets.

`SystemRuntime` is the one of production. A simulation sets another one in the context of each simulated process, so
that one seed decides all ids and no thread runs. Code uses the functions of this module and never `uuid.uuid4`,
`secrets`, an unseeded `random.Random` or `threading.Thread`.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Protocol

from ottla.core.executors import Executor, Post, ThreadExecutor, run_all


class Runtime(Protocol):
    """Port: randomness and threads of one process."""

    def random_bytes(self, size: int) -> bytes:
        """Return random bytes that no other process draws."""
        ...

    def make_executor(self, name: str, post: Post, threads: int) -> Executor:
        """Return an executor whose jobs run outside the event loop."""
        ...

    def run_all(self, work: Sequence[Callable[[], None]], threads: int) -> None:
        """Run functions that do not raise, in several threads at most; return when all have run."""
        ...


class SystemRuntime:
    """The operating system's randomness and threads."""

    def random_bytes(self, size: int) -> bytes:
        """Return unpredictable bytes."""
        return os.urandom(size)

    def make_executor(self, name: str, post: Post, threads: int) -> Executor:
        """Return an executor with daemon threads."""
        return ThreadExecutor(name, post, threads=threads)

    def run_all(self, work: Sequence[Callable[[], None]], threads: int) -> None:
        """Run functions in daemon threads."""
        run_all(work, threads=threads)


_runtime: ContextVar[Runtime] = ContextVar("runtime")
_SYSTEM = SystemRuntime()


def use(runtime: Runtime) -> None:
    """Use this runtime in the current context and in all that are copied from it. For simulations."""
    _runtime.set(runtime)


def random_bytes(size: int) -> bytes:
    """Return random bytes, for tokens and keys."""
    return _runtime.get(_SYSTEM).random_bytes(size)


def new_random() -> random.Random:
    """Return a generator of random numbers of its own."""
    return random.Random(int.from_bytes(random_bytes(16), "big"))


def new_uuid() -> uuid.UUID:
    """Return a random UUID (version 4).

    >>> new_uuid().version
    4
    """
    return uuid.UUID(bytes=random_bytes(16), version=4)


def make_executor(name: str, post: Post, *, threads: int = 1) -> Executor:
    """Return an executor with a name for its threads."""
    return _runtime.get(_SYSTEM).make_executor(name, post, threads)


def run_in_threads(work: Sequence[Callable[[], None]], *, threads: int) -> None:
    """Run functions that do not raise, in this thread or in several; return when all have run."""
    if threads <= 1 or len(work) <= 1:
        for each in work:
            each()
        return
    _runtime.get(_SYSTEM).run_all(work, threads)
