"""Kafka's metadata log: bytes that Apache Kafka wrote, read and written again, and what they add up to."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.core.acls import AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from ottla.core.ids import id_text
from ottla.core.settings import ConfigResourceType
from ottla.metadata_store import kraft_records as kraft
from ottla.metadata_store.kraft_batches import ControlRecordType, Voter, batches, is_whole_snapshot, snapshot, values
from ottla.metadata_store.kraft_image import KraftImage
from ottla.metadata_store.kraft_records import MalformedMetadata, MetadataRecordType
from ottla.records.record_reader import read_records

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "golden" / "cluster_metadata.json").read_text())[
    "records"
]
NAMES = {  # where we say it in other words than Kafka
    "partition": "partitionId",
    "level": "featureLevel",
    "broker": "brokerId",
    "topic_id": "topicId",
    "eligible_leaders": "eligibleLeaderReplicas",
    "last_known_leaders": "lastKnownElr",
}
ID, OTHER_ID = UUID(int=7), UUID(int=8)


def spoken(record: kraft.Record) -> dict[str, Any]:
    """A record as Kafka's dump tool writes it: its names, no field that has its default."""
    assert not isinstance(record, kraft.OpaqueRecord)
    said = {}
    for name, value in asdict(record).items():
        kafkas = NAMES.get(name) or "".join(p if not at else p.title() for at, p in enumerate(name.split("_")))
        said[kafkas] = plain(value)
    return said


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return id_text(value) if isinstance(value, UUID) else value


@pytest.mark.parametrize("entry", GOLDEN, ids=lambda entry: f"{entry['type']}-{entry['version']}")
def test_records_of_kafka_are_read_as_kafka_reads_them_and_written_again_byte_for_byte(entry: dict[str, Any]) -> None:
    value = bytes.fromhex(entry["bytes"])
    record = kraft.decode(value)
    if isinstance(record, kraft.OpaqueRecord):
        assert f"{MetadataRecordType(record.number).name}_RECORD" == entry["type"]
        assert kraft.encode(record) == value
        return
    said = spoken(record)
    assert {name: said[name] for name in entry["data"]} == entry["data"]
    assert kraft.encode(record, version=entry["version"]) == value


def test_every_record_kafka_wrote_that_topics_come_from_is_among_the_bytes() -> None:
    seen = {entry["type"] for entry in GOLDEN}
    assert {
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "PARTITION_CHANGE_RECORD",
        "REMOVE_TOPIC_RECORD",
        "CONFIG_RECORD",
        "FEATURE_LEVEL_RECORD",
        "PRODUCER_IDS_RECORD",
        "BEGIN_TRANSACTION_RECORD",
        "END_TRANSACTION_RECORD",
    } <= seen


@pytest.mark.parametrize("broken", [b"", b"\x02\x02\x00", b"\x01\x02", b"\x01\x02\x07", b"\x01\x02\x00\x05ab"])
def test_bytes_that_are_no_record_are_refused(broken: bytes) -> None:
    with pytest.raises(MalformedMetadata):
        kraft.decode(broken)


def test_bytes_after_a_record_are_refused() -> None:
    with pytest.raises(MalformedMetadata, match="1 bytes after"):
        kraft.decode(kraft.encode(kraft.RemoveTopicRecord(topic_id=ID)) + b"\0")


# ---- The image


def image_of(*records: kraft.Record) -> KraftImage:
    image = KraftImage()
    for record in records:
        image.replay(kraft.encode(record))
    return image


def marker(kind: MetadataRecordType) -> kraft.OpaqueRecord:
    return kraft.OpaqueRecord(kind, bytes((1, kind, 0)) + b"\0")


TOPIC = kraft.TopicRecord(name="web", topic_id=ID)
PARTITION = kraft.PartitionRecord(
    partition=0, topic_id=ID, replicas=[1, 2], isr=[1, 2], leader=1, leader_epoch=4, partition_epoch=9
)
KEEP = kraft.ConfigRecord(resource_type=ConfigResourceType.TOPIC, resource_name="web", name="retention.ms", value="5")


