"""Exports a stopped data directory to Apache Kafka: writes the metadata that a KRaft Kafka starts from.

The logs need no change: they are Kafka's files. Only Kafka's metadata log is missing, so the export writes what
`kafka-storage.sh format --standalone` would, with our topics in it:

    bootstrap.checkpoint                                    the first records of Kafka's metadata log: features,
                                                            topics, partitions, settings, credentials, quotas,
                                                            ACLs, delegation tokens, producer ids
    __cluster_metadata-0/00000000000000000000-0000000000.checkpoint    the quorum: this node alone

Both ways to name the quorum in server.properties work with it (`controller.quorum.voters` and
`controller.quorum.bootstrap.servers`); Kafka writes its controller's real address over ours. The metadata store is
renamed, so that an Ottla started here later imports the directory again, as Kafka left it. Records of an earlier
Kafka's metadata that Ottla does not understand are copied without being decoded.

After a crash at any step the export can be repeated: renaming the store is the last step.
Source: BootstrapDirectory, BootstrapMetadata, Formatter (Kafka 4.4); a test starts a real Kafka on an export.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

from ottla.broker.migration.kafka_directory import BOOTSTRAP, METADATA_LOG, UnreadableMetadata, read_image
from ottla.core.acls import AclBinding, PermissionType, ResourcePattern
from ottla.core.files import FileSystem, replace_file
from ottla.core.ids import TopicPartition, parse_id
from ottla.core.runtime import new_uuid
from ottla.core.settings import ConfigResourceType
from ottla.metadata_store import kraft_records as kraft
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView, TopicView
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.kraft_batches import Voter, snapshot
from ottla.metadata_store.kraft_image import KraftImage
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.sqlite_file import EXPORTED_SUFFIX
from ottla.metadata_store.sqlite_file import FILE_NAME as METADATA_FILE
from ottla.security.quotas.entities import entity_of_node, quotas_in
from ottla.security.sasl.credentials import MECHANISM_OF_NUMBER, from_text
from ottla.storage.integrity.metadata_backup import FILE_NAME as COPIES
from ottla.storage.small_files import LOCK, META_PROPERTIES, MetaProperties, meta_text, parse_meta, text_or_none

QUORUM = "00000000000000000000-0000000000.checkpoint"
FEATURES = MappingProxyType({"metadata.version": 25, "group.version": 1, "transaction.version": 2})
"""Kafka 4.0's own levels, which every Kafka 4 can start with; `kafka-features.sh` raises them."""

_VERSION, _RANGES_LEVEL = "metadata.version", 32
"""4.4-IV1, from which on ACLs may have ranges of addresses (KIP-1276)."""
_TOKENS_LEVEL = 14
"""3.6-IV2, from which on there are delegation tokens without ZooKeeper (KIP-900)."""

_NOT_KAFKAS = ("durability", "ottla.")
_KINDS = MappingProxyType(
    {
        znodes.BROKERS_KIND: ConfigResourceType.BROKER,
        znodes.GROUPS_KIND: ConfigResourceType.GROUP,
        znodes.CLIENT_METRICS_KIND: ConfigResourceType.CLIENT_METRICS,
    }
)
_CONTROLLER = ("CONTROLLER", "localhost", 9093)  # the name counts; Kafka corrects the rest when it starts


class CannotExport(Exception):
    """Reports in one line why a directory cannot be exported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Summarizes what was, or would be, exported."""

    cluster_id: str
    node_id: int
    topics: int
    partitions: int
    left_out: list[str] = field(default_factory=list)  # in words
    carried: int = 0  # records of an earlier Kafka, copied without being decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class _Directory:
    path: Path
    directory_id: UUID
    is_new: bool  # a metadata.log.dir without logs, to which Kafka gives an identity too


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoreContent:
    """Holds what was read from the metadata store."""

    view: ClusterView
    next_producer_id: int
    pinned: frozenset[str]
    has_acls: bool  # and not only an earlier Kafka's metadata log
    has_tokens: bool  # likewise


