"""`ottla produce` and `AuditedProducer` report acknowledged records to `__audit`: counts, and checksums of content."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ottla.client.addresses import parse_addresses
from ottla.client.audit import AUDIT_TOPIC, ProducedCount
from ottla.client.audit_topic import read_counts
from ottla.client.audited_producer import AuditedProducer
from ottla.client.cluster import Cluster
from ottla.client.content import ContentSum, content_sum, record_checksum
from ottla.core.clock import SystemClock
from ottla.records.builder import NewRecord, build_batch
from tests.processes.cli_runner import Cli
from tests.support.ottla_process import OttlaProcess
from tests.support.topics import read_with_librdkafka

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


def records_of(cli: Cli) -> dict[int, list[int]]:
    """The checksums of the topic's records, as a foreign client reads them, by partition."""
    return {
        partition: [
            record_checksum(row.key, row.value, row.headers, row.timestamp_ms)
            for row in read_with_librdkafka(cli.bootstrap, "web", partition=partition, end_offset=1 << 60)
        ]
        for partition in range(2)
    }


def reported_sums(cli: Cli) -> dict[int, ContentSum]:
    found: dict[int, ContentSum] = {}
    for count in counts(cli):
        for run in count.runs:
            found[count.partition] = found.get(count.partition, ContentSum()).plus(run.sums)
    return found


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_reported_checksums_are_those_of_the_records_in_the_log(cli: Cli, compression: str) -> None:
    lines = b"".join(b'{"key":"k%d","value":"v%d","headers":{"h":"x"}}\n' % (n, n) for n in range(700))
    cli.out("produce", "web", "--input", "json", "--audit", "--compression", compression, stdin=lines)
    logged = {partition: content_sum(0, found) for partition, found in records_of(cli).items()}
    assert sum(sums.records for sums in logged.values()) == 700
    assert reported_sums(cli) == {partition: sums for partition, sums in logged.items() if sums.records}


def test_the_python_client_reports_what_it_was_given(cli: Cli) -> None:
    async def send() -> None:
        async with (
            await Cluster.connect(parse_addresses(cli.bootstrap)) as cluster,
            AuditedProducer(cluster, clock=SystemClock()) as producer,
        ):
            for n in range(5):
                await producer.send("web", key=b"%d" % n, value=b"one", headers=[("h", None)], partition=n % 2)
            many = [NewRecord(None, b"%d" % n, 1_431_856_800_000 + n, [("h", b"1")]) for n in range(9)]
            await producer.send_many("web", many, partitions=[n % 2 for n in range(9)])

    asyncio.run(send())
    found = records_of(cli)
    assert reported_sums(cli) == {partition: content_sum(0, checksums) for partition, checksums in found.items()}
    assert {partition: len(checksums) for partition, checksums in found.items()} == {0: 8, 1: 6}


def test_the_report_has_what_the_program_sent_although_the_producer_sent_another_batch(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of one batch are sent in place of another's, to another partition (CVE-2026-35554)."""
    first: list[Any] = []

    def reuse(records: Any, **settings: Any) -> Any:
        first.append(records)
        return build_batch(first[0], **settings)

    async def send() -> None:
        async with (
            await Cluster.connect(parse_addresses(cli.bootstrap)) as cluster,
            AuditedProducer(cluster, clock=SystemClock()) as producer,
        ):
            with monkeypatch.context() as patched:
                patched.setattr("ottla.client.producer.build_batch", reuse)
                for partition in range(2):
                    await producer.send("web", value=b"for %d" % partition, partition=partition)
                await producer.flush()

    asyncio.run(send())
    found = {partition: content_sum(0, checksums) for partition, checksums in records_of(cli).items()}
    reported = reported_sums(cli)
    assert reported[0] == found[0]
    assert (reported[1].records, found[1].records) == (1, 1)
    assert reported[1].changed_offset(found[1], 0, 1) == 0
