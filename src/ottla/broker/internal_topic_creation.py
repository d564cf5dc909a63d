"""Creates the internal topics of the coordinators on first use, as Kafka does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.controller.topics import CreateTopic
from ottla.core.errors import CoordinatorNotAvailable, KafkaError, TopicAlreadyExists
from ottla.core.ids import AUDIT_TOPIC, EVENTS_TOPIC, OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from ottla.broker.services import Services


class _Layout(NamedTuple):
    partitions: int
    replication_factor: int
    configs: dict[str, str | None]


async def create_if_absent(services: Services, topic: str) -> None:
    """Create an internal topic unless it exists. Raises CoordinatorNotAvailable, after which clients retry."""
    if topic in services.cluster.current.topics:
        return
    try:
        await services.controller_channel.create_topic(internal_topic(services, topic))
    except TopicAlreadyExists:
        return  # another request was first
    except KafkaError as error:
        raise CoordinatorNotAvailable(f"{topic} could not be created: {error.message}") from error


def internal_topic(services: Services, topic: str) -> CreateTopic:
    """Return the topic with the configured partitions and replicas.

    Only where no other broker can join it has fewer replicas than configured: one broker alone must serve clients too.
    The first of three brokers must not: the topic would have one replica for ever.
    """
    layout = _layout_of(services, topic)
    brokers = len(services.cluster.current.brokers)
    factor = min(layout.replication_factor, max(brokers, 1)) if services.has_own_store else layout.replication_factor
    return CreateTopic(topic, layout.partitions, factor, configs=layout.configs)


def _layout_of(services: Services, topic: str) -> _Layout:
    if topic == OFFSETS_TOPIC:
        groups = services.config.groups
        configs: dict[str, str | None] = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(groups.offsets_topic_segment_bytes),
        }
        return _Layout(groups.offsets_topic_partitions, groups.offsets_topic_replication_factor, configs)
    if topic == SHARE_STATE_TOPIC:
        share = services.config.share_coordinator
        configs = {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "min.insync.replicas": str(share.state_topic_min_isr),
            "retention.ms": "-1",
            "segment.bytes": str(share.state_topic_segment_bytes),
        }
        return _Layout(share.state_topic_partitions, share.state_topic_replication_factor, configs)
    if topic == AUDIT_TOPIC:
        audit = services.config.audit
        configs = {"cleanup.policy": "delete", "retention.ms": str(audit.topic_retention_ms)}
        return _Layout(audit.topic_partitions, audit.topic_replication_factor, configs)
    if topic == EVENTS_TOPIC:
        events = services.config.events
        configs = {"cleanup.policy": "delete", "retention.ms": str(events.topic_retention_ms)}
        return _Layout(events.topic_partitions, events.topic_replication_factor, configs)
    assert topic == TRANSACTIONS_TOPIC, topic
    transactions = services.config.transactions
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(transactions.topic_min_insync_replicas),
        "segment.bytes": str(transactions.topic_segment_bytes),
        "unclean.leader.election.enable": "false",
    }
    return _Layout(transactions.topic_partitions, transactions.topic_replication_factor, configs)
