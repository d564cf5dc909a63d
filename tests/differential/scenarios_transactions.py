"""What both brokers are asked about transactions: whole lives in every version, wrong turns, fencing, timeouts, markers."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import Any

from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode_response
from ottla.wire.schema import Struct
from tests.differential.peer import Peer, passing
from tests.support.batches import batch, numbered
from tests.support.processes import until
from tests.support.wire_client import Answer

CONCURRENT_TRANSACTIONS = 51
TIMEOUT_MS = 60_000
TRANSACTIONAL = 0x10
HEADER_BYTES = 5  # the correlation id, and no tagged fields


class Transaction:
    """One transactional id on one broker; its producer id and epoch follow the answers."""

    def __init__(self, peer: Peer, name: str) -> None:
        self.peer, self.name = peer, f"{peer.stem}-{name}"
        self.producer_id = self.epoch = -1
        self.sequence = 0
        peer.quietly("find_coordinator", 4, key_type=1, coordinator_keys=[self.name])

    @property
    def producer(self) -> dict[str, int]:
        return {"producer_id": self.producer_id, "producer_epoch": self.epoch}

    def init(self, label: str, *, version: int = 5, timeout_ms: int = TIMEOUT_MS, **more: Any) -> Answer:
        fields = {"producer_id": -1, "producer_epoch": -1, **more}
        answer = self.peer.ask(
            label, "init_producer_id", version, transactional_id=self.name, transaction_timeout=timeout_ms, **fields
        )
        self._follow(answer)
        return answer

    def begin(self, timeout_ms: int = TIMEOUT_MS) -> Transaction:
        """Initialize without writing down; an open transaction is aborted first."""

        def is_done() -> bool:
            answer = self.peer.quietly(
                "init_producer_id", 5, transactional_id=self.name, transaction_timeout=timeout_ms, producer_id=-1,
                producer_epoch=-1,
            )  # fmt: skip
            self._follow(answer)
            return bool(answer["error_code"] == 0)

        until(is_done, what="a producer id")
        return self

    def _follow(self, answer: Answer) -> None:
        if answer.get("error_code") == 0 and answer.get("producer_id", -1) >= 0:
            if (self.producer_id, self.epoch) != (answer["producer_id"], answer["producer_epoch"]):
                self.sequence = 0
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]

    def add(self, label: str, topic: str, *indexes: int, version: int = 3, **more: Any) -> Answer:
        fields = {**self.producer, "transactional_id": self.name, **more}
        topics = [{"name": topic, "partitions": list(indexes)}]
        if version >= 4:
            one = {"verify_only": False, **fields, "topics": topics}
            return self.peer.ask(label, "add_partitions_to_txn", version, transactions=[one])
        old = {f"v3_and_below_{key}": value for key, value in fields.items()}
        return self.peer.ask(label, "add_partitions_to_txn", version, v3_and_below_topics=topics, **old)

    def write(self, label: str, topic: str, *, version: int = 11, partition: int = 0, count: int = 2) -> Answer:
        records = batch(
            numbered(count), attributes=TRANSACTIONAL, base_sequence=self.sequence, producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )  # fmt: skip
        self.sequence += count
        parts = [{"index": partition, "records": records}]
        return self.peer.ask(
            label, "produce", version, transactional_id=self.name, acks=-1, timeout=20_000,
            topic_data=[self.peer.naming(topic) | {"partition_data": parts}],
        )  # fmt: skip

    def end(self, label: str, *, committed: bool, version: int = 5, follow: bool = True, **more: Any) -> Answer:
        fields = {**self.producer, "transactional_id": self.name, "committed": committed, **more}
        answer = self.peer.ask(label, "end_txn", version, **fields)
        if follow:
            self._follow(answer)
        return answer

    def state(self) -> Answer:
        return described(self.peer, [self.name])[0]

    def settle(self) -> None:
        """Wait until the markers are written."""
        until(lambda: not self.state()["transaction_state"].startswith("Prepare"), what="the markers")

    def describe(self, label: str) -> None:
        describe(self.peer, label, [self.name])


def describe(peer: Peer, label: str, names: list[str]) -> None:
    """DescribeTransactions, noted."""
    until(lambda: not passing(described(peer, names)), what="the coordinator")
    peer.note(label, "describe_transactions", 0, described(peer, names))


def described(peer: Peer, names: list[str]) -> list[Answer]:
    """DescribeTransactions; kio cannot read its answer, because the start of no transaction is -1. Sets have no order."""
    peer.wire.send("describe_transactions", 0, transactional_ids=names)
    answer = decode_response(ApiKey.DESCRIBE_TRANSACTIONS, 0, peer.wire.receive_frame(), HEADER_BYTES)
    found: list[Answer] = [_as_answer(state) for state in answer.transaction_states]
    for state in found:
        state["topics"].sort(key=itemgetter("topic"))
        for topic in state["topics"]:
            topic["partitions"].sort()
    return found


def _as_answer(value: Any) -> Any:
    if isinstance(value, Struct):
        return {field.name: _as_answer(getattr(value, field.name)) for field in value.WIRE}
    return [_as_answer(item) for item in value] if isinstance(value, list) else value


def transactions_of_all_versions(peer: Peer) -> None:
    """Commits and aborts, their retries and their opposites, in every version."""
    topic = peer.topic("tx", partitions=2)
    for version in peer.each("end_txn"):
        it = Transaction(peer, f"life-{version}")
        it.init("init", version=peer.near("init_producer_id", version))
        it.describe("initialized")
        for committed in (True, False):
            word = "commit" if committed else "abort"
            it.add("add", topic, 0, 1, version=min(version, 3))
            it.write("write", topic)
            it.describe("ongoing")
            before = it.producer
            it.end(word, committed=committed, version=version)
            it.settle()
            it.describe(f"after a {word}")
            it.end(f"{word} again", committed=committed, version=version, follow=False, **before)
            it.end(f"the opposite of a {word}", committed=not committed, version=version, follow=False, **before)
            it.settle()
            it.end(f"commit of nothing after a {word}", committed=True, version=version)
            it.settle()
            it.end(f"abort of nothing after a {word}", committed=False, version=version)
            it.settle()
            it.describe(f"after an abort of nothing after a {word}")


def first_ends(peer: Peer) -> None:
    """Ends before anything began, of the wrong producer, of an id that is not known or not allowed."""
    topic = peer.topic("txe")
    for version in peer.each("end_txn"):
        for committed in (True, False):
            it = Transaction(peer, f"ends-{version}-{committed}").begin()
            it.end("an epoch before", committed=committed, version=version, producer_epoch=it.epoch - 1)
            it.end("an epoch after", committed=committed, version=version, producer_epoch=it.epoch + 1)
            it.end("another producer", committed=committed, version=version, producer_id=it.producer_id + 77_777)
            it.end("an unknown id", committed=committed, version=version, transactional_id=f"{peer.stem}-none")
            it.end("no id", committed=committed, version=version, transactional_id="")
            it.end("nothing began", committed=committed, version=version)
            it.settle()
            it.add("add", topic, 0)
            it.end("an epoch before, ongoing", committed=committed, version=version, producer_epoch=it.epoch - 1)
            it.end("an epoch after, ongoing", committed=committed, version=version, producer_epoch=it.epoch + 1)
            it.end("end", committed=committed, version=version)


def partitions_of_transactions(peer: Peer) -> None:
    """Partitions that are not there, internal topics, none at all, of the wrong producer; many at once and verified."""
    topic = peer.topic("txp", partitions=2)
    it = Transaction(peer, "partitions").begin()
    for version in peer.each("add_partitions_to_txn"):
        it.add("good", topic, 0, version=version)
        it.add("once more", topic, 0, version=version)
        it.add("good and not there", topic, 0, 9, version=version)
        it.add("no such topic", peer.stem + "-none", 0, version=version)
        it.add("an internal topic", "__consumer_offsets", 0, version=version)
        it.add("none", topic, version=version)
        it.add("twice the same", topic, 1, 1, version=version)
        it.add("an epoch before", topic, 0, version=version, producer_epoch=it.epoch - 1)
        it.add("an epoch after", topic, 0, version=version, producer_epoch=it.epoch + 1)
        it.add("another producer", topic, 0, version=version, producer_id=it.producer_id + 77_777)
        it.add("an unknown id", topic, 0, version=version, transactional_id=f"{peer.stem}-none")
        it.add("no id", topic, 0, version=version, transactional_id="")
        if version >= 4:
            it.add("verify what was added", topic, 0, version=version, verify_only=True)
            it.add("verify of an epoch before", topic, 0, version=version, verify_only=True, producer_epoch=9)
            it.add("verify of another producer", topic, 0, version=version, verify_only=True, producer_id=77_777_777)
            it.add("verify of an unknown id", topic, 0, version=version, verify_only=True, transactional_id="none")
            it.add("verify without an id", topic, 0, version=version, verify_only=True, transactional_id="")
            other = Transaction(peer, f"verify-{version}").begin()
            other.add("verify what was not added", topic, 0, version=version, verify_only=True)
    for version in peer.each("add_offsets_to_txn"):
        for label, more in (
            ("a group", {}),
            ("no group", {"group_id": ""}),
            ("an epoch before", {"producer_epoch": it.epoch - 1}),
            ("another producer", {"producer_id": it.producer_id + 77_777}),
            ("an unknown id", {"transactional_id": f"{peer.stem}-none"}),
            ("no id", {"transactional_id": ""}),
        ):
            fields: dict[str, Any] = {"transactional_id": it.name, "group_id": f"{peer.stem}-group", **it.producer}
            fields |= more
            peer.ask(label, "add_offsets_to_txn", version, **fields)
    it.end("end", committed=True)
    it.settle()


def producers_of_transactions(peer: Peer) -> None:
    """New producers of an id, producers that continue, timeouts that are not allowed, and who is fenced."""
    topic = peer.topic("txi")
    for version in peer.each("init_producer_id"):
        it = Transaction(peer, f"init-{version}")
        for timeout_ms in (0, -1, 900_001, 2**31 - 1):
            it.init(f"timeout {timeout_ms}", version=version, timeout_ms=timeout_ms)
        it.init("first", version=version)
        it.init("second", version=version)
        if version >= 3:
            current = it.producer
            it.init("continues", version=version, **current)
            it.init("continues, a retry", version=version, **current)
            it.init("continues with a fenced epoch", version=version, **(current | {"producer_epoch": 0}))
            it.init("continues with another id", version=version, producer_id=77_777_777, producer_epoch=0)
            it.init("an id without an epoch", version=version, producer_id=it.producer_id)
            new = Transaction(peer, f"init-new-{version}")
            new.init("an expired producer continues", version=version, producer_id=77_777_777, producer_epoch=3)
        it.add("add", topic, 0)
        old: dict[str, Any] = it.producer
        it.init("while a transaction is open", version=version)
        it.settle()
        it.describe("fenced")
        it.begin()
        fenced: dict[str, Any] = {**old, "version": peer.near("end_txn", version), "follow": False}
        it.end("commit of a fenced producer", committed=True, **fenced)
        it.add("add of a fenced producer", topic, 0, version=min(version, 3), **old)


def timed_out_transactions(peer: Peer) -> None:
    """A transaction is aborted after its timeout; what its producer gets then."""
    topic = peer.topic("txt")
    both = [(Transaction(peer, f"timeout-{version}").begin(timeout_ms=1_000), version) for version in (4, 5)]
    for it, _ in both:
        it.add("add", topic, 0)
        it.write("write", topic)
    began = time.monotonic()
    until(lambda: all(it.state()["transaction_state"] == "CompleteAbort" for it, _ in both), what="the timeout")
    assert time.monotonic() - began < 13
    for it, version in both:
        it.describe("timed out")
        it.add("add after the timeout", topic, 0)
        it.end("abort after the timeout", committed=False, version=version, follow=False)
        it.end("commit after the timeout", committed=True, version=version, follow=False)
        it.init("continue after the timeout", **it.producer)
        it.add("add after that", topic, 0)
        it.end("commit", committed=True, version=version)
        it.settle()
    peer.ask("what is committed", "list_offsets", 5, replica_id=-1, isolation_level=1,
             topics=[{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}])  # fmt: skip


def described_and_listed(peer: Peer) -> None:
    """Ids that are not known, filters by state, producer, age and pattern."""
    topic = peer.topic("txl")
    it, other = Transaction(peer, "listed").begin(), Transaction(peer, "other").begin()
    it.add("add", topic, 0)
    it.describe("ongoing")
    for label, names in (
        ("unknown", [peer.stem + "-none"]),
        ("no name", [""]),
        ("several", [it.name, other.name, it.name]),
        ("none", []),
    ):
        describe(peer, label, names)
    ours = f"{peer.stem}-(listed|other)"
    for version in peer.each("list_transactions"):
        fields: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        fields["transactional_id_pattern"] = ours
        by_id = {"producer_id_filters": [it.producer_id]}
        peer.ask("of a producer", "list_transactions", version, **(fields | by_id))
        peer.ask(
            "of a producer and a state", "list_transactions", version, **(fields | by_id | {"state_filters": ["Empty"]})
        )
        peer.ask("older", "list_transactions", version, **(fields | by_id | {"duration_filter": 600_000}))
        if version >= 2:
            peer.ask("of a pattern", "list_transactions", version, **fields)
            for pattern in ("", f"{peer.stem}-lis", f"{peer.stem}-lis.*", "(", "a**"):
                more = by_id | {"transactional_id_pattern": pattern}
                peer.ask(f"of the pattern {pattern[-6:]!r}", "list_transactions", version, **(fields | more))
    it.end("end", committed=False)
    it.settle()


def written_markers(peer: Peer) -> None:
    """Markers from another coordinator: good, fenced, of an old epoch, for partitions that are not there."""
    topic = peer.topic("txm")
    for version in peer.each("write_txn_markers"):
        producer = 88_000_000 + version

        def write(
            label: str, epoch: int, coordinator: int, *, version: int = version, producer: int = producer
        ) -> None:
            marker = {
                "producer_id": producer, "producer_epoch": epoch, "transaction_result": True,
                "coordinator_epoch": coordinator, "transaction_version": 2 if version >= 2 else 0,
                "topics": [
                    {"name": topic, "partition_indexes": [0, 9]},
                    {"name": peer.stem + "-none", "partition_indexes": [0]},
                ],
            }  # fmt: skip
            peer.ask(label, "write_txn_markers", version, markers=[marker])

        write("first", 5, 3)
        write("again", 5, 3)
        write("the next epoch", 6, 3)
        write("a fenced coordinator", 7, 2)
        write("an old epoch", 4, 3)
        peer.ask("none", "write_txn_markers", version, markers=[])


def transactional_produce(peer: Peer) -> None:
    """Batches before, in and after a transaction: duplicates, gaps, old epochs, and what readers and tools see of them."""
    for version in peer.each("produce"):
        topic = peer.topic(f"txw-{version}", partitions=3)
        it = Transaction(peer, f"write-{version}").begin()
        strangers: dict[str, Any] = {"transactional_id": f"{peer.stem}-none"}

        def sent(
            label: str,
            sequence: int,
            *,
            version: int = version,
            it: Transaction = it,
            topic: str = topic,
            partition: int = 0,
            is_transactional: bool = True,
            epoch: int | None = None,
            producer_id: int | None = None,
            **more: Any,
        ) -> None:
            records = batch(
                numbered(2), attributes=TRANSACTIONAL if is_transactional else 0, base_sequence=sequence,
                producer_id=it.producer_id if producer_id is None else producer_id,
                producer_epoch=it.epoch if epoch is None else epoch,
            )  # fmt: skip
            parts = [{"index": partition, "records": records}]
            fields: dict[str, Any] = {"transactional_id": it.name, "acks": -1, "timeout": 20_000, **more}
            peer.ask(label, "produce", version, **fields, topic_data=[peer.naming(topic) | {"partition_data": parts}])

        sent("without a transactional id", 0, transactional_id=None)
        sent("of an unknown transactional id", 0, partition=1, **strangers)
        sent("of another producer", 0, partition=1, producer_id=it.producer_id + 77_777)
        sent("of an epoch to come", 0, partition=1, epoch=it.epoch + 1)
        if version < 12:  # later versions add the partition
            sent("before the partition is added", 0)
            it.add("add", topic, 0, 1)
            it.settle()
        marker = {
            "producer_id": it.producer_id + 88_888, "producer_epoch": 7, "transaction_result": True,
            "coordinator_epoch": 3, "transaction_version": 0, "topics": [{"name": topic, "partition_indexes": [2]}],
        }  # fmt: skip
        peer.ask("a later epoch of another producer", "write_txn_markers", 1, markers=[marker])
        sent("of a producer that is fenced there", 0, partition=2, producer_id=it.producer_id + 88_888, epoch=6)
        sent("first, not from zero", 4, partition=1)
        sent("first", 0)
        sent("second", 2)
        sent("first again", 0)
        sent("a gap", 8)
        sent("outside of the transaction", 4, is_transactional=False)
        sent("no such partition", 0, partition=9)
        read_back(peer, f"open, version {version}", topic)
        it.end("commit", committed=True, version=5 if version >= 12 else 4)
        it.settle()
        old_epoch = it.epoch - 1
        sent("after the end, of an epoch before", 4, epoch=old_epoch)
        if version < 12:
            sent("after the end", 4)
            it.add("add again", topic, 0)
        sent("in the next transaction", 0 if version >= 12 else 4)
        it.end("abort", committed=False, version=5 if version >= 12 else 4)
        it.settle()
        read_back(peer, f"ended, version {version}", topic)


def read_back(peer: Peer, label: str, topic: str) -> None:
    """Note what a reader of each isolation, ListOffsets and DescribeProducers see of the first partition."""
    for isolation in (0, 1):
        asked = {
            "partition": 0, "fetch_offset": 0, "current_leader_epoch": -1, "last_fetched_epoch": -1,
            "log_start_offset": -1, "partition_max_bytes": 1 << 20,
        }  # fmt: skip
        peer.ask(
            f"{label}: isolation {isolation}", "fetch", 12, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=1 << 20,
            isolation_level=isolation, rack_id="", session_id=0, session_epoch=-1, forgotten_topics_data=[],
            topics=[peer.naming(topic) | {"partitions": [asked]}],
        )  # fmt: skip
        for timestamp in (-1, 0):
            part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
            peer.ask(
                f"{label}: isolation {isolation}, time {timestamp}", "list_offsets", 7, replica_id=-1,
                isolation_level=isolation, topics=[{"name": topic, "partitions": [part]}],
            )  # fmt: skip
    peer.ask(f"{label}: producers", "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
