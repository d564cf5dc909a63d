"""A partition as its leader serves it: when a record may be written at all."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from ottla.core.errors import NotEnoughReplicas
from ottla.metadata_store.cluster_view import PartitionView
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, TP, StillClock, batch, open_directory
from tests.support.waiting import thread_executor


async def test_with_fewer_replicas_in_sync_than_the_topic_asks_for_only_acks_of_all_are_refused() -> None:
    config = LogConfig(min_insync_replicas=2)
    directory = open_directory(SimDisk(), config)
    log = directory.create_log(TP, uuid.UUID(int=7), config)
    commit = GroupCommit(directory.health, executor=thread_executor(), clock=StillClock())
    view = PartitionView(0, leader=1, leader_epoch=0, replicas=(1, 2), isr=(1,), partition_epoch=0)
    partition = Partition(log, view, node_id=1, commit=commit)
    with pytest.raises(NotEnoughReplicas):
        partition.append_as_leader(batch(b"v"), acks=-1, now_ms=NOW_MS)
    assert log.end_offset == 0
    for acks in (0, 1):
        partition.append_as_leader(batch(b"v"), acks=acks, now_ms=NOW_MS)
    partition.reconfigure(LogConfig(min_insync_replicas=1))
    assert partition.append_as_leader(batch(b"v"), acks=-1, now_ms=NOW_MS).first_offset == 2
    await asyncio.wait_for(commit.close(), 20)


async def test_min_insync_replicas_above_the_replication_factor_counts_as_the_replication_factor() -> None:
    config = LogConfig(min_insync_replicas=2)
    directory = open_directory(SimDisk(), config)
    log = directory.create_log(TP, uuid.UUID(int=7), config)
    commit = GroupCommit(directory.health, executor=thread_executor(), clock=StillClock())
    view = PartitionView(0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), partition_epoch=0)
    partition = Partition(log, view, node_id=1, commit=commit)
    partition.append_as_leader(batch(b"v"), acks=-1, now_ms=NOW_MS)
    partition.apply(PartitionView(0, leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2), partition_epoch=1))
    partition.reconfigure(LogConfig(min_insync_replicas=9))
    with pytest.raises(NotEnoughReplicas, match="2 in sync; 3 required"):
        partition.append_as_leader(batch(b"v"), acks=-1, now_ms=NOW_MS)
    await asyncio.wait_for(commit.close(), 20)
