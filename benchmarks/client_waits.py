"""Finds how long librdkafka waits by itself when a group reads its first record, by the times in its own log.

A process of its own reads one record with the log of the client on; the times are those between two of its lines, of
which no request is between. `python -m benchmarks.client_waits` prints them for a broker of `ottla.testing`.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import Consumer

from ottla.testing import kafka

_PATIENCE_S = 60.0
_LINE = re.compile(r"%7\|(?P<seconds>\d+\.\d+)\|\w+\|[^|]*\| (?P<text>.*)")
_RESPONSE = re.compile(r"Received \w+Response \(.* rtt (?P<ms>[\d.]+)ms\)")
_CONNECTION = ("still suppressed for", "Selected for cluster connection")
_OFFSET = ("(re)starting offset query timer", "timed offset query")


class ClientWaits(NamedTuple):
    """The milliseconds of one read."""

    connection: float  # until it connects to the broker that it has learned of: half of reconnect.backoff.ms
    offset: float  # until it asks where the partition begins, since nothing is committed
    responses: float  # of all requests, from their sending to the response, one after the other


def waits_in(log: Iterable[str]) -> ClientWaits:
    """Return the waits in the lines of a log."""
    lines = [(1000 * float(line["seconds"]), line["text"]) for each in log if (line := _LINE.match(each))]
    responses = [float(response["ms"]) for _, text in lines if (response := _RESPONSE.search(text))]
    return ClientWaits(_between(lines, *_CONNECTION), _between(lines, *_OFFSET), sum(responses))


def _between(lines: list[tuple[float, str]], begin: str, end: str) -> float:
    """Return the time from the first line with a text to the next with another; 0 if there is none."""
    began = next((at for at, text in lines if begin in text), None)
    if began is None:
        return 0.0
    return next((at - began for at, text in lines if end in text and at >= began), 0.0)


def measure(count: int) -> ClientWaits:
    """Return the medians of so many reads, each of a fresh broker."""
    found = []
    for number in range(count):
        topic = f"test-{number}"
        with kafka(topics=[topic]) as k:
            k.produce(topic, "x")
            command = [sys.executable, "-m", "benchmarks.client_waits", k.bootstrap, topic]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(waits_in(done.stderr.splitlines()))
    return ClientWaits(*map(statistics.median, zip(*found, strict=True)))


def read_one(bootstrap: str, topic: str) -> None:
    """Read a record as a group, with the log of the client on stderr."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "debug": "cgrp,topic,broker,protocol",
            "log_level": 7,
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(_PATIENCE_S)
    assert message is not None
    assert message.value() == b"x", message.error()
    consumer.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        read_one(*sys.argv[1:])
    else:
        sys.stdout.write(f"{measure(5)}\n")
