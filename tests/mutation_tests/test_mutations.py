"""Every planted bug can still be planted, has an effect, and is found; the suites find nothing where none is planted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.crash_tests.campaign import quiet
from tests.crash_tests.run import check_stop, stops_of
from tests.crash_tests.workloads import WORKLOADS
from tests.mutation_tests.bugs import BUGS
from tests.mutation_tests.patching import Bug, CannotApply, Patch, applied
from tests.mutation_tests.suites import SUITES

pytestmark = pytest.mark.plain_form("plants bugs by replacing functions")

QUICK = [bug for bug in BUGS if bug.quick]


class Something:
    def method(self, number: int) -> int:
        return number + 1

    @classmethod
    def of(cls, number: int) -> int:
        return number + 2


@pytest.fixture(autouse=True)
def without_logging() -> Iterator[None]:
    logger = logging.getLogger("ottla")
    before = logger.level
    quiet()
    yield
    logger.setLevel(before)  # later suites of this process hear again what they must


@pytest.mark.parametrize("bug", QUICK, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    with applied(bug) as effect:
        finding = SUITES[bug.suite](bug.seed, bug.within)
    assert all(effect.calls.values()), f"nothing calls {effect.calls}"
    assert finding is not None, f"{bug.suite} does not see that {bug.what}"


@pytest.mark.parametrize("bug", [bug for bug in BUGS if not bug.quick], ids=lambda bug: bug.name)
def test_a_bug_that_takes_longer_to_find_still_has_an_effect(bug: Bug) -> None:
    with applied(bug) as effect:
        kind, _, name = bug.suite.partition("crash tests of ")
        if kind:
            SUITES[bug.suite](bug.seed, 20)
        else:
            for stop in stops_of(WORKLOADS[name])[::40]:
                check_stop(stop, seed=bug.seed, count=1)
    assert all(effect.calls.values()), f"nothing calls {effect.calls}"


@pytest.mark.parametrize("suite", sorted({bug.suite for bug in BUGS if not bug.suite.startswith("crash tests")}))
def test_without_a_bug_a_suite_finds_nothing(suite: str) -> None:
    """For the crash tests, `tests/crash_tests` itself shows this."""
    assert SUITES[suite](BUGS[0].seed, 40) is None


def test_a_bug_whose_function_has_gone_cannot_be_planted_and_says_so() -> None:
    gone = Bug("gone", "replaces nothing", "", (Patch(Something, "nowhere", lambda original: original),))
    with pytest.raises(CannotApply), applied(gone):
        pass


def test_a_planted_bug_is_gone_afterwards_and_its_calls_are_counted() -> None:
    def twice(original: Callable[..., int]) -> Callable[..., int]:
        return lambda *args: 2 * original(*args)

    bug = Bug("doubled", "", "", (Patch(Something, "method", twice), Patch(Something, "of", twice)))
    with applied(bug) as effect:
        assert (Something().method(1), Something.of(1)) == (4, 6)
        assert effect.calls == {"method": 1, "of": 1}
    assert (Something().method(1), Something.of(1)) == (2, 3)


def test_names_are_used_once_and_each_suite_is_known() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 30
    assert {bug.suite for bug in BUGS} <= SUITES.keys()
