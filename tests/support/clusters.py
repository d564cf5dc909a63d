"""Starts the cluster of a test as its marks say: how many brokers, with which settings, real or simulated."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.testing.cluster import TestCluster
from ottla.testing.machine import Machines
from ottla.testing.real_machine import RealMachines
from ottla.testing.sim_loop import SimLoop
from ottla.testing.sim_machine import SimulatedMachines

LIMIT_S = 3600
"""A test with a cluster that takes so much simulated time makes no progress."""


def _argument(request: pytest.FixtureRequest, name: str, default: Any) -> Any:
    mark = request.node.get_closest_marker(name)
    return default if mark is None else mark.args[0]


def _options(request: pytest.FixtureRequest) -> dict[str, str]:
    merged: dict[str, str] = {}
    for mark in request.node.iter_markers("options"):
        merged = {**mark.args[0], **merged}
    return merged


def machines_at(path: Path) -> Machines:
    """Return the machines for the running loop: simulated ones, or real ones with directories below a path."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimLoop):
        return RealMachines(path)
    loop.limit_s = min(loop.limit_s, loop.time() + LIMIT_S)
    return SimulatedMachines()


@asynccontextmanager
async def started_cluster(
    request: pytest.FixtureRequest, path: Path, *, brokers: int, has_shared_store: bool = True
) -> AsyncIterator[TestCluster]:
    """Start a cluster, and stop it after the test."""
    cluster = TestCluster(
        machines_at(path),
        options=_options(request),
        own_options=_argument(request, "own_options", {}),
        directories=_argument(request, "directories", 1),
        has_shared_store=has_shared_store,
    )
    try:
        await cluster.start(_argument(request, "brokers", brokers))
        yield cluster
    finally:
        await cluster.close()
        if not isinstance(asyncio.get_running_loop(), SimLoop):
            gc.collect()  # the files of killed brokers
