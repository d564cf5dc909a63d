"""`ottla mirror` between Ottla and a real Kafka, one way and the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.compat.test_mirror_maker import PARTITIONS, RECORDS, commit_end, committed, rows_of, send
from tests.processes.cli_runner import Cli
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.real_kafka import RealKafka
from tests.support.topics import create_topic

pytestmark = [pytest.mark.external, pytest.mark.slow]


def is_committed(bootstrap: str, topic: str, group: str) -> bool:
    """Try to commit: the first commit of a cluster may come before its coordinator is there."""
    try:
        commit_end(bootstrap, topic, group)
    except KafkaException:
        return False
    return True


@pytest.mark.parametrize("is_source", [True, False], ids=["from-kafka", "to-kafka"])
def test_records_and_offsets_of_groups_are_mirrored(
    tmp_path: Path, real_kafka: RealKafka, ottla_server: OttlaProcess, fresh: Callable[[str], str], *, is_source: bool
) -> None:
    source, target = real_kafka.bootstrap, ottla_server.bootstrap
    if not is_source:
        source, target = target, source
    topic, group, name = fresh("orders"), fresh("team"), fresh("mirror")
    create_topic(source, topic, partitions=PARTITIONS)
    cli = Cli(source, tmp_path)
    ends = ("--from", source, "--to", target, "--name", name, "--rename", "copy.{topic}")

    send(source, topic, 0, RECORDS // 2)
    cli.run("mirror", "run", topic, *ends, "--group", group, "--once")
    send(source, topic, RECORDS // 2, RECORDS // 2)
    (behind,) = {row["lag"] for row in cli.json("mirror", "lag", topic, *ends)}
    assert behind == RECORDS // 2 // PARTITIONS
    until(lambda: is_committed(source, topic, group), what="the commit")
    cli.run("mirror", "run", topic, *ends, "--group", group, "--once")

    assert rows_of(target, f"copy.{topic}") == rows_of(source, topic)
    assert {row["lag"] for row in cli.json("mirror", "lag", topic, *ends)} == {0}
    offsets = committed(target, f"copy.{topic}", group)
    assert all(offset > RECORDS // PARTITIONS for offset in offsets), "the markers of the mirror are offsets too"
