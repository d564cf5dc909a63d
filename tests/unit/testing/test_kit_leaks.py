"""Brokers of the public kit give back what they held, however many there were; `make test-brokers` has a thousand."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer

from ottla.testing import kafka

COUNT = int(os.environ.get("OTTLA_KIT_BROKERS", "40"))
WARM_UP = 15
OBJECTS_MAX = 2_000
"""Fewer than those of one broker: of caches that have a limit, and of clients."""
BLOCKS_MAX = 10_000
"""The same of all memory that Python has taken: bytes, texts and numbers too."""


class Held(NamedTuple):
    """What this process holds that a broker may have left."""

    threads: int
    descriptors: int
    handlers: int
    objects: int
    blocks: int

    @classmethod
    def now(cls) -> Held:
        for _ in range(2):
            gc.collect()
        return cls(
            threading.active_count(),
            len(list(Path("/proc/self/fd").iterdir())),
            len(logging.getLogger("ottla").handlers),
            len(gc.get_objects()),
            sys.getallocatedblocks(),
        )


def one_test(data: Path | None) -> None:
    """A broker, a record that is produced, and a group that reads it."""
    with kafka(topics=["orders"], data=data) as k:
        producer = Producer({"bootstrap.servers": k.bootstrap})
        producer.produce("orders", b"x")
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": k.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"x"
        consumer.close()


@pytest.mark.parametrize("where", ["memory", "files"])
def test_many_brokers_leave_no_thread_descriptor_handler_or_object(tmp_path: Path, where: str) -> None:
    def run(count: int) -> None:
        for number in range(count):
            one_test(None if where == "memory" else tmp_path / f"{count}-{number}")

    run(WARM_UP)
    before = Held.now()
    run(COUNT if where == "memory" else COUNT // 4)
    after = Held.now()
    assert after[:3] == before[:3]
    assert after.objects - before.objects < OBJECTS_MAX
    assert after.blocks - before.blocks < BLOCKS_MAX


def test_records_in_memory_are_gone_with_their_brokers_before_the_garbage_collector_runs() -> None:
    record = os.urandom(1 << 19)
    one_test(None)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        with kafka(topics=["orders"], history=False) as k:
            producer = Producer({"bootstrap.servers": k.bootstrap})
            for _ in range(20):
                producer.produce("orders", record)
            assert producer.flush(60) == 0
            assert tracemalloc.get_traced_memory()[0] > 20 * len(record)
        assert tracemalloc.get_traced_memory()[0] < 5 * len(record)
    finally:
        tracemalloc.stop()
        gc.enable()
