"""The Java producer and consumer and Kafka's own command-line tools, from its jars, unmodified."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Broker
from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.kafka_tools import run_tool

pytestmark = [pytest.mark.external, pytest.mark.slow]
TOOLS = "org.apache.kafka.tools."
Tool = Callable[..., str]


@pytest.fixture
def tool(kafka_jars: Path) -> Tool:
    """Runs a tool of Kafka's by the name of its class."""
    return lambda name, *arguments, stdin="": run_tool(kafka_jars, TOOLS + name, *arguments, stdin=stdin)


@pytest.fixture
def at(broker: Broker) -> tuple[str, str]:
    return "--bootstrap-server", broker.bootstrap


@pytest.fixture
def created(tool: Tool, at: tuple[str, str], topic: str) -> str:
    tool("TopicCommand", *at, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "1")
    return topic


def console_produce(tool: Tool, at: tuple[str, str], topic: str, text: str) -> None:
    tool(
        "ConsoleProducer",
        *at,
        "--topic",
        topic,
        "--property",
        "parse.key=true",
        "--property",
        "key.separator=:",
        stdin=text,
    )


def console_consume(tool: Tool, at: tuple[str, str], topic: str, count: int, *more: str) -> list[str]:
    said = tool(
        "consumer.ConsoleConsumer",
        *at,
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        str(count),
        "--timeout-ms",
        "20000",
        "--property",
        "print.key=true",
        "--property",
        "key.separator=:",
        *more,
    )
    return [line for line in said.splitlines() if re.match(r"[^\s:]*:", line)]  # not the tool's own hints


def test_the_console_consumer_prints_what_the_console_producer_read(
    tool: Tool, at: tuple[str, str], created: str
) -> None:
    console_produce(tool, at, created, "a:1\nb:2\na:3\n")
    assert sorted(console_consume(tool, at, created, 3)) == ["a:1", "a:3", "b:2"]


def test_the_performance_tools_count_the_same_records(
    tool: Tool, broker: Broker, at: tuple[str, str], created: str
) -> None:
    sent = tool(
        "ProducerPerformance",
        "--topic",
        created,
        "--num-records",
        "20000",
        "--record-size",
        "200",
        "--throughput",
        "-1",
        "--producer-props",
        "acks=all",
        f"bootstrap.servers={broker.bootstrap}",
    )
    assert re.search(r"^20000 records sent", sent, re.MULTILINE), sent
    got = tool("ConsumerPerformance", *at, "--topic", created, "--messages", "20000", "--timeout", "20000")
    assert re.search(r", 20000, ", got), got


def test_topics_are_listed_described_altered_and_deleted(tool: Tool, at: tuple[str, str], created: str) -> None:
    assert created in tool("TopicCommand", *at, "--list").splitlines()
    said = tool("TopicCommand", *at, "--describe", "--topic", created)
    assert re.search(rf"Topic: {created}\s+TopicId: \S{{22}}\s+PartitionCount: 2\s+ReplicationFactor: 1", said), said
    assert "Isr: 1" in said
    tool("TopicCommand", *at, "--alter", "--topic", created, "--partitions", "4")
    assert "PartitionCount: 4" in tool("TopicCommand", *at, "--describe", "--topic", created)
    tool("TopicCommand", *at, "--delete", "--topic", created)
    assert created not in tool("TopicCommand", *at, "--list").splitlines()


def test_javas_consumer_uses_the_new_group_protocol(
    tool: Tool, at: tuple[str, str], created: str, fresh: Callable[[str], str]
) -> None:
    group = fresh("group")
    console_produce(tool, at, created, "a:1\na:2\na:3\n")
    new_protocol = ("--group", group, "--consumer-property", "group.protocol=consumer")
    assert sorted(console_consume(tool, at, created, 3, *new_protocol)) == ["a:1", "a:2", "a:3"]
    said = tool("consumer.group.ConsumerGroupCommand", *at, "--list", "--type")
    assert [group, "Consumer"] in [line.split() for line in said.splitlines()]
    said = tool("consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", group, "--state")
    assert any("uniform" in line and "Empty" in line for line in said.splitlines() if line.startswith(group))


