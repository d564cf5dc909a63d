"""Writes into the metadata store what was found in a directory to take over, all of it in one commit.

Nothing of Kafka's own metadata is changed. Where its log ended is noted: if it has grown at a later start, a Kafka has
run on the directory in between, and our picture is no longer that of the disk. Such a start is refused, for a topic
that Kafka deleted and made again would otherwise be taken for ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from ottla.broker.adoption import AdoptedTopic, Adoption
from ottla.broker.kafka_directory import trace
from ottla.coordination import layout
from ottla.coordination.store import Create, MetadataStore, Op, Put
from ottla.coordination.view import INTERNAL_TOPICS
from ottla.core.ids import NO_TOPIC_ID, TopicPartition, random_topic_id
from ottla.storage.directory import ForeignDirectory
from ottla.storage.log import PartitionLog

log = logging.getLogger(__name__)

Logs = Mapping[TopicPartition, PartitionLog]


async def is_new(store: MetadataStore) -> bool:
    """Whether no controller has ever worked with this store: then what lies on the disk comes from elsewhere."""
    return await store.get(layout.CONTROLLER_EPOCH) is None and await store.get(layout.ADOPTED) is None


async def check_untouched(store: MetadataStore, directories: Sequence[Path], metadata_file: Path) -> None:
    """Raises ForeignDirectory if a Kafka has run on the directory since it was taken over."""
    node = await store.get(layout.ADOPTED)
    if node is None:
        return
    now = trace(directories)
    if now is not None and tuple(now) != layout.decode_adopted(node.value).trace:
        raise ForeignDirectory(
            f"a Kafka has run on {directories[0]} since Ottla took it over; move {metadata_file} out of the way, and "
            "Ottla takes the directory over again as Kafka left it"
        )


async def settle(
    found: Adoption,
    store: MetadataStore,
    logs: Logs,
    directories: Sequence[Path],
    *,
    node_id: int,
    new_id: Callable[[], UUID] = random_topic_id,
) -> None:
    """Make the topics known, as led by this broker, and say in the log what was taken over."""
    ops: list[Op] = []
    for topic in found.topics:
        ops += _topic_ops(topic, logs, node_id=node_id, new_id=new_id)
    ops += [
        Create(layout.config_path(kind, name), layout.encode_config(values))
        for (kind, name), values in found.configs.items()
    ]
    next_producer_id = max(found.next_producer_id, _behind_known_producers(logs.values()))
    if next_producer_id:
        block = layout.ProducerIdBlock(node_id, 0, next_producer_id - 1)
        ops.append(Put(layout.PRODUCER_ID_BLOCK, layout.encode_producer_id_block(block)))
    pinned = tuple(topic.name for topic in found.topics if topic.pinned)
    end = trace(directories)
    adopted = layout.Adopted((end.file, end.size) if end else None, pinned)
    ops.append(Create(layout.ADOPTED, layout.encode_adopted(adopted)))
    await store.commit(ops)
    log.info("%s", summary(found, directories[0]))


def _topic_ops(topic: AdoptedTopic, logs: Logs, *, node_id: int, new_id: Callable[[], UUID]) -> list[Op]:
    topic_id = new_id() if topic.topic_id == NO_TOPIC_ID else topic.topic_id
    replicas: dict[int, tuple[int, ...]] = dict.fromkeys(topic.leader_epochs, (node_id,))
    ops: list[Op] = [
        Create(layout.topic_path(topic.name), layout.encode_assignment(layout.Assignment(topic_id, replicas))),
        Create(f"{layout.topic_path(topic.name)}/partitions"),
    ]
    if topic.config:
        ops.append(Create(layout.topic_config_path(topic.name), layout.encode_config(topic.config)))
    for index, epoch in topic.leader_epochs.items():
        found = logs.get(TopicPartition(topic.name, index))
        newest = max(epoch, found.epochs.latest if found else 0, 0)  # the election at the start takes the next one
        state = layout.PartitionState(node_id, newest, (node_id,), controller_epoch=0)
        ops.append(Create(layout.partition_path(topic.name, index)))
        ops.append(Create(layout.state_path(topic.name, index), layout.encode_state(state)))
    return ops


def _behind_known_producers(logs: Iterable[PartitionLog]) -> int:
    """The first id behind every block that a producer whose records are here may have got its id from."""
    known = [producer.producer_id for log in logs for producer in log.producers()]
    block = layout.PRODUCER_IDS_PER_BLOCK
    return (max(known) // block + 1) * block if known else 0


def summary(found: Adoption, directory: Path) -> str:
    """What was taken over, in one line."""
    users = [topic for topic in found.topics if topic.name not in INTERNAL_TOPICS]
    partitions = sum(len(topic.leader_epochs) for topic in found.topics)
    source = "Apache Kafka's metadata" if found.has_metadata else "the names of its partitions, without any metadata"
    topics = f"{len(users)} topics and {len(found.topics) - len(users)} internal ones"
    parts = [f"{directory} taken over by {source}: {topics}, {partitions} partitions"]
    pinned = [topic.name for topic in found.topics if topic.pinned]
    if pinned:
        parts.append(
            f"kept for ever (retention.ms=-1), as no server.properties was given to say how long: {', '.join(pinned)}"
        )
    if not found.has_metadata:
        parts.append("nothing is deleted or compacted in them until their settings say so (retention.ms=-1)")
    if any(topic.name == "__transaction_state" for topic in found.topics):
        parts.append("transactions are kept as they are, but not served yet")
    return "; ".join([*parts, *found.notes])
