"""Test cases of unittest have brokers: one set for a class, or one for each test."""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import ClassVar

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer

from ottla.testing.kit.kafka import Topics
from ottla.testing.unittest import FreshKafkaTestCase, KafkaTestCase


def _topics(bootstrap: str) -> set[str]:
    return set(Producer({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics)


def _run(case: type[unittest.TestCase]) -> unittest.TestResult:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


def test_all_tests_of_a_class_have_the_same_brokers_with_its_topics() -> None:
    seen = []

    class Case(KafkaTestCase):
        topics: ClassVar[Topics] = {"orders": 4}
        brokers = 3
        options: ClassVar[Mapping[str, str]] = {"log.retention.ms": "1h"}

        def test_one(self) -> None:
            self.kafka.create_topic("one")
            seen.append((self.kafka, self.kafka.bootstrap.count(","), _topics(self.kafka.bootstrap)))

        def test_other(self) -> None:
            seen.append((self.kafka, self.kafka.bootstrap.count(","), _topics(self.kafka.bootstrap)))

    result = _run(Case)
    assert result.testsRun == 2
    assert result.wasSuccessful(), result
    assert seen[0][0] is seen[1][0]
    assert [rest for _, *rest in seen] == [[2, {"orders", "one"}], [2, {"orders", "one"}]]
    assert Case.kafka.log  # stopped, and its log is there


def test_each_test_has_brokers_of_its_own() -> None:
    seen = []

    class Case(FreshKafkaTestCase):
        topics: ClassVar[Topics] = ["orders"]

        def test_one(self) -> None:
            self.kafka.create_topic("one")
            seen.append(_topics(self.kafka.bootstrap))

        def test_other(self) -> None:
            seen.append(_topics(self.kafka.bootstrap))

    assert _run(Case).wasSuccessful()
    assert seen == [{"orders", "one"}, {"orders"}]


def test_a_coroutine_takes_the_brokers_of_its_class() -> None:
    produced = []

    class Case(KafkaTestCase, unittest.IsolatedAsyncioTestCase):
        topics: ClassVar[Topics] = ["orders"]

        async def test_produce(self) -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.kafka.bootstrap) as producer:
                produced.append(await producer.send_and_wait("orders", b"1"))

    result = _run(Case)
    assert result.wasSuccessful(), result.errors
    assert [metadata.offset for metadata in produced] == [0]


def test_wrong_options_fail_the_tests_and_leave_nothing_running() -> None:
    class Case(KafkaTestCase):
        options: ClassVar[Mapping[str, str]] = {"log.retention": "1h"}

        def test_one(self) -> None:
            raise AssertionError("not reached")

    result = _run(Case)
    ((_, traceback),) = result.errors
    assert "log.retention=[hidden] (command line): there is no such setting" in traceback