def test_a_groups_lag_is_described_reset_and_deleted(
    tool: Tool, at: tuple[str, str], created: str, fresh: Callable[[str], str]
) -> None:
    group = fresh("group")
    console_produce(tool, at, created, "a:1\na:2\na:3\n")
    console_consume(tool, at, created, 3, "--group", group)
    assert group in tool("consumer.group.ConsumerGroupCommand", *at, "--list").splitlines()
    said = tool("consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", group)
    rows = [line.split() for line in said.splitlines() if line.startswith(group)]
    assert {row[1] for row in rows} == {created}
    assert sum(int(row[3]) for row in rows if row[3].isdigit()) == 3  # CURRENT-OFFSET
    assert {row[5] for row in rows if row[5].isdigit()} == {"0"}  # LAG
    tool(
        "consumer.group.ConsumerGroupCommand",
        *at,
        "--group",
        group,
        "--reset-offsets",
        "--to-earliest",
        "--topic",
        created,
        "--execute",
    )
    said = tool("consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", group)
    rows = [line.split() for line in said.splitlines() if line.startswith(group)]
    assert sum(int(row[5]) for row in rows) == 3
    said = tool("consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", group, "--state")
    assert "Empty" in said
    tool("consumer.group.ConsumerGroupCommand", *at, "--delete", "--group", group)
    assert group not in tool("consumer.group.ConsumerGroupCommand", *at, "--list").splitlines()


