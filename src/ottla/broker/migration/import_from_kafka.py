"""Plans the import of a data directory that Apache Kafka left, so that a broker starts where Kafka stopped.

If the metadata store has never been used and there are partitions on the disk, their topics are read from Kafka's own
metadata log or, if there is none (Kafka with ZooKeeper, a lost store), from the names of the directories and their
`partition.metadata`. Topics keep their ids, partitions and settings, ACLs stay, producer ids continue after the last
block that was assigned, and group offsets need no import, since `__consumer_offsets` is a topic like any other.

Two rules protect records. An import that would lose some is refused before anything is changed: a directory of one of
several brokers, unless this one holds every acknowledged record of every partition; a log directory that was not given.
And unknown retention means "keep": no segment of such a topic is deleted. Kafka's defaults are in its
server.properties, not in its data, so start Ottla with the same file or set the retention later.

This module only reads; `import_commit.py` writes.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ottla.broker.config import BrokerConfig
from ottla.broker.migration.kafka_directory import UnreadableMetadata, metadata_log_end, read_image
from ottla.core.acls import AclBinding
from ottla.core.errors import InvalidConfig, InvalidRequest
from ottla.core.ids import NO_TOPIC_ID, OFFSETS_TOPIC, TopicPartition, parse_id
from ottla.core.settings import ConfigResourceType, InvalidSettings
from ottla.metadata_store import znodes
from ottla.metadata_store.kraft_image import KraftImage, KraftTopic
from ottla.metadata_store.kraft_records import MetadataRecordType
from ottla.metadata_store.token_znodes import TokenInformation, is_token_id
from ottla.security.quotas.entities import check_value, entity_of, node_of, value_text
from ottla.security.sasl.credentials import MECHANISM_OF_NUMBER, ScramCredential, to_text
from ottla.storage.config import LogConfig, topic_config
from ottla.storage.directories.log_directory import ForeignDirectory
from ottla.storage.directory_names import is_foreign, parse_log_name
from ottla.storage.small_files import META_PROPERTIES, PARTITION_METADATA, parse_meta, parse_partition_metadata

_LEFT_ALONE = re.compile(r".+\.[0-9a-f]{32}-(stray|future)")
_RETENTION = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_KEEP = MappingProxyType({"retention.ms": "-1"})
_UNKNOWN = MappingProxyType({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"})
_LOADING = MappingProxyType({"cleanup.policy": "compact"})
"""Settings to load imported logs with: batches may be missing between others, whatever the topic's policy is today."""

_OFFSETS = MappingProxyType({"cleanup.policy": "compact", "compression.type": "producer"})
_RESERVED_IDS_END = 100  # directory ids below this mean "unassigned", "lost" and the like (KIP-858)
_NAMED_MAX = 5


class ImportedTopic(NamedTuple):
    """Describes a topic as the store will have it."""

    name: str
    topic_id: uuid.UUID  # the zero id: unknown, the topic gets a new one
    leader_epochs: dict[int, int]  # by partition: Kafka's last one
    config: dict[str, str]
    pinned: bool  # the import set retention.ms=-1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """Holds what an import writes. Made by `plan_import`, written by `import_commit.commit_import`."""

    topics: list[ImportedTopic]
    configs: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)  # (kind below /config, name)
    next_producer_id: int = 0
    acls: list[AclBinding] = field(default_factory=list)
    tokens: list[TokenInformation] = field(default_factory=list)
    has_metadata: bool = False  # from Kafka's metadata; if not, from the names of directories
    notes: list[str] = field(default_factory=list)

    @property
    def overrides(self) -> dict[str, Mapping[str, str]]:
        """Return the topic settings to load the logs with."""
        return {topic.name: _LOADING for topic in self.topics}


def plan_import(directories: Sequence[Path], config: BrokerConfig) -> ImportPlan | None:
    """Plan the import; None for a new directory. Raises ForeignDirectory if the directory cannot be imported."""
    held = _find_partitions(directories)
    try:
        image = read_image(directories)
    except UnreadableMetadata as error:
        raise ForeignDirectory(str(error)) from error
    if image is None or (not image.topics and metadata_log_end(directories) is None):  # formatted, or its log is lost
        plan = _without_log(image, held, config)
        if plan is None:
            return None
    else:
        _check_complete(image, held, directories, config.server.node_id)
        plan = _from_image(image, held, config)
    leftovers = Counter(m[1] for name in _names(directories) if (m := _LEFT_ALONE.fullmatch(name)))
    if leftovers["stray"]:
        plan.notes.append(f"not imported: {leftovers['stray']} directories named *-stray")
    if leftovers["future"]:
        plan.notes.append(f"moves of replicas between log directories that are continued: {leftovers['future']}")
    return plan


def _without_log(
    image: KraftImage | None, held: Mapping[TopicPartition, Path], config: BrokerConfig
) -> ImportPlan | None:
    """Plan from the names of directories, and the records that a directory was formatted with; None without any.

    If there are partitions, a log was lost, and with it any later change of users and tokens: only ACLs are taken.
    """
    notes: list[str] = []
    acls, tokens, configs = [], [], {}
    if image is not None:
        acls = list(image.acls.values())
        if not held:
            tokens, configs = _tokens(image, config, notes), _other_configs(image, config, notes)
    if not (held or acls or tokens or configs):
        return None
    return replace(_from_names(held), acls=acls, tokens=tokens, configs=configs, notes=notes)


