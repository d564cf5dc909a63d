"""What both brokers are asked about the data path: connection, metadata, produce, fetch, offsets, producers."""

from __future__ import annotations

import struct
import time
from typing import Any
from uuid import UUID

from tests.differential.peer import Peer, body_of
from tests.support.batches import AT_MS, Written, batch, numbered
from tests.support.wire_client import KEYS, NO_ID, Answer

OTHER_ID = "11111111-2222-3333-4444-555555555555"
WAIT_MS = 250


def kept_topic(peer: Peer, name: str, *, partitions: int = 1, config: dict[str, str] | None = None) -> str:
    """Make a topic whose old records stay: either broker may check retention between two requests."""
    return peer.topic(name, partitions=partitions, config={"retention.ms": "-1", **(config or {})})


def ranges(answer: Any) -> Any:
    """An ApiVersions answer with its list as a table, so that a missing API is one difference."""
    if not isinstance(answer, dict):
        return answer
    table = {key["api_key"]: (key["min_version"], key["max_version"]) for key in answer["api_keys"]}
    features = {each["name"]: each for each in answer.get("supported_features", [])}
    final = {each["name"]: each for each in answer.get("finalized_features", [])}
    replaced: Answer = {"api_keys": table}
    if "supported_features" in answer:
        replaced |= {"supported_features": features, "finalized_features": final}
    return answer | replaced


def api_versions(peer: Peer) -> None:
    """Pitfalls 1 to 6: every version, unknown ones, asked twice, a client's name that is none."""
    for version in peer.each("api_versions"):
        for label in ("first", "again"):
            answer = peer.quietly("api_versions", version, client_software_name="a-name", client_software_version="1.0")
            peer.note(f"listed, {label}", "api_versions", version, ranges(answer))
    for version in (6, 99, 32767):
        peer.raw(
            "an unknown version",
            KEYS["api_versions"],
            version,
            b"\0\x02a\x021\0",
            lambda f: ranges(body_of("api_versions", 0)(f)),
        )
    for name in ("", "-a", "a b", "a-", "a.b-c9"):
        for version in (3, 4):
            answer = peer.quietly("api_versions", version, client_software_name=name, client_software_version="1")
            peer.note(f"client name {name!r}", "api_versions", version, answer["error_code"])
    peer.raw("negative version", KEYS["api_versions"], -1, b"", lambda f: ranges(body_of("api_versions", 0)(f)))


def expected_nodes(peer: Peer) -> None:
    """KIP-1242: the cluster and the node that a client expects, right, wrong, and one without the other."""
    cluster = peer.quietly("metadata", 12, topics=[])["cluster_id"]
    for version in (each for each in peer.each("api_versions") if each >= 5):
        for label, cluster_id, node_id in (
            ("both", cluster, 1),
            ("another node", cluster, 2),
            ("another cluster", "another", 1),
            ("no cluster", None, 1),
            ("no node", cluster, -1),
            ("an empty cluster", "", 1),
            ("neither", None, -1),
        ):
            fields = {"client_software_name": "a-name", "client_software_version": "1", "cluster_id": cluster_id}
            answer = peer.quietly("api_versions", version, node_id=node_id, **fields)
            kept = {"error_code": answer["error_code"], "apis": bool(answer["api_keys"])}
            peer.note(label, "api_versions", version, kept)


def unsupported_versions(peer: Peer) -> None:
    """Pitfall 8: a version above and below what is served, and an unknown API."""
    for api, (low, high) in sorted(peer.versions.items()):
        if api == "api_versions":
            continue
        for version in (low - 1, 99):
            if version >= 0:
                peer.raw(
                    "unsupported version", KEYS[api], version, bytes(64), body_of(api, min(max(version, low), high))
                )
    peer.raw("unknown api", 999, 0, bytes(16), bytes)


