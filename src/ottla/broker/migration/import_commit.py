"""Writes an import plan into the metadata store, in one commit.

Kafka's own metadata is not changed. The store records where Kafka's metadata log ended: if the log is longer at a later
start, a Kafka has run on the directory in the meantime and the store no longer matches the disk. Such a start is
refused, because a topic that Kafka deleted and created again would otherwise be taken for the old one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from ottla.broker.migration.import_from_kafka import ImportedTopic, ImportPlan
from ottla.broker.migration.kafka_directory import metadata_log_end
from ottla.core.acls import AccessControlEntry, AclBinding, ResourcePattern
from ottla.core.ids import INTERNAL_TOPICS, NO_TOPIC_ID, TRANSACTIONS_TOPIC, TopicPartition, random_topic_id
from ottla.metadata_store import acl_znodes, znodes
from ottla.metadata_store.store import Create, MetadataStore, Op, Put
from ottla.metadata_store.token_znodes import encode_token, token_path
from ottla.storage.directories.log_directory import ForeignDirectory
from ottla.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

Logs = Mapping[TopicPartition, PartitionLog]


async def is_unused(store: MetadataStore) -> bool:
    """Return whether no controller has ever used this store: then the logs on the disk come from elsewhere."""
    return await store.get(znodes.CONTROLLER_EPOCH) is None and await store.get(znodes.KAFKA_IMPORT) is None


async def check_unchanged_since_import(store: MetadataStore, directories: Sequence[Path], metadata_file: Path) -> None:
    """Raise ForeignDirectory if a Kafka has run on the directory since it was imported."""
    node = await store.get(znodes.KAFKA_IMPORT)
    if node is None:
        return
    now = metadata_log_end(directories)
    if now is not None and tuple(now) != znodes.decode_kafka_import(node.value).metadata_log_end:
        raise ForeignDirectory(
            f"a Kafka has run on {directories[0]} since Ottla imported it. Move {metadata_file} away, and Ottla "
            "imports the directory again as Kafka left it"
        )


async def commit_import(
    found: ImportPlan,
    store: MetadataStore,
    logs: Logs,
    directories: Sequence[Path],
    *,
    node_id: int,
    new_id: Callable[[], UUID] = random_topic_id,
) -> None:
    """Create the topics, led by this broker, and log what was imported."""
    ops: list[Op] = []
    for topic in found.topics:
        ops += _topic_ops(topic, logs, node_id=node_id, new_id=new_id)
    ops += _config_ops(found.configs)
    ops += _acl_ops(found.acls)
    ops += [Create(token_path(token.token_id), encode_token(token)) for token in found.tokens]
    next_producer_id = max(found.next_producer_id, _after_known_producers(logs.values()))
    if next_producer_id:
        block = znodes.ProducerIdBlock(node_id, 0, next_producer_id - 1)
        ops.append(Put(znodes.PRODUCER_ID_BLOCK, znodes.encode_producer_id_block(block)))
    pinned = tuple(topic.name for topic in found.topics if topic.pinned)
    end = metadata_log_end(directories)
    done = znodes.KafkaImport((end.file, end.size) if end else None, pinned, has_acls=True, has_tokens=True)
    ops.append(Create(znodes.KAFKA_IMPORT, znodes.encode_kafka_import(done)))
    await store.commit(ops)
    log.info("%s", summary(found, directories[0]))


def _config_ops(configs: Mapping[tuple[str, str], Mapping[str, str]]) -> list[Op]:
    """Create the nodes of settings, and those above them."""
    nodes: dict[tuple[str, str], Mapping[str, str] | None] = {}
    for kind, name in configs:
        nodes |= {(kind, parent): configs.get((kind, parent)) for parent in znodes.config_parents(kind, name)}
        nodes[kind, name] = configs[kind, name]
    return [
        Create(znodes.config_path(kind, name), b"" if values is None else znodes.encode_config(values))
        for (kind, name), values in nodes.items()
    ]


def _topic_ops(topic: ImportedTopic, logs: Logs, *, node_id: int, new_id: Callable[[], UUID]) -> list[Op]:
    topic_id = new_id() if topic.topic_id == NO_TOPIC_ID else topic.topic_id
    replicas: dict[int, tuple[int, ...]] = dict.fromkeys(topic.leader_epochs, (node_id,))
    ops: list[Op] = [
        Create(znodes.topic_path(topic.name), znodes.encode_assignment(znodes.Assignment(topic_id, replicas))),
        Create(f"{znodes.topic_path(topic.name)}/partitions"),
    ]
    if topic.config:
        ops.append(Create(znodes.topic_config_path(topic.name), znodes.encode_config(topic.config)))
    for index, epoch in topic.leader_epochs.items():
        partition_log = logs.get(TopicPartition(topic.name, index))
        newest = max(
            epoch, partition_log.epochs.latest if partition_log else 0, 0
        )  # the election at the start takes the next one
        state = znodes.PartitionState(node_id, newest, (node_id,), controller_epoch=0)
        ops.append(Create(znodes.partition_path(topic.name, index)))
        ops.append(Create(znodes.state_path(topic.name, index), znodes.encode_state(state)))
    return ops


def _acl_ops(acls: Iterable[AclBinding]) -> list[Op]:
    by_pattern: dict[ResourcePattern, dict[AccessControlEntry, None]] = {}
    for binding in acls:
        by_pattern.setdefault(binding.pattern, {})[binding.entry] = None
    if not by_pattern:
        return []
    return [
        *map(Create, acl_znodes.directories(by_pattern)),
        *(
            Create(acl_znodes.acl_path(pattern), acl_znodes.encode_acls(entries))
            for pattern, entries in by_pattern.items()
        ),
    ]


def _after_known_producers(logs: Iterable[PartitionLog]) -> int:
    """Return the first id after every block from which a producer with records here may have got its id."""
    known = [producer.producer_id for log in logs for producer in log.producers.describe()]
    block = znodes.PRODUCER_IDS_PER_BLOCK
    return (max(known) // block + 1) * block if known else 0


def summary(found: ImportPlan, directory: Path) -> str:
    """Describe the import in one line."""
    users = [topic for topic in found.topics if topic.name not in INTERNAL_TOPICS]
    partitions = sum(len(topic.leader_epochs) for topic in found.topics)
    counts = ((len(found.acls), "ACLs"), (len(found.tokens), "delegation tokens"))
    security = "".join(f", {count} {what}" for count, what in counts if count)
    source = "Apache Kafka's metadata" if found.has_metadata else "the names of its partitions, without metadata"
    topics = f"{len(users)} topics and {len(found.topics) - len(users)} internal ones"
    parts = [f"{directory} imported from {source}: {topics}, {partitions} partitions{security}"]
    pinned = [topic.name for topic in found.topics if topic.pinned]
    if pinned:
        listed = ", ".join(pinned)
        parts.append(f"kept for ever (retention.ms=-1), because no server.properties gave a retention: {listed}")
    if not found.has_metadata:
        parts.append("nothing is deleted or compacted in them until their settings are changed (retention.ms=-1)")
    if any(topic.name == TRANSACTIONS_TOPIC for topic in found.topics):
        parts.append("transactions are kept as they are")
    return "; ".join([*parts, *found.notes])
