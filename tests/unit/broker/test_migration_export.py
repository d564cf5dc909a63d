"""A directory handed over to Kafka: what is written, what is left out, and that a crash at any step undoes nothing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from ottla.broker.config import read
from ottla.broker.migration.export_to_kafka import CannotExport, Exported, export
from ottla.broker.migration.import_commit import commit_import
from ottla.broker.migration.import_from_kafka import ImportedTopic, ImportPlan, plan_import
from ottla.broker.migration.kafka_directory import read_image
from ottla.core.acls import AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from ottla.core.files import FileSystem, SystemFiles
from ottla.core.ids import id_text
from ottla.metadata_store import znodes
from ottla.metadata_store.acl_znodes import acl_path
from ottla.metadata_store.broker_registration import join_cluster
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.kraft_batches import snapshot
from ottla.metadata_store.kraft_image import KraftImage
from ottla.metadata_store.kraft_records import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    OpaqueRecord,
    UserScramCredentialRecord,
    encode,
)
from ottla.metadata_store.sqlite_file import FILE_NAME as METADATA_FILE
from ottla.metadata_store.store import Put
from ottla.metadata_store.token_znodes import TokenInformation
from ottla.storage.small_files import LOCK

ID, HERE, THERE = UUID(int=1 << 100), UUID(int=3 << 100), UUID(int=4 << 100)
FILES = SystemFiles()
WEB = ImportedTopic("web", ID, {0: 4, 1: 6}, {"retention.ms": "5", "durability": "page-cache"}, pinned=False)
KEPT = ImportedTopic("kept", UUID(int=2 << 100), {0: 0}, {"retention.ms": "-1"}, pinned=True)
CONFIGS = {
    ("brokers", "<default>"): {"log.retention.ms": "7"},
    ("groups", "team"): {"consumer.session.timeout.ms": "9"},
    ("users", "<default>"): {"request_percentage": "12.5"},
    ("users", "a%20b/clients/<default>"): {"producer_byte_rate": "1024"},
    ("clients", "c"): {"consumer_byte_rate": "7", "controller_mutation_rate": "0.5"},
    ("ips", "%3A%3A1"): {"connection_creation_rate": "3"},
    ("users", "a%20b"): {
        "SCRAM-SHA-256": "salt=c2FsdA==,stored_key=c3RvcmVk,server_key=c2VydmVy,iterations=4096",
        "SCRAM-SHA-512": "salt=c2FsdA==,stored_key=c3RvcmVk,server_key=c2VydmVy,iterations=8192",
    },
}
TOKEN = TokenInformation("dG9rZW4", "User:alice", "User:CN=bob,O=x", ("User:carol",), 1, 2, 3)
QUOTAS: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {
    (("user", None),): {"request_percentage": 12.5},
    (("client-id", None), ("user", "a b")): {"producer_byte_rate": 1024},
    (("client-id", "c"),): {"consumer_byte_rate": 7, "controller_mutation_rate": 0.5},
    (("ip", "::1"),): {"connection_creation_rate": 3},
}


def directory(
    path: Path, *, directory_id: UUID = HERE, store: bool = True, partitions: tuple[str, ...] = ("web-0",)
) -> Path:
    """A stopped Ottla's directory."""
    path.mkdir(parents=True)
    (path / "meta.properties").write_text(f"node.id=7\ndirectory.id={id_text(directory_id)}\nversion=1\ncluster.id=c\n")
    (path / "ottla-copies").write_text("the copies of files that Kafka will write")
    for name in partitions:
        (path / name).mkdir()

    async def fill() -> None:
        session = EmbeddedMetadataStore.open(path / METADATA_FILE).session()
        await join_cluster(session, "c")
        plan = ImportPlan(topics=[WEB, KEPT], configs=CONFIGS, next_producer_id=5000, tokens=[TOKEN])
        await commit_import(plan, session, {}, [path], node_id=7)
        await session.close()

    if store:
        asyncio.run(fill())
    return path


def exported(*paths: Path, **more: Any) -> Exported:
    return export(FILES, paths, now_ms=1, **more)


def image(path: Path) -> KraftImage:
    found = read_image([path])
    assert found is not None
    return found


