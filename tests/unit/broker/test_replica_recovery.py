"""Replicas that come back with less than they had, or that a reassignment removes."""

from __future__ import annotations

import json

import pytest

from ottla.controller.reassignments import RequestedReassignment
from ottla.core.files import read_file
from ottla.core.ids import TopicPartition
from ottla.testing.cluster import TestCluster
from tests.unit.broker.test_replicated_topic import TP, create, equal_replicas, in_sync, leader_of, read, send

pytestmark = pytest.mark.simulated_time

MARKER = ".kafka_cleanshutdown"


def empty(cluster: TestCluster, node_id: int) -> None:
    """Replace the disk of a broker by an empty one."""
    files, (path,) = cluster.files(node_id), cluster.paths(node_id)
    files.remove_tree(path)
    files.make_directory(path)


def has(cluster: TestCluster, node_id: int, name: str) -> bool:
    return cluster.files(node_id).exists(cluster.paths(node_id)[0] / name)


async def test_a_broker_with_an_emptied_disk_leads_nothing_before_it_has_caught_up(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(100))
    emptied = leader_of(cluster)
    await cluster.kill(emptied)
    empty(cluster, emptied)
    others = [node_id for node_id in (1, 2, 3) if node_id != emptied]
    for node_id in others:
        await cluster.kill(node_id)  # the emptied one is alone: it must not lead
    await cluster.restart(emptied)
    view = cluster.services(emptied).cluster.current
    assert view.replica_reports[emptied].suspects == {TP}
    assert view.topics["web"].partitions[0].leader == -1
    for node_id in others:
        await cluster.restart(node_id)
    await in_sync(cluster, 3)
    assert await read(cluster, 100) == list(range(100))
    await equal_replicas(cluster, 100)
    await cluster.until(lambda: not cluster.services(emptied).cluster.current.replica_reports[emptied].suspects)


async def test_a_replica_that_lost_records_leads_nothing_after_another_restart(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(100))
    emptied, *others = [leader_of(cluster), *({1, 2, 3} - {leader_of(cluster)})]
    for node_id in others:
        await cluster.kill(node_id)  # the emptied one is the last in sync
    await cluster.until(lambda: cluster.services(emptied).cluster.current.topics["web"].partitions[0].isr == (emptied,))
    for start in range(3):
        await cluster.kill(emptied)
        if start == 0:
            empty(cluster, emptied)
        await cluster.restart(emptied)  # the first start creates an empty log
        view = cluster.services(emptied).cluster.current
        assert view.replica_reports[emptied].suspects == {TP}
        assert view.topics["web"].partitions[0].leader == -1


async def test_a_partition_whose_creation_a_power_cut_undid_on_all_brokers_gets_a_leader(cluster: TestCluster) -> None:
    await create(cluster)
    for node_id in (1, 2, 3):
        await cluster.kill(node_id)
        cluster.files(node_id).remove_tree(cluster.paths(node_id)[0] / "web-0")  # nothing of it was synced yet
    for node_id in (1, 2, 3):
        await cluster.restart(node_id)
    await in_sync(cluster, 3)
    await send(cluster, range(10))
    assert await read(cluster, 10) == list(range(10))


async def test_a_replica_whose_log_was_only_in_the_page_cache_does_not_lead_without_it(cluster: TestCluster) -> None:
    """The power cut undid the creation of the log, and records of it counted: others have them."""
    await create(cluster, configs={"durability": "page-cache", "min.insync.replicas": "2"})
    await send(cluster, range(100))
    last = leader_of(cluster)
    others = [node_id for node_id in (1, 2, 3) if node_id != last]
    for node_id in others:
        await cluster.stop(node_id)
    await cluster.until(lambda: cluster.services(last).cluster.current.topics["web"].partitions[0].isr == (last,))
    await cluster.kill(last)
    cluster.files(last).remove_tree(cluster.paths(last)[0] / "web-0")
    await cluster.restart(last)
    assert not cluster.services(last).cluster.current.replica_reports[last].is_clean
    assert leader_of(cluster) == -1
    for node_id in others:
        await cluster.restart(node_id)
    await in_sync(cluster, 3)
    assert await read(cluster, 100) == list(range(100))
    await equal_replicas(cluster, 100)


