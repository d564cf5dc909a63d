"""The points of the plots over time, as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.console.pages.page import Page
from ottla.console.samples import CLUSTER_BYTES, CLUSTER_RECORDS, group_lag, topic_bytes, topic_records
from ottla.console.visit import Visit
from ottla.http.web import Response, json_response


def _points(times_ms: Sequence[int], values: Sequence[float | None]) -> Response:
    """Return times in seconds and values, as uPlot takes them."""
    return json_response({"times": [at / 1000 for at in times_ms], "values": list(values)})


async def cluster_records(visit: Visit) -> Response:
    """Return the records that are written in each second."""
    return _points(*visit.workspace.sampler.ring.rates(CLUSTER_RECORDS))


async def cluster_bytes(visit: Visit) -> Response:
    """Return the bytes of all logs."""
    return _points(*visit.workspace.sampler.ring.series(CLUSTER_BYTES))


async def records(visit: Visit) -> Response:
    """Return the records that are written to a topic in each second."""
    return _points(*visit.workspace.sampler.ring.rates(topic_records(visit.path("topic"))))


async def size(visit: Visit) -> Response:
    """Return the bytes of a topic."""
    return _points(*visit.workspace.sampler.ring.series(topic_bytes(visit.path("topic"))))


async def lag(visit: Visit) -> Response:
    """Return the lag of a group."""
    return _points(*visit.workspace.sampler.ring.series(group_lag(visit.path("group"))))


PAGES = (
    Page("/plots/cluster/records", cluster_records),
    Page("/plots/cluster/bytes", cluster_bytes),
    Page("/plots/topics/{topic}/records", records),
    Page("/plots/topics/{topic}/bytes", size),
    Page("/plots/groups/{group:path}/lag", lag),
)