def metadata(peer: Peer) -> None:
    """Null and empty lists, unknown and wrong names, ids, authorised operations."""
    name = kept_topic(peer, "m", partitions=3)
    for version in peer.each("metadata"):
        more: dict[str, Any] = {"allow_auto_topic_creation": False}
        peer.ask("one topic", "metadata", version, topics=[peer.naming(name) | {"topic_id": NO_ID}], **more)
        if version >= 1:
            peer.ask("no topic", "metadata", version, topics=[], **more)
        everything = peer.quietly("metadata", version, topics=None if version else [], **more)
        everything["topics"] = [each for each in everything["topics"] if each["name"].startswith(peer.stem)]
        peer.note("all topics", "metadata", version, everything)
        if version >= 4:  # before, asking for an unknown topic makes it
            for wrong in ("never-made", "no/slash", "", "..", "x" * 250):
                peer.ask(f"topic {wrong[:12]!r}", "metadata", version, topics=[{"name": wrong}], **more)
        if version >= 8:
            peer.ask("operations", "metadata", version, topics=[{"name": name}],
                     include_cluster_authorized_operations=True, include_topic_authorized_operations=True, **more)  # fmt: skip
        if version >= 12:
            for label, number in (("by id", peer.ids[name]), ("unknown id", _uuid(OTHER_ID))):
                peer.ask(label, "metadata", version, topics=[{"name": None, "topic_id": number}], **more)
        peer.ask("the same topic twice", "metadata", version, topics=[{"name": name}, {"name": name}], **more)


def _uuid(text: str) -> Any:
    return type(NO_ID)(text)


def produced(
    peer: Peer, label: str, version: int, name: str, records: bytes | None, *, acks: int = -1, partition: int = 0
) -> Answer:
    part = {"index": partition, "records": records}
    topics = [peer.naming(name) | {"partition_data": [part]}]
    return peer.ask(label, "produce", version, acks=acks, timeout=20_000, topic_data=topics)


def produce(peer: Peer) -> None:
    """Pitfalls 16 to 23: offsets, errors per partition, limits, what a client may not write."""
    plain = kept_topic(peer, "p", partitions=2)
    stamped = kept_topic(peer, "p-stamped", config={"message.timestamp.type": "LogAppendTime"})
    compacted = kept_topic(peer, "p-compacted", config={"cleanup.policy": "compact"})
    trailing = kept_topic(peer, "p-trailing")
    small = kept_topic(peer, "p-small", config={"max.message.bytes": "300"})
    for version in peer.each("produce"):
        produced(peer, "one record", version, plain, batch())
        produced(peer, "three records, acks of the leader", version, plain, batch(numbered(3)), acks=1)
        produced(peer, "a leader epoch of the client's", version, plain, batch(leader_epoch=7))
        produced(peer, "log append time", version, stamped, batch(numbered(2)))
        produced(peer, "no such partition", version, plain, batch(), partition=9)
        produced(peer, "no such topic", version, peer.stem + "-none", batch())
        produced(peer, "wrong checksum", version, plain, batch(crc_off_by=1))
        produced(peer, "no records", version, plain, b"")
        produced(peer, "old magic", version, plain, batch(magic=1))
        produced(peer, "unknown magic", version, plain, batch(magic=3))
        produced(peer, "two batches at once", version, plain, batch() + batch())
        produced(peer, "cut short", version, plain, batch(numbered(3))[:-5])
        for size in (1, 11, 12, 16, 17, 40, 61):
            produced(peer, f"the first {size} bytes", version, plain, batch()[:size])
        produced(peer, "an impossible length", version, plain, bytes(8) + struct.pack(">i", 13) + batch()[12:])
        produced(peer, "a length below a header", version, plain, bytes(8) + struct.pack(">i", 48) + batch()[12:60])
        produced(peer, "unknown magic, cut short", version, plain, batch(magic=3)[:40])
        produced(peer, "a batch and a half", version, trailing, batch() + batch()[:30])
        produced(peer, "a batch and five bytes", version, trailing, batch() + bytes(5))
        produced(peer, "a batch and garbage", version, trailing, batch() + b"garbage" * 9)
        produced(peer, "a control batch", version, plain, batch(attributes=0x20))
        produced(
            peer,
            "transactional without a transaction",
            version,
            plain,
            batch(attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0),
        )
        produced(peer, "too large", version, small, batch([Written(b"x" * 400)]))
        produced(peer, "no key in a compacted topic", version, compacted, batch([Written(key=None), Written()]))
        produced(peer, "acks of two", version, plain, batch(), acks=2)
        for codec in (1, 2, 3, 4):
            produced(peer, f"codec {codec}", version, plain, batch(numbered(3), attributes=codec))
        produced(peer, "codec 5", version, plain, batch(attributes=5))
        produced(peer, "a time far ahead", version, plain, batch(base_timestamp_ms=9_000_000_000_000))
        parts = [{"index": 0, "records": batch()}, {"index": 7, "records": batch()}, {"index": 1, "records": batch()}]
        peer.ask("one wrong partition among good ones", "produce", version, acks=-1, timeout=20_000,
                 topic_data=[peer.naming(plain) | {"partition_data": parts}])  # fmt: skip
        peer.ask("nothing at all", "produce", version, acks=-1, timeout=20_000, topic_data=[])


