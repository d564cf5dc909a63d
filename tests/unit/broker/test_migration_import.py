"""Tests what an import of a Kafka directory plans, what it refuses, and what it commits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker import config as configuration
from ottla.broker.config import BrokerConfig
from ottla.broker.migration.import_commit import check_unchanged_since_import, commit_import, is_unused, summary
from ottla.broker.migration.import_from_kafka import ImportPlan, plan_import
from ottla.core.ids import NO_TOPIC_ID, id_text
from ottla.core.settings import ConfigResourceType
from ottla.metadata_store import kraft_records as kraft
from ottla.metadata_store import znodes
from ottla.metadata_store.broker_registration import join_cluster
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.kraft_batches import snapshot
from ottla.metadata_store.kraft_records import MetadataRecordType
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.token_znodes import TokenInformation
from ottla.records.builder import NewRecord, build_batch
from ottla.security.config import AUTHORIZERS
from ottla.storage.directories.log_directory import ForeignDirectory

NODE, ID, OTHER_ID = 3, UUID(int=1 << 100), UUID(int=2 << 100)
HERE, ELSEWHERE = UUID(int=3 << 100), UUID(int=4 << 100)


def config(**given: str) -> BrokerConfig:
    options = {"node.id": str(NODE), **{name.replace("_", "."): text for name, text in given.items()}}
    return configuration.read(file=None, environment={}, options=options)[0]


def topic(name: str = "web", topic_id: UUID = ID) -> kraft.TopicRecord:
    return kraft.TopicRecord(name=name, topic_id=topic_id)


def partition(
    index: int = 0, *, replicas: Sequence[int] = (NODE,), isr: Sequence[int] = (NODE,), epoch: int = 5, at: UUID = HERE
) -> kraft.PartitionRecord:
    places = [at] * len(replicas)
    return kraft.PartitionRecord(
        partition=index,
        topic_id=ID,
        replicas=[*replicas],
        isr=[*isr],
        leader=NODE,
        leader_epoch=epoch,
        partition_epoch=0,
        directories=places,
    )


def setting(
    name: str, value: str, kind: ConfigResourceType = ConfigResourceType.TOPIC, of: str = "web"
) -> kraft.ConfigRecord:
    return kraft.ConfigRecord(resource_type=kind, resource_name=of, name=name, value=value)


def kafkas(path: Path, *records: kraft.Record, held: Sequence[str] = ("web-0",), topic_id: UUID = ID) -> Path:
    """A directory with Kafka's metadata log of these records and these partitions."""
    log = path / "__cluster_metadata-0"
    log.mkdir(parents=True)
    batch = build_batch([NewRecord(None, kraft.encode(record)) for record in records]) if records else b""
    (log / "00000000000000000000.log").write_bytes(batch)
    (path / "meta.properties").write_text(f"node.id={NODE}\ndirectory.id={id_text(HERE)}\nversion=1\ncluster.id=c\n")
    for name in held:
        (path / name).mkdir()
        (path / name / "partition.metadata").write_text(f"version: 0\ntopic_id: {id_text(topic_id)}")
    return path


def found(path: Path, given: BrokerConfig | None = None) -> ImportPlan:
    plan = plan_import([path], given or config())
    assert plan is not None
    return plan


# ---- Imported metadata


def test_a_new_directory_and_one_that_was_only_formatted_hold_nothing_to_import(tmp_path: Path) -> None:
    assert plan_import([tmp_path / "not-there"], config()) is None
    assert plan_import([tmp_path], config()) is None
    features = [kraft.encode(kraft.FeatureLevelRecord(name="metadata.version", level=27))]
    (tmp_path / "bootstrap.checkpoint").write_bytes(snapshot(features, now_ms=1))
    assert plan_import([tmp_path], config()) is None


def test_topics_keep_their_ids_partitions_epochs_and_settings(tmp_path: Path) -> None:
    records = (topic(), partition(0), partition(1, epoch=7), setting("retention.ms", "5"))
    (web,) = found(kafkas(tmp_path, *records, held=["web-0", "web-1"])).topics
    assert (web.name, web.topic_id, web.leader_epochs, web.config) == ("web", ID, {0: 5, 1: 7}, {"retention.ms": "5"})
    assert not web.pinned


def test_the_bootstrap_file_is_read_if_the_metadata_log_was_never_started(tmp_path: Path) -> None:
    directory = kafkas(tmp_path)
    (directory / "__cluster_metadata-0" / "00000000000000000000.log").unlink()
    (directory / "bootstrap.checkpoint").write_bytes(
        snapshot([kraft.encode(each) for each in (topic(), partition())], now_ms=1)
    )
    assert [each.topic_id for each in found(directory).topics] == [ID]