def export(files: FileSystem, directories: Sequence[Path], *, now_ms: int, dry_run: bool = False) -> Exported:
    """Write Kafka's metadata into the directory of the metadata store. Raises CannotExport, OSError and KafkaError.

    `directories` are all of `log.dirs`, and `metadata.log.dir` where there is one.
    """
    store = _find_store(files, directories)
    with ExitStack() as held:
        for directory in directories:
            try:
                held.callback(files.lock(directory / LOCK).release)
            except BlockingIOError:
                raise CannotExport(f"{directory} is in use. Stop its broker first") from None
        cluster_id, node_id, places = _identity(files, directories, store.parent)
        content = asyncio.run(_read_store(store))
        left_out: list[str] = []
        try:
            earlier = read_image(directories)
        except UnreadableMetadata as error:
            raise CannotExport(f"the metadata of an earlier Kafka would be lost: {error}") from error
        carried = [record.raw for record in earlier.carried] if earlier else []
        features: Mapping[str, int] = earlier.features if earlier and earlier.features else FEATURES
        acls = set(content.view.acls.bindings())
        if earlier is not None and not content.has_acls:
            acls.update(earlier.acls.values())
        tokens = _of_tokens(content, earlier)
        if any("/" in acl.host for acl in acls):  # an older Kafka would take a range for an address, also of a DENY
            features = _at_least(features, _RANGES_LEVEL)
        if tokens:
            features = _at_least(features, _TOKENS_LEVEL)
        records = [*_records(content, places, node_id, features, left_out), *_of_acls(acls, left_out), *tokens]
        if not dry_run:
            _write(files, places, store, [*map(kraft.encode, records), *carried], node_id, now_ms)
        topics = content.view.topics.values()
        return Exported(
            cluster_id=cluster_id,
            node_id=node_id,
            topics=len(topics),
            left_out=left_out,
            carried=len(carried),
            partitions=sum(len(topic.partitions) for topic in topics),
        )


def _find_store(files: FileSystem, directories: Sequence[Path]) -> Path:
    stores = [directory / METADATA_FILE for directory in directories]
    for store in stores:
        if files.exists(store):
            return store
    if any(files.exists(store.with_name(store.name + EXPORTED_SUFFIX)) for store in stores):
        raise CannotExport(f"{directories[0]} has been exported already: Kafka can be started on it")
    raise CannotExport(
        f"{directories[0]} has no {METADATA_FILE}. Name every directory of log.dirs and metadata.log.dir"
    )


def _identity(files: FileSystem, directories: Sequence[Path], home: Path) -> tuple[str, int, list[_Directory]]:
    """Read the cluster id, the node id and the directories' ids; the directory of the store comes first."""
    found = {path: parse_meta(text_or_none(files, path / META_PROPERTIES) or "") for path in directories}
    whose = {(fields.get("cluster.id", ""), fields.get("node.id", "")) for fields in found.values() if fields}
    if len(whose) > 1:
        raise CannotExport("the directories belong to different brokers: their meta.properties differ")
    cluster_id, node_id = whose.pop() if whose else ("", "")
    if not cluster_id or not node_id.isdecimal():
        raise CannotExport(f"{META_PROPERTIES} is missing or corrupt. Start Ottla on the directory once and stop it")
    places = []
    for path in sorted(directories, key=lambda path: path != home):
        text = found[path].get("directory.id")
        if text is None and path != home:
            raise CannotExport(f"{path / META_PROPERTIES} is missing or corrupt. Start Ottla once and stop it")
        places.append(_Directory(path=path, directory_id=parse_id(text) if text else new_uuid(), is_new=text is None))
    return cluster_id, int(node_id), places


