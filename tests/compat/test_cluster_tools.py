"""Kafka's own admin tools, from its jars, against three brokers: before, during and after the loss of a leader."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from ottla.client.producer import Producer
from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition
from ottla.testing.cluster import TestCluster
from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.kafka_tools import run_tool
from tests.support.real_kafka import tool_command
from tests.unit.broker.test_replicated_topic import in_sync, leader_of, read, send

pytestmark = [pytest.mark.external, pytest.mark.slow]
TOOLS = "org.apache.kafka.tools."
TOPICS, OFFSETS, GROUPS = (
    f"{TOOLS}TopicCommand",
    f"{TOOLS}GetOffsetShell",
    f"{TOOLS}consumer.group.ConsumerGroupCommand",
)
REASSIGN, ELECT = f"{TOOLS}reassign.ReassignPartitionsCommand", f"{TOOLS}LeaderElectionCommand"
LOG_DIRS, VERIFY_REPLICAS = f"{TOOLS}LogDirsCommand", f"{TOOLS}ReplicaVerificationTool"
WEB = TopicPartition("web", 0)
PARTITIONS = 3
SECONDS = 240


class Tools:
    """Runs tools with the addresses of all brokers, of killed ones too, while the brokers serve in this process."""

    def __init__(self, jars: Path, cluster: TestCluster) -> None:
        self._jars, self._at = jars, cluster.bootstrap

    async def __call__(self, tool: str, *arguments: str) -> str:
        return await asyncio.to_thread(run_tool, self._jars, tool, "--bootstrap-server", self._at, *arguments)

    async def describe(self, *filters: str) -> dict[tuple[str, int], dict[str, str]]:
        """Return what kafka-topics shows of partitions, by field."""
        found = {}
        for line in (await self(TOPICS, "--describe", *filters)).splitlines():
            row = dict(re.findall(r"(\w+): ?([^\t]*)", line))
            if "Partition" in row:
                found[row["Topic"], int(row["Partition"])] = row
        return found


async def create(cluster: TestCluster, topic: str, *replicas: int) -> None:
    """Create a topic of one partition."""
    await cluster.services(cluster.controller).controller.create_topic(topic, assignments=[(0, replicas)])
    await cluster.known_everywhere(topic)


def is_served_to_java(cluster: TestCluster) -> bool:
    """Return whether a client from Kafka's jars is connected to a broker that runs."""
    return any(
        connection.software is not None and connection.software[0] == "apache-kafka-java"
        for broker in cluster.brokers.values()
        if broker._listeners is not None
        for connection in broker._listeners.connections
    )