def test_the_newest_complete_snapshot_and_the_records_after_it_are_read(tmp_path: Path) -> None:
    directory = kafkas(tmp_path, topic("old", OTHER_ID), topic(), partition())
    log = directory / "__cluster_metadata-0"
    whole = snapshot([kraft.encode(topic("kept", OTHER_ID))], now_ms=1)
    (log / "00000000000000000001-0000000001.checkpoint").write_bytes(whole)
    (log / "00000000000000000002-0000000001.checkpoint").write_bytes(whole[:-9])  # torn
    assert [each.name for each in found(directory).topics] == ["kept", "web"]


@pytest.mark.parametrize(
    ("settings", "given", "pinned"),
    [
        ({}, {}, True),
        ({}, {"log_retention_hours": "168"}, False),
        ({}, {"log_retention_ms": "1000"}, False),
        ({"retention.ms": "5"}, {}, False),
        ({"cleanup.policy": "compact"}, {}, False),
        ({"cleanup.policy": "compact,delete"}, {}, True),
    ],
)
def test_a_topic_whose_retention_is_unknown_is_kept_for_ever(
    tmp_path: Path, settings: Mapping[str, str], given: Mapping[str, str], pinned: bool
) -> None:
    records: list[kraft.Record] = [topic(), partition(), *(setting(*each) for each in settings.items())]
    (web,) = found(kafkas(tmp_path, *records), config(**given)).topics
    assert web.pinned is pinned
    assert web.config == {**settings, **({"retention.ms": "-1"} if pinned else {})}


def test_a_dynamic_retention_for_all_brokers_is_known(tmp_path: Path) -> None:
    live = setting("log.retention.ms", "1000", ConfigResourceType.BROKER, "")
    plan = found(kafkas(tmp_path, topic(), partition(), live))
    assert not plan.topics[0].pinned
    assert plan.configs == {("brokers", "<default>"): {"log.retention.ms": "1000"}}


def test_a_setting_that_ottla_does_not_accept_is_left_out_and_noted(tmp_path: Path) -> None:
    plan = found(kafkas(tmp_path, topic(), partition(), setting("x.y", "z"), setting("retention.ms", "5")))
    assert plan.topics[0].config == {"retention.ms": "5"}
    assert "settings of web that Ottla does not accept: x.y=z" in plan.notes


def test_a_quota_that_ottla_does_not_accept_is_left_out_and_noted(tmp_path: Path) -> None:
    def quota(kind: str, name: str | None, key: str, value: float = 5, *, remove: bool = False) -> kraft.Record:
        entity = [kraft.QuotaEntityPart(entity_type=kind, entity_name=name)]
        return kraft.ClientQuotaRecord(entity=entity, key=key, value=value, remove=remove)

    plan = found(
        kafkas(
            tmp_path / "a",
            topic(),
            partition(),
            quota("user", "u", "producer_byte_rate"),
            quota("user", "u", "producer_byte_rate", 6),
            quota("user", "u", "consumer_byte_rate"),
            quota("user", "u", "consumer_byte_rate", remove=True),
            quota("ip", "a.host.example", "connection_creation_rate"),
        )
    )
    assert plan.configs == {("users", "u"): {"producer_byte_rate": "6"}}
    assert any("a.host.example" in note for note in plan.notes)


def test_records_that_ottla_does_not_support_are_noted(tmp_path: Path) -> None:
    newer = kraft.OpaqueRecord(99, b"\x01\x63\x00")
    plan = found(kafkas(tmp_path, topic(), partition(), newer, newer))
    assert any("2 record 99" in note for note in plan.notes)


def test_delegation_tokens_are_imported_as_they_were_last_and_strange_ones_noted(tmp_path: Path) -> None:
    def token(token_id: str, expiration: int, owner: str = "User:alice") -> kraft.Record:
        return kraft.DelegationTokenRecord(
            owner=owner,
            requester="User:bob",
            renewers=["User:carol"],
            issue_timestamp=1,
            max_timestamp=9,
            expiration_timestamp=expiration,
            token_id=token_id,
        )

    gone = kraft.RemoveDelegationTokenRecord(token_id="gone")
    records = (token("t", 5), token("gone", 5), gone, token("t", 6), token("a/b", 5), token("u", 5, owner="alice"))
    plan = found(kafkas(tmp_path, topic(), partition(), *records))
    assert plan.tokens == [TokenInformation("t", "User:alice", "User:bob", ("User:carol",), 1, 6, 9)]
    assert sum("does not understand" in note for note in plan.notes) == 2
    assert "delegation tokens without effect, because delegation.token.secret.key is not set: 1" in plan.notes


