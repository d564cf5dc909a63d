"""Transactions that Apache Kafka had not finished when it was killed, found by Ottla in Kafka's directory, and the reverse."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.cli.main import run as ottla
from ottla.internal_topics.partitioning import partition_of
from ottla.records.batch import split
from ottla.records.builder import NewRecord, build_batch
from ottla.records.record_reader import read_records
from ottla.transactions import records
from ottla.transactions.metadata import TransactionMetadata, TransactionState, TransactionVersion
from tests.differential.peer import Peer
from tests.differential.scenarios_transactions import Transaction
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.real_kafka import RealKafka

pytestmark = [pytest.mark.external, pytest.mark.slow]

STATE_PARTITIONS = 3
SETTINGS = {"transaction.state.log.num.partitions": str(STATE_PARTITIONS), "group.initial.rebalance.delay.ms": "0"}
STEM = "k"


def begin_transactions(peer: Peer) -> str:
    """One committed, one aborted, one that is open, one to be decided, one whose timeout is over soon."""
    topic = peer.topic("web", partitions=5)
    for index, name in enumerate(("committed", "aborted", "open", "decided", "soon")):
        it = Transaction(peer, name).begin(timeout_ms=3_000 if name == "soon" else 900_000)
        it.add("add", topic, index, version=5)
        it.write("write", topic, partition=index)
        if name in {"committed", "aborted"}:
            it.end("end", committed=name == "committed")
            it.settle()
    return topic


def last_stable_offsets(peer: Peer, topic: str) -> list[tuple[int, int]]:
    """For each partition: where readers of committed records stop, and where all others do."""
    ends = []
    for level in (1, 0):
        asked = [{"partition_index": index, "timestamp": -1} for index in range(5)]
        answer = peer.quietly(
            "list_offsets", 5, replica_id=-1, isolation_level=level, topics=[{"name": topic, "partitions": asked}]
        )
        parts = sorted(answer["topics"][0]["partitions"], key=lambda each: int(each["partition_index"]))
        ends.append([int(part["offset"]) for part in parts])
    return list(zip(*ends, strict=True))


def states(peer: Peer) -> dict[str, str]:
    names = ("committed", "aborted", "open", "decided", "soon")
    return {name: str(Transaction(peer, name).state()["transaction_state"]) for name in names}


def state_log(data: Path, transactional_id: str) -> Path:
    index = partition_of(transactional_id, STATE_PARTITIONS)
    return data / f"__transaction_state-{index}" / "00000000000000000000.log"


def decide(data: Path, transactional_id: str) -> None:
    """Append the decision to commit, which a Kafka that was killed a moment later had written."""
    path = state_log(data, transactional_id)
    found: TransactionMetadata | None = None
    log = bytearray(path.read_bytes())
    end = 0
    for at, header in split(memoryview(log)):
        end = header.last_offset + 1
        for record in read_records(memoryview(log)[at : at + header.size_bytes]):
            assert record.key is not None
            decoded = records.decode(record.key, record.value)
            assert decoded is not None
            if decoded.transactional_id == transactional_id:
                found = decoded.metadata
    assert found is not None
    assert found.state is TransactionState.ONGOING
    decided = replace(
        found,
        state=TransactionState.PREPARE_COMMIT,
        producer_epoch=found.producer_epoch + 1,
        client_version=TransactionVersion.TV_2,
    )
    value = records.transaction_value(decided)
    batch = build_batch(
        [NewRecord(records.transaction_key(transactional_id), value, timestamp_ms=found.updated_wall_ms)]
    )
    batch[:8] = end.to_bytes(8, "big")
    batch[12:16] = (0).to_bytes(4, "big")  # the leader epoch
    with path.open("ab") as file:
        file.write(batch)


@pytest.fixture
def killed_kafka(kafka_jars: Path, tmp_path: Path) -> tuple[Path, str]:
    kafka = RealKafka(kafka_jars, tmp_path / "kafka", node_id=3, settings=SETTINGS).start()
    peer = Peer(kafka.port, {}, STEM)
    topic = begin_transactions(peer)
    peer.close()
    kafka.kill()
    return kafka.data, topic


def test_transactions_that_kafka_left_open_are_finished_or_timed_out(
    killed_kafka: tuple[Path, str], tmp_path: Path
) -> None:
    data, topic = killed_kafka
    server = OttlaProcess(
        tmp_path / "ottla", options=["-o", "transaction.abort.timed.out.transaction.cleanup.interval.ms=500"]
    )
    shutil.copytree(data, server.data)
    decide(server.data, f"{STEM}-decided")
    server.start()
    try:
        peer = Peer(server.port, {}, STEM)
        until(lambda: states(peer)["decided"] == "CompleteCommit", what="the completion")
        until(lambda: states(peer)["soon"] == "CompleteAbort", what="the timeout")
        assert states(peer) == {
            "committed": "CompleteCommit",
            "aborted": "CompleteAbort",
            "open": "Ongoing",
            "decided": "CompleteCommit",
            "soon": "CompleteAbort",
        }
        # Two records and a marker, but the open transaction, which holds its readers back.
        assert last_stable_offsets(peer, topic) == [(3, 3), (3, 3), (0, 2), (3, 3), (3, 3)]
        it = Transaction(peer, "open").begin()  # its producer is started again, which aborts what it left
        assert last_stable_offsets(peer, topic)[2] == (3, 3)
        it.add("add", topic, 2, version=5)
        it.write("write", topic, partition=2)
        assert it.end("end", committed=True)["error_code"] == 0
        it.settle()
        assert last_stable_offsets(peer, topic)[2] == (6, 6)
        peer.close()
    finally:
        server.stop()
    server.assert_log_is_clean()


def test_kafka_goes_on_with_the_transactions_of_an_exported_directory(kafka_jars: Path, tmp_path: Path) -> None:
    server = OttlaProcess(
        tmp_path / "ottla", options=["-o", f"transaction.state.log.num.partitions={STATE_PARTITIONS}"]
    ).start()
    peer = Peer(server.port, {}, STEM)
    topic = begin_transactions(peer)
    peer.close()
    server.kill()
    decide(server.data, f"{STEM}-decided")
    assert ottla(["cluster", "export-kafka", str(server.data)]) == 0
    settings = {
        **SETTINGS,
        "log.dirs": str(server.data),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    kafka = RealKafka(kafka_jars, tmp_path / "kafka", settings=settings)
    kafka.data = server.data
    kafka.start()
    try:
        peer = Peer(kafka.port, {}, STEM)
        until(lambda: states(peer)["decided"] == "CompleteCommit", what="the completion")
        until(lambda: states(peer)["soon"] == "CompleteAbort", what="the timeout")
        assert states(peer)["committed"] == "CompleteCommit"
        assert states(peer)["aborted"] == "CompleteAbort"
        assert last_stable_offsets(peer, topic) == [(3, 3), (3, 3), (0, 2), (3, 3), (3, 3)]
        peer.close()
    finally:
        kafka.stop()
