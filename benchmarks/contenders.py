"""The brokers that are measured, behind one small interface."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.support.kafka_jars import kafka_jars
from tests.support.ottla_process import OttlaProcess
from tests.support.real_kafka import DEFAULT_HEAP, RealKafka
from tests.support.wire_client import answers


class Running(Protocol):
    """A broker while it runs."""

    port: int

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def stop(self) -> int:
        """Stop it as an operator would."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """A broker that can be started in an empty directory; `start` gives it back with the seconds it took to answer."""

    name: str
    start: Callable[[Path], tuple[Running, float]]
    synchronous_only: bool = False  # for a comparison that concerns single requests alone


def until_answers(begin: Callable[[], Running]) -> tuple[Running, float]:
    """Start a process; seconds from before its start until ApiVersions and Metadata are answered."""
    began = time.perf_counter()
    running = begin()
    while not answers("127.0.0.1", running.port):
        time.sleep(0.005)
    return running, time.perf_counter() - began


def kafka(directory: Path, **settings: str) -> tuple[Running, float]:
    """Apache Kafka with the heap and the options its start script gives. Formatting the directory is not counted."""
    made = RealKafka(kafka_jars(), directory, heap=DEFAULT_HEAP, settings=settings)
    made.format()
    return until_answers(lambda: made.start(wait=False))


def ottla(directory: Path, *options: str) -> tuple[Running, float]:
    """Ottla. The empty directory is made by the start itself and counted."""
    return until_answers(lambda: OttlaProcess(directory, options=options).start())


CONTENDERS = (
    Contender("Kafka", kafka),
    Contender("Ottla", ottla),
    Contender("Ottla page-cache", lambda directory: ottla(directory, "-o", "durability=page-cache")),
    Contender(
        "Kafka, fsync",
        lambda directory: kafka(directory, **{"log.flush.interval.messages": "1"}),
        synchronous_only=True,
    ),
)
