"""`ottla group clone`."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.addresses import parse_addresses
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.share_groups import alter_start_offsets, create_share_group
from ottla.core.ids import TopicPartition
from ottla.testing import Kafka
from tests.unit.cli.conftest import CommandLine


@pytest.fixture
def group(broker: Kafka, cli: CommandLine, request: pytest.FixtureRequest) -> str:
    """A group that has read some records of two topics, which are named like it."""
    name = str(request.node.name)[-100:]
    for topic in (f"{name}.a", f"{name}.b"):
        broker.create_topic(topic)
        broker.produce_many(topic, [f"v{n}" for n in range(10)])
        cli.out("consume", topic, "--group", name, "--count", "4")
    return name


def set_start_offset(broker: Kafka, group: str, tp: TopicPartition, offset: int) -> None:
    """Create a share group with this start offset."""

    async def work() -> None:
        async with await Cluster.connect(parse_addresses(broker.bootstrap), options=ClientOptions()) as cluster:
            await create_share_group(cluster, group, [tp.topic])
            await alter_start_offsets(cluster, group, {tp: offset})

    asyncio.run(work())


def offsets(cli: CommandLine, group: str) -> dict[str, int]:
    return {part["topic"]: part["committed"] for part in cli.json("group", "describe", group)["partitions"]}


def test_the_copy_reads_on_from_where_the_group_is(cli: CommandLine, group: str) -> None:
    rows = cli.json("group", "clone", group, f"{group}-copy")
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        (f"{group}.a", 0, 4),
        (f"{group}.b", 0, 4),
    ]
    assert offsets(cli, f"{group}-copy") == offsets(cli, group)
    assert cli.out("consume", f"{group}.a", "--group", f"{group}-copy").split() == ["v4", "v5", "v6", "v7", "v8", "v9"]
    assert offsets(cli, group) == {f"{group}.a": 4, f"{group}.b": 4}


def test_topics_may_be_selected_and_a_dry_run_changes_nothing(cli: CommandLine, group: str) -> None:
    shown = cli.out("group", "clone", group, f"{group}-copy", "--topic", f"{group}.a", "--dry-run")
    assert f"would create group {group}-copy; nothing was changed" in shown
    assert f"{group}.b" not in shown
    cli.fails("group", "describe", f"{group}-copy", code=4)
    cli.out("group", "clone", group, f"{group}-copy", "--topic", f"{group}.a")
    assert offsets(cli, f"{group}-copy") == {f"{group}.a": 4}


def test_a_group_that_exists_is_not_changed_and_one_without_offsets_not_cloned(cli: CommandLine, group: str) -> None:
    cli.out("group", "clone", group, f"{group}-copy")
    cli.out("consume", f"{group}.a", "--group", f"{group}-copy")
    assert f"group {group}-copy exists" in cli.fails("group", "clone", group, f"{group}-copy", code=1)
    assert offsets(cli, f"{group}-copy")[f"{group}.a"] == 10
    assert "has no offsets in other" in cli.fails("group", "clone", group, "x", "--topic", "other", code=1)
    assert "there is no group no-such" in cli.fails("group", "clone", "no-such", "x", code=4)


def test_the_start_offsets_of_a_share_group_are_copied(cli: CommandLine, broker: Kafka) -> None:
    broker.create_topic("shared")
    broker.produce_many("shared", ["a", "b", "c"])
    set_start_offset(broker, "sharers", TopicPartition("shared", 0), 2)
    rows = cli.json("group", "clone", "sharers", "sharers-copy")
    assert [(row["topic"], row["offset"]) for row in rows] == [("shared", 2)]
    assert cli.json("group", "describe", "sharers-copy")["type"] == "share"
