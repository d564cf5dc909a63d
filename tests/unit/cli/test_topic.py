"""`ottla topic analyze` and `ottla topic clone`."""

from __future__ import annotations

import pytest

from ottla.testing import Kafka, ProducerRecord
from tests.unit.cli.conftest import CommandLine

FIRST_MS = 1_767_225_600_000


@pytest.fixture
def topic(broker: Kafka, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions with 30 records in 10 s; two thirds are in partition 0."""
    name = str(request.node.name)[-200:]
    broker.create_topic(name, partitions=2, configs={"retention.ms": "-1", "segment.bytes": "1048576"})
    broker.produce_many(
        name,
        [
            ProducerRecord(
                "v" * (n + 1) if n != 7 else None,
                key=f"k{n % 3}" if n else None,
                headers=[("h", "1")] if n == 3 else [],
                partition=int(n % 3 == 2),
                timestamp_ms=FIRST_MS + n * 10_000 // 29,
            )
            for n in range(30)
        ],
    )
    return name


def test_a_topic_is_analyzed_by_batches_sizes_keys_and_partitions(cli: CommandLine, topic: str) -> None:
    found = cli.json("topic", "analyze", topic)
    assert (found["records"], found["seconds"], found["tombstones"], found["with_headers"]) == (30, 10.0, 1, 1)
    assert found["records_per_second"] == 2.9
    assert found["keys"]["distinct"] == 3
    assert found["keys"]["records_without_key"] == 1
    assert {key["key"]: key["records"] for key in found["keys"]["most_common"]} == {"k0": 9, "k1": 10, "k2": 10}
    assert found["value_bytes"]["max"] == 30
    assert found["batches"]["codecs"] == {"none": found["batches"]["count"]}
    assert [(p["partition"], p["records"], round(p["share"], 2)) for p in found["partitions"]] == [
        (0, 20, 0.67),
        (1, 10, 0.33),
    ]
    shown = cli.out("topic", "analyze", topic)
    assert "about 3 different, 1 records without" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_an_analysis_may_be_of_a_range(cli: CommandLine, topic: str) -> None:
    assert cli.json("topic", "analyze", topic, "--from", "-2")["records"] == 4
    assert cli.json("topic", "analyze", topic, "--from", "end")["records"] == 0
    assert "about 0 different" in cli.out("topic", "analyze", topic, "--from", "end")
    assert "there is no topic" in cli.fails("topic", "analyze", "no-such", code=4)
    assert "--from: 'x' is not an offset" in cli.fails("topic", "analyze", topic, "--from", "x", code=2)


def test_a_clone_has_the_settings_the_partitions_and_no_records(cli: CommandLine, topic: str) -> None:
    copy = f"{topic}.copy"
    dry = cli.json("topic", "clone", topic, copy, "--dry-run")
    assert (dry["result"], dry["partitions"]) == ("would create", 2)
    assert copy not in {each["name"] for each in cli.json("topic", "list")}
    cli.out("topic", "clone", topic, copy)
    described = cli.json("topic", "describe", copy)
    assert described["configs"] == {"retention.ms": "-1", "segment.bytes": "1048576"}
    assert (len(described["partitions"]), described["records"]) == (2, 0)
    assert "already exists" in cli.fails("topic", "clone", topic, copy, code=1)


def test_a_clone_with_records_has_them_in_the_same_partitions_and_order(cli: CommandLine, topic: str) -> None:
    copy = f"{topic}.copy"
    assert cli.json("topic", "clone", topic, copy, "--records")["records"] == 30

    def content(name: str) -> list[str]:
        return sorted(cli.out("consume", name, "--format", "%p %o %T %h %k %v %V\\n").splitlines())

    assert content(copy) == content(topic)


def test_a_topic_that_does_not_exist_is_not_cloned(cli: CommandLine) -> None:
    assert "there is no topic no-such" in cli.fails("topic", "clone", "no-such", "copy", code=4)
