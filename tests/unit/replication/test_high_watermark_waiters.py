from hypothesis import given
from hypothesis import strategies as st

from ottla.core.errors import NotLeaderOrFollower
from ottla.replication.high_watermark_waiters import OffsetWaiters
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import open_log
from tests.support.waiting import Woken


@given(st.lists(st.one_of(st.integers(0, 50), st.tuples(st.just("advance"), st.integers(0, 50)))))
def test_each_waiter_is_woken_exactly_when_its_offset_is_reached(steps: list[int | tuple[str, int]]) -> None:
    log = open_log(SimDisk())
    waiters, reached = OffsetWaiters(log), 0
    waiting: dict[int, int] = {}
    woken: set[int] = set()
    for number, step in enumerate(steps):
        if isinstance(step, int):
            waiting[number] = step
            waiters.add(step, Woken(lambda error, number=number: woken.add(number)), None)  # type: ignore[misc]
        else:
            reached = log.high_watermark = max(reached, step[1])
            waiters.advance(reached)
        assert woken == {number for number, offset in waiting.items() if offset <= reached}


def test_waiters_are_woken_in_the_order_of_their_offsets() -> None:
    waiters = OffsetWaiters(open_log(SimDisk()))
    order: list[int] = []
    for offset in (3, 1, 2):
        waiters.add(offset, Woken(lambda error, offset=offset: order.append(offset)), None)  # type: ignore[misc]

    waiters.advance(3)

    assert order == [1, 2, 3]


def test_when_leadership_is_lost_everybody_hears_why() -> None:
    waiters = OffsetWaiters(open_log(SimDisk()))
    heard: list[BaseException | None] = []
    waiters.add(5, Woken(heard.append), None)
    lost = NotLeaderOrFollower()

    waiters.fail(lost)

    assert heard == [lost]
    assert len(waiters) == 0
