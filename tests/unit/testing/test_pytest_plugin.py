"""The plug-in of pytest gives a test brokers as its mark says, refuses wrong marks, and shows the log of a failed test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ottla.testing  # noqa: F401 - in-process runs forget what they import first
import pytest_ottla

pytest_plugins = ["pytester"]

TOPICS = """
    import pytest
    from confluent_kafka.admin import AdminClient

    def topics_of(kafka):
        found = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=10)
        return {name: len(topic.partitions) for name, topic in found.topics.items()}, len(found.brokers)
"""


@pytest.fixture(autouse=True)
def _strict_project(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(
        "[tool.pytest.ini_options]\naddopts = ['--strict-markers', '-p', 'pytest_ottla', '-p', 'no:timeout']\n"
    )
    pytester.makepyfile(topics=TOPICS)


def test_each_test_has_new_brokers_as_its_marks_say(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from topics import topics_of

        pytestmark = pytest.mark.kafka(topics=["of_module"])

        def test_of_module(kafka):
            assert topics_of(kafka) == ({"of_module": 1}, 1)
            kafka.create_topic("more")

        def test_again(kafka):
            assert topics_of(kafka) == ({"of_module": 1}, 1)

        @pytest.mark.kafka(brokers=3, options={"num.partitions": "5"})
        class TestClass:
            def test_of_class(self, kafka):
                assert topics_of(kafka) == ({"of_module": 1}, 3)

            @pytest.mark.kafka(topics={"of_test": 2})
            def test_of_test(self, kafka):
                assert topics_of(kafka) == ({"of_test": 2}, 3)
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=4)


def test_brokers_of_the_session_are_the_same_for_all_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from topics import topics_of

        def test_one(kafka_session):
            kafka_session.create_topic("one", 3)

        def test_other(kafka_session):
            assert topics_of(kafka_session)[0] == {"one": 3}
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("topic=['a']", "topic=...): did you mean topics?"),
        ("data='/tmp'", "data=...): takes topics, brokers, options"),
        ("'a'", "'a'): takes arguments by name: topics, brokers, options"),
        ("topics='a'", "topics='a'): topics are names, as ['orders'], or names with partitions, as {'orders': 4}"),
        ("topics=[1]", "topics=[1]): topics are names, as"),
        ("topics=3", "topics=3): topics are names, as"),
        ("topics={'a': '4'}", "topics={'a': '4'}): topics are names, as"),
        ("topics={'a': 0}", "topics={'a': 0}): topics are names, as"),
        ("brokers=0", "brokers=0): brokers is a number from 1 on"),
        ("brokers=True", "brokers=True): brokers is a number from 1 on"),
        ("options={'log.retention.ms': 5}", "options={'log.retention.ms': 5}): options are settings of brokers"),
        ("options='a'", "options='a'): options are settings of brokers"),
    ],
)
def test_a_wrong_mark_is_a_usage_error(pytester: pytest.Pytester, arguments: str, problem: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.kafka({arguments})
        def test_a(kafka):
            raise AssertionError("not reached")
        """
    )
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"test_a: @pytest.mark.kafka({problem}" in result.stderr.str()


def test_a_setting_that_is_unknown_fails_the_test_with_its_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.kafka(options={"log.retention.mss": "1h"})
        def test_a(kafka): ...
        """
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    assert "there is no such setting; did you mean log.retention.ms?" in result.stdout.str()


FAILING = """
    import unittest
    import pytest
    import ottla.testing
    from ottla.testing.unittest import KafkaTestCase

    def test_of_fixture(kafka):
        assert not kafka.bootstrap

    @pytest.fixture
    def url(kafka_session):
        return kafka_session.bootstrap

    def test_of_fixture_of_a_fixture(url):
        assert not url

    def test_of_variable():
        with ottla.testing.kafka() as mine:
            assert not mine.bootstrap

    class TestOrders(KafkaTestCase):
        def test_of_class(self):
            assert not self.kafka.bootstrap

    def test_passes(kafka): ...
