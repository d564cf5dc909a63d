"""Offers brokers to test cases of `unittest`.

    class TestOrders(KafkaTestCase):
        topics = {"orders": 4}

        def test_an_order_is_produced(self):
            producer = Producer({"bootstrap.servers": self.kafka.bootstrap})

`KafkaTestCase` has brokers for all tests of a class, `FreshKafkaTestCase` for each test. Tests that are coroutines take
them beside `unittest.IsolatedAsyncioTestCase`: `class TestOrders(KafkaTestCase, IsolatedAsyncioTestCase)`.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import ClassVar

from ottla.testing.kit.kafka import Kafka, Topics, kafka

__all__ = ["FreshKafkaTestCase", "KafkaTestCase"]


class _Brokers(unittest.TestCase):
    """Starts brokers as the attributes of its class say."""

    topics: ClassVar[Topics] = ()
    brokers: ClassVar[int] = 1
    options: ClassVar[Mapping[str, str]] = {}
    kafka: Kafka

    @classmethod
    def _started(cls) -> Kafka:
        return kafka(topics=cls.topics, brokers=cls.brokers, options=cls.options).start()


class KafkaTestCase(_Brokers):
    """Has brokers for all tests of its class, as `kafka`."""

    @classmethod
    def setUpClass(cls) -> None:
        """Start the brokers."""
        super().setUpClass()
        cls.kafka = cls._started()
        cls.addClassCleanup(cls.kafka.stop)


class FreshKafkaTestCase(_Brokers):
    """Has brokers for each test, as `kafka`."""

    def setUp(self) -> None:
        """Start the brokers."""
        super().setUp()
        self.kafka = self._started()
        self.addCleanup(self.kafka.stop)
