"""Polls Metadata of brokers that are killed and started again, and finds each answer that a client would believe wrongly.

A client drops the brokers that an answer does not list, and gives up topics that it reports as unknown.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Sequence
from typing import Self

from tests.support.processes import until
from tests.support.wire_client import Answer, ConnectionEnded, Wire

PAUSE_S = 0.01
LEADER_NOT_AVAILABLE = 5
VERSION = 9


def fault_of(answer: Answer, topic: str) -> str:
    """Return what is wrong with an answer; empty if nothing is."""
    if not answer["brokers"]:
        return "no brokers"
    if answer["controller_id"] < 0:
        return "no controller"
    if not answer["cluster_id"]:
        return "no cluster id"
    (found,) = answer["topics"]
    if found["error_code"] not in {0, LEADER_NOT_AVAILABLE} or not found["partitions"]:
        return f"topic {topic} with error {found['error_code']} and {len(found['partitions'])} partitions"
    return ""


class MetadataPoll:
    """Asks each port every 10 ms, on one connection for as long as it lasts."""

    def __init__(self, ports: Sequence[int], topic: str) -> None:
        self.faults: list[str] = []
        self._topic = topic
        self._answers = dict.fromkeys(ports, 0)
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(port,), daemon=True) for port in ports]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.until_answered()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(10)

    def until_answered(self) -> None:
        """Wait until every broker answers."""
        before = dict(self._answers)
        until(
            lambda: all(count > before[port] for port, count in self._answers.items()),
            timeout_s=60,
            what="an answer of every broker",
        )

    def _run(self, port: int) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(OSError, ConnectionEnded, struct.error), Wire(port, timeout_s=10) as wire:
                while not self._is_over.is_set():
                    answer = wire.call(
                        "metadata", VERSION, topics=[{"name": self._topic}], allow_auto_topic_creation=False
                    )
                    self._answers[port] += 1
                    if fault := fault_of(answer, self._topic):
                        self.faults.append(f"port {port}, answer {self._answers[port]}: {fault}")
                    time.sleep(PAUSE_S)
            time.sleep(PAUSE_S)
