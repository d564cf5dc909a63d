"""`ottla mirror` between two running brokers, as a process that is killed, stopped and started again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.errors import ExitCode
from ottla.client.addresses import parse_addresses
from ottla.client.cluster import Cluster
from ottla.client.groups import commit_offsets, committed_offsets
from ottla.client.producer import Producer
from ottla.client.transactions import TransactionalProducer
from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition
from ottla.records.builder import NewRecord
from tests.conftest import Broker
from tests.processes.cli_runner import Cli, program
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.topics import create_topic, read_with_librdkafka

pytestmark = pytest.mark.slow

HEADERS = [("a", b"1"), ("a", None), ("é", b"\xff")]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:100]


@pytest.fixture
def cli(broker: Broker, tmp_path: Path) -> Cli:
    return Cli(broker.bootstrap, tmp_path)


def on_cluster(bootstrap: str, work: Callable[[Cluster], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with await Cluster.connect(parse_addresses(bootstrap)) as cluster:
            return await asyncio.wait_for(work(cluster), 40)

    return asyncio.run(run())


def write(bootstrap: str, topic: str, records: list[NewRecord], *, partition: int = 0) -> None:
    async def work(cluster: Cluster) -> None:
        async with Producer(cluster, clock=SystemClock()) as producer:
            await producer.send_many(topic, records, partitions=[partition] * len(records))

    on_cluster(bootstrap, work)


def numbered(first: int, end: int) -> list[NewRecord]:
    return [NewRecord(b"k", str(number).encode(), 1_600_000_000_000 + number) for number in range(first, end)]


def options(source: str, target: str, name: str) -> tuple[str, ...]:
    return "--from", source, "--to", target, "--name", name


def values(bootstrap: str, topic: str, end_offset: int, *, partition: int = 0) -> list[int]:
    rows = read_with_librdkafka(bootstrap, topic, end_offset=end_offset, partition=partition, committed=True)
    return [int(row.value or b"-1") for row in rows]


def end_of(bootstrap: str, topic: str, partition: int = 0) -> int:
    from ottla.client.offsets import end_offsets

    tp = TopicPartition(topic, partition)
    return int(on_cluster(bootstrap, lambda cluster: end_offsets(cluster, [tp]))[tp])


@contextmanager
def running_mirror(cli: Cli, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*program(), "mirror", "run", *arguments], env=cli.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_copy_has_the_same_records_in_the_same_partitions(
    cli: Cli, broker: Broker, ottla_server: OttlaProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=3, config={"segment.bytes": "1048576"})
    found = [
        NewRecord(None, None, 1_600_000_000_000),
        NewRecord(b"", b"", 1_600_000_000_001, HEADERS),
        NewRecord(b"k", b"v", 1_500_000_000_000, [("x", b"")]),
    ]
    for partition in range(3):
        write(broker.bootstrap, topic, found * (partition + 1), partition=partition)
    progress = cli.json("mirror", "run", topic, *options(broker.bootstrap, ottla_server.bootstrap, topic), "--once")
    assert (progress["records"], progress["lag"]) == (18, 0)
    for partition in range(3):
        count = 3 * (partition + 1)
        want = read_with_librdkafka(broker.bootstrap, topic, end_offset=count, partition=partition)
        got = read_with_librdkafka(ottla_server.bootstrap, topic, end_offset=count, partition=partition, committed=True)
        assert got == want
    settings = Cli(ottla_server.bootstrap, cli.home).json("config", "describe", f"topic/{topic}")
    assert "1048576" in str(settings)


def test_aborted_records_are_not_copied_and_the_lag_becomes_0(
    cli: Cli, broker: Broker, ottla_server: OttlaProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)

    async def work(cluster: Cluster) -> None:
        async with TransactionalProducer(cluster, topic, clock=SystemClock()) as producer:
            for number in range(6):
                producer.begin()
                await producer.send(topic, value=str(number).encode())
                await producer.flush()
                await (producer.commit() if number % 2 else producer.abort())

    on_cluster(broker.bootstrap, work)
    ends = options(broker.bootstrap, ottla_server.bootstrap, topic)
    cli.run("mirror", "run", topic, *ends, "--once")
    assert values(ottla_server.bootstrap, topic, end_of(ottla_server.bootstrap, topic) - 1) == [1, 3, 5]
    (row,) = cli.json("mirror", "lag", topic, *ends)
    assert (row["position"], row["end_offset"], row["lag"]) == (12, 12, 0)


def test_a_mirror_that_is_killed_goes_on_without_loss_or_duplicates(
    cli: Cli, broker: Broker, ottla_server: OttlaProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, partitions=2)
    ends = options(broker.bootstrap, ottla_server.bootstrap, topic)
    written = 0
    for kill in range(4):
        for partition in range(2):
            write(broker.bootstrap, topic, numbered(written, written + 5000), partition=partition)
        written += 5000
        with running_mirror(cli, topic, *ends, "--commit-every", "0.1") as process:
            assert process.stderr is not None
            before = kill * 5000

            def has_begun(after: int = before) -> bool:
                rows = cli.json("mirror", "lag", topic, *ends)
                return all(row["position"] > after for row in rows)

            until(has_begun, timeout_s=30)
            process.kill()
    cli.run("mirror", "run", topic, *ends, "--once")
    for partition in range(2):
        end = end_of(ottla_server.bootstrap, topic, partition)
        got = values(ottla_server.bootstrap, topic, end - 1, partition=partition)
        assert got == list(range(written))


def test_committed_offsets_are_translated_and_only_move_forward(
    cli: Cli, broker: Broker, ottla_server: OttlaProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    tp = TopicPartition(topic, 0)
    ends = (*options(broker.bootstrap, ottla_server.bootstrap, topic), "--group", f"{topic}*")
    for number in range(3):  # a marker of the mirror after each ten records
        write(broker.bootstrap, topic, numbered(10 * number, 10 * number + 10))
        cli.run("mirror", "run", topic, *ends, "--once")
    on_cluster(broker.bootstrap, lambda cluster: commit_offsets(cluster, f"{topic}-g", {tp: 25}))
    cli.run("mirror", "run", topic, *ends, "--once")
    moved = on_cluster(ottla_server.bootstrap, lambda cluster: committed_offsets(cluster, f"{topic}-g"))[tp].offset
    rows = read_with_librdkafka(ottla_server.bootstrap, topic, end_offset=end_of(ottla_server.bootstrap, topic) - 1)
    assert [row.value for row in rows if row.offset >= moved] == [b"25", b"26", b"27", b"28", b"29"]
    on_cluster(broker.bootstrap, lambda cluster: commit_offsets(cluster, f"{topic}-g", {tp: 5}))
    cli.run("mirror", "run", topic, *ends, "--once")
    after = on_cluster(ottla_server.bootstrap, lambda cluster: committed_offsets(cluster, f"{topic}-g"))[tp].offset
    assert after == moved


def test_two_mirrors_in_both_directions_copy_nothing_back(
    cli: Cli, broker: Broker, ottla_server: OttlaProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, f"{topic}-a")
    create_topic(ottla_server.bootstrap, f"{topic}-b")
    write(broker.bootstrap, f"{topic}-a", numbered(0, 10))
    write(ottla_server.bootstrap, f"{topic}-b", numbered(0, 10))
    there = ("--from", broker.bootstrap, "--to", ottla_server.bootstrap, "--rename", "one.{topic}")
    back = ("--from", ottla_server.bootstrap, "--to", broker.bootstrap, "--rename", "two.{topic}")
    for _ in range(2):
        cli.run("mirror", "run", f"*{topic}*", *there, "--name", f"{topic}-1", "--once")
        cli.run("mirror", "run", f"*{topic}*", *back, "--name", f"{topic}-2", "--once")
    here = {name for name in cli.out("topic", "list").decode().split() if topic in name and "mirror-" not in name}
    other = Cli(ottla_server.bootstrap, cli.home)
    there_too = {
        name for name in other.out("topic", "list").decode().split() if topic in name and "mirror-" not in name
    }
    assert here == {f"{topic}-a", f"two.{topic}-b"}
    assert there_too == {f"{topic}-b", f"one.{topic}-a"}


def test_partitions_that_are_added_are_copied_too(
    cli: Cli, broker: Broker, ottla_server: OttlaProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    ends = options(broker.bootstrap, ottla_server.bootstrap, topic)
    cli.run("mirror", "run", topic, *ends, "--once")
    cli.out("topic", "alter", topic, "--partitions", "3")
    write(broker.bootstrap, topic, numbered(0, 7), partition=2)
    cli.run("mirror", "run", topic, *ends, "--once")
    assert values(ottla_server.bootstrap, topic, 7, partition=2) == list(range(7))


def test_a_second_mirror_of_the_same_name_takes_over(
    cli: Cli, broker: Broker, ottla_server: OttlaProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, numbered(0, 10))
    ends = options(broker.bootstrap, ottla_server.bootstrap, topic)
    with running_mirror(cli, topic, *ends, "--commit-every", "0.1") as first:
        until(lambda: cli.json("mirror", "lag", topic, *ends)[0]["position"] == 10, timeout_s=30)
        write(broker.bootstrap, topic, numbered(10, 20))
        cli.run("mirror", "run", topic, *ends, "--once")
        write(broker.bootstrap, topic, numbered(20, 30))
        _, errors = first.communicate(timeout=40)
        assert first.returncode == ExitCode.FAILED, errors
        assert b"another process mirrors as ottla-mirror-" in errors
    cli.run("mirror", "run", topic, *ends, "--once")
    end = end_of(ottla_server.bootstrap, topic)
    assert values(ottla_server.bootstrap, topic, end - 1) == list(range(30))


def test_ctrl_c_ends_a_mirror_after_its_transaction(
    cli: Cli, broker: Broker, ottla_server: OttlaProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, numbered(0, 10))
    ends = options(broker.bootstrap, ottla_server.bootstrap, topic)
    with running_mirror(cli, topic, *ends, "--format", "json") as process:
        until(lambda: cli.json("mirror", "lag", topic, *ends)[0]["position"] == 10, timeout_s=30)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
        assert process.returncode == ExitCode.OK, errors
        assert b'"records": 10' in out


def test_a_topic_is_not_copied_into_itself(cli: Cli, broker: Broker, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    write(broker.bootstrap, topic, numbered(0, 10))
    ends = options(broker.bootstrap, broker.bootstrap, topic)
    done = cli.run("mirror", "run", topic, *ends, "--once", code=ExitCode.USAGE)
    assert f"topic {topic} would be copied into itself" in done.stderr.decode()
    assert end_of(broker.bootstrap, topic) == 10
    cli.run("mirror", "run", topic, *ends, "--once", "--rename", "copy.{topic}")
    assert values(broker.bootstrap, f"copy.{topic}", 10) == list(range(10))


def test_a_mirror_that_finds_no_topic_says_so(cli: Cli, broker: Broker, ottla_server: OttlaProcess, topic: str) -> None:
    ends = options(broker.bootstrap, ottla_server.bootstrap, topic)
    assert b"no topics to mirror" in cli.run("mirror", "run", topic, *ends, "--once").stderr


def test_an_absent_cluster_is_named_by_the_option(cli: Cli) -> None:
    ends = ("--from", "127.0.0.1:1", "--to", cli.bootstrap, "--timeout", "3")
    for command in ("run", "lag"):
        assert "check --from or --to" in cli.fails("mirror", command, *ends, code=ExitCode.CANNOT_CONNECT)


def test_a_mirror_without_both_clusters_says_what_is_missing(cli: Cli) -> None:
    done = cli.run("mirror", "run", "--from", cli.bootstrap, code=ExitCode.USAGE)
    assert b"name both clusters" in done.stderr
    done = cli.run("mirror", "run", *options(cli.bootstrap, cli.bootstrap, "x"), "--rename", "x", code=ExitCode.USAGE)
    assert b"has no {topic}" in done.stderr
