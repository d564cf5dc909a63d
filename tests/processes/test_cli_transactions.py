"""`ottla produce --transactional`, `ottla consume --isolation` and `ottla txn` as processes, against a running broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ottla.cli.errors import ExitCode
from ottla.client.addresses import parse_addresses
from ottla.client.cluster import Cluster
from ottla.client.groups import OffsetAndMetadata, committed_offsets
from ottla.client.transactions import ConsumerGroupMetadata, TransactionalProducer
from ottla.core.clock import SystemClock
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.files import SystemFiles
from ottla.core.ids import TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from tests.conftest import Broker
from tests.processes.cli_runner import Cli
from tests.support.ottla_process import OttlaProcess
from tests.support.storage import batch

pytestmark = pytest.mark.slow


@pytest.fixture
def cli(broker: Broker, tmp_path: Path) -> Cli:
    return Cli(broker.bootstrap, tmp_path)


@pytest.fixture
def topic(cli: Cli, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)[:200].replace("[", ".").replace("]", "")
    cli.out("topic", "create", name, "--partitions", "2")
    return name


def on_cluster(broker: Broker, work: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with await Cluster.connect(parse_addresses(broker.bootstrap)) as cluster:
            await asyncio.wait_for(work(cluster), 40)

    asyncio.run(run())


def producer_of(cluster: Cluster, name: str, *, first_version: bool = False) -> TransactionalProducer:
    return TransactionalProducer(cluster, name, clock=SystemClock(), first_version=first_version)


def lines(output: bytes) -> list[bytes]:
    return sorted(output.splitlines())


def test_a_transactional_input_is_seen_whole_or_not_at_all(cli: Cli, topic: str) -> None:
    cli.out("produce", topic, "--transactional", f"id-{topic}", stdin=b"a\nb\nc\n")
    assert lines(cli.out("consume", topic)) == [b"a", b"b", b"c"]
    bad = b'{"value":"d"}\n{"value":"e"}\nnot json\n'
    cli.fails("produce", topic, "--input", "json", "--transactional", f"id-{topic}", stdin=bad, code=ExitCode.BAD_INPUT)
    assert lines(cli.out("consume", topic)) == [b"a", b"b", b"c"]
    cli.out("produce", topic, "--transactional", f"id-{topic}", stdin=b"f\n")
    assert lines(cli.out("consume", topic, "--isolation", "read-committed")) == [b"a", b"b", b"c", b"f"]


@pytest.mark.parametrize("first_version", [False, True])
def test_aborted_records_are_for_uncommitted_readers_only(
    cli: Cli, broker: Broker, topic: str, *, first_version: bool
) -> None:
    async def work(cluster: Cluster) -> None:
        async with producer_of(cluster, f"id-{topic}", first_version=first_version) as producer:
            for value, commits in ((b"1", True), (b"2", False), (b"3", True)):
                producer.begin()
                for partition in (0, 1):
                    await producer.send(topic, value=value, partition=partition)
                await (producer.commit() if commits else producer.abort())

    on_cluster(broker, work)
    assert lines(cli.out("consume", topic)) == [b"1", b"1", b"3", b"3"]
    assert lines(cli.out("consume", topic, "--isolation", "read-uncommitted")) == [b"1", b"1", b"2", b"2", b"3", b"3"]
    assert lines(cli.out("consume", topic, "--read-uncommitted"))[2:4] == [b"2", b"2"]


@pytest.mark.parametrize("first_version", [False, True])
def test_offsets_are_committed_with_their_transaction(
    cli: Cli, broker: Broker, topic: str, *, first_version: bool
) -> None:
    tp, group = TopicPartition(topic, 0), f"g-{topic}"

    async def work(cluster: Cluster) -> None:
        async with producer_of(cluster, f"id-{topic}", first_version=first_version) as producer:
            for offset, commits in ((5, True), (7, False)):
                producer.begin()
                await producer.send(topic, value=b"x", partition=0)
                await producer.send_offsets(ConsumerGroupMetadata(group), {tp: OffsetAndMetadata(offset, -1, "")})
                await (producer.commit() if commits else producer.abort())
        assert (await committed_offsets(cluster, group))[tp].offset == 5

    on_cluster(broker, work)


def test_a_second_producer_fences_the_first(broker: Broker, topic: str, cli: Cli) -> None:
    async def work(cluster: Cluster) -> None:
        first, second = producer_of(cluster, f"id-{topic}"), producer_of(cluster, f"id-{topic}")
        await first.init()
        first.begin()
        await (await first.send(topic, value=b"first", partition=0))
        await second.init()
        with pytest.raises(KafkaError) as refused:
            await first.commit()
        assert refused.value.code in {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
        second.begin()
        await second.send(topic, value=b"second", partition=0)
        await second.commit()
        await first.close()
        await second.close()

    on_cluster(broker, work)
    assert cli.out("consume", topic) == b"second\n"


def test_transactions_are_listed_described_and_aborted(broker: Broker, topic: str, cli: Cli) -> None:
    name = f"id-{topic}"

    async def work(cluster: Cluster) -> None:
        producer = producer_of(cluster, name)
        await producer.init()
        producer.begin()
        await (await producer.send(topic, value=b"open", partition=1))
        listed = {each["transactional_id"]: each for each in cli.json("txn", "list", "--state", "Ongoing")}
        assert listed[name]["state"] == "Ongoing"
        assert cli.json("txn", "list", "--longer-than", "1h") == []
        assert [each["transactional_id"] for each in cli.json("txn", "list", name, "--longer-than", "100ms")] == [name]
        described = cli.json("txn", "describe", name)
        assert (described["state"], described["partitions"]) == ("Ongoing", [f"{topic}-1"])
        assert described["producer_id"] == producer.identity.producer_id
        assert cli.json("txn", "hanging", topic, "--older-than", "0.1") == [], "its coordinator knows it"
        assert "would abort" in cli.out("txn", "abort", name, "--dry-run").decode()
        assert cli.json("txn", "describe", name)["state"] == "Ongoing"
        cli.out("txn", "abort", name)
        with pytest.raises(KafkaError):
            await producer.commit()
        await producer.close()

    on_cluster(broker, work)
    assert cli.out("consume", topic) == b""
    ended = cli.json("txn", "describe", name)
    assert (ended["partitions"], ended["open_seconds"]) == ([], None)
    assert name not in {each["transactional_id"] for each in cli.json("txn", "list", "--longer-than", "100ms")}
    assert b"STATE" in cli.out("txn", "list")


def test_an_open_transaction_on_a_partition_is_aborted_by_its_offset(broker: Broker, topic: str, cli: Cli) -> None:
    async def work(cluster: Cluster) -> None:
        producer = producer_of(cluster, f"id-{topic}")
        await producer.init()
        producer.begin()
        await (await producer.send(topic, value=b"open", partition=1))
        await producer.close()

    on_cluster(broker, work)
    cli.out("produce", topic, "-p", "1", stdin=b"later\n")
    assert cli.out("consume", topic) == b""
    cli.fails("txn", "abort", topic, "--partition", "1", "--start-offset", "7", code=ExitCode.NOT_FOUND)
    cli.fails("txn", "abort", topic, "--partition", "1", code=ExitCode.USAGE)
    cli.out("txn", "abort", topic, "--partition", "1", "--start-offset", "0")
    assert cli.out("consume", topic) == b"later\n"


def test_a_transactional_id_or_a_state_that_does_not_exist_is_reported(cli: Cli) -> None:
    assert "no transactional id nothing" in cli.fails("txn", "describe", "nothing", code=ExitCode.NOT_FOUND)
    assert "no transactional id nothing" in cli.fails("txn", "abort", "nothing", code=ExitCode.NOT_FOUND)
    error = cli.fails("txn", "list", "--state", "Sleeping", code=ExitCode.FAILED)
    assert "Sleeping" in error
    assert json.loads(cli.out("txn", "list", "--state", "Dead", "--format", "json")) == []


def test_a_hanging_transaction_is_found_and_aborted(tmp_path: Path) -> None:
    """As it comes with the directory of an older broker: open in the log, and no coordinator knows it."""
    broker = OttlaProcess(tmp_path).start()
    try:
        cli = Cli(broker.bootstrap, tmp_path)
        cli.out("topic", "create", "orders", "--partitions", "2")
        cli.out("produce", "orders", "-p", "1", stdin=b"before\n")
        broker.stop()
        tp = TopicPartition("orders", 1)
        leave_a_transaction_open(broker.data, tp)
        broker.start()
        cli.out("produce", "orders", "-p", "1", stdin=b"after\n")
        assert cli.out("consume", "orders") == b"before\n"
        assert cli.json("txn", "hanging") == [], "its last record is new"
        (found,) = cli.json("txn", "hanging", "ord*", "--older-than", "0.1")
        assert (found["topic"], found["partition"], found["start_offset"]) == ("orders", 1, 1)
        assert (found["producer_id"], found["transactional_id"]) == (4711, None)
        assert b"would abort" in cli.out("txn", "abort", "orders", "-p", "1", "--start-offset", "1", "--dry-run")
        cli.out("txn", "abort", "orders", "-p", "1", "--start-offset", "1")
        assert cli.out("consume", "orders") == b"before\nafter\n"
        assert cli.json("txn", "hanging", "--older-than", "0.1") == []
    finally:
        broker.stop()


def leave_a_transaction_open(data: Path, tp: TopicPartition) -> None:
    """Append a transactional batch to a log of a broker that does not run."""
    identity = dict(line.split("=", 1) for line in (data / "meta.properties").read_text().splitlines() if "=" in line)
    clock = SystemClock()
    directory = LogDirectory.open(SystemFiles(), data, clock, LogConfig(), node_id=1, cluster_id=identity["cluster.id"])
    records = batch(b"open", producer_id=4711, epoch=3, sequence=0, transactional=True, timestamp_ms=clock.wall_ms())
    directory.logs[tp].append(records, leader_epoch=0, now_ms=clock.wall_ms())
    directory.close()
