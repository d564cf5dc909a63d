"""Provides brokers to tests, runs async tests, spreads tests over processes, and fails on skips where none is allowed.

The test process and those that it starts run the compiled form where it is built from the present sources, and the plain
one with OTTLA_PLAIN=1 or where there is no compiler. A test with the mark `plain_form` is deselected in a compiled
process; `OTTLA_PLAIN=1 pytest -m plain_form` runs these, as `make test` and `make test-fast` do.

`OTTLA_TEST_BROKER=kafka pytest tests/compat` runs the same tests against the real Kafka: the control that shows a test
describes brokers and not Ottla alone.
"""

from __future__ import annotations

import fcntl
import gc
import inspect
import os
import shutil
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import pytest

from ottla import compiled  # the first import of the package: it decides which form this process runs
from ottla.pipeline.jars import JarsNotFound
from ottla.pipeline.java import JavaNotFound
from ottla.testing.cluster import TestCluster
from tests.support import async_tests, form, kit_broker
from tests.support.clusters import started_cluster
from tests.support.jvm import cache_directory
from tests.support.kafka_jars import kafka_jars as fetched_jars
from tests.support.kit_broker import KitBroker
from tests.support.ottla_process import OttlaProcess
from tests.support.real_kafka import RealKafka

SHARED = frozenset({"spark", "real_kafka"})
"""Session fixtures that are expensive: all tests that use one run in the same process, so that there is one of each."""
SLOW_DIRECTORIES = ("differential", "pipeline", "compat", "sign_in", "processes", "mutation_tests", "crash_tests")
"""They are started first, so that short tests fill the end of the run."""
ALLOWED_SKIPS = (
    "no disk of one's own here",  # a container without the right to mount
    "mounting a small disk is not allowed here",
    "there is no Go here",  # its client is one of three that live through restarts
    "there is no Node here",  # a program of docs/control-api.md
    "to turn a file system read-only with",  # no /sys/fs/ext4
    "peak memory is measured through Linux's /proc",
    "PySpark before 4.2",  # in the step of make test with the oldest PySpark; the newest runs these tests
    *(() if shutil.which("cc") else ("is not compiled on this machine", "there is no fresh build")),
    *(() if shutil.which("setpriv") else ("running as root and no setpriv",)),
    *(() if shutil.which("systemd-analyze") else ("systemd-analyze is not installed",)),
)
"""Parts of the reasons for which CI may skip a test."""

# A busy machine is slow, and that is no fault of a test.
hypothesis.settings.register_profile("ottla", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("ottla")

# Imported here, so that its bytecode is there when an example fails: parsed in that moment, it may end the process
# (SystemError, "AST constructor recursion depth mismatch"), and pytest-xdist the whole run without a reason.
with suppress(ImportError):  # it needs a package that is not there: its bytecode is written before
    import hypothesis.extra._patching


# ---- Selection of tests


def pytest_report_header() -> str:
    """Name the form in the first lines of the output."""
    return f"ottla: {compiled.form()}"


def pytest_configure() -> None:
    """Check the form of this process, and undo what a shell and nohup do to a command in the background.

    Tests send the two signals to processes that they start.
    """
    if os.environ.get("OTTLA_FAIL_ON_SKIP") == "1" and (problem := form.problem()):
        raise pytest.UsageError(problem)
    form.import_compiled_modules()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)  # so that it runs before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Order tests so that the slow ones begin first, and group those that must share a process under pytest-xdist.

    Leave those out that need the other form than this process runs.
    """
    if form.is_compiled() and (plain := [item for item in items if item.get_closest_marker("plain_form")]):
        items[:] = [item for item in items if not item.get_closest_marker("plain_form")]
        config.hook.pytest_deselected(items=plain)
    items.sort(key=_turn)
    for item in items:
        if item.get_closest_marker("xdist_group") is None and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    result = yield
    if getattr(config.option, "loadgroup", False):
        unread = [item.nodeid for item in items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid]
        assert not unread, f"pytest-xdist does not read the groups of {len(unread)} tests: do pytest and it fit?"
    return result


def pytest_collection_finish() -> None:
    """Leave out of garbage collections what the imports of all tests made: 400,000 objects."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Return them to the collections of the interpreter's end: duckdb reports what is left then as leaked."""
    gc.unfreeze()


def _turn(item: pytest.Item) -> tuple[int, int]:
    """The two longest groups begin first: that of the shared Spark is busy, and that of the clusters waits."""
    if SHARED.intersection(getattr(item, "fixturenames", ())):
        group = 0
    else:
        group = 2 if item.get_closest_marker("xdist_group") is None else 1
    directory = item.path.relative_to(item.config.rootpath).parts[1]
    rank = SLOW_DIRECTORIES.index(directory) if directory in SLOW_DIRECTORIES else len(SLOW_DIRECTORIES)
    return group, rank


