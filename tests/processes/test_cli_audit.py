"""`ottla produce` reports the counts of acknowledged records to `__audit`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.client.addresses import parse_addresses
from ottla.client.audit import AUDIT_TOPIC, ProducedCount
from ottla.client.audit_topic import read_counts
from ottla.client.cluster import Cluster
from tests.processes.cli_runner import Cli
from tests.support.ottla_process import OttlaProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def cli(ottla_server: OttlaProcess, tmp_path: Path) -> Cli:
    found = Cli(ottla_server.bootstrap, tmp_path)
    found.out("topic", "create", "web", "--partitions", "2")
    return found


def counts(cli: Cli) -> list[ProducedCount]:
    async def read() -> list[ProducedCount]:
        async with await Cluster.connect(parse_addresses(cli.bootstrap)) as cluster:
            return await read_counts(cluster)

    return asyncio.run(read())


def produced(cli: Cli, *options: str, lines: int = 3, partition: int = 0) -> None:
    stdin = b"x\n" * lines
    cli.out("produce", "web", "-p", str(partition), "--timestamp", "2015-05-17T10:05", *options, stdin=stdin)


def test_counts_are_reported_by_partition_and_bucket_of_the_records_time(cli: Cli) -> None:
    produced(cli, "--audit", lines=3)
    produced(cli, "--audit", lines=2, partition=1)
    found = counts(cli)
    assert [(c.topic, c.partition, c.count, c.first_offset, c.last_offset) for c in found] == [
        ("web", 0, 3, 0, 2),
        ("web", 1, 2, 0, 1),
    ]
    assert {c.bucket_ms for c in found} == {1_431_856_800_000}  # 10:00
    assert len({c.producer for c in found}) == 2


def test_without_the_audit_topic_no_counts_are_reported_and_no_topic_is_created(cli: Cli) -> None:
    produced(cli)
    assert counts(cli) == []
    assert AUDIT_TOPIC not in {row["name"] for row in cli.json("topic", "list")}


def test_with_the_audit_topic_every_run_reports_unless_no_audit_is_set(cli: Cli) -> None:
    produced(cli, "--audit", lines=1)
    produced(cli, lines=2)
    produced(cli, "--no-audit", lines=4)
    assert sorted(c.count for c in counts(cli)) == [1, 2]


def test_a_run_that_ends_at_an_invalid_line_reports_the_acknowledged_records(cli: Cli) -> None:
    stdin = b'{"value":"a","partition":0}\n{"value":"b","partition":0}\nno json\n'
    cli.fails("produce", "web", "--input", "json", "--audit", code=5, stdin=stdin)
    assert [c.count for c in counts(cli)] == [2]


def test_the_audit_topic_is_compacted_so_that_only_the_last_report_stays(cli: Cli) -> None:
    produced(cli, "--audit")
    config = cli.json("topic", "describe", AUDIT_TOPIC)["configs"]
    assert config["cleanup.policy"] == "compact"