def test_users_and_tokens_of_a_formatted_directory_are_imported(tmp_path: Path) -> None:
    credential = kraft.UserScramCredentialRecord(
        name="alice", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    )
    (tmp_path / "bootstrap.checkpoint").write_bytes(snapshot([kraft.encode(credential)], now_ms=1))
    plan = found(tmp_path)
    assert list(plan.configs) == [("users", "alice")]


ACL = kraft.AccessControlEntryRecord(
    id=ID,
    resource_type=2,
    resource_name="web",
    pattern_type=3,
    principal="User:a",
    host="*",
    operation=3,
    permission_type=2,
)


def test_acls_are_imported_those_that_were_removed_not(tmp_path: Path) -> None:
    more = [replace(ACL, id=UUID(int=number), operation=number) for number in (4, 5)]
    gone = kraft.RemoveAccessControlEntryRecord(id=UUID(int=4))
    other = replace(ACL, id=UUID(int=6), resource_name="a/b", resource_type=3, pattern_type=4)
    directory = kafkas(tmp_path, topic(), partition(), ACL, *more, gone, other, replace(ACL, id=UUID(int=7)))
    plan = found(directory)
    session = committed(plan, directory)

    view = asyncio.run(MetadataCache(session).load())

    acls = [
        (each.resource_type, each.pattern_type, each.resource_name, each.operation) for each in view.acls.bindings()
    ]
    assert sorted(acls) == [(2, 3, "web", 3), (2, 3, "web", 5), (3, 4, "a/b", 3)]
    assert any("ACLs without effect, because authorizer.class.name is not set: 4" in note for note in plan.notes)
    assert ", 4 ACLs" in summary(plan, directory)
    with_authorizer = found(directory, config(authorizer_class_name=AUTHORIZERS[0]))
    assert not any("ACLs" in note for note in with_authorizer.notes)


def test_a_directory_with_acls_and_without_topics_is_imported_for_the_acls(tmp_path: Path) -> None:
    (tmp_path / "bootstrap.checkpoint").write_bytes(snapshot([kraft.encode(ACL)], now_ms=1))

    assert len(found(tmp_path).acls) == 1


def test_an_acl_that_is_not_understood_prevents_the_import(tmp_path: Path) -> None:
    directory = kafkas(tmp_path, topic(), partition(), replace(ACL, operation=99))

    with pytest.raises(ForeignDirectory, match="an ACL that is not understood"):
        found(directory)


def test_stray_and_future_directories_are_noted(tmp_path: Path) -> None:
    directory = kafkas(tmp_path, topic(), partition())
    for kind in ("stray", "future"):
        (directory / f"old-0.{'0' * 32}-{kind}").mkdir()
    assert {
        "not imported: 1 directories named *-stray",
        "moves of replicas between log directories that are continued: 1",
    } <= set(found(directory).notes)


def test_a_replica_here_is_enough_where_it_holds_everything(tmp_path: Path) -> None:
    records = (topic(), partition(replicas=(1, 2, NODE), isr=(2, NODE)))
    assert len(found(kafkas(tmp_path, *records)).topics) == 1


