"""Tests of the port to randomness and threads: the runtime of the context decides, and only there."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence

from ottla.core import runtime
from ottla.core.executors import Executor, Post, ThreadExecutor
from ottla.core.ids import random_topic_id


class Counting:
    """Draws 1, 2, 3 instead of random bytes."""

    def __init__(self) -> None:
        self.drawn = 0
        self.ran: list[int] = []

    def random_bytes(self, size: int) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(size, "big")

    def make_executor(self, name: str, post: Post, threads: int) -> Executor:
        raise NotImplementedError

    def run_all(self, work: Sequence[Callable[[], None]], threads: int) -> None:
        self.ran.append(len(work))


def test_the_runtime_of_the_context_decides_all_ids() -> None:
    def draw() -> list[str]:
        runtime.use(Counting())
        return [str(random_topic_id()), str(runtime.new_random().random()), runtime.random_bytes(2).hex()]

    first, second = (contextvars.copy_context().run(draw) for _ in range(2))
    assert first == second
    assert random_topic_id() != random_topic_id(), "outside of the context the system draws"


def test_the_runtime_of_the_context_runs_work() -> None:
    counting, ran = Counting(), list[int]()

    def work() -> None:
        runtime.use(counting)
        runtime.run_in_threads([lambda: ran.append(1)] * 3, threads=2)

    contextvars.copy_context().run(work)
    assert (counting.ran, ran) == ([3], [])
    runtime.run_in_threads([lambda: ran.append(1)] * 3, threads=2)
    assert ran == [1, 1, 1]
    assert isinstance(runtime.make_executor("test", print), ThreadExecutor)
