"""Reads what there is once in a cluster. Only the active controller serves it, so that a sum counts it once."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.metadata_store.cluster_view import NO_LEADER
from ottla.metrics.page import GAUGE, Page, escape, family, labels_of
from ottla.metrics.reading import Reading

_KE, _KM, _KAFKA = "Names of kafka_exporter", "Names of kminion", "Cluster"
_CONTROLLER = "kafka_controller_kafkacontroller_"

BROKERS = family("kafka_brokers", GAUGE, "Brokers that are alive", group=_KE)
BROKER_INFO = family("kafka_broker_info", GAUGE, "1 for each broker", "id address", group=_KE)
TOPIC_PARTITIONS = family("kafka_topic_partitions", GAUGE, "Partitions of a topic", "topic", group=_KE)
KM_UP = family("kminion_exporter_up", GAUGE, "1", "version", group=_KM)
KM_BROKER = family(
    "kminion_kafka_broker_info", GAUGE, "1 for each broker", "broker_id address port rack_id is_controller", group=_KM
)
KM_CLUSTER = family(
    "kminion_kafka_cluster_info", GAUGE, "1", "cluster_id cluster_version broker_count controller_id", group=_KM
)
KM_TOPIC = family(
    "kminion_kafka_topic_info",
    GAUGE,
    "1 for each topic",
    "topic_name partition_count replication_factor cleanup_policy",
    group=_KM,
)
ACTIVE = family(
    f"{_CONTROLLER}activecontrollercount", GAUGE, "1 on the controller, 0 elsewhere: the sum must be 1", group=_KAFKA
)
OFFLINE = family(f"{_CONTROLLER}offlinepartitionscount", GAUGE, "Partitions without a leader", group=_KAFKA)
TOPICS = family(f"{_CONTROLLER}globaltopiccount", GAUGE, "Topics of the cluster", group=_KAFKA)
PARTITIONS = family(f"{_CONTROLLER}globalpartitioncount", GAUGE, "Partitions of the cluster", group=_KAFKA)
ALIVE = family(f"{_CONTROLLER}activebrokercount", GAUGE, "Brokers that are alive", group=_KAFKA)
IMBALANCE = family(
    f"{_CONTROLLER}preferredreplicaimbalancecount",
    GAUGE,
    "Partitions that another replica leads than the first",
    group=_KAFKA,
)
CONNECTED = family(
    "ottla_metadata_store_connected", GAUGE, "1 while there is a session with the metadata store", group=_KAFKA
)
_VERSION = "ottla"


def collect(reading: Reading, page: Page) -> Iterator[None]:
    """Read the snapshot of the cluster."""
    view = reading.view
    is_connected = reading.services.controller.is_connected
    page.add(ACTIVE, int(reading.is_controller and is_connected))
    page.add(CONNECTED, int(is_connected))
    page.add(KM_UP, 1, labels_of(version=_VERSION))
    if not reading.is_controller:
        return
    page.add(BROKERS, len(view.brokers))
    page.add(ALIVE, len(view.brokers))
    for broker in view.brokers.values():
        endpoint = next(iter(broker.endpoints.values()))
        page.add(BROKER_INFO, 1, labels_of(id=broker.node_id, address=f"{endpoint.host}:{endpoint.port}"))
        info = labels_of(
            broker_id=broker.node_id,
            address=endpoint.host,
            port=endpoint.port,
            rack_id=broker.rack or "",
            is_controller=str(broker.node_id == view.controller_id).lower(),
        )
        page.add(KM_BROKER, 1, info)
    cluster = labels_of(
        cluster_id=view.cluster_id,
        cluster_version=_VERSION,
        broker_count=len(view.brokers),
        controller_id=view.controller_id,
    )
    page.add(KM_CLUSTER, 1, cluster)
    page.add(TOPICS, len(view.topics))
    yield from _topics(reading, page)


def _topics(reading: Reading, page: Page) -> Iterator[None]:
    offline = partitions = imbalanced = 0
    default_policy = reading.services.config.log.cleanup_policy
    series_max = reading.services.config.metrics.partitions_max
    for number, topic in enumerate(list(reading.view.topics.values())):
        name, count = escape(topic.name), len(topic.partitions)
        partitions += count
        for state in topic.partitions:
            offline += state.leader == NO_LEADER
            imbalanced += state.leader not in (NO_LEADER, state.replicas[0] if state.replicas else NO_LEADER)
        if reading.slices.spend(2 + count // 10):
            yield
        if number >= series_max:
            continue
        page.add(TOPIC_PARTITIONS, count, f'topic="{name}"')
        policy = topic.config.get("cleanup.policy") or ",".join(default_policy)
        info = (
            f'topic_name="{name}",partition_count="{count}",replication_factor="{topic.replication_factor}",'
            f'cleanup_policy="{escape(policy)}"'
        )
        page.add(KM_TOPIC, 1, info)
    page.add(OFFLINE, offline)
    page.add(PARTITIONS, partitions)
    page.add(IMBALANCE, imbalanced)