def test_a_change_of_leader_adds_one_to_the_leader_epoch_and_every_change_one_to_the_partition_epoch() -> None:
    shrunk = kraft.PartitionChangeRecord(partition=0, topic_id=ID, isr=[1])
    moved = kraft.PartitionChangeRecord(partition=0, topic_id=ID, leader=-1, isr=[])
    found = image_of(TOPIC, PARTITION, shrunk).topics[ID].partitions[0]
    assert (found.leader, found.leader_epoch, found.partition_epoch, found.isr) == (1, 4, 10, (1,))
    found = image_of(TOPIC, PARTITION, shrunk, moved).topics[ID].partitions[0]
    assert (found.leader, found.leader_epoch, found.partition_epoch, found.isr) == (-1, 5, 11, ())


def test_a_broker_out_of_sync_but_eligible_to_lead_holds_everything() -> None:
    record = kraft.PartitionChangeRecord(partition=0, topic_id=ID, leader=-1, isr=[], eligible_leaders=[2])
    image = image_of(TOPIC, PARTITION)
    image.replay(kraft.encode(record, version=2))
    found = image.topics[ID].partitions[0]
    assert found.holds_everything(2)
    assert not found.holds_everything(1)


def test_a_removed_topic_takes_its_settings_along_and_one_of_the_same_name_begins_without() -> None:
    image = image_of(
        TOPIC, PARTITION, KEEP, kraft.RemoveTopicRecord(topic_id=ID), kraft.TopicRecord(name="web", topic_id=OTHER_ID)
    )
    assert list(image.topics) == [OTHER_ID]
    assert image.config(ConfigResourceType.TOPIC, "web") == {}


def test_a_setting_without_a_value_is_taken_away() -> None:
    gone = kraft.ConfigRecord(resource_type=ConfigResourceType.TOPIC, resource_name="web", name="retention.ms")
    assert image_of(TOPIC, KEEP).config(ConfigResourceType.TOPIC, "web") == {"retention.ms": "5"}
    assert image_of(TOPIC, KEEP, gone).configs == {}


def test_records_of_a_transaction_count_once_it_ends_and_never_if_it_is_aborted() -> None:
    begin, end, abort = (
        marker(kind)
        for kind in (
            MetadataRecordType.BEGIN_TRANSACTION,
            MetadataRecordType.END_TRANSACTION,
            MetadataRecordType.ABORT_TRANSACTION,
        )
    )
    assert image_of(begin, TOPIC).topics == {}
    assert image_of(begin, TOPIC, abort).topics == {}
    assert image_of(begin, TOPIC, abort, end).topics == {}
    assert list(image_of(begin, TOPIC, end).topics) == [ID]


def test_producer_ids_never_go_back() -> None:
    assert (
        image_of(
            kraft.ProducerIdsRecord(next_producer_id=3000), kraft.ProducerIdsRecord(next_producer_id=2000)
        ).next_producer_id
        == 3000
    )


def test_a_credential_is_the_last_that_was_written_until_it_is_removed() -> None:
    first = kraft.UserScramCredentialRecord(name="a", mechanism=1, salt=b"x", iterations=4096)
    second = kraft.UserScramCredentialRecord(name="a", mechanism=1, salt=b"y", iterations=8192)
    assert image_of(first, second).credentials == {("a", 1): second}
    assert image_of(first, kraft.RemoveUserScramCredentialRecord(name="a", mechanism=1)).credentials == {}


def test_unknown_records_are_carried_and_records_about_processes_are_not() -> None:
    newer, beat = kraft.OpaqueRecord(98, b"\x01\x62\x00x"), marker(MetadataRecordType.NO_OP)
    unknown = kraft.OpaqueRecord(99, b"\x01\x63\x00y")
    assert image_of(newer, beat, unknown).carried == [newer, unknown]


def test_a_change_of_what_is_not_there_is_no_log_of_kafkas() -> None:
    for record in (
        PARTITION,
        kraft.RemoveTopicRecord(topic_id=ID),
        kraft.PartitionChangeRecord(partition=0, topic_id=ID),
    ):
        with pytest.raises(MalformedMetadata):
            image_of(record)
    with pytest.raises(MalformedMetadata):
        image_of(TOPIC, kraft.PartitionChangeRecord(partition=0, topic_id=ID))