def partitions_twice(peer: Peer) -> None:
    """The same partition twice in one request, and the same topic: which batch is taken, and what is answered."""
    for version in peer.each("produce"):
        one, two = kept_topic(peer, f"twice-{version}", partitions=2), kept_topic(peer, f"once-{version}")
        good, other, bad = batch(numbered(2)), batch(numbered(3)), batch(crc_off_by=1)
        for label, topics in {
            "two good ones": [(one, [(0, good), (0, other)])],
            "a bad one, then a good one": [(one, [(0, bad), (0, other)])],
            "a good one, then a bad one": [(one, [(0, good), (0, bad)])],
            "no records, twice": [(one, [(0, b""), (0, b"")])],
            "three, with another between": [(one, [(0, good), (1, good), (0, other), (0, good)])],
            "a partition that is not there": [(one, [(9, good), (9, good)])],
            "the topic twice, two partitions": [(one, [(0, good)]), (one, [(1, good)])],
            "the topic twice, one partition": [(one, [(0, good)]), (one, [(0, other)])],
            "the topic twice, another between": [(one, [(0, good)]), (two, [(0, good)]), (one, [(0, other)])],
            "a good one, then no records": [(two, [(0, good), (0, b"")])],
            "no records, then a good one": [(two, [(0, b""), (0, good)])],
        }.items():
            data = [
                peer.naming(name) | {"partition_data": [{"index": index, "records": sent} for index, sent in parts]}
                for name, parts in topics
            ]
            for acks in (1, -1):
                peer.ask(f"{label}, acks {acks}", "produce", version, acks=acks, timeout=20_000, topic_data=data)
            for index in (0, 1):
                end = peer.quietly(
                    "list_offsets", 5, replica_id=-1,
                    topics=[{"name": one, "partitions": [{"partition_index": index, "timestamp": -1}]}],
                )["topics"][0]["partitions"][0]["offset"]  # fmt: skip
                peer.note(f"{label}, the end of partition {index}", "produce", version, {"end": end})


