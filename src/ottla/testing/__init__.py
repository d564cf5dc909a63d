"""Runs brokers for tests: `kafka`, for anybody's; the simulation and `TestCluster`, for those of Ottla."""

from ottla.testing.kit.faults import Fault, RequestView
from ottla.testing.kit.history import ClientRequest
from ottla.testing.kit.kafka import Kafka, kafka
from ottla.testing.kit.producing import ProducerRecord

__all__ = ["ClientRequest", "Fault", "Kafka", "ProducerRecord", "RequestView", "kafka"]
