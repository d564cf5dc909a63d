"""Names what a scrape reads: the broker, one snapshot of the cluster, and what is measured beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ottla.broker.broker import Broker
from ottla.broker.services import Services
from ottla.limits.loop_slices import LoopSlices
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metrics.lag import GroupLags
from ottla.metrics.loop_watch import LoopWatch
from ottla.metrics.page import Page
from ottla.metrics.probe import Probe
from ottla.metrics.request_times import RequestTimes
from ottla.metrics.traffic import Traffic


class Reading(NamedTuple):
    """Holds what all collectors of one scrape read. They run on the broker's loop, in slices."""

    broker: Broker
    services: Services
    view: ClusterView
    times: RequestTimes
    traffic: Traffic
    loop_watch: LoopWatch
    lags: GroupLags
    probe: Probe | None  # None: it is off

    @property
    def slices(self) -> LoopSlices:
        """Return the slices of the broker's loop: a collector yields when one is used up."""
        return self.services.slices

    @property
    def is_controller(self) -> bool:
        """Return whether this broker serves what there is once in a cluster."""
        return self.services.controller.is_active


Collector = Callable[[Reading, Page], Iterator[None]]
"""Adds samples to a page; yields where the loop may turn."""
