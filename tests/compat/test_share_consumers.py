"""The Java share consumer and Kafka's tools for share groups, from its jars, unmodified (KIP-932)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Broker
from tests.support.kafka_jars import CONFIG_COMMAND
from tests.support.kafka_tools import run_tool
from tests.support.topics import create_topic

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


def rows(text: str, group: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith(group)]


def test_the_console_share_consumer_reads_and_the_tools_describe(
    tool: Tool, broker: Broker, at: tuple[str, str], topic: str, fresh: Callable[[str], str], kafka_jars: Path
) -> None:
    group = fresh("share")
    create_topic(broker.bootstrap, topic, partitions=2)
    run_tool(
        kafka_jars,
        CONFIG_COMMAND,
        *at,
        "--alter",
        "--entity-type",
        "groups",
        "--entity-name",
        group,
        "--add-config",
        "share.auto.offset.reset=earliest",
    )
    tool("ConsoleProducer", *at, "--topic", topic, stdin="".join(f"r{n}\n" for n in range(20)))
    read = tool(
        "consumer.ConsoleShareConsumer",
        *at,
        "--topic",
        topic,
        "--group",
        group,
        "--max-messages",
        "20",
        "--timeout-ms",
        "30000",
    )
    assert sorted(re.findall(r"^r\d+$", read, re.MULTILINE)) == sorted(f"r{n}" for n in range(20))
    assert group in tool("consumer.group.ShareGroupCommand", *at, "--list").splitlines()
    described = rows(tool("consumer.group.ShareGroupCommand", *at, "--describe", "--group", group), group)
    assert {row[1] for row in described} == {topic}
    assert "0" in {row[-1] for row in described} <= {"0", "-"}, described  # no lag; "-": never used
    tool(
        "consumer.group.ShareGroupCommand",
        *at,
        "--reset-offsets",
        "--to-earliest",
        "--group",
        group,
        "--topic",
        topic,
        "--execute",
    )
    again = tool(
        "consumer.ConsoleShareConsumer",
        *at,
        "--topic",
        topic,
        "--group",
        group,
        "--max-messages",
        "20",
        "--timeout-ms",
        "30000",
    )
    assert len(re.findall(r"^r\d+$", again, re.MULTILINE)) == 20
    tool("consumer.group.ShareGroupCommand", *at, "--delete-offsets", "--group", group, "--topic", topic)
    deleted = tool("consumer.group.ShareGroupCommand", *at, "--delete", "--group", group)
    assert "successful" in deleted, deleted
    assert group not in tool("consumer.group.ShareGroupCommand", *at, "--list").splitlines()
