"""Provides what several unit tests begin with: one broker in this process, and a partition without one."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.metadata_store.cluster_view import PartitionView
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.testing.cluster import BrokerHandlers
from ottla.testing.sim_disk import SimDisk
from tests.support.clusters import started_cluster
from tests.support.storage import TP, StillClock, open_directory
from tests.support.waiting import thread_executor


@pytest.fixture
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHandlers]:
    """One broker that no other can join, whose handlers are called without a socket; see `cluster` for the marks."""
    async with started_cluster(request, tmp_path, brokers=1, has_shared_store=False) as cluster:
        yield cluster.handlers(1)


@pytest.fixture
async def partition() -> AsyncIterator[Partition]:
    """A partition that this node leads alone, on a simulated disk; an append is visible at once (`durability=page-cache`)."""
    config = LogConfig(durability="page-cache")
    directory = open_directory(SimDisk(), config)
    log = directory.create_log(TP, uuid.UUID(int=7), config)
    commit = GroupCommit(directory.health, executor=thread_executor(), clock=StillClock())
    view = PartitionView(0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), partition_epoch=0)
    yield Partition(log, view, node_id=1, commit=commit)
    await commit.close()