def test_topics_go_with_their_ids_epochs_settings_and_producer_ids(tmp_path: Path) -> None:
    path = directory(tmp_path / "a")
    done = exported(path)
    after = image(path)
    assert (done.cluster_id, done.node_id, done.topics, done.partitions) == ("c", 7, 2, 3)
    web = after.topics[ID]
    assert {index: part.leader_epoch for index, part in web.partitions.items()} == {0: 4, 1: 6}
    assert {(part.replicas, part.isr, part.directories) for part in web.partitions.values()} == {((7,), (7,), (HERE,))}
    assert after.configs == {
        (2, "web"): {"retention.ms": "5"},
        (4, ""): {"log.retention.ms": "7"},
        (32, "team"): {"consumer.session.timeout.ms": "9"},
    }
    assert after.quotas == QUOTAS
    assert after.credentials["a b", 2] == UserScramCredentialRecord(
        name="a b", mechanism=2, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=8192
    )
    assert after.tokens["dG9rZW4"] == DelegationTokenRecord(
        owner="User:alice",
        requester="User:CN=bob,O=x",
        renewers=["User:carol"],
        issue_timestamp=1,
        expiration_timestamp=2,
        max_timestamp=3,
        token_id="dG9rZW4",
    )
    assert after.next_producer_id == 5000
    assert after.features["metadata.version"] == 25
    assert len(done.left_out) == 2
    assert not (path / METADATA_FILE).exists()
    assert not (path / "ottla-copies").exists()


def test_ottla_takes_back_what_it_has_exported(tmp_path: Path) -> None:
    path = directory(tmp_path / "a", partitions=("web-0", "web-1", "kept-0"))
    exported(path)
    config, _ = read(file=None, environment={}, options={"node.id": "7", "log.retention.hours": "1"})
    back = plan_import([path], config)
    assert back is not None
    assert {(topic.name, topic.topic_id) for topic in back.topics} == {("web", WEB.topic_id), ("kept", KEPT.topic_id)}
    assert back.configs == CONFIGS
    assert back.tokens == [TOKEN]
    assert back.next_producer_id == 5000


def test_an_export_names_the_directory_of_each_partition(tmp_path: Path) -> None:
    first = directory(tmp_path / "a")
    second = directory(tmp_path / "b", directory_id=THERE, store=False, partitions=("web-1",))
    exported(second, first)
    assert [part.directories for _, part in sorted(image(first).topics[ID].partitions.items())] == [(HERE,), (THERE,)]
    assert not (second / "bootstrap.checkpoint").exists()


def test_a_metadata_directory_without_logs_gets_the_identity_kafka_asks_for(tmp_path: Path) -> None:
    logs = directory(tmp_path / "logs", store=False)
    metadata = directory(tmp_path / "metadata", partitions=())
    (metadata / "meta.properties").unlink()
    exported(logs, metadata)
    assert "cluster.id=c" in (metadata / "meta.properties").read_text()
    assert image(metadata).topics[ID].partitions[0].directories == (HERE,)


def test_unknown_records_of_an_earlier_kafka_are_carried_unread_and_its_features_stay(tmp_path: Path) -> None:
    path = directory(tmp_path / "a")
    unknown = OpaqueRecord(99, b"\x01\x63\x00rest")
    level = encode(FeatureLevelRecord(name="metadata.version", level=27))
    (path / "bootstrap.checkpoint").write_bytes(snapshot([level, unknown.raw], now_ms=1))
    assert exported(path).carried == 1
    assert image(path).carried == [unknown]
    assert image(path).features == {"metadata.version": 27}


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    path = directory(tmp_path / "a")
    before = {
        each.relative_to(path): each.is_dir() or each.read_bytes() for each in path.rglob("*") if each.name != LOCK
    }
    assert exported(path, dry_run=True).topics == 2
    after = {
        each.relative_to(path): each.is_dir() or each.read_bytes() for each in path.rglob("*") if each.name != LOCK
    }
    assert after == before


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    path = directory(tmp_path / "a")
    lock = FILES.lock(path / LOCK)
    with pytest.raises(CannotExport, match="in use"):
        exported(path)
    lock.release()
    assert (path / METADATA_FILE).exists()


def test_an_impossible_export_fails_with_its_reason(tmp_path: Path) -> None:
    path = directory(tmp_path / "a")
    with pytest.raises(CannotExport, match=f"no {METADATA_FILE}"):
        exported(directory(tmp_path / "b", store=False))
    exported(path)
    with pytest.raises(CannotExport, match="exported already"):
        exported(path)
    other = directory(tmp_path / "other", store=False)
    (other / "meta.properties").write_text("node.id=8\ncluster.id=c\n")
    with pytest.raises(CannotExport, match="different brokers"):
        exported(directory(tmp_path / "c"), other)


class PowerCut(Exception):
    """Nothing after this is done."""


class Stopping:
    """The system's files, until the power goes before the change that is counted."""

    def __init__(self, changes_left: int) -> None:
        self.files = SystemFiles()
        self.changes_left = changes_left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.files, name)
        if name not in {"rename", "remove", "remove_tree", "make_directory"}:
            return found

        def counted(*arguments: Any, **more: Any) -> Any:
            self.changes_left -= 1
            if self.changes_left < 0:
                raise PowerCut
            return found(*arguments, **more)

        return counted


