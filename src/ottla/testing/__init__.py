"""Runs brokers for tests: `kafka`, for anybody's; the simulation and `TestCluster`, for those of Ottla."""

from ottla.testing.kit.assertions.producing import ProducerRecord
from ottla.testing.kit.faults.fault import Fault, RequestView
from ottla.testing.kit.faults.history import ClientRequest
from ottla.testing.kit.kafka import Kafka, kafka

__all__ = ["ClientRequest", "Fault", "Kafka", "ProducerRecord", "RequestView", "kafka"]
