"""Asks all brokers, again and again, which partitions they serve as leaders: for how long had each partition none?"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Self

from tests.support.signed_in import PLAINTEXT, ClientSecurity
from tests.support.wire_client import ConnectionEnded

PAUSE_S = 0.005


class LeaderProbe:
    """One thread for each broker. Use it as a context manager, then read `longest_gaps_s`."""

    def __init__(
        self, ports: Sequence[int], topic: str, *, partitions: int, security: ClientSecurity = PLAINTEXT
    ) -> None:
        self._security = security
        each = [{"partition_index": n, "timestamp": -1, "current_leader_epoch": -1} for n in range(partitions)]
        self._topics = [{"name": topic, "partitions": each}]
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(port,)) for port in ports]
        self._served: dict[int, list[float]] = {partition: [] for partition in range(partitions)}
        self._began = self._ended = 0.0

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._ended = time.monotonic()

    def longest_gaps_s(self) -> dict[int, float]:
        """Return for each partition the longest time without an answer of a leader."""
        return {
            partition: max(after - before for before, after in pairwise([self._began, *sorted(times), self._ended]))
            for partition, times in self._served.items()
        }

    def _ask(self, port: int) -> None:
        while not self._is_over.wait(PAUSE_S):
            try:
                with self._security.wire(port, timeout_s=5.0) as wire:
                    while not self._is_over.wait(PAUSE_S):
                        answer = wire.call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=self._topics)
                        for found in answer["topics"][0]["partitions"]:
                            if not found["error_code"]:
                                self._served[found["partition_index"]].append(time.monotonic())
            except (OSError, ConnectionEnded):
                pass  # it stops, or has stopped