def test_a_topics_settings_are_changed_and_shown(kafka_jars: Path, at: tuple[str, str], created: str) -> None:
    def configs(*arguments: str) -> str:
        return run_tool(
            kafka_jars, CONFIG_COMMAND, *at, "--entity-type", "topics", "--entity-name", created, *arguments
        )

    configs("--alter", "--add-config", "retention.ms=12345,cleanup.policy=[compact,delete]")
    said = configs("--describe")
    assert "retention.ms=12345 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=12345}" in said, said
    assert "cleanup.policy=compact,delete" in said
    configs("--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in configs("--describe")
    assert "retention.ms=604800000" in configs("--describe", "--all")


def test_the_brokers_settings_are_shown(kafka_jars: Path, at: tuple[str, str]) -> None:
    said = run_tool(
        kafka_jars, CONFIG_COMMAND, *at, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all"
    )
    assert "log.segment.bytes=1073741824" in said, said


def test_offsets_are_shown_deleted_up_to_and_shown_again(
    tool: Tool, at: tuple[str, str], created: str, tmp_path: Path
) -> None:
    console_produce(tool, at, created, "".join(f"same:{number}\n" for number in range(10)))
    said = tool("GetOffsetShell", *at, "--topic", created)
    ends = {int(part): int(end) for part, end in re.findall(rf"^{created}:(\d):(\d+)$", said, re.MULTILINE)}
    assert sorted(ends.values()) == [0, 10]
    partition = next(part for part, end in ends.items() if end == 10)
    plan = tmp_path / "delete.json"
    plan.write_text(f'{{"partitions":[{{"topic":"{created}","partition":{partition},"offset":4}}],"version":1}}')
    assert "low_watermark: 4" in tool("DeleteRecordsCommand", *at, "--offset-json-file", str(plan))
    earliest = tool("GetOffsetShell", *at, "--topic", created, "--time", "earliest")
    assert f"{created}:{partition}:4" in earliest
    newest = tool("GetOffsetShell", *at, "--topic", created, "--time", "max-timestamp")
    assert re.search(rf"^{created}:{partition}:[4-9]$", newest, re.MULTILINE), newest


def test_the_log_directories_are_described(tool: Tool, at: tuple[str, str], created: str) -> None:
    console_produce(tool, at, created, "a:1\n")
    said = tool("LogDirsCommand", *at, "--describe", "--topic-list", created)
    assert f'"partition":"{created}-0"' in said.replace(" ", ""), said
    assert '"error":null' in said


def test_a_transactional_producer_is_served_and_its_transaction_is_listed(
    tool: Tool, at: tuple[str, str], broker: Broker, created: str
) -> None:
    name = f"tx-{created}"
    sent = tool(
        "ProducerPerformance",
        "--topic",
        created,
        "--num-records",
        "20",
        "--record-size",
        "1",
        "--throughput",
        "-1",
        "--transactional-id",
        name,
        "--transaction-duration-ms",
        "1",
        "--producer-props",
        f"bootstrap.servers={broker.bootstrap}",
    )
    assert "20 records sent" in sent, sent
    lines = [line.split() for line in tool("TransactionsCommand", *at, "list").splitlines()]
    assert lines[0] == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    assert [(line[0], line[3]) for line in lines if line[0] == name] == [(name, "CompleteCommit")]
    described = tool("TransactionsCommand", *at, "describe", "--transactional-id", name)
    assert "CompleteCommit" in described, described


def test_javas_own_copier_copies_exactly_once_with_random_aborts(
    tool: Tool, at: tuple[str, str], broker: Broker, created: str, fresh: Callable[[str], str]
) -> None:
    source, target = created, fresh("copy")
    tool("TopicCommand", *at, "--create", "--topic", target, "--partitions", "1", "--replication-factor", "1")
    console_produce(tool, at, source, "".join(f"k:{number}\n" for number in range(300)))
    offsets = dict(re.findall(rf"^{source}:(\d):(\d+)$", tool("GetOffsetShell", *at, "--topic", source), re.MULTILINE))
    partition, count = max(offsets.items(), key=lambda found: int(found[1]))
    copied = tool(
        "TransactionalMessageCopier",
        "--broker-list",
        broker.bootstrap,
        "--input-topic",
        source,
        "--input-partition",
        partition,
        "--output-topic",
        target,
        "--max-messages",
        count,
        "--consumer-group",
        fresh("copiers"),
        "--transaction-size",
        "25",
        "--transactional-id",
        target,
        "--enable-random-aborts",
        "--use-group-metadata",
    )
    assert '"remaining":0' in copied, copied[-500:]
    wanted = console_consume(tool, at, source, int(count), "--partition", partition)
    found = console_consume(tool, at, target, int(count), "--partition", "0", "--isolation-level", "read_committed")
    assert len(found) == int(count)
    assert found == wanted


def test_tools_for_features_that_one_broker_has_not_succeed(
    kafka_jars: Path, tool: Tool, at: tuple[str, str], created: str
) -> None:
    leaders = tool("LeaderElectionCommand", *at, "--election-type", "preferred", "--topic", created, "--partition", "0")
    assert "Valid replica already elected for partitions" in leaders, leaders
    assert "No partition reassignments found" in tool("reassign.ReassignPartitionsCommand", *at, "--list")
    for kind in ("clients", "users"):
        settings = run_tool(kafka_jars, CONFIG_COMMAND, *at, "--describe", "--entity-type", kind)
        assert settings.strip() == ""


def test_the_levels_of_features_are_shown_and_those_in_use_can_be_asked_for(tool: Tool, at: tuple[str, str]) -> None:
    shown = tool("FeatureCommand", *at, "describe")
    assert re.search(r"transaction\.version\s.*FinalizedVersionLevel: 2", shown), shown
    assert "was upgraded to 2" in tool("FeatureCommand", *at, "upgrade", "--feature", "transaction.version=2")
    with pytest.raises(AssertionError, match=r"Invalid update version 99 for feature transaction\.version"):
        tool("FeatureCommand", *at, "upgrade", "--feature", "transaction.version=99")


def test_unknown_brokers_are_not_registered(tool: Tool, at: tuple[str, str]) -> None:
    with pytest.raises(AssertionError, match="Broker ID 77 is not currently registered"):
        tool("ClusterTool", "unregister", *at, "--id", "77")


def test_the_quorum_is_described_where_there_is_one(tool: Tool, at: tuple[str, str]) -> None:
    if os.environ.get("OTTLA_TEST_BROKER") == "kafka":
        assert "LeaderId" in tool("MetadataQuorumCommand", *at, "describe", "--status")
        return
    with pytest.raises(AssertionError, match=r"The cluster has no Raft quorum to describe.*the controller is broker 1"):
        tool("MetadataQuorumCommand", *at, "describe", "--status")


def test_access_control_is_reported_as_disabled(tool: Tool, at: tuple[str, str]) -> None:
    with pytest.raises(AssertionError, match="SecurityDisabledException: No Authorizer is configured"):
        tool("AclCommand", *at, "--list")
