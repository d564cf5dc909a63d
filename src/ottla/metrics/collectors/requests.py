"""Reads the requests: how many of each API, how long they took and where, what topics got, who waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ottla.core.error_codes import NUMBERS, ErrorCode
from ottla.core.histogram import Histogram
from ottla.metrics.page import COUNTER, GAUGE, HISTOGRAM, SUMMARY, Family, Page, escape, family
from ottla.metrics.reading import Reading
from ottla.metrics.request_times import ApiTimes
from ottla.security.audit_log import api_name

_GROUP, _TOPIC = "Requests", "Traffic"
_REQUEST = "kafka_network_requestmetrics_"

REQUESTS = family(f"{_REQUEST}requests", COUNTER, "Requests that have arrived", "request version", group=_GROUP)
ERRORS = family(
    f"{_REQUEST}errors",
    COUNTER,
    "Errors in responses: of requests, and of the topics, partitions and groups in them",
    "request error",
    group=_GROUP,
)
BYTES = family("ottla_request_bytes", COUNTER, "Bytes of the requests of an API", "request", group=_GROUP)
TOTAL = family(
    f"{_REQUEST}totaltimems",
    SUMMARY,
    "Milliseconds from the arrival to the response, with the throttle time; quantiles within a factor of two",
    "request",
    group=_GROUP,
)
QUEUE = family(
    f"{_REQUEST}requestqueuetimems", SUMMARY, "Milliseconds before a request was begun", "request", group=_GROUP
)
LOCAL = family(
    f"{_REQUEST}localtimems",
    SUMMARY,
    "Milliseconds in which a request was decoded and handled, until it was answered or began to wait",
    "request",
    group=_GROUP,
)
REMOTE = family(
    f"{_REQUEST}remotetimems",
    SUMMARY,
    "Milliseconds in which a request waited: for replicas, the disk, data or other members",
    "request",
    group=_GROUP,
)
THROTTLE = family(
    f"{_REQUEST}throttletimems",
    SUMMARY,
    "Milliseconds that clients had to wait for their quotas",
    "request",
    group=_GROUP,
)
SECONDS = family(
    "ottla_request_seconds", HISTOGRAM, "Seconds from the arrival of a request to its response", "request", group=_GROUP
)
PURGATORY = family(
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    GAUGE,
    "Requests that wait: Produce for replicas, Fetch for data",
    "delayedoperation",
    group=_GROUP,
)
MESSAGES_IN = family(
    "kafka_server_brokertopicmetrics_messagesin",
    COUNTER,
    "Records that were produced to partitions of this broker; without a topic: to all, also deleted ones",
    "topic",
    group=_TOPIC,
)
BYTES_IN = family(
    "kafka_server_brokertopicmetrics_bytesin", COUNTER, "Bytes that were produced, as MessagesIn", "topic", group=_TOPIC
)
BYTES_OUT = family(
    "kafka_server_brokertopicmetrics_bytesout", COUNTER, "Bytes of records that consumers got", "topic", group=_TOPIC
)
REPLICATION_IN = family(
    "kafka_server_brokertopicmetrics_replicationbytesin",
    COUNTER,
    "Bytes that this broker's followers have fetched",
    group=_TOPIC,
)
_PURGATORIES = {"DelayedProduce": "Produce", "DelayedFetch": "Fetch", "ReplicaFetch": "ReplicaFetch"}


def collect(reading: Reading, page: Page) -> Iterator[None]:
    """Read the times of requests, and the traffic of topics, which the partitions have counted before."""
    for key, times in list(reading.times.apis.items()):
        request = f'request="{api_name(key)}"'
        for version, count in sorted(times.versions.items()):
            page.add(REQUESTS, count, f'{request},version="{version}"')
        page.add(BYTES, times.request_bytes, request)
        for declared, histogram in _phases(times):
            page.add_summary(declared, histogram, request)
        page.add_histogram(SECONDS, times.total, request)
        if reading.slices.spend(40):
            yield
    for (key, code), count in sorted(reading.services.request_errors.counts.items()):
        error = ErrorCode(code).name if code in NUMBERS else str(code)
        page.add(ERRORS, count, f'request="{api_name(key)}",error="{error}"')
    waiting = Counter(_PURGATORIES.get(name, name) for name in reading.services.delayed_operations.names())
    for name in _PURGATORIES.values():
        page.add(PURGATORY, waiting[name], f'delayedoperation="{name}"')
    yield from _traffic(reading, page)


def _phases(times: ApiTimes) -> tuple[tuple[Family, Histogram], ...]:
    """Return the histograms of an API. Kafka's names have all phases of all APIs, also where nothing was throttled."""
    return (
        (TOTAL, times.total),
        (QUEUE, times.queue),
        (LOCAL, times.local),
        (REMOTE, times.remote),
        (THROTTLE, times.throttle),
    )


def _traffic(reading: Reading, page: Page) -> Iterator[None]:
    traffic = reading.traffic
    sums = [traffic.removed.messages_in, traffic.removed.bytes_in, traffic.removed.replication_bytes_in]
    series_max = reading.services.config.metrics.partitions_max
    for number, (name, topic) in enumerate(list(traffic.topics.items())):
        labels = f'topic="{escape(name)}"'
        if number < series_max:
            page.add(MESSAGES_IN, topic.messages_in, labels)
            page.add(BYTES_IN, topic.bytes_in, labels)
        for index, value in enumerate((topic.messages_in, topic.bytes_in, topic.replication_bytes_in)):
            sums[index] += value
        if reading.slices.spend(2):
            yield
    bytes_out = reading.services.bytes_out
    for number, (name, size_bytes) in enumerate(list(bytes_out.items())):
        if name not in reading.view.topics:  # the sum has what was sent of it
            del bytes_out[name]
        elif number < series_max:
            page.add(BYTES_OUT, size_bytes, f'topic="{escape(name)}"')
        if reading.slices.spend():
            yield
    page.add(MESSAGES_IN, sums[0])
    page.add(BYTES_IN, sums[1])
    page.add(REPLICATION_IN, sums[2])
    page.add(BYTES_OUT, reading.times.fetched_bytes)