def _group(item: pytest.Item) -> str:
    """Tests with a fixture of their module stay together; all others are spread one by one."""
    if not isinstance(item, pytest.Function):
        return ""
    if SHARED.intersection(item.fixturenames):
        return "shared"
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return f"{item.path.parent.name}.{item.path.stem}" if any(one[-1].scope == "module" for one in definitions) else ""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Run an async test: in real time, or in simulated time if it is marked `simulated_time`."""
    return async_tests.run_test(pyfuncitem) or None


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, object, object]:
    """Run an async fixture on the loop of its test."""
    function = fixturedef.func
    if not inspect.isasyncgenfunction(function) and not inspect.iscoroutinefunction(function):
        return (yield)
    assert fixturedef.scope == "function", f"the loop of {fixturedef.argname} would end before it"
    fixturedef.func = async_tests.as_plain_fixture(function, request.node)
    try:
        return (yield)
    finally:
        fixturedef.func = function


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where OTTLA_FAIL_ON_SKIP=1: a missing Kafka or JVM must not pass for a success."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("OTTLA_FAIL_ON_SKIP") == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped, which OTTLA_FAIL_ON_SKIP forbids. {reason}"
    return report


# ---- Brokers


class Broker(Protocol):
    """What Ottla and the real Kafka have in common as processes."""

    port: int

    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...


@contextmanager
def one_process_at_a_time(name: str) -> Iterator[None]:
    """Hold a lock that processes of the same user share, while something is downloaded."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The directory of Apache Kafka's jars. Skips the test with the reason if there are none."""
    try:
        with one_process_at_a_time("kafka-jars"):
            return fetched_jars()
    except JarsNotFound as error:
        pytest.skip(f"no Apache Kafka jars: {error}")


@pytest.fixture(scope="session")
def real_kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A real Kafka for the whole run; tests use topics and groups of their own."""
    settings = {"group.initial.rebalance.delay.ms": "0"}  # nothing waits for the first rebalance
    kafka = RealKafka(kafka_jars, tmp_path_factory.mktemp("kafka") / "broker", settings=settings)
    kafka.start()
    yield kafka
    kafka.stop()


@pytest.fixture(scope="session")
def spark_classes() -> Iterator[None]:
    """Let the JVMs of Spark that this process and its children start map one archive of classes."""
    from tests.support.spark_classes import VARIABLE, archive

    if os.environ.get("OTTLA_SPARK_CLASSES") == "0":
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        with suppress(JavaNotFound), one_process_at_a_time("spark-classes"):
            patched.setenv(VARIABLE, f"-XX:SharedArchiveFile={archive()}")
        yield


@pytest.fixture(autouse=True)
def _spark_starts_soon(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark_classes")


@pytest.fixture
def ottla_server(tmp_path: Path) -> Iterator[OttlaProcess]:
    """An Ottla of the test's own; its log must hold no traceback at the end."""
    yield from _running(tmp_path / "ottla")


@pytest.fixture(scope="module")
def ottla_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaProcess]:
    """An Ottla shared by the tests of a file; its log must hold no traceback at the end."""
    yield from _running(tmp_path_factory.mktemp("ottla") / "broker")


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TestCluster]:
    """Three brokers in this process, or `brokers(n)`, with the settings `options({...})` and `own_options({n: {...}})`.

    With `simulated_time` they are simulated, disks and network too; otherwise they have sockets, and `tmp_path`.
    """
    async with started_cluster(request, tmp_path, brokers=3) as started:
        yield started


@pytest.fixture(scope="module")
def kit_module() -> Iterator[KitBroker]:
    """An Ottla in this process, shared by the tests of a file; its log must hold no traceback at the end."""
    with kit_broker.running() as broker:
        yield broker


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Broker:
    """Ottla in this process, or the real Kafka where OTTLA_TEST_BROKER=kafka."""
    which = "real_kafka" if os.environ.get("OTTLA_TEST_BROKER") == "kafka" else "kit_module"
    found: Broker = request.getfixturevalue(which)
    return found


def _running(directory: Path) -> Iterator[OttlaProcess]:
    server = OttlaProcess(directory).start()
    yield server
    assert server.process is not None
    if server.process.poll() is None:
        assert server.stop() == 0, server.log
    else:
        server.wait()
    server.assert_log_is_clean()
