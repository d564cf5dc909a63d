"""Selects the topics to mirror, names their copies, and creates and grows these."""

from __future__ import annotations

import fnmatch
import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.admin import (
    AlterConfigOp,
    NewTopic,
    alter_configs,
    create_partitions,
    create_topics,
    describe_configs,
    list_topics,
)
from ottla.client.cluster import Cluster
from ottla.core.errors import ErrorCode, LeaderNotAvailable
from ottla.core.ids import INTERNAL_TOPICS, why_illegal_topic
from ottla.core.settings import AlterConfigOpType, ConfigResourceType

log = logging.getLogger(__name__)

TOPIC_CONFIG_SOURCE = 1
OWN_PREFIX = "ottla-mirror-"
"""Begins the names of what a mirror keeps in the target cluster: a topic, a group and a transactional id."""

_NOT_COPIED = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.type",  # the copy keeps the timestamps of the records
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
"""Settings that belong to a cluster and not to the data; MirrorMaker 2 leaves most of them out too."""


class InvalidRename(ValueError):
    """Reports a template that does not make a topic's name."""


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """Selects topics by shell patterns. `rename` makes the copy's name from `{topic}` and `{source}`."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    rename: str = "{topic}"
    source: str = "source"

    def __post_init__(self) -> None:
        """Check the template. Raises InvalidRename."""
        if "{topic}" not in self.rename:
            raise InvalidRename(f"{self.rename!r} has no {{topic}}: all topics would get the same name")
        why = why_illegal_topic(self.target_name("t"))
        if why is not None:
            raise InvalidRename(f"{self.rename!r} does not make the name of a topic: {why}")

    def selects(self, topic: str) -> bool:
        """Return whether to mirror a topic; internal topics and those of mirrors are never mirrored.

        >>> TopicPolicy(("ord*",), ("*.tmp",)).selects("orders"), TopicPolicy().selects("__consumer_offsets")
        (True, False)
        """
        if topic in INTERNAL_TOPICS or topic.startswith(("__", OWN_PREFIX)):
            return False
        return _matches(topic, self.include) and not _matches(topic, self.exclude)

    def target_name(self, topic: str) -> str:
        """Return the name of a topic's copy.

        >>> TopicPolicy(rename="{source}.{topic}", source="eu").target_name("orders")
        'eu.orders'
        """
        return self.rename.replace("{source}", self.source).replace("{topic}", topic)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


class MirroredTopic(NamedTuple):
    """Describes a topic of the source and its copy."""

    name: str
    target: str
    partitions: int
    topic_id: uuid.UUID  # of the source


async def selected_topics(source: Cluster, policy: TopicPolicy, copies: frozenset[str]) -> list[MirroredTopic]:
    """List the topics to mirror. `copies` are topics of the source that a mirror writes: copying them would loop."""
    return [
        MirroredTopic(topic.name, policy.target_name(topic.name), len(topic.partitions), topic.topic_id)
        for topic in await list_topics(source)
        if not topic.error_code and topic.name not in copies and policy.selects(topic.name)
    ]


async def prepare_copies(
    source: Cluster, target: Cluster, topics: Iterable[MirroredTopic], *, replication_factor: int
) -> None:
    """Create the copies that are missing, add partitions, and copy changed settings.

    Raises the KafkaError of the first topic that failed.
    """
    present = {topic.name: len(topic.partitions) for topic in await list_topics(target)}
    for topic in topics:
        configs = await _own_configs(source, topic.name)
        if topic.target not in present:
            new_topic = NewTopic(topic.target, topic.partitions, replication_factor, configs)
            ((outcome, _),) = await create_topics(target, [new_topic])
            if outcome.error is not None and outcome.error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise outcome.error
            log.info("created topic %s with %d partitions", topic.target, topic.partitions)
            continue
        if present[topic.target] < topic.partitions:
            grown = await create_partitions(target, topic.target, topic.partitions)
            if grown.error is not None:
                raise grown.error
            log.info("topic %s grew to %d partitions", topic.target, topic.partitions)
            await _wait_for_partitions(target, topic)
        await _copy_configs(target, topic.target, configs)


async def _wait_for_partitions(target: Cluster, topic: MirroredTopic) -> None:
    """Fetch the metadata of a copy until it has the new partitions."""

    async def attempt() -> None:
        if len((await target.topic(topic.target, fresh=True)).partitions) < topic.partitions:
            raise LeaderNotAvailable(f"{topic.target} has not {topic.partitions} partitions yet")

    await target.retrying(attempt)


async def _own_configs(cluster: Cluster, topic: str) -> dict[str, str]:
    """Return the settings of a topic that were set for it and that belong to its data."""
    return {
        entry.name: entry.value
        for entry in await describe_configs(cluster, ConfigResourceType.TOPIC, topic)
        if entry.source == TOPIC_CONFIG_SOURCE and entry.value is not None and entry.name not in _NOT_COPIED
    }


async def _copy_configs(target: Cluster, topic: str, wanted: dict[str, str]) -> None:
    present = await _own_configs(target, topic)
    changes = [
        AlterConfigOp(name, AlterConfigOpType.SET, value)
        for name, value in wanted.items()
        if present.get(name) != value
    ]
    changes += [AlterConfigOp(name, AlterConfigOpType.DELETE) for name in present if name not in wanted]
    if changes:
        await alter_configs(target, ConfigResourceType.TOPIC, topic, changes)
        log.info("topic %s: changed settings %s", topic, ", ".join(sorted(change.name for change in changes)))
