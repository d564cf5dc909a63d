"""Several brokers over one metadata store: registration, leadership, and what each of them answers."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from ottla.core.errors import ErrorCode, InvalidReplicaAssignment, InvalidReplicationFactor
from ottla.core.files import read_file
from ottla.core.ids import NO_TOPIC_ID
from ottla.core.settings import AlterConfigOpType, ConfigResourceType
from ottla.metadata_store.cluster_view import NO_LEADER
from ottla.storage.directories.log_directory import ForeignDirectory
from ottla.testing.cluster import TestCluster
from ottla.wire.generated.describe_log_dirs import DescribeLogDirsRequest
from ottla.wire.generated.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.generated.metadata import MetadataRequest
from ottla.wire.generated.unregister_broker import UnregisterBrokerRequest
from tests.unit.broker.test_replicated_topic import TP, create, equal_replicas, in_sync, read, replica, send

pytestmark = pytest.mark.simulated_time


async def _latest(cluster: TestCluster, node_id: int, topic: str, partition: int) -> ErrorCode:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    answer = await cluster.handlers(node_id).call("list_offsets", 7, request)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def test_every_broker_lists_all_brokers_and_the_same_controller(cluster: TestCluster) -> None:
    for node_id in (1, 2, 3):
        answer = await cluster.handlers(node_id).call("metadata", 12, MetadataRequest(topics=[]))
        assert {(broker.node_id, broker.port) for broker in answer.brokers} == set(cluster.ports.items())
        assert answer.controller_id == cluster.controller
        assert answer.cluster_id == cluster.brokers[1].cluster_id


async def test_without_a_controller_metadata_names_the_broker_that_answers(cluster: TestCluster) -> None:
    """A client that gets none gives up what it wants of it; any broker passes it on to the next controller."""
    following, was = 3 if cluster.controller != 3 else 2, cluster.controller
    for node_id in set(cluster.brokers) - {was}:
        cluster.services(node_id).controller._takes_part = False  # no broker becomes controller meanwhile
    await cluster.kill(was)
    await cluster.until(lambda: was not in cluster.services(following).cluster.current.brokers)
    assert cluster.services(following).cluster.current.controller_id == NO_LEADER
    answer = await cluster.handlers(following).call("metadata", 12, MetadataRequest(topics=[]))
    assert answer.controller_id == following
    for node_id in cluster.brokers:
        controller = cluster.services(node_id).controller
        controller._takes_part = True
        controller._wake()
    await cluster.until(lambda: cluster.services(following).cluster.current.controller_id != NO_LEADER)


@pytest.mark.brokers(2)
@pytest.mark.real_time("every simulated machine has the same paths, and a disk of its own")
async def test_a_broker_does_not_start_as_another_node_of_the_cluster(cluster: TestCluster, tmp_path: Path) -> None:
    await cluster.stop(2)
    file = tmp_path / "broker-3" / "meta.properties"
    (tmp_path / "broker-2").rename(file.parent)
    file.write_text(file.read_text().replace("node.id=2", "node.id=3"))
    with pytest.raises(ForeignDirectory, match=f"Start it with node.id=2 and write node.id=2 into {file}"):
        await cluster.restart(3)
    file.write_text(file.read_text().replace("node.id=3", "node.id=2"))
    file.parent.rename(tmp_path / "broker-2")
    await cluster.restart(2)


@pytest.mark.brokers(2)
@pytest.mark.real_time("the numbers of sockets are the system's")
async def test_a_socket_that_a_killed_broker_was_connecting_leaves_its_number_to_others(cluster: TestCluster) -> None:
    loop = asyncio.get_running_loop()
    connecting, (other, peer) = socket.socket(), socket.socketpair()
    connecting.setblocking(False)

    async def connect() -> None:
        try:
            await loop.sock_connect(connecting, ("127.0.0.1", cluster.ports[1]))
        finally:
            os.dup2(other.fileno(), connecting.fileno())  # closes the socket, and its number has another one

    attempt = cluster.create_task(2, connect())
    await asyncio.sleep(0)
    kill = asyncio.create_task(cluster.kill(2))
    attempt.cancel()  # the kill meets the callback that takes the socket from the loop
    await kill
    assert attempt.cancelled()
    with connecting, other, peer:
        loop.add_reader(connecting, peer.close)
        loop.remove_reader(connecting)


async def test_each_partition_is_served_by_its_leader_alone(cluster: TestCluster) -> None:
    await cluster.services(cluster.controller).controller.create_topic("spread", partitions=3, replication_factor=1)
    await cluster.known_everywhere("spread")
    topic = cluster.services(1).cluster.current.topics["spread"]
    assert topic.topic_id != NO_TOPIC_ID
    assert sorted(partition.leader for partition in topic.partitions) == [1, 2, 3]
    for partition in topic.partitions:
        for node_id in (1, 2, 3):
            expected = ErrorCode.NONE if node_id == partition.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await _latest(cluster, node_id, "spread", partition.index) == expected


async def test_every_replica_describes_the_producers_that_it_remembers(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(10))
    await equal_replicas(cluster, 10)
    asked = DescribeProducersRequest(topics=[TopicRequest(name=TP.topic, partition_indexes=[TP.partition])])
    described = []
    for node_id in (1, 2, 3):
        answer = await cluster.handlers(node_id).call("describe_producers", 0, asked)
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == ErrorCode.NONE
        described.append([(each.producer_id, each.last_sequence) for each in partition.active_producers])
    assert described[0] == described[1] == described[2]
    assert [sequence for _, sequence in described[0]] == [9]


async def test_a_broker_is_registered_no_longer_once_it_has_stopped(cluster: TestCluster) -> None:
    await create(cluster)

    async def unregister(node_id: int) -> ErrorCode:
        asked = UnregisterBrokerRequest(broker_id=node_id)
        answer = await cluster.handlers(1).call("unregister_broker", 0, asked)
        return ErrorCode(answer.error_code)

    assert await unregister(3) == ErrorCode.INVALID_REQUEST, "it runs"
    await cluster.kill(3)
    await cluster.until(lambda: 3 not in cluster.services(1).cluster.current.brokers)
    assert await unregister(3) == ErrorCode.NONE
    assert await unregister(9) == ErrorCode.BROKER_ID_NOT_REGISTERED


async def test_a_broker_whose_directories_are_all_cordoned_gets_no_new_replicas(cluster: TestCluster) -> None:
    async def cordon(operation: AlterConfigOpType, value: str) -> ErrorCode:
        config = AlterableConfig(name="cordoned.log.dirs", config_operation=operation, value=value)
        resource = AlterConfigsResource(resource_type=ConfigResourceType.BROKER, resource_name="3", configs=[config])
        asked = IncrementalAlterConfigsRequest(resources=[resource])
        answer = await cluster.handlers(3).call("incremental_alter_configs", 1, asked)
        return ErrorCode(answer.responses[0].error_code)

    def is_cordoned() -> bool:
        view = cluster.services(cluster.controller).cluster.current
        return view.brokers[3].is_cordoned

    assert await cordon(AlterConfigOpType.SET, "/elsewhere") == ErrorCode.INVALID_REQUEST
    assert await cordon(AlterConfigOpType.SET, "*") == ErrorCode.NONE
    await cluster.until(is_cordoned)
    with pytest.raises(InvalidReplicationFactor):
        await create(cluster)
    await create(cluster, "two", partitions=3, factor=2)
    topic = cluster.services(1).cluster.current.topics["two"]
    assert {node for partition in topic.partitions for node in partition.replicas} == {1, 2}
    controller = cluster.services(cluster.controller).controller
    with pytest.raises(InvalidReplicaAssignment, match="all its log directories are cordoned"):
        await controller.create_topic("assigned", assignments=[(0, [1, 3])])
    described = await cluster.handlers(3).call("describe_log_dirs", 5, DescribeLogDirsRequest(topics=None))
    assert [result.is_cordoned for result in described.results] == [True]
    assert await cordon(AlterConfigOpType.DELETE, "") == ErrorCode.NONE
    await cluster.until(lambda: not is_cordoned())
    await create(cluster)


async def test_a_killed_broker_is_replaced_as_controller_and_returns_on_its_port(cluster: TestCluster) -> None:
    was = cluster.controller
    await cluster.kill(was)
    await cluster.until(lambda: any(cluster.services(node_id).controller.is_active for node_id in cluster.brokers))
    assert cluster.controller != was
    await cluster.until(lambda: len(cluster.services(cluster.controller).cluster.current.brokers) == 2)
    port = cluster.ports[was]
    await cluster.restart(was)
    assert cluster.ports[was] == port
    await cluster.until(lambda: len(cluster.services(cluster.controller).cluster.current.brokers) == 3)


async def test_a_killed_broker_fetches_nothing_more(cluster: TestCluster) -> None:
    """Its requests are in flight and its connections are not tasks: the kill closes them."""
    controller = cluster.services(cluster.controller).controller
    await controller.create_topic(TP.topic, assignments=[(0, [1, 2, 3])])
    await cluster.known_everywhere(TP.topic)
    await send(cluster, range(10))
    await cluster.until(lambda: all(replica(cluster, node_id).high_watermark == 10 for node_id in (1, 2, 3)))
    await cluster.kill(2, session_expires=False)
    files, directory = cluster.files(2), cluster.paths(2)[0] / str(TP)
    (dead,) = (directory / name for name in files.names_in(directory) if name.endswith(".log"))
    before = read_file(files, dead)
    for end in (20, 30):  # the second time the other follower has what the first one's answers brought
        sending = asyncio.ensure_future(send(cluster, range(end - 10, end)))
        await cluster.until(lambda end=end: replica(cluster, 3).log.end_offset == end)  # type: ignore[misc]
        assert not sending.done()
        sending.cancel()
    assert read_file(files, dead) == before


@pytest.mark.parametrize("whose", ["controller", "other", "all"])
async def test_a_broker_whose_session_was_lost_registers_again_and_serves_on(cluster: TestCluster, whose: str) -> None:
    await create(cluster, partitions=3)
    await send(cluster, range(20))
    lost = {
        "controller": [cluster.controller],
        "other": [next(node_id for node_id in cluster.brokers if node_id != cluster.controller)],
        "all": [1, 2, 3],
    }[whose]
    before = {node_id: _epoch_of(cluster, node_id) for node_id in lost}
    for node_id in lost:
        await cluster.expire(node_id)
    await cluster.until(
        lambda: all(
            (_epoch_of(cluster, node_id, seen_by=seen_by) or 0) > (before[node_id] or 0)
            for node_id in lost
            for seen_by in cluster.brokers
        ),
        seconds=20,
    )
    await in_sync(cluster, 3)
    assert await send(cluster, range(20, 40)) == list(range(20, 40))
    assert await read(cluster, 40) == list(range(40))
    await equal_replicas(cluster, 40)
    assert cluster.controller in cluster.brokers


def _epoch_of(cluster: TestCluster, node_id: int, *, seen_by: int | None = None) -> int | None:
    view = cluster.services(node_id if seen_by is None else seen_by).cluster.current
    return view.brokers[node_id].epoch if node_id in view.brokers else None