def _names(directories: Iterable[Path]) -> list[str]:
    return [path.name for directory in directories if directory.is_dir() for path in directory.iterdir()]


def _find_partitions(directories: Iterable[Path]) -> dict[TopicPartition, Path]:
    """Find the partitions on the disk."""
    found = {}
    for directory in directories:
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            topic_partition = parse_log_name(path.name)
            if topic_partition is not None and not is_foreign(topic_partition) and path.is_dir():
                found[topic_partition] = path
    return found


def _meta(directory: Path) -> dict[str, str]:
    try:
        return parse_meta((directory / META_PROPERTIES).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}


def _check_complete(
    image: KraftImage, held: Mapping[TopicPartition, Path], directories: Sequence[Path], node_id: int
) -> None:
    """Raise ForeignDirectory if the import would lose records."""
    given = {parse_id(text) for path in directories if (text := _meta(path).get("directory.id"))}
    elsewhere, lagging, not_given = [], [], []
    for topic in image.topics.values():
        for index, partition in sorted(topic.partitions.items()):
            name = TopicPartition(topic.name, index)
            if node_id not in partition.replicas:
                elsewhere.append(name)
            elif not partition.holds_everything(node_id):
                lagging.append(name)
            elif name not in held and len(partition.directories) == len(partition.replicas):
                place = partition.directories[partition.replicas.index(node_id)]
                if place.int >= _RESERVED_IDS_END and place not in given:
                    not_given.append(name)
    where = directories[0]
    if not_given:
        raise ForeignDirectory(
            f"{where} cannot be imported from Kafka: {_named(not_given)} are in a log directory that was not "
            "given. Name every one of Kafka's log.dirs"
        )
    if elsewhere:
        raise ForeignDirectory(
            f"{where} cannot be imported from Kafka: it belongs to broker {node_id} of several, and "
            f"{_named(elsewhere)} are on other brokers only. Move every partition to this one first "
            "(kafka-reassign-partitions)"
        )
    if lagging:
        raise ForeignDirectory(
            f"{where} cannot be imported from Kafka: broker {node_id} was not in sync for {_named(lagging)}. "
            "Use the directory of the broker that was stopped last"
        )


def _from_image(image: KraftImage, held: Mapping[TopicPartition, Path], config: BrokerConfig) -> ImportPlan:
    notes: list[str] = []
    configs = _other_configs(image, config, notes)
    brokers = {**configs.get((znodes.BROKERS_KIND, znodes.DEFAULT_ENTITY), {})}
    brokers |= configs.get((znodes.BROKERS_KIND, str(config.server.node_id)), {})
    defaults = config.with_overrides(brokers).log
    retention_is_given = bool((config.given.keys() | brokers.keys()) & set(_RETENTION))
    topics = [
        _topic(topic, image, defaults, notes, retention_is_given=retention_is_given)
        for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
    ]
    missing = [
        name
        for topic in topics
        for index in topic.leader_epochs
        if (name := TopicPartition(topic.name, index)) not in held
    ]
    if missing:
        notes.append(f"no directory found for {_named(missing)}: created empty")
    carried = Counter(_record_name(record.number) for record in image.carried)
    if carried:
        listed = ", ".join(f"{count} {name}" for name, count in sorted(carried.items()))
        notes.append(f"not served by Ottla, kept in Kafka's metadata log for an export: {listed}")
    if image.acls and not config.authorizer.is_on:
        notes.append(f"ACLs without effect, because authorizer.class.name is not set: {len(image.acls)}")
    return ImportPlan(
        topics=topics,
        configs=configs,
        next_producer_id=image.next_producer_id,
        acls=list(image.acls.values()),
        tokens=_tokens(image, config, notes),
        has_metadata=True,
        notes=notes,
    )


def _record_name(number: int) -> str:
    return MetadataRecordType(number).name if number in {*MetadataRecordType} else f"record {number}"


def _topic(
    topic: KraftTopic, image: KraftImage, defaults: LogConfig, notes: list[str], *, retention_is_given: bool
) -> ImportedTopic:
    given = image.config(ConfigResourceType.TOPIC, topic.name)
    taken = _acceptable(defaults, given)
    refused = sorted(given.keys() - taken.keys())
    if refused:
        listed = ", ".join(f"{key}={given[key]}" for key in refused)
        notes.append(f"settings of {topic.name} that Ottla does not accept: {listed}")
    is_unknown = not retention_is_given and "retention.ms" not in taken
    pinned = topic_config(defaults, taken).deletes_by_retention and (is_unknown or "cleanup.policy" in refused)
    epochs = {index: partition.leader_epoch for index, partition in sorted(topic.partitions.items())}
    return ImportedTopic(topic.name, topic.topic_id, epochs, {**taken, **(_KEEP if pinned else {})}, pinned)


