"""Bytes that Apache Kafka wrote, read and written again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.consumer_protocol import MalformedConsumerProtocol, read_subscription, read_subscriptions
from ottla.core.ids import TopicPartition, parse_id
from ottla.groups import records
from ottla.groups.classic.events import GroupSnapshot, MemberSnapshot
from ottla.groups.classic.records import group_key, group_value
from ottla.groups.offsets import CommittedOffset
from ottla.groups.records import ForeignRecord, GroupRecord, MalformedOffsetsRecord, OffsetRecord
from ottla.internal_topics.partitioning import partition_of
from ottla.internal_topics.topic_log import KeyValue

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "consumer_offsets.json").read_text())
LOG: list[dict[str, Any]] = GOLDEN["log"]
CLASSES: list[dict[str, Any]] = GOLDEN["classes"]
WALL_MS = 1795246990576
TOPIC_ID: UUID = parse_id("viAJqtMYRnWwDR1eCgLU8w")


def golden(kind: str, version: int, index: int = 0) -> bytes:
    found = [bytes.fromhex(each["bytes"]) for each in CLASSES if (each["kind"], each["version"]) == (kind, version)]
    return found[index]


def decoded(entry: dict[str, Any]) -> OffsetRecord | GroupRecord | ForeignRecord:
    value = entry["value"]
    return records.decode(bytes.fromhex(entry["key"]), None if value is None else bytes.fromhex(value))


@pytest.mark.parametrize("entry", LOG, ids=range(len(LOG)))
def test_records_of_kafka_are_written_again_byte_for_byte(entry: dict[str, Any]) -> None:
    match decoded(entry):
        case OffsetRecord(group_id, partition, committed):
            key = records.offset_key(group_id, partition)
            value = None if committed is None else records.offset_value(committed)
        case GroupRecord(group_id, snapshot):
            key = group_key(group_id)
            value = None if snapshot is None else group_value(snapshot)
        case other:
            pytest.fail(f"{other} is not ours")
    assert key.hex() == entry["key"]
    assert (None if value is None else value.hex()) == entry["value"]


@pytest.mark.parametrize("entry", LOG, ids=range(len(LOG)))
def test_a_group_is_kept_in_the_partition_where_kafka_keeps_it(entry: dict[str, Any]) -> None:
    record = decoded(entry)
    assert not isinstance(record, ForeignRecord)
    assert partition_of(record.group_id, 4) == entry["partition"]


def test_partitions_are_chosen_by_utf_16_as_java_does() -> None:
    assert partition_of("\N{MATHEMATICAL SCRIPT CAPITAL X}", 1 << 30) == 31 * 0xD835 + 0xDCB3  # two code units
    assert partition_of("polygenelubricants", 50) == 0  # its hash is the smallest int of all


def test_the_log_decodes_to_the_history_of_the_group() -> None:
    team = [record for record in map(decoded, LOG) if isinstance(record, GroupRecord) and record.group_id == "team"]
    first, stable, last = (record.snapshot for record in team)
    assert first is not None
    assert (first.generation, first.members) == (0, ())
    assert stable is not None
    assert {member.instance_id for member in stable.members} == {None, "static-2"}
    assert [read_subscription(member.subscription) for member in stable.members] == [["web"]] * len(stable.members)
    assert stable.members[0].client_host == "/127.0.0.1"
    assert last is not None
    assert last.generation == 2


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_every_version_are_read(version: int) -> None:
    key = golden("offset_commit_key", 1)
    record = records.decode(key, golden("offset_commit_value", version, -1))
    epoch = 3 if version >= 3 else -1
    expires_ms = 1795247990576 if version == 1 else -1
    assert record == OffsetRecord(
        "team", TopicPartition("web", 1), CommittedOffset(42, epoch, "mü", WALL_MS, expires_ms)
    )


def test_offsets_are_written_as_kafka_writes_them() -> None:
    plain = CommittedOffset(42, 3, "mü", WALL_MS)
    assert records.offset_value(plain) == golden("offset_commit_value", 4, 1)
    assert records.offset_value(plain._replace(topic_id=TOPIC_ID)) == golden("offset_commit_value", 4, 0)
    expiring = CommittedOffset(42, -1, "mü", WALL_MS, 1795247990576)
    assert records.offset_value(expiring) == golden("offset_commit_value", 1)
    assert records.offset_key("team", TopicPartition("web", 1)) == golden("offset_commit_key", 1)


def test_the_topic_id_of_an_offset_is_read() -> None:
    record = records.decode(golden("offset_commit_key", 1), golden("offset_commit_value", 4, 0))
    assert isinstance(record, OffsetRecord)
    assert record.committed is not None
    assert record.committed.topic_id == TOPIC_ID


def group(version: int) -> GroupSnapshot:
    return GroupSnapshot(
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="c-1",
        state_since_wall_ms=WALL_MS if version >= 2 else -1,
        members=(
            MemberSnapshot(
                member_id="c-1",
                instance_id="i-1" if version >= 3 else None,
                client_id="c",
                client_host="/127.0.0.1",
                rebalance_timeout_ms=300_000 if version >= 1 else 10_000,
                session_timeout_ms=10_000,
                subscription=b"\1\2",
                assignment=b"\3",
            ),
        ),
    )


@pytest.mark.parametrize("version", range(5))
def test_groups_of_every_version_are_read(version: int) -> None:
    record = records.decode(golden("group_metadata_key", 2), golden("group_metadata_value", version))
    assert record == GroupRecord("teäm", group(version))


def test_groups_are_written_as_kafka_writes_them() -> None:
    assert group_value(group(3)) == golden("group_metadata_value", 3)
    assert group_value(GroupSnapshot(state_since_wall_ms=5)) == golden("group_metadata_value", 3, 1)
    assert group_key("teäm") == golden("group_metadata_key", 2)


def test_records_of_newer_groups_are_passed_over() -> None:
    assert records.decode(b"\0\3\0\4team", b"whatever") == ForeignRecord(3)


def every_cut(data: bytes) -> list[bytes]:
    return [data[:size] for size in range(len(data))]


@pytest.mark.parametrize(
    "bad",
    [
        *every_cut(golden("group_metadata_value", 3)),
        *every_cut(golden("group_metadata_value", 4)),
        b"\0\7",
        b"\0\3\0\0\0\0\0\7\xff\xff\xff\xff\0\0\0\0\0\0\0\5\x7f\xff\xff\xff",
    ],
    ids=range(len(golden("group_metadata_value", 3)) + len(golden("group_metadata_value", 4)) + 2),
)
def test_corrupt_bytes_are_named_corrupt(bad: bytes) -> None:
    with pytest.raises(MalformedOffsetsRecord):
        records.decode(golden("group_metadata_key", 2), bad)


@pytest.mark.parametrize("version", range(5))
def test_corrupt_offsets_are_named_corrupt(version: int) -> None:
    for bad in every_cut(golden("offset_commit_value", version)):
        with pytest.raises(MalformedOffsetsRecord):
            records.decode(golden("offset_commit_key", 1), bad)


@pytest.mark.parametrize("bad", ["", "0000", "ffff00000000", "0000ffffffff", "000000000001", "0000000000010002fffe"])
def test_malformed_subscriptions_are_refused(bad: str) -> None:
    with pytest.raises(MalformedConsumerProtocol):
        read_subscription(bytes.fromhex(bad))
    assert read_subscriptions([bytes.fromhex(bad)]) is None


COMMITTED = st.builds(
    CommittedOffset,
    offset=st.integers(0, 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=st.sampled_from(["", "m", "\u00fc" * 70, "x" * 200]),
    committed_wall_ms=st.integers(-1, 2**62),
    expires_wall_ms=st.sampled_from([-1, 9]),
    topic_id=st.sampled_from([UUID(int=0), TOPIC_ID]),
)
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["web", "\u00fc"]), st.integers(0, 3))
OFFSET_PAIRS = st.builds(
    lambda group, where, committed: records.offset_pairs(group, {where: committed})[0],
    st.sampled_from(["", "team", "t\u00e4m"]),
    PARTITIONS,
    st.none() | COMMITTED,
)
OTHER_PAIRS = st.sampled_from(
    [(bytes.fromhex(entry["key"]), entry["value"] and bytes.fromhex(entry["value"])) for entry in LOG]
    + [
        (b"", b""),
        (b"\0\x01", b""),
        (b"\0\x01\x7f\xffx", None),
        (b"\0\x01\xff\xff", None),
        (b"\0\x01\0\1\xff\0\1w\0\0\0\0", None),
    ]
)


@st.composite
def _corrupt(draw: st.DrawFn) -> KeyValue:
    key, value = draw(OFFSET_PAIRS)
    kind, value = draw(st.sampled_from(["cut", "flip"])), value or b""
    at = draw(st.integers(0, max(0, len(value) - 1)))
    changed = value[:at] if kind == "cut" else value[:at] + bytes([draw(st.integers(0, 255))]) + value[at + 1 :]
    return key, changed


def _decoded(pair: KeyValue) -> object:
    try:
        return records.decode(*pair)
    except MalformedOffsetsRecord:
        return "malformed"


@given(st.lists(OFFSET_PAIRS | OTHER_PAIRS | _corrupt(), max_size=20))
def test_offsets_that_are_loaded_are_those_that_are_decoded_one_by_one(pairs: list[KeyValue]) -> None:
    found: list[object] = []
    for part in records.OffsetRecordReader().read(pairs):
        if isinstance(part, records.GroupChange):
            found += [OffsetRecord(part.group_id, where, committed) for where, committed in part.change.items()]
        else:
            found.append(_decoded(part))
    assert found == [_decoded(pair) for pair in pairs]


def test_records_of_one_group_are_one_change_until_a_partition_comes_again() -> None:
    web, other = TopicPartition("web", 0), TopicPartition("web", 1)
    first = records.offset_pairs("team", {web: CommittedOffset(1), other: CommittedOffset(2)})
    again = records.offset_pairs("team", {web: CommittedOffset(3)})
    beside = records.offset_pairs("other", {web: CommittedOffset(4)})
    found = records.OffsetRecordReader().read([*first, *again, *beside])
    assert [(part[0], len(part[1] or ())) for part in found] == [("team", 2), ("team", 1), ("other", 1)]