def consume(bootstrap: str, group: str, count: int) -> None:
    """Read so many records of the topic in a group, and commit their offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([WEB.topic])
    try:
        for _ in range(count):
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def brokers_of(text: str) -> set[int]:
    return {int(number) for number in text.split(",") if number}


@pytest.mark.timeout(SECONDS)
async def test_topics_offsets_groups_and_logs_are_described_while_a_leader_is_lost(
    cluster: TestCluster, kafka_jars: Path
) -> None:
    tools = Tools(kafka_jars, cluster)
    created = await tools(
        TOPICS,
        "--create",
        "--topic",
        "web",
        "--partitions",
        str(PARTITIONS),
        "--replication-factor",
        "3",
        "--config",
        "min.insync.replicas=3",
    )
    assert "Created topic web." in created
    await cluster.known_everywhere("web")
    for index in range(PARTITIONS):
        await send(cluster, range(10 * (index + 1)), TopicPartition("web", index))
    await asyncio.to_thread(consume, cluster.bootstrap, "team", 60)
    lost = leader_of(cluster)
    rest = {1, 2, 3} - {lost}
    await create(cluster, "lone", lost)

    await cluster.kill(lost, session_expires=False)
    asking = asyncio.create_task(tools(OFFSETS, "--topic", "web"))
    await cluster.until(lambda: is_served_to_java(cluster) or asking.done(), seconds=60)
    assert not asking.done()
    await cluster.expire(lost)
    assert sorted((await asking).splitlines()) == ["web:0:10", "web:1:20", "web:2:30"]

    under, unavailable, under_min, group = await asyncio.gather(
        tools.describe("--under-replicated-partitions"),
        tools.describe("--unavailable-partitions"),
        tools.describe("--under-min-isr-partitions"),
        tools(GROUPS, "--describe", "--group", "team"),
    )
    web = {("web", index) for index in range(PARTITIONS)}
    assert {name for name in under if name[0] == "web"} == web
    assert all(brokers_of(row["Isr"]) == rest for name, row in under.items() if name in web)
    assert all(int(row["Leader"]) in rest for name, row in under.items() if name in web)
    assert all(brokers_of(row["Elr"]) == {lost} for name, row in under.items() if name in web)
    assert {name: row["Leader"] for name, row in unavailable.items()} == {("lone", 0): "none"}
    assert set(under_min) == {*web, ("lone", 0)}
    lines = [line.split() for line in group.splitlines() if line.startswith("team")]
    assert {(row[1], int(row[2]), int(row[3]), int(row[5])) for row in lines} == {
        ("web", index, 10 * (index + 1), 0) for index in range(PARTITIONS)
    }

    await cluster.restart(lost)
    for index in range(PARTITIONS):
        await in_sync(cluster, 3, TopicPartition("web", index))
    under, rows, logs = await asyncio.gather(
        tools.describe("--under-replicated-partitions", "--topic", "web"),
        tools.describe("--topic", "web"),
        tools(LOG_DIRS, "--describe", "--topic-list", "web"),
    )
    assert under == {}
    assert set(rows) == web
    assert all(brokers_of(row["Isr"]) == brokers_of(row["Replicas"]) == {1, 2, 3} for row in rows.values())
    assert all(row["Elr"] == "" for row in rows.values())
    sizes = sizes_of(logs)
    assert set(sizes) == {1, 2, 3}
    assert sizes[1] == sizes[2] == sizes[3]
    assert set(sizes[1]) == {f"web-{index}" for index in range(PARTITIONS)}
    assert min(sizes[1].values()) > 0


def sizes_of(output: str) -> dict[int, dict[str, int]]:
    """Return the bytes of each replica by broker, as kafka-log-dirs shows them."""
    found = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    assert all(directory["error"] is None for each in found["brokers"] for directory in each["logDirs"])
    return {
        each["broker"]: {
            replica["partition"]: replica["size"]
            for directory in each["logDirs"]
            for replica in directory["partitions"]
        }
        for each in found["brokers"]
    }


@pytest.mark.timeout(SECONDS)
async def test_settings_of_topics_and_brokers_are_changed_while_the_controller_is_lost(
    cluster: TestCluster, kafka_jars: Path
) -> None:
    tools = Tools(kafka_jars, cluster)
    await create(cluster, "web", 1, 2, 3)
    lost = cluster.controller
    other = min({1, 2, 3} - {lost})

    async def configs(kind: str, name: str, *arguments: str) -> str:
        return await tools(CONFIG_COMMAND, "--entity-type", kind, "--entity-name", name, *arguments)

    await cluster.kill(lost, session_expires=False)
    change = ("--alter", "--add-config", "retention.ms=12345,cleanup.policy=[compact,delete]")
    changing = asyncio.create_task(configs("topics", "web", *change))
    await cluster.until(lambda: is_served_to_java(cluster) or changing.done(), seconds=60)
    assert not changing.done()
    await cluster.expire(lost)
    assert "Completed updating config for topic web." in await changing
    changed, shown = await asyncio.gather(
        configs("brokers", str(other), "--alter", "--add-config", "log.retention.ms=777"),
        configs("topics", "web", "--describe"),
    )
    assert f"Completed updating config for broker {other}." in changed
    assert "retention.ms=12345 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=12345" in shown
    assert "cleanup.policy=compact,delete" in shown
    await cluster.restart(lost)
    of_other, of_restarted = await asyncio.gather(
        configs("brokers", str(other), "--describe"), configs("topics", "web", "--describe")
    )
    assert "log.retention.ms=777 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=777" in of_other
    assert "cleanup.policy=compact,delete" in of_restarted
    for node_id in (1, 2, 3):
        config = cluster.services(node_id).cluster.current.topics["web"].config
        assert config == {"retention.ms": "12345", "cleanup.policy": "compact,delete"}


async def fill(cluster: TestCluster, batches: int, size: int) -> None:
    """Append batches of one record each."""
    async with await cluster.client() as client, Producer(client, clock=SystemClock()) as producer:
        for _ in range(batches):
            await (await producer.send(WEB.topic, partition=WEB.partition, value=os.urandom(size)))


@pytest.mark.timeout(SECONDS)
@pytest.mark.directories(2)
async def test_replicas_move_to_log_directories_of_a_plan_and_back(
    cluster: TestCluster, tmp_path: Path, kafka_jars: Path
) -> None:
    tools, plan = Tools(kafka_jars, cluster), tmp_path / "plan.json"
    await create(cluster, "web", 1, 2)
    await fill(cluster, 30, 8000)

    def where() -> dict[int, Path]:
        return {
            node_id: Path(partition.log.directory).parent
            for node_id in cluster.brokers
            if (partition := cluster.services(node_id).replicas.partitions.get(WEB)) is not None
        }

    before = where()
    assert before == {1: cluster.paths(1)[0], 2: cluster.paths(2)[0]}
    after = {2: cluster.paths(2)[1], 3: cluster.paths(3)[1]}  # one moves here, one comes from another broker
    wanted = {"topic": "web", "partition": 0, "replicas": [2, 3], "log_dirs": [str(path) for path in after.values()]}
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    for places in (after, before):
        arguments = ("--reassignment-json-file", str(plan))
        started = await tools(REASSIGN, "--execute", *arguments, "--replica-alter-log-dirs-throttle", "100000000")
        assert "Successfully started partition reassignment for web-0" in started
        for node_id, path in places.items():
            assert f"directory to {path} for replica web-0 with broker {node_id}" in started
        await cluster.until(lambda places=places: where() == places, seconds=30)  # type: ignore[misc]
        verified = await tools(REASSIGN, "--verify", *arguments)
        assert "Reassignment of partition web-0 is completed." in verified
        for node_id in places:
            assert f"Reassignment of replica web-0-{node_id} completed successfully." in verified
        (rollback,) = (json.loads(line) for line in started.splitlines() if line.startswith("{"))
        assert "any" not in rollback["partitions"][0]["log_dirs"]
        plan.write_text(json.dumps(rollback))
    await in_sync(cluster, 2)
    logs = [cluster.services(node_id).replicas.partitions[WEB].log for node_id in before]
    assert [(log.log_start_offset, log.end_offset) for log in logs] == [(0, 30), (0, 30)]
    first, second = (log.read(0, max_bytes=1 << 30, end_offset=30) for log in logs)
    assert first is not None
    assert second is not None
    assert first.read() == second.read()


@pytest.mark.options({"replica.fetch.max.bytes": "16384"})
@pytest.mark.timeout(SECONDS)
async def test_a_reassignment_is_generated_throttled_verified_and_cancelled(
    cluster: TestCluster, tmp_path: Path, kafka_jars: Path
) -> None:
    tools = Tools(kafka_jars, cluster)
    await create(cluster, "web", 1, 2)
    await fill(cluster, 30, 8000)
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text('{"version": 1, "topics": [{"topic": "web"}]}')

    async def reassign(action: str, *arguments: str) -> str:
        return await tools(REASSIGN, action, "--reassignment-json-file", str(plan), *arguments)

    def state() -> Any:
        found = cluster.services(3).cluster.current.partition(*WEB)
        assert found is not None
        return found

    generated = await tools(REASSIGN, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "2,3")
    current, proposed = (json.loads(line) for line in generated.splitlines() if line.startswith("{"))
    assert current["partitions"][0]["replicas"] == [1, 2]
    target = proposed["partitions"][0]["replicas"]
    assert sorted(target) == [2, 3]
    plan.write_text(json.dumps(proposed))

    # a throttle that would take days, then one that takes no time
    started = await reassign("--execute", "--throttle", "1")
    assert "Successfully started partition reassignment for web-0" in started
    listed, verified = await asyncio.gather(tools(REASSIGN, "--list"), reassign("--verify"))
    numbers = ",".join(map(str, [*target, 1]))
    assert f"web-0: replicas: {numbers}. adding: 3. removing: 1." in listed
    assert "Reassignment of partition web-0 is still in progress." in verified
    await cluster.until(lambda: state().adding == (3,))
    await reassign("--execute", "--additional", "--throttle", "100000000")
    await cluster.until(lambda: set(state().replicas) == {2, 3}, seconds=20)

    await cluster.kill(1)
    verified = await reassign("--verify")
    assert "Reassignment of partition web-0 is completed." in verified
    assert "Clearing broker-level throttles on brokers 2,3" in verified
    assert "Clearing topic-level throttles on topic web" in verified
    await cluster.until(lambda: not cluster.services(2).cluster.current.topics["web"].config)
    await cluster.restart(1)

    del current["partitions"][0]["log_dirs"]  # with them the tool takes a cancelled move for one under way
    plan.write_text(json.dumps(current))
    await reassign("--execute", "--throttle", "1")
    await cluster.until(lambda: state().adding == (1,))
    leader = leader_of(cluster)
    await cluster.kill(leader)
    await cluster.until(lambda: leader_of(cluster) not in {-1, leader})
    cancelled = await reassign("--cancel", "--preserve-throttles")
    assert "Successfully cancelled partition reassignment for: web-0" in cancelled
    await cluster.restart(leader)
    await in_sync(cluster, 2)
    await cluster.until(lambda: set(state().replicas) == {2, 3})
    cleared = await reassign("--verify")
    assert "There is no active reassignment of partition web-0, but replica set is" in cleared
    view = cluster.services(1).cluster
    await cluster.until(lambda: not any(each.values for each in view.current.broker_configs.values()))


@pytest.mark.timeout(SECONDS)
async def test_preferred_leaders_are_elected_and_unclean_ones_only_on_request(
    cluster: TestCluster, kafka_jars: Path
) -> None:
    tools = Tools(kafka_jars, cluster)
    await create(cluster, "web", 1, 2)
    await send(cluster, range(10))
    one = ("--topic", "web", "--partition", "0")
    await cluster.kill(1)
    await cluster.until(lambda: leader_of(cluster) == 2)
    with pytest.raises(AssertionError, match="PreferredLeaderNotAvailableException"):
        await tools(ELECT, "--election-type", "preferred", *one)
    await cluster.restart(1)
    await in_sync(cluster, 2)
    elected = await tools(ELECT, "--election-type", "preferred", *one)
    assert "Successfully completed leader election (PREFERRED) for partitions web-0" in elected
    await cluster.until(lambda: leader_of(cluster) == 1)

    await cluster.kill(2)
    await in_sync(cluster, 1)
    await send(cluster, range(10, 20))
    await cluster.kill(1)
    await cluster.restart(2)
    unavailable = await tools.describe("--unavailable-partitions")
    assert {name: row["Leader"] for name, row in unavailable.items()} == {("web", 0): "none"}
    elected = await tools(ELECT, "--election-type", "unclean", "--all-topic-partitions")
    assert "Successfully completed leader election (UNCLEAN) for partitions web-0" in elected
    await cluster.until(lambda: leader_of(cluster) == 2)
    await cluster.restart(1)
    await in_sync(cluster, 2)
    assert await read(cluster, 10) == list(range(10))


@pytest.mark.timeout(SECONDS)
async def test_the_replicas_are_verified_while_their_leader_is_killed_and_restarted(
    cluster: TestCluster, tmp_path: Path, kafka_jars: Path
) -> None:
    await create(cluster, "web", 1, 2, 3)
    await send(cluster, range(100))
    arguments = ["--broker-list", cluster.bootstrap, "--topics-include", "web", "--time", "-2"]
    arguments += ["--report-interval-ms", "100", "--max-wait-ms", "100"]
    output = tmp_path / "verification.txt"
    with running(tool_command(kafka_jars, VERIFY_REPLICAS, *arguments), output) as process:

        async def verified(end: int) -> None:
            line = f"max lag is 0 for partition web-0 at offset {end} among 1 partitions"
            await cluster.until(lambda: line in output.read_text() or process.poll() is not None, seconds=60)
            assert line in output.read_text(), output.read_text()[-3000:]

        await verified(100)
        await cluster.kill(1)
        await cluster.until(lambda: leader_of(cluster) in {2, 3})
        await send(cluster, range(100, 200))
        await cluster.restart(1)
        await in_sync(cluster, 3)
        await send(cluster, range(200, 300))
        await verified(300)
        assert process.poll() is None
    assert not re.search(r"unmatched checksum|doesn't match", output.read_text())


@contextmanager
def running(command: list[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a tool that does not end by itself."""
    with output.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
