"""Starts the brokers that are compared: Kafka and Ottla, each answering from the page cache and after an fsync."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.support.kafka_jars import kafka_jars
from tests.support.ottla_process import OttlaProcess
from tests.support.real_kafka import FULL_JVM, RealKafka
from tests.support.wire_client import answers


class Running(Protocol):
    """A broker while it runs."""

    port: int

    @property
    def pid(self) -> int:
        """Return its process id."""
        ...

    def stop(self) -> int:
        """Stop it as an operator would."""
        ...


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that `start` starts in an empty directory; it returns the seconds until the broker answered."""

    name: str
    start: Callable[[Path], tuple[Running, float]]
    synchronous_only: bool = False  # left out of the bulk cases


def until_answers(begin: Callable[[], Running]) -> tuple[Running, float]:
    """Start a process; returns the seconds from before its start until ApiVersions and Metadata are answered."""
    began = time.perf_counter()
    running = begin()
    while not answers("127.0.0.1", running.port):
        time.sleep(0.005)
    return running, time.perf_counter() - began


def kafka(directory: Path, **settings: str) -> tuple[Running, float]:
    """Start Apache Kafka with the heap and the options of its own start script. Formatting is not counted."""
    made = RealKafka(kafka_jars(), directory, jvm_options=FULL_JVM, settings=settings)
    if not made.data.exists():  # not a directory that it had before
        made.format()
    return until_answers(lambda: made.start(wait=False))


def ottla(directory: Path, *options: str) -> tuple[Running, float]:
    """Start Ottla. It creates the log directory itself, which is counted."""
    return until_answers(lambda: OttlaProcess(directory, options=options).start())


KAFKA = Broker("Kafka", kafka)
OTTLA = Broker("Ottla", lambda directory: ottla(directory, "-o", "durability=page-cache"))
KAFKA_FSYNC = Broker(
    "Kafka, fsync", lambda directory: kafka(directory, **{"log.flush.interval.messages": "1"}), synchronous_only=True
)
OTTLA_FSYNC = Broker("Ottla, fsync", ottla)
BROKERS = (KAFKA, OTTLA, OTTLA_FSYNC, KAFKA_FSYNC)
