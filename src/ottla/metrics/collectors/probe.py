"""Reads what the probe has counted, under the names of kminion's end-to-end test."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.metrics.page import COUNTER, GAUGE, HISTOGRAM, Page, family
from ottla.metrics.reading import Reading

_GROUP = "Probe"

PRODUCED = family("kminion_end_to_end_messages_produced", COUNTER, "Records that the probe has sent", group=_GROUP)
RECEIVED = family("kminion_end_to_end_messages_received", COUNTER, "Records that it has read again", group=_GROUP)
LOST = family(
    "kminion_end_to_end_messages_lost",
    COUNTER,
    "Records that were acknowledged and cannot be read",
    "partition_id",
    group=_GROUP,
)
FAILED = family(
    "kminion_end_to_end_messages_produced_failed",
    COUNTER,
    "Records that were not acknowledged",
    "partition_id",
    group=_GROUP,
)
IN_FLIGHT = family(
    "kminion_end_to_end_messages_produced_in_flight",
    GAUGE,
    "Records that are sent and not answered yet",
    "partition_id",
    group=_GROUP,
)
PRODUCE_SECONDS = family(
    "kminion_end_to_end_produce_latency_seconds",
    HISTOGRAM,
    "Seconds until a record was acknowledged",
    "partitionId",
    group=_GROUP,
)
ROUND_TRIP = family(
    "kminion_end_to_end_roundtrip_latency_seconds",
    HISTOGRAM,
    "Seconds until a record was read again",
    "partitionId",
    group=_GROUP,
)


def collect(reading: Reading, page: Page) -> Iterator[None]:
    """Read what the probe has counted."""
    probe = reading.probe
    if probe is None:
        return
    page.add(PRODUCED, sum(partition.produced for partition in probe.partitions.values()))
    page.add(RECEIVED, sum(partition.received for partition in probe.partitions.values()))
    for index, probed in probe.partitions.items():
        theirs, labels = f'partition_id="{index}"', f'partitionId="{index}"'
        page.add(LOST, probed.lost, theirs)
        page.add(FAILED, probed.failed, theirs)
        page.add(IN_FLIGHT, probed.in_flight, theirs)
        page.add_histogram(PRODUCE_SECONDS, probed.produce, labels)
        page.add_histogram(ROUND_TRIP, probed.round_trip, labels)
    yield