async def test_a_leader_that_restarts_before_its_session_expires_begins_a_new_term(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(10))
    leader = leader_of(cluster)
    before = cluster.services(leader).replicas.partition(TP).leader_epoch
    await cluster.kill(leader)
    await cluster.restart(leader)
    await cluster.until(
        lambda: all(cluster.services(each).replicas.partition(TP).leader_epoch > before for each in cluster.brokers)
    )
    await send(cluster, range(10, 20))
    assert await read(cluster, 20) == list(range(20))


async def test_a_clean_stop_notes_the_broker_epoch(cluster: TestCluster) -> None:
    epoch = cluster.services(2).cluster.current.brokers[2].epoch
    await cluster.stop(2)
    assert json.loads(read_file(cluster.files(2), cluster.paths(2)[0] / MARKER))["brokerEpoch"] == epoch


async def test_a_replica_that_a_reassignment_removes_is_deleted_also_by_a_broker_that_was_down(
    cluster: TestCluster,
) -> None:
    await create(cluster, partitions=2)
    await send(cluster, range(20))
    await cluster.stop(3)
    controller = cluster.services(cluster.controller).controller
    moves = [RequestedReassignment(TopicPartition("web", index), (1, 2)) for index in range(2)]
    assert await controller.reassign(moves) == [None, None]
    await cluster.restart(3)
    await cluster.until(lambda: not has(cluster, 3, "web-0"))
    moves = [RequestedReassignment(TP, (2, 3))]
    controller = cluster.services(cluster.controller).controller
    assert await controller.reassign(moves) == [None]
    await cluster.until(lambda: not has(cluster, 1, "web-0"), seconds=20)
    assert has(cluster, 1, "web-1")
    assert await read(cluster, 20) == list(range(20))
    assert cluster.services(3).replicas.partition(TP).log.end_offset == 20


@pytest.mark.parametrize("lost", [("partition.metadata",), ("partition.metadata", "ottla-copies")])
async def test_records_of_a_deleted_topic_do_not_come_back_if_their_log_has_lost_the_topics_id(
    cluster: TestCluster, lost: tuple[str, ...]
) -> None:
    await create(cluster)
    await send(cluster, range(100))
    absent = leader_of(cluster)
    await cluster.stop(absent)
    others = [node_id for node_id in (1, 2, 3) if node_id != absent]
    await cluster.until(lambda: leader_of(cluster) in others)
    await cluster.until(lambda: any(cluster.services(each).controller.is_active for each in others))
    controller = cluster.services(cluster.controller).controller
    await controller.delete_topics(["web"])
    await cluster.until(lambda: all("web" not in cluster.services(each).cluster.current.topics for each in others))
    await controller.create_topic("web", assignments=[(0, [absent, *others])])
    await cluster.known_everywhere("web")
    await send(cluster, range(5))
    files, (directory,) = cluster.files(absent), cluster.paths(absent)
    for name in lost:
        files.remove(directory / "web-0" / name if name == "partition.metadata" else directory / name)
    await cluster.restart(absent)
    await in_sync(cluster, 3)
    assert await read(cluster, 5) == list(range(5))
    log = cluster.services(absent).replicas.partition(TP).log
    assert (log.log_start_offset, log.end_offset) == (0, 5)
    kept = [name for name in files.names_in(directory) if name.startswith("web-0.")]
    assert len(kept) == 1, "the old log is set aside, or deleted where it is known to be of the deleted topic"


async def test_a_log_that_has_lost_the_topics_id_is_kept_where_it_is_in_sync(cluster: TestCluster) -> None:
    await create(cluster, factor=1)
    await send(cluster, range(50))
    only = leader_of(cluster)
    await cluster.stop(only)
    for name in ("web-0/partition.metadata", "ottla-copies"):
        cluster.files(only).remove(cluster.paths(only)[0] / name)
    await cluster.restart(only)
    await cluster.known_everywhere("web")
    assert await read(cluster, 50) == list(range(50))
    assert has(cluster, only, "web-0/partition.metadata")