async def _read_store(path: Path) -> _StoreContent:
    session = EmbeddedMetadataStore.open(path).session()
    try:
        view = await MetadataCache(session).load()
        if view.unreadable_topics:
            raise CannotExport(f"the metadata store has malformed nodes of {', '.join(sorted(view.unreadable_topics))}")
        block = await session.get(znodes.PRODUCER_ID_BLOCK)
        latest = znodes.decode_producer_id_block(block.value) if block else None
        if unreadable := [pattern for pattern in view.acls.patterns() if not _is_readable(view, pattern)]:
            raise CannotExport(f"the metadata store has malformed nodes of ACLs: {', '.join(map(_named, unreadable))}")
        imported = await session.get(znodes.KAFKA_IMPORT)
        earlier = znodes.decode_kafka_import(imported.value) if imported else None
        return _StoreContent(
            view=view,
            next_producer_id=latest.last + 1 if latest else 0,
            pinned=frozenset(earlier.pinned if earlier else ()),
            has_acls=earlier is None or earlier.has_acls,
            has_tokens=earlier is None or earlier.has_tokens,
        )
    finally:
        await session.close()


def _records(
    content: _StoreContent, places: Sequence[_Directory], node_id: int, features: Mapping[str, int], left_out: list[str]
) -> Iterator[kraft.Record]:
    """Generate the first records of the metadata log."""
    for name, level in features.items():
        yield kraft.FeatureLevelRecord(name=name, level=level)
    for _, topic in sorted(content.view.topics.items()):
        yield from _of_topic(topic, places, node_id)
        pinned = topic.name in content.pinned
        for key, value in topic.config.items():
            if pinned and (key, value) == ("retention.ms", "-1"):
                left_out.append(f"{topic.name}: retention.ms=-1, which only the import had set")
            elif key.startswith(_NOT_KAFKAS):
                left_out.append(f"{topic.name}: {key}={value}, which Kafka does not have")
            else:
                kind = ConfigResourceType.TOPIC
                yield kraft.ConfigRecord(resource_type=kind, resource_name=topic.name, name=key, value=value)
    for kind_name, kind in _KINDS.items():
        for entity, config in sorted(content.view.configs.get(kind_name, {}).items()):
            name = "" if entity == znodes.DEFAULT_ENTITY else entity
            for key, value in config.values.items():
                if key.startswith(_NOT_KAFKAS):
                    left_out.append(f"{kind_name} {entity}: {key}={value}, which Kafka does not have")
                else:
                    yield kraft.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
    yield from _quotas(content.view)
    for entity, config in sorted(content.view.configs.get(znodes.USERS_KIND, {}).items()):
        yield from _credentials(entity, config.values)
    if content.next_producer_id:
        yield kraft.ProducerIdsRecord(broker=node_id, next_producer_id=content.next_producer_id)


def _at_least(features: Mapping[str, int], level: int) -> Mapping[str, int]:
    return {**features, _VERSION: max(features.get(_VERSION, 0), level)}


def _of_tokens(content: _StoreContent, earlier: KraftImage | None) -> list[kraft.Record]:
    """Return the delegation tokens. Their secrets are those of the same `delegation.token.secret.key`."""
    records = {} if earlier is None or content.has_tokens else dict(earlier.tokens)
    for token_id, stored in content.view.delegation_tokens.items():
        token = stored.information
        records[token_id] = kraft.DelegationTokenRecord(
            owner=token.owner,
            requester=token.requester,
            renewers=list(token.renewers),
            issue_timestamp=token.issue_ms,
            max_timestamp=token.max_ms,
            expiration_timestamp=token.expiry_ms,
            token_id=token_id,
        )
    return [record for _, record in sorted(records.items())]


def _of_acls(acls: set[AclBinding], left_out: list[str]) -> Iterator[kraft.Record]:
    for acl in sorted(acls):
        yield kraft.AccessControlEntryRecord(
            id=new_uuid(),
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission_type,
        )
    of_groups = [acl for acl in acls if acl.principal.startswith("Group:")]
    if of_groups:
        denied = sum(acl.permission_type == PermissionType.DENY for acl in of_groups)
        left_out.append(
            f"the effect of {len(of_groups)} ACLs of groups (Group:NAME), {denied} of which deny something: Kafka's "
            "authorizer knows no groups"
        )


