"""The work of one turn of the event loop is bounded, however many requests are long."""

from __future__ import annotations

import asyncio

from ottla.core.slices import SLICE_WORK
from ottla.limits.loop_slices import LoopSlices


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._next()

    def _next(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


async def work(slices: LoopSlices, turns: Turns, elements: int, done_in: dict[int, int]) -> None:
    async for _ in slices.each(range(elements)):
        done_in[turns.count] = done_in.get(turns.count, 0) + 1


def in_turns(*jobs: int) -> dict[int, int]:
    done_in: dict[int, int] = {}

    async def main() -> None:
        slices, turns = LoopSlices(), Turns()
        await asyncio.gather(*(work(slices, turns, elements, done_in) for elements in jobs))
        turns.stop()

    asyncio.run(main())
    return done_in


def test_one_long_job_is_done_in_several_turns() -> None:
    done_in = in_turns(10 * SLICE_WORK)

    assert sum(done_in.values()) == 10 * SLICE_WORK
    assert max(done_in.values()) <= SLICE_WORK
    assert len(done_in) >= 10


def test_many_long_jobs_share_the_work_of_a_turn() -> None:
    done_in = in_turns(*[3 * SLICE_WORK] * 20)

    assert sum(done_in.values()) == 60 * SLICE_WORK
    assert max(done_in.values()) <= 2 * SLICE_WORK + 20, "one that continues and those that begin"


def test_short_jobs_are_done_in_one_turn() -> None:
    assert len(in_turns(5, 5, 5)) == 1


async def test_a_job_that_was_cancelled_does_not_stop_the_others() -> None:
    slices, done_in = LoopSlices(), dict[int, int]()
    turns = Turns()
    first, second = (asyncio.ensure_future(work(slices, turns, 3 * SLICE_WORK, done_in)) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await second
    turns.stop()
    assert sum(done_in.values()) >= 3 * SLICE_WORK
