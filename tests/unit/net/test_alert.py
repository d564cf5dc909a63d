import asyncio

from ottla.net.alert import Alert


def turns_until_asleep(*, seconds: float, tick: float, answers: int = 1) -> int:
    """How often the loop looks again when each look takes `tick` seconds of a clock that we own."""
    now = 0.0
    looks = 0

    def clock() -> float:
        nonlocal now, looks
        now += tick
        looks += 1
        return now

    async def story() -> None:
        alert = Alert(seconds=seconds, now=clock)
        for _ in range(answers):
            alert.stay()
        before = -1
        while looks != before:
            before = looks
            await asyncio.sleep(0)

    asyncio.run(story())
    return looks


def test_after_an_answer_the_loop_looks_again_for_as_long_as_it_is_told() -> None:
    assert turns_until_asleep(seconds=10.0, tick=1.0) == 11


def test_many_answers_keep_one_watch_not_many() -> None:
    assert turns_until_asleep(seconds=10.0, tick=1.0, answers=5) == 5 + 10


def test_switched_off_it_never_looks() -> None:
    assert turns_until_asleep(seconds=0.0, tick=1.0) == 0