def _acceptable(defaults: LogConfig, given: Mapping[str, str]) -> dict[str, str]:
    """Select the settings that Ottla accepts, one by one."""
    taken: dict[str, str] = {}
    for key, value in given.items():
        try:
            topic_config(defaults, {**taken, key: value})
        except InvalidConfig:
            continue
        taken[key] = value
    return taken


def _other_configs(image: KraftImage, config: BrokerConfig, notes: list[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Select the dynamic settings of brokers, groups and metric subscriptions that this broker accepts."""
    kinds = {
        ConfigResourceType.BROKER: znodes.BROKERS_KIND,
        ConfigResourceType.GROUP: znodes.GROUPS_KIND,
        ConfigResourceType.CLIENT_METRICS: znodes.CLIENT_METRICS_KIND,
    }
    found: dict[tuple[str, str], dict[str, str]] = {}
    for (kind, name), values in sorted(image.configs.items()):
        if kind not in kinds:
            continue
        taken = dict(values)
        if kind == ConfigResourceType.BROKER:
            for key, value in values.items():
                try:
                    config.with_overrides({key: value})
                except InvalidSettings:
                    del taken[key]
                    notes.append(f"broker setting that Ottla does not accept: {key}={value}")
        found[kinds[ConfigResourceType(kind)], name or znodes.DEFAULT_ENTITY] = taken
    _add_quotas(found, image, notes)
    _add_credentials(found, image, notes)
    return found


def _add_quotas(configs: dict[tuple[str, str], dict[str, str]], image: KraftImage, notes: list[str]) -> None:
    """Add quotas to the settings of what they are of."""
    for parts, quotas in image.quotas.items():
        for key, value in quotas.items():
            try:
                entity = entity_of(dict(parts))
                check_value(entity, key, value)
            except InvalidRequest as error:
                notes.append(f"a quota that Ottla does not accept: {dict(parts)}: {key}={value}: {error.message}")
            else:
                configs.setdefault(node_of(entity), {})[key] = value_text(key, value)


def _add_credentials(configs: dict[tuple[str, str], dict[str, str]], image: KraftImage, notes: list[str]) -> None:
    """Add users' SCRAM credentials to their settings."""
    for (user, number), record in sorted(image.credentials.items()):
        mechanism = MECHANISM_OF_NUMBER.get(number)
        if mechanism is None:
            notes.append(f"a credential of {user} that Ottla does not know: SCRAM mechanism {number}")
            continue
        credential = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
        configs.setdefault((znodes.USERS_KIND, znodes.sanitized(user)), {})[mechanism] = to_text(credential)


def _tokens(image: KraftImage, config: BrokerConfig, notes: list[str]) -> list[TokenInformation]:
    """Select the delegation tokens, expired ones too: the controller removes them."""
    tokens = []
    for token_id, record in sorted(image.tokens.items()):
        if not is_token_id(token_id) or any(":" not in who for who in (record.owner, record.requester)):
            notes.append(f"a delegation token that Ottla does not understand: {token_id} of {record.owner}")
            continue
        times = record.issue_timestamp, record.expiration_timestamp, record.max_timestamp
        tokens.append(TokenInformation(token_id, record.owner, record.requester, tuple(record.renewers), *times))
    if tokens and not config.tokens.secret_key:
        notes.append(f"delegation tokens without effect, because delegation.token.secret.key is not set: {len(tokens)}")
    return tokens


def _from_names(held: Mapping[TopicPartition, Path]) -> ImportPlan:
    """Plan the topics from the directories alone. Raises ForeignDirectory if partitions are missing."""
    topics = []
    for name in sorted({topic_partition.topic for topic_partition in held}):
        indexes = sorted(topic_partition.partition for topic_partition in held if topic_partition.topic == name)
        missing = sorted(set(range(indexes[-1])) - set(indexes))
        if missing:
            raise ForeignDirectory(
                f"the partitions cannot be imported: {name}-{indexes[-1]} exists, but "
                f"{_named([TopicPartition(name, index) for index in missing])} does not, and there is no metadata. "
                "Name every log directory"
            )
        ids = {_topic_id(held[TopicPartition(name, index)]) for index in indexes} - {NO_TOPIC_ID}
        if len(ids) > 1:
            raise ForeignDirectory(f"the partitions of {name} have different topic ids: they belong to several topics")
        config = dict(_OFFSETS if name == OFFSETS_TOPIC else _UNKNOWN)
        epochs = dict.fromkeys(indexes, 0)
        topics.append(ImportedTopic(name, ids.pop() if ids else NO_TOPIC_ID, epochs, config, pinned=False))
    return ImportPlan(topics=topics)


def _topic_id(directory: Path) -> uuid.UUID:
    try:
        return parse_partition_metadata((directory / PARTITION_METADATA).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return NO_TOPIC_ID


def _named(partitions: Sequence[TopicPartition]) -> str:
    listed = ", ".join(map(str, partitions[:_NAMED_MAX]))
    more = len(partitions) - _NAMED_MAX
    return f"{listed} and {more} more" if more > 0 else listed