def acks_zero(peer: Peer) -> None:
    """Pitfall 13: acks=0 has no answer, and the next request's answer is the next to come."""
    name = kept_topic(peer, "zero")
    for version in peer.each("produce"):
        data = [peer.naming(name) | {"partition_data": [{"index": 0, "records": batch()}]}]
        peer.wire.send("produce", version, acks=0, timeout=1000, topic_data=data)
        answer = peer.quietly(
            "list_offsets",
            5,
            replica_id=-1,
            topics=[{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        )
        peer.note("the end after acks=0", "produce", version, answer["topics"][0]["partitions"][0]["error_code"])


def own_writes(peer: Peer) -> None:
    """After the answer the record is visible, whatever acks and timeout are; one broker is enough for any min.insync."""
    for version in peer.each("produce"):
        name = kept_topic(peer, f"own-{version}")
        strict = kept_topic(peer, f"own-strict-{version}", config={"min.insync.replicas": "2"})
        for topic in (name, strict):
            for acks in (1, -1):
                for timeout in (20_000, 0, -1, -(2**31)):  # 1 ms may be too short for any broker
                    data = {"partition_data": [{"index": 0, "records": batch(numbered(1))}], **peer.naming(topic)}
                    label = f"acks {acks}, timeout {timeout}"
                    peer.ask(label, "produce", version, acks=acks, timeout=timeout, topic_data=[data])
                    asked = [{"partition_index": 0, "timestamp": -1}]
                    ends = peer.quietly("list_offsets", 5, replica_id=-1, topics=[{"name": topic, "partitions": asked}])
                    peer.note(f"the end after {label}", "produce", version, ends)


def idempotence(peer: Peer) -> None:
    """Pitfall 22: duplicates, gaps, epochs, five batches back, unknown producers, the wrap of the sequence."""
    for version in peer.each("produce"):
        name = kept_topic(peer, f"idem-{version}", partitions=3)
        producer = peer.quietly("init_producer_id", 1, transaction_timeout=60_000)["producer_id"]

        def sent(
            label: str,
            sequence: int,
            *,
            epoch: int = 0,
            partition: int = 0,
            count: int = 2,
            version: int = version,
            name: str = name,
            producer: int = producer,
        ) -> None:
            written = batch(numbered(count), producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
            produced(peer, label, version, name, written, partition=partition)

        for number in range(6):
            sent("in order", 2 * number)
        sent("the last again", 10)
        sent("five back", 2)
        sent("six back", 0)
        sent("a gap", 14)
        sent("overlapping", 11)
        sent("a later epoch from zero", 0, epoch=3)
        sent("a later epoch not from zero", 5, epoch=4)
        sent("an older epoch", 2, epoch=2)
        sent("unknown to this partition, not from zero", 40, partition=1)
        sent("up to the largest sequence", 0x7FFF_FFFF - 1, partition=2)
        sent("round the wrap", 0, partition=2)
        sent("a negative epoch", 0, epoch=-1)


def fetched(
    peer: Peer, label: str, version: int, parts: list[tuple[str, dict[str, Any]]], *, session: tuple[int, int] = (0, -1),
    forgotten: list[str] | None = None, **more: Any,
) -> Answer:  # fmt: skip
    topics: dict[str, list[dict[str, Any]]] = {}
    for name, part in parts:
        defaults = {
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        topics.setdefault(name, []).append(defaults | {"partition": 0, "fetch_offset": 0} | part)
    asked: dict[str, Any] = {
        "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 10 << 20, "isolation_level": 0, "rack_id": "",
        "session_id": session[0], "session_epoch": session[1],
        "topics": [peer.naming(name) | {"partitions": each} for name, each in topics.items()],
        "forgotten_topics_data": [peer.naming(name) | {"partitions": [0]} for name in forgotten or []],
    }  # fmt: skip
    return peer.ask(label, "fetch", version, **(asked | more))


def fetch(peer: Peer) -> None:
    """Pitfalls 24, 25, 28 to 30: places within and outside the log, limits, epochs, isolation."""
    name = kept_topic(peer, "f", partitions=3)
    trimmed = kept_topic(peer, "f-trimmed")
    for _ in range(3):
        peer.write(name, batch(numbered(10, size=100)))
        peer.write(name, batch(numbered(5, size=100)), partition=1)
        peer.write(trimmed, batch(numbered(10)))
    cut = {"name": trimmed, "partitions": [{"partition_index": 0, "offset": 15}]}
    peer.quietly("delete_records", 2, topics=[cut], timeout=20_000)
    for version in peer.each("fetch"):
        for label, offset in (
            ("start", 0),
            ("within a batch", 14),
            ("last batch", 20),
            ("end", 30),
            ("past the end", 31),
            ("negative", -5),
        ):
            fetched(peer, f"from {label}", version, [(name, {"fetch_offset": offset})])
        fetched(peer, "read committed", version, [(name, {})], isolation_level=1)
        fetched(peer, "below the start", version, [(trimmed, {"fetch_offset": 3})])
        fetched(peer, "within the batch that holds the start", version, [(trimmed, {"fetch_offset": 15})])
        fetched(peer, "no such partition", version, [(name, {"partition": 9})])
        fetched(peer, "no such topic", version, [(peer.stem + "-none", {})])
        fetched(peer, "one byte of a partition", version, [(name, {"partition_max_bytes": 1})])
        fetched(peer, "one byte in all", version, [(name, {}), (name, {"partition": 1})], max_bytes=1)
        fetched(peer, "a batch and a half", version, [(name, {"partition_max_bytes": 2000})])
        fetched(peer, "an empty partition", version, [(name, {"partition": 2})])
        fetched(peer, "a good and a bad partition", version, [(name, {}), (name, {"partition": 9})])
        fetched(peer, "an old leader epoch", version, [(name, {"current_leader_epoch": -2})])
        fetched(peer, "the leader epoch", version, [(name, {"current_leader_epoch": 0})])
        fetched(peer, "a leader epoch to come", version, [(name, {"current_leader_epoch": 5})])
        if version >= 12:
            fetched(peer, "last fetched epoch", version, [(name, {"last_fetched_epoch": 0, "fetch_offset": 10})])
            fetched(
                peer, "an unknown last fetched epoch", version, [(name, {"last_fetched_epoch": 3, "fetch_offset": 10})]
            )
        fetched(peer, "nothing", version, [])
        stranger: dict[str, Any] = {"replica_id": 77}
        if version >= 15:
            stranger = {"replica_state": {"replica_id": 77, "replica_epoch": -1}}
        fetched(peer, "as a follower that is none", version, [(name, {})], **stranger)
        fetched(peer, "no such partition, as a follower", version, [(name, {"partition": 9})], **stranger)
        fetched(peer, "as a follower that is none, below the start", version, [(trimmed, {})], **stranger)


def fetch_sessions(peer: Peer) -> None:
    """Pitfall 27: a session's whole life."""
    for version in (each for each in peer.each("fetch") if each >= 7):
        one, two = (kept_topic(peer, f"s{number}-{version}") for number in (1, 2))
        peer.write(one, batch(numbered(3)))
        first = fetched(peer, "new", version, [(one, {}), (two, {})], session=(0, 0))
        session = first.get("session_id", 0)
        fetched(peer, "the same again", version, [], session=(session, 1))
        fetched(peer, "moved on", version, [(one, {"fetch_offset": 3})], session=(session, 2))
        fetched(peer, "nothing new", version, [], session=(session, 3))
        peer.write(two, batch(numbered(2)))
        fetched(peer, "something new", version, [], session=(session, 4))
        fetched(peer, "one forgotten", version, [], session=(session, 5), forgotten=[two])
        fetched(peer, "a wrong epoch", version, [], session=(session, 9))
        fetched(peer, "an unknown session", version, [], session=(session + 12345, 1))
        fetched(peer, "an unknown topic joins", version, [(peer.stem + "-none", {})], session=(session, 6))
        fetched(peer, "closed", version, [], session=(session, -1))
        fetched(peer, "after it closed", version, [], session=(session, 7))
        fetched(peer, "no session", version, [(one, {})], session=(0, -1))


def gone_topics(peer: Peer) -> None:
    """A topic that is not there takes no time away from a fetch that names others too, in a session and without."""
    for version in peer.each("fetch"):
        here, gone = kept_topic(peer, f"g1-{version}"), kept_topic(peer, f"g2-{version}")
        never = f"{peer.stem}-never"
        peer.ids[never] = UUID("33333333-4444-5555-6666-777777777777")

        def waits(
            label: str, *parts: tuple[str, dict[str, Any]], session: tuple[int, int] = (0, -1), version: int = version
        ) -> None:
            began = time.monotonic()
            fetched(peer, label, version, list(parts), session=session, max_wait=WAIT_MS, min_bytes=1)
            peer.note(f"{label}, waits", "fetch", version, time.monotonic() - began >= WAIT_MS / 1100)

        waits("an unknown topic beside one that is here", (here, {}), (never, {}))
        waits("an unknown partition beside one that is here", (here, {}), (here, {"partition": 9}))
        fetched(peer, "nothing but an unknown topic", version, [(never, {})], max_wait=WAIT_MS, min_bytes=1)
        if version < 7:
            continue
        session = fetched(peer, "a session", version, [(here, {}), (gone, {})], session=(0, 0)).get("session_id", 0)
        waits("both are here", session=(session, 1))
        peer.delete(gone)
        waits("one is gone", session=(session, 2))
        waits("one is still gone", session=(session, 3))
        kept_topic(peer, f"g2-{version}")
        for epoch in (4, 5):
            fetched(peer, "one was made again", version, [], session=(session, epoch), max_wait=WAIT_MS, min_bytes=1)
        session = fetched(peer, "with a topic that never was", version, [(here, {}), (never, {})], session=(0, 0)).get(
            "session_id", 0
        )
        waits("one never was", session=(session, 1))


def list_offsets(peer: Peer) -> None:
    """Pitfall 32: every special time, times between records, unknown places, epochs."""
    name, empty = kept_topic(peer, "lo"), kept_topic(peer, "lo-empty")
    for start in (AT_MS, AT_MS + 1000, AT_MS + 500):
        peer.write(name, batch(numbered(5), base_timestamp_ms=start))
    times = [-1, -2, -3, -4, -5, -6, -99, 0, AT_MS, AT_MS + 3, AT_MS + 6, AT_MS + 502, AT_MS + 1004, AT_MS + 1005]
    for version in peer.each("list_offsets"):
        for at_ms in times:
            for isolation in (0, 1):
                for topic in (name, empty):
                    part = {"partition_index": 0, "timestamp": at_ms, "current_leader_epoch": -1}
                    peer.ask(f"time {at_ms} isolation {isolation}", "list_offsets", version, replica_id=-1, timeout=20_000,
                             isolation_level=isolation, topics=[{"name": topic, "partitions": [part]}])  # fmt: skip
        for label, topic, number, epoch in (
            ("no such partition", name, 9, -1), ("no such topic", peer.stem + "-none", 0, -1),
            ("the epoch", name, 0, 0), ("an epoch to come", name, 0, 4),
        ):  # fmt: skip
            part = {"partition_index": number, "timestamp": -1, "current_leader_epoch": epoch}
            peer.ask(
                label,
                "list_offsets",
                version,
                replica_id=-1,
                timeout=20_000,
                topics=[{"name": topic, "partitions": [part]}],
            )
        part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        peer.ask(
            "the same twice",
            "list_offsets",
            version,
            replica_id=-1,
            timeout=20_000,
            topics=[{"name": name, "partitions": [part, part]}],
        )
        peer.ask(
            "as a debugging replica",
            "list_offsets",
            version,
            replica_id=-2,
            timeout=20_000,
            topics=[{"name": name, "partitions": [part]}],
        )


def leader_epochs(peer: Peer) -> None:
    """Pitfall 31: known, future and negative epochs, fenced callers, unknown places."""
    name = kept_topic(peer, "e")
    peer.write(name, batch(numbered(5)))
    for version in peer.each("offset_for_leader_epoch"):
        for epoch in (0, 1, 7, -1):
            for current in (-1, 0, 3):
                part = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
                peer.ask(
                    f"epoch {epoch} at {current}",
                    "offset_for_leader_epoch",
                    version,
                    replica_id=-2,
                    topics=[{"topic": name, "partitions": [part]}],
                )
        for label, topic, number in (("no such partition", name, 9), ("no such topic", peer.stem + "-none", 0)):
            part = {"partition": number, "current_leader_epoch": -1, "leader_epoch": 0}
            peer.ask(
                label,
                "offset_for_leader_epoch",
                version,
                replica_id=-2,
                topics=[{"topic": topic, "partitions": [part]}],
            )


def delete_records(peer: Peer) -> None:
    """Pitfall 45: -1 is the high watermark, other negatives are out of range."""
    for version in peer.each("delete_records"):
        name = kept_topic(peer, f"dr-{version}")
        peer.write(name, batch(numbered(10)))
        for offset in (4, 2, 11, -2, 7, -1):
            part = {"partition_index": 0, "offset": offset}
            peer.ask(
                f"up to {offset}",
                "delete_records",
                version,
                timeout=20_000,
                topics=[{"name": name, "partitions": [part]}],
            )
        for label, topic, number in (("no such partition", name, 9), ("no such topic", peer.stem + "-none", 0)):
            part = {"partition_index": number, "offset": 1}
            peer.ask(label, "delete_records", version, timeout=20_000, topics=[{"name": topic, "partitions": [part]}])
        peer.ask("nothing", "delete_records", version, timeout=20_000, topics=[])


def init_producer_id(peer: Peer) -> None:
    """New ids differ; a transactional id may not be empty."""
    for version in peer.each("init_producer_id"):
        more: dict[str, Any] = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        peer.ask("new", "init_producer_id", version, transactional_id=None, **more)
        peer.ask("another", "init_producer_id", version, transactional_id=None, **more)
        peer.ask("an empty transactional id", "init_producer_id", version, transactional_id="", **more)
        if version >= 3:
            peer.ask(
                "an id without an epoch",
                "init_producer_id",
                version,
                transactional_id=None,
                **(more | {"producer_id": 5}),
            )
            peer.ask(
                "an id and an epoch",
                "init_producer_id",
                version,
                transactional_id=None,
                **(more | {"producer_id": 5, "producer_epoch": 1}),
            )


def describe_producers(peer: Peer) -> None:
    """Who wrote to a partition."""
    name = kept_topic(peer, "dp")
    producer = peer.quietly("init_producer_id", 1, transaction_timeout=60_000)["producer_id"]
    for sequence in (0, 2):
        peer.write(name, batch(numbered(2), producer_id=producer, producer_epoch=0, base_sequence=sequence))
    for version in peer.each("describe_producers"):
        for label, topic, number in (
            ("known", name, 0),
            ("no such partition", name, 9),
            ("no such topic", peer.stem + "-none", 0),
            ("no name", "", 0),
        ):
            peer.ask(label, "describe_producers", version, topics=[{"name": topic, "partition_indexes": [number]}])


def unknown_tags(peer: Peer) -> None:
    """Pitfall 10: unknown tagged fields, in the header and in the body, are skipped by their length."""
    tags = b"\x02\x63\x03abc\x64\x00"
    for version in (9, 12):
        header = struct.pack(">hhihs", KEYS["metadata"], version, 77, 1, b"t") + tags
        operations = b"\0\0" if version < 11 else b"\0"
        body = b"\x01" + b"\0" + operations + tags
        peer.wire.send_frame(header + body)
        answer = body_of("metadata", version)(peer.wire.receive_frame())
        peer.note("unknown tags", "metadata", version, answer)


def broken_bodies(peer: Peer) -> None:
    """Bodies that end too early: what happens to the connection."""
    for api, (low, _) in sorted(peer.versions.items()):
        if api != "api_versions":
            peer.raw("a body of two bytes", KEYS[api], low, b"\x7f\x7f", bytes)