def test_topics_known_by_their_names_alone_are_never_deleted_from(tmp_path: Path) -> None:
    directory = kafkas(tmp_path, held=["web-0", "web-1", "__consumer_offsets-0"])
    (directory / "__cluster_metadata-0" / "00000000000000000000.log").unlink()
    (directory / "web-1" / "partition.metadata").write_bytes(b"\0")
    plan = found(directory)
    offsets, web = plan.topics
    assert not plan.has_metadata
    assert offsets.config["cleanup.policy"] == "compact"
    assert (web.topic_id, [*web.leader_epochs]) == (ID, [0, 1])
    assert web.config == {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


# ---- Refusals


def refusal(path: Path) -> str:
    before = sorted(each.name for each in path.rglob("*"))
    with pytest.raises(ForeignDirectory) as refused:
        plan_import([path], config())
    assert sorted(each.name for each in path.rglob("*")) == before
    return str(refused.value)


def test_a_directory_of_one_of_several_brokers_is_refused(tmp_path: Path) -> None:
    records = (topic(), partition(), partition(1, replicas=(1, 2), isr=(1, 2)))
    assert "web-1 are on other brokers only" in refusal(kafkas(tmp_path, *records))


def test_a_replica_that_was_not_in_sync_is_refused(tmp_path: Path) -> None:
    records = (topic(), partition(replicas=(1, NODE), isr=(1,)))
    assert "was not in sync for web-0" in refusal(kafkas(tmp_path, *records))


def test_an_import_without_one_of_the_log_directories_is_refused(tmp_path: Path) -> None:
    records = (topic(), partition(), partition(1, at=ELSEWHERE))
    assert "web-1 are in a log directory that was not given" in refusal(kafkas(tmp_path, *records))


def test_a_partition_whose_directory_was_never_made_is_empty(tmp_path: Path) -> None:
    plan = found(kafkas(tmp_path, topic(), partition(), partition(1)))
    assert "no directory found for web-1: created empty" in plan.notes


def test_a_metadata_log_of_a_kafka_too_new_is_refused(tmp_path: Path) -> None:
    directory = kafkas(tmp_path, kraft.OpaqueRecord(MetadataRecordType.TOPIC, b"\x01\x02\x09"))
    assert "version 9" in refusal(directory)


def test_without_metadata_a_partition_in_between_must_not_be_missing(tmp_path: Path) -> None:
    directory = kafkas(tmp_path, held=["web-0", "web-2"])
    (directory / "__cluster_metadata-0" / "00000000000000000000.log").unlink()
    assert "web-1 does not" in refusal(directory)


def test_without_metadata_partitions_with_two_topic_ids_of_one_name_are_refused(tmp_path: Path) -> None:
    directory = kafkas(tmp_path, held=["web-0", "web-1"])
    (directory / "__cluster_metadata-0" / "00000000000000000000.log").unlink()
    (directory / "web-1" / "partition.metadata").write_text(f"version: 0\ntopic_id: {id_text(OTHER_ID)}")
    assert "different topic ids" in refusal(directory)


# ---- Writing the metadata


def committed(plan: ImportPlan, path: Path) -> EmbeddedSession:
    """A new store with it."""

    async def scenario() -> EmbeddedSession:
        session = EmbeddedMetadataStore().session()
        await join_cluster(session, "c")
        assert await is_unused(session)
        await commit_import(plan, session, {}, [path], node_id=NODE)
        assert not await is_unused(session)
        return session

    return asyncio.run(scenario())


def test_everything_is_written_so_that_the_election_takes_the_next_epoch(tmp_path: Path) -> None:
    ids = kraft.ProducerIdsRecord(broker=NODE, next_producer_id=7000)
    group = setting("consumer.session.timeout.ms", "50000", ConfigResourceType.GROUP, "team")
    directory = kafkas(tmp_path, topic(), partition(), setting("retention.ms", "5"), ids, group)
    session = committed(found(directory), directory)

    async def read(path: str) -> bytes:
        node = await session.get(path)
        assert node is not None, path
        return node.value

    assert znodes.decode_assignment("web", asyncio.run(read("/brokers/topics/web"))) == znodes.Assignment(
        ID, {0: (NODE,)}
    )
    state = znodes.decode_state("web", 0, asyncio.run(read("/brokers/topics/web/partitions/0/state")))
    assert (state.leader, state.leader_epoch, state.isr) == (NODE, 5, (NODE,))
    assert znodes.decode_config("", asyncio.run(read("/config/topics/web"))) == {"retention.ms": "5"}
    assert znodes.decode_config("", asyncio.run(read("/config/groups/team"))) == {
        "consumer.session.timeout.ms": "50000"
    }
    block = znodes.decode_producer_id_block(asyncio.run(read(znodes.PRODUCER_ID_BLOCK)))
    assert block is not None
    assert block.last + 1 == 7000


def test_a_topic_without_an_id_gets_one(tmp_path: Path) -> None:
    directory = kafkas(tmp_path, topic_id=NO_TOPIC_ID)
    (directory / "__cluster_metadata-0" / "00000000000000000000.log").unlink()
    session = committed(found(directory), directory)
    node = asyncio.run(session.get("/brokers/topics/web"))
    assert node is not None
    assert znodes.decode_assignment("web", node.value).topic_id != NO_TOPIC_ID


def test_a_kafka_that_ran_after_the_import_is_detected(tmp_path: Path) -> None:
    directory = kafkas(tmp_path, topic(), partition())
    session = committed(found(directory), directory)
    asyncio.run(check_unchanged_since_import(session, [directory], directory / "db"))
    with (directory / "__cluster_metadata-0" / "00000000000000000000.log").open("ab") as log:
        log.write(b"more")
    with pytest.raises(ForeignDirectory, match="a Kafka has run on"):
        asyncio.run(check_unchanged_since_import(session, [directory], directory / "db"))


def test_the_summary_is_one_line(tmp_path: Path) -> None:
    directory = kafkas(tmp_path, topic(), partition(), topic("__transaction_state", OTHER_ID))
    line = summary(found(directory), directory)
    assert "1 topics and 1 internal ones, 1 partitions" in line
    assert "kept for ever (retention.ms=-1), because no server.properties gave a retention: " in line
    assert "transactions are kept as they are" in line
    assert "\n" not in line