"""


def test_the_report_of_a_failed_test_has_the_log_of_its_brokers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAILING)
    output = pytester.runpytest_inprocess("-p", "no:xdist")
    output.assert_outcomes(failed=4, passed=1)
    for name in ("kafka", "kafka_session", "mine"):
        output.stdout.re_match_lines_random([f"-* Brokers' log of `{name}` -*", r".*became controller"])
    assert output.stdout.str().count("Brokers' log of `kafka`") == 2  # of the fixture, and of the test case
    assert "Captured log" not in output.stdout.str()  # it would be there twice


def test_processes_of_xdist_have_brokers_of_their_own_and_report_their_logs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAILING)
    pytester.makeconftest("import sys")
    result = pytester.runpytest_subprocess("-n", "2")
    result.assert_outcomes(failed=4, passed=1)
    assert result.stdout.str().count("Brokers' log of `") == 4


def test_a_wrong_mark_is_an_error_of_the_test_with_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.kafka(brokers=0)\ndef test_a(kafka): ...")
    result = pytester.runpytest_subprocess("-n", "2")
    result.assert_outcomes(errors=1)
    result.stdout.re_match_lines([r".*test_a: @pytest.mark.kafka\(brokers=0\): brokers is a number from 1 on"])
    assert "Traceback" not in result.stdout.str()


def test_the_end_of_a_long_log_is_shown() -> None:
    lines = [f"line {number}" for number in range(250)]
    shown = pytest_ottla._end_of("\n".join(lines)).splitlines()
    assert shown == ["(50 lines before)", *lines[50:]]
    assert pytest_ottla._end_of("\n".join(lines[:200])).splitlines() == lines[:200]


def test_async_tests_of_anyio_have_brokers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.anyio
        @pytest.mark.kafka(topics=["orders"])
        async def test_an_order_arrives(kafka):
            async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
                await producer.send_and_wait("orders", b"order 1")
            consumer = AIOKafkaConsumer("orders", bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
            async with consumer:
                assert (await consumer.getone()).value == b"order 1"
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_run_without_brokers_imports_nothing_of_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_a():
            assert "pytest_ottla" in sys.modules
            assert [name for name in sys.modules if name.split(".")[0] == "ottla"] == []
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_modules_of_brokers_are_not_rewritten(pytester: pytest.Pytester) -> None:
    """pytest marks all packages of a distribution with a plug-in, such as an installed wheel, for rewriting."""
    pytester.makepyfile(
        as_installed="""
        def pytest_load_initial_conftests(early_config):
            early_config.pluginmanager.rewrite_hook.mark_rewrite("ottla", "other")
        """,
        other="",
        test_a="""
        import other
        import ottla.testing.kit.kafka as kit

        def test_a():
            assert "Rewriting" in type(other.__loader__).__name__
            assert "Rewriting" not in type(kit.__loader__).__name__
        """,
    )
    pytester.runpytest_subprocess("-p", "as_installed").assert_outcomes(passed=1)


def test_the_entry_point_names_the_plug_in() -> None:
    project = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\npytest_ottla = "pytest_ottla"' in project
    program = "import pytest_ottla, sys; print([name for name in sys.modules if name.split('.')[0] == 'ottla'])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_options_that_are_refused_fail_their_test_alone(pytester: pytest.Pytester) -> None:
    """The traceback has the object that was refused, which has no log."""
    pytester.makepyfile(
        "import ottla.testing\n"
        "def test_a():\n    with ottla.testing.kafka(options={'node.id': '2'}): ...\n"
        "def test_b(kafka): ..."
    )
    output = pytester.runpytest_inprocess("-p", "no:xdist")
    output.assert_outcomes(failed=1, passed=1)
    output.stdout.re_match_lines_random([".*brokers="])