def _is_readable(view: ClusterView, pattern: ResourcePattern) -> bool:
    acls = view.acls.get(pattern)
    return acls is None or not acls.is_unreadable


def _named(pattern: ResourcePattern) -> str:
    return f"{pattern.resource_type.name} {pattern.name}"


def _quotas(view: ClusterView) -> Iterator[kraft.Record]:
    """Generate the quotas of clients and addresses."""
    for kind in (znodes.USERS_KIND, znodes.CLIENTS_KIND, znodes.IPS_KIND):
        for name, config in sorted(view.configs.get(kind, {}).items()):
            entity = entity_of_node(kind, name)
            if entity is None:
                continue
            for key, value in quotas_in(config.values).items():
                parts = [kraft.QuotaEntityPart(entity_type=part, entity_name=of) for part, of in entity.parts()]
                yield kraft.ClientQuotaRecord(entity=parts, key=key, value=value)


def _credentials(entity: str, settings: Mapping[str, str]) -> Iterator[kraft.Record]:
    """Generate the SCRAM credentials of a user."""
    for number, mechanism in MECHANISM_OF_NUMBER.items():
        if mechanism in settings:
            try:
                salt, stored_key, server_key, iterations = from_text(settings[mechanism])
            except ValueError as error:
                raise CannotExport(f"the {mechanism} credential of user {entity}: {error}") from None
            yield kraft.UserScramCredentialRecord(
                name=znodes.desanitized(entity),
                mechanism=number,
                salt=salt,
                stored_key=stored_key,
                server_key=server_key,
                iterations=iterations,
            )


def _of_topic(topic: TopicView, places: Sequence[_Directory], node_id: int) -> Iterator[kraft.Record]:
    yield kraft.TopicRecord(name=topic.name, topic_id=topic.topic_id)
    for partition in topic.partitions:
        name = TopicPartition(topic.name, partition.index)
        if partition.replicas != (node_id,):
            raise CannotExport(f"{name} is on brokers {list(partition.replicas)}, not on broker {node_id} alone")
        place = next((directory for directory in places if (directory.path / str(name)).is_dir()), places[0])
        yield kraft.PartitionRecord(
            partition=partition.index,
            topic_id=topic.topic_id,
            replicas=[node_id],
            isr=[node_id],
            leader=node_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=0,
            directories=[place.directory_id],
        )


def _write(
    files: FileSystem, places: Sequence[_Directory], store: Path, records: Sequence[bytes], node_id: int, now_ms: int
) -> None:
    """Write every file. Can be repeated after a crash: nothing it needs is removed before the store is renamed."""
    home = places[0]
    if home.is_new:
        fields = parse_meta(text_or_none(files, places[1].path / META_PROPERTIES) or "")
        meta = MetaProperties(fields["cluster.id"], node_id, home.directory_id)
        replace_file(files, home.path / META_PROPERTIES, meta_text(meta, now_ms=now_ms).encode())
    replace_file(files, home.path / BOOTSTRAP, snapshot(records, now_ms=now_ms))
    log = home.path / METADATA_LOG
    files.remove_tree(log)  # an earlier Kafka's: its state is in the bootstrap file now
    files.make_directory(log)
    voter = Voter(node_id, home.directory_id, *_CONTROLLER)
    replace_file(files, log / QUORUM, snapshot([], now_ms=now_ms, voter=voter))
    for place in places:
        files.remove(place.path / COPIES)  # Kafka is going to write the files that they verify
        files.sync_directory(place.path)
    files.rename(store, store.with_name(store.name + EXPORTED_SUFFIX))
    files.sync_directory(home.path)
