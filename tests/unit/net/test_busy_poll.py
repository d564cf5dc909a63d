import asyncio

from ottla.net.busy_poll import BusyPoller


def turns_until_asleep(*, seconds: float, tick: float, responses: int = 1) -> int:
    """How often the loop polls when each turn takes `tick` seconds of a clock that the test owns."""
    now = 0.0
    turns = 0

    def clock() -> float:
        nonlocal now, turns
        now += tick
        turns += 1
        return now

    async def poll() -> None:
        poller = BusyPoller(seconds=seconds, now=clock)
        for _ in range(responses):
            poller.extend()
        before = -1
        while turns != before:
            before = turns
            await asyncio.sleep(0)

    asyncio.run(poll())
    return turns


def test_after_a_response_the_loop_polls_for_the_configured_time() -> None:
    assert turns_until_asleep(seconds=10.0, tick=1.0) == 11


def test_many_responses_keep_one_poller_not_many() -> None:
    assert turns_until_asleep(seconds=10.0, tick=1.0, responses=5) == 11