# ---- Batches and snapshots


def test_a_snapshot_gives_back_its_records_over_several_batches() -> None:
    wanted = [kraft.encode(kraft.TopicRecord(name=f"topic-{at}", topic_id=UUID(int=at))) for at in range(1203)]
    data = memoryview(snapshot(wanted, now_ms=1))
    assert [value for _, value in values(data)] == wanted
    assert [offset for offset, _ in values(data)] == list(range(1, 1204))
    assert is_whole_snapshot(data)


def test_a_snapshot_cut_anywhere_is_not_whole() -> None:
    data = snapshot([kraft.encode(TOPIC)], now_ms=1)
    assert not any(is_whole_snapshot(memoryview(data)[:end]) for end in range(len(data)))


def test_a_log_is_read_up_to_its_first_wrong_byte() -> None:
    wanted = [kraft.encode(kraft.TopicRecord(name=f"topic-{at}", topic_id=UUID(int=at))) for at in range(1200)]
    data = bytearray(snapshot(wanted, now_ms=1))
    data[-150] ^= 1
    assert [value for _, value in values(memoryview(data))] == wanted[:1000]


def test_reading_from_an_offset_passes_over_what_lies_before() -> None:
    wanted = [kraft.encode(kraft.TopicRecord(name=f"topic-{at}", topic_id=UUID(int=at))) for at in range(1200)]
    data = memoryview(snapshot(wanted, now_ms=1))
    assert [value for _, value in values(data, from_offset=701)] == wanted[700:]


def test_a_snapshot_with_a_voter_lists_the_quorum_as_kafkas_format_command() -> None:
    """The bytes of key and value are those StorageTool 4.1.1 wrote for `format --standalone`."""
    directory_id = UUID("a95d9eb1-2348-4d95-bc6c-aa0422378ecf")
    data = memoryview(snapshot([], now_ms=1, voter=Voter(1, directory_id, "CONTROLLER", "127.0.0.1", 19093)))
    header, batch = next(batches(data))
    records = list(read_records(batch))
    assert header.is_control
    assert [struct.unpack(">hh", record.key or b"")[1] for record in records] == [
        ControlRecordType.SNAPSHOT_HEADER,
        ControlRecordType.KRAFT_VERSION,
        ControlRecordType.KRAFT_VOTERS,
    ]
    assert records[1].value == bytes.fromhex("0000000100")
    assert records[2].value == bytes.fromhex(
        "00000200000001a95d9eb123484d95bc6caa0422378ecf020b434f4e54524f4c4c45520a3132372e302e302e314a9500000000010000 00"
    )


ACL = kraft.AccessControlEntryRecord(
    id=ID,
    resource_type=2,
    resource_name="web",
    pattern_type=4,
    principal="User:a",
    host="*",
    operation=3,
    permission_type=2,
)


def test_acls_begin_and_end_by_their_ids() -> None:
    other = replace(ACL, id=OTHER_ID, operation=4)
    binding = AclBinding(
        ResourceType.TOPIC, PatternType.PREFIXED, "web", "User:a", "*", AclOperation.READ, PermissionType.DENY
    )

    assert image_of(ACL, other).acls == {ID: binding, OTHER_ID: binding._replace(operation=AclOperation.WRITE)}
    assert image_of(ACL, other, kraft.RemoveAccessControlEntryRecord(id=OTHER_ID)).acls == {ID: binding}
    with pytest.raises(MalformedMetadata):
        image_of(ACL, kraft.RemoveAccessControlEntryRecord(id=OTHER_ID))


@pytest.mark.parametrize(
    "changed",
    [
        {"operation": 99},
        {"operation": 1},
        {"operation": 0},
        {"resource_type": 99},
        {"resource_type": 1},
        {"pattern_type": 1},
        {"pattern_type": 2},
        {"pattern_type": 9},
        {"permission_type": 0},
        {"permission_type": 1},
        {"permission_type": 4},
    ],
)
def test_an_acl_that_is_not_understood_is_no_log_of_kafkas(changed: dict[str, int]) -> None:
    with pytest.raises(MalformedMetadata, match="an ACL that is not understood"):
        image_of(replace(ACL, **changed))  # type: ignore[arg-type]