def test_a_crash_before_any_step_leaves_a_directory_that_can_be_exported_again(tmp_path: Path) -> None:
    whole = directory(tmp_path / "whole")
    unknown = OpaqueRecord(99, b"\x01\x63\x00rest")
    old = whole / "__cluster_metadata-0"
    old.mkdir()
    (old / "00000000000000000000-0000000000.checkpoint").write_bytes(snapshot([], now_ms=1))
    (old / "00000000000000000007-0000000001.checkpoint").write_bytes(snapshot([unknown.raw], now_ms=1))
    attempt: Callable[[int], Path] = lambda steps: shutil.copytree(whole, tmp_path / f"after-{steps}")  # noqa: E731
    steps = 0
    while True:
        path = attempt(steps)
        try:
            export(cast("FileSystem", Stopping(steps)), [path], now_ms=1)
            break
        except PowerCut:
            assert (path / METADATA_FILE).exists(), steps
            done = exported(path)
        assert (done.topics, done.carried) == (2, 1), steps
        assert set(image(path).topics) == {WEB.topic_id, KEPT.topic_id}
        assert image(path).carried == [unknown]
        steps += 1
    assert steps >= 6


# ---- ACLs

READ = AclBinding(
    ResourceType.TOPIC, PatternType.PREFIXED, "we", "User:a", "*", AclOperation.READ, PermissionType.ALLOW
)
DENIED = READ._replace(pattern_type=PatternType.LITERAL, resource_name="a/b", permission_type=PermissionType.DENY)


def with_acls(path: Path, *acls: AclBinding, value: bytes = b"") -> Path:
    """Return a directory whose metadata store has ACLs, and of the first one's pattern another value if one is given."""
    directory(path, store=False)

    async def fill() -> None:
        session = EmbeddedMetadataStore.open(path / METADATA_FILE).session()
        await join_cluster(session, "c")
        await commit_import(ImportPlan(topics=[], acls=list(acls)), session, {}, [path], node_id=7)
        if value:
            await session.commit([Put(acl_path(acls[0].pattern), value)])
        await session.close()

    asyncio.run(fill())
    return path


def test_acls_go_with_the_rest_and_come_back(tmp_path: Path) -> None:
    path = with_acls(tmp_path / "a", READ, DENIED, READ._replace(principal="User:b"))

    done = exported(path)

    after = image(path)
    expected = {READ, DENIED, READ._replace(principal="User:b")}
    assert set(after.acls.values()) == expected
    assert len(after.acls) == 3
    assert not after.carried
    assert not done.left_out
    assert after.features["metadata.version"] == 25
    back = plan_import([path], read(file=None, environment={}, options={"node.id": "7"})[0])
    assert back is not None
    assert set(back.acls) == expected


def test_a_range_of_addresses_needs_a_kafka_that_knows_it(tmp_path: Path) -> None:
    path = with_acls(tmp_path / "a", DENIED._replace(host="10.0.0.0/8"))

    exported(path)

    assert image(path).features["metadata.version"] == 32


def test_acls_of_groups_are_exported_and_their_want_of_effect_is_noted(tmp_path: Path) -> None:
    path = with_acls(tmp_path / "a", READ._replace(principal="Group:g"), DENIED._replace(principal="Group:g"))

    (note,) = exported(path).left_out

    assert "2 ACLs of groups (Group:NAME), 1 of which deny" in note
    assert len(image(path).acls) == 2


def test_acls_that_cannot_be_read_prevent_an_export(tmp_path: Path) -> None:
    path = with_acls(tmp_path / "a", READ, value=b"{")

    with pytest.raises(CannotExport, match="malformed nodes of ACLs: TOPIC we"):
        exported(path)
    assert (path / METADATA_FILE).exists()


def test_acls_that_an_earlier_version_left_in_kafkas_metadata_are_not_lost(tmp_path: Path) -> None:
    record = encode(
        AccessControlEntryRecord(
            id=UUID(int=9),
            resource_type=2,
            resource_name="x",
            pattern_type=3,
            principal="User:x",
            host="*",
            operation=3,
            permission_type=2,
        )
    )
    kept = DENIED._replace(resource_name="x", principal="User:x")
    for has_acls in (False, True):
        path = with_acls(tmp_path / str(has_acls), READ)
        (path / "bootstrap.checkpoint").write_bytes(snapshot([record], now_ms=1))

        async def mark(path: Path = path, has_acls: bool = has_acls) -> None:
            session = EmbeddedMetadataStore.open(path / METADATA_FILE).session()
            done = znodes.encode_kafka_import(znodes.KafkaImport(None, (), has_acls))
            await session.commit([Put(znodes.KAFKA_IMPORT, done)])
            await session.close()

        asyncio.run(mark())
        exported(path)
        assert set(image(path).acls.values()) == ({READ} if has_acls else {READ, kept})
