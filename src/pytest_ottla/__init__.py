"""Offers brokers to tests that pytest runs: the fixtures `kafka` and `kafka_session`, and the mark `kafka`.

    @pytest.mark.kafka(topics={"orders": 4}, brokers=3, options={"log.retention.ms": "1h"})
    def test_orders(kafka):
        producer = Producer({"bootstrap.servers": kafka.bootstrap})

pytest imports this module in every run of an environment with Ottla, whether it has tests with a broker or not. So it
is a package of its own, since `import ottla` alone takes longer than its import, and the rest is imported in fixtures.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.testing import Kafka

_ARGUMENTS = ("topics", "brokers", "options")
_MARK = "kafka(topics, brokers=1, options): what the fixture `kafka` starts, as arguments of ottla.testing.kafka"
_LINES_MAX = 200


# ---- Fixtures


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """Start brokers of the test's own, as its mark `kafka` says; one broker by default."""
    import ottla.testing

    with ottla.testing.kafka(**_arguments(request.node)) as brokers:
        yield brokers


@pytest.fixture(scope="session")
def kafka_session() -> Iterator[Kafka]:
    """Start one broker for all tests of the process, each with topics of its own."""
    import ottla.testing

    with ottla.testing.kafka() as brokers:
        yield brokers


# ---- The mark


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and leave the broker's modules out of pytest's rewriting of `assert`."""
    config.addinivalue_line("markers", _MARK)
    # pytest rewrites all packages of a distribution with a plug-in. Those of the broker are many, without one test.
    rewritten = getattr(config.pluginmanager.rewrite_hook, "_must_rewrite", None)
    if isinstance(rewritten, set):
        rewritten -= {"ottla", "pyspark_ottla", "pytest_ottla"}


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Refuse wrong marks before the first test runs; a process of pytest-xdist cannot, and does as a test starts."""
    if hasattr(config, "workerinput"):
        return
    with_brokers = [item for item in items if "kafka" in getattr(item, "fixturenames", ())]
    if problems := sorted({problem for item in with_brokers for problem in _problems(item)}):
        raise pytest.UsageError("\n".join(problems))


def _problems(item: pytest.Item) -> list[str]:
    found = [_problem(mark) for mark in item.iter_markers("kafka")]
    return [f"{item.nodeid}: @pytest.mark.kafka({problem}" for problem in found if problem]


def _arguments(item: pytest.Item) -> dict[str, Any]:
    """Return the arguments of a test's marks. Of several marks with one argument the nearest decides."""
    if problems := _problems(item):
        pytest.fail("\n".join(problems), pytrace=False)
    found: dict[str, Any] = {}
    for mark in item.iter_markers("kafka"):
        found = {**mark.kwargs, **found}
    return found


def _problem(mark: pytest.Mark) -> str:
    """Describe what is wrong with the arguments of a mark, from its opening bracket on. Empty: nothing."""
    if mark.args:
        return f"{mark.args[0]!r}): takes arguments by name: {', '.join(_ARGUMENTS)}"
    for name, value in mark.kwargs.items():
        if name not in _ARGUMENTS:
            import difflib  # for a misspelled name only

            near = difflib.get_close_matches(name, _ARGUMENTS, n=1)
            return f"{name}=...): " + (f"did you mean {near[0]}?" if near else f"takes {', '.join(_ARGUMENTS)}")
        if wanted := _CHECKS[name](value):
            return f"{name}={value!r}): {name} {wanted}"
    return ""


def _topics_problem(topics: object) -> str:
    if isinstance(topics, Mapping):
        is_right = all(isinstance(name, str) and _is_count(partitions) for name, partitions in topics.items())
    elif isinstance(topics, Iterable) and not isinstance(topics, str | bytes):
        is_right = all(isinstance(name, str) for name in topics)
    else:
        is_right = False
    return "" if is_right else "are names, as ['orders'], or names with partitions, as {'orders': 4}"


def _brokers_problem(brokers: object) -> str:
    return "" if _is_count(brokers) else "is a number from 1 on"


def _options_problem(options: object) -> str:
    is_right = isinstance(options, Mapping) and all(isinstance(text, str) for pair in options.items() for text in pair)
    return "" if is_right else "are settings of brokers with their values as text, as {'log.retention.ms': '1h'}"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_CHECKS = {"topics": _topics_problem, "brokers": _brokers_problem, "options": _options_problem}


# ---- Reports


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the log of its brokers to the report of a failed test."""
    report = yield
    if report.failed and (kit := sys.modules.get("ottla.testing.kit.kafka")) is not None:
        for name, value in _values(item, call):
            if isinstance(value, kit.Kafka):
                report.sections.append((f"Brokers' log of `{name}`", _end_of(value.log)))
    return report


def _values(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[tuple[str, object]]:
    """Yield what a test has by name: fixtures, attributes of its instance, variables of the functions that failed."""
    found: dict[int, tuple[str, object]] = {}
    for name, value in getattr(item, "funcargs", {}).items():
        found.setdefault(id(value), (name, value))
    if (instance := getattr(item, "instance", None)) is not None:
        for name, value in {**vars(type(instance)), **vars(instance)}.items():
            found.setdefault(id(value), (name, value))
    for entry in call.excinfo.traceback if call.excinfo is not None else ():
        for name, value in entry.frame.f_locals.items():
            found.setdefault(id(value), (name, value))
    yield from found.values()


def _end_of(log: str) -> str:
    lines = log.splitlines()
    left_out = len(lines) - _LINES_MAX
    return "\n".join([f"({left_out} lines before)", *lines[-_LINES_MAX:]] if left_out > 0 else lines)
