"""Administers topics, settings and the cluster, as Kafka's Admin client does.

A request for several items returns an `Outcome` for each: the failure of one item does not fail the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ottla.client.cluster import ANY_BROKER, Cluster
from ottla.client.errors import CannotConnect, raise_for
from ottla.client.metadata import BrokerNode, TopicInfo
from ottla.core.errors import ErrorCode, KafkaError, NetworkException, RequestTimedOut, UnsupportedVersion, error_for
from ottla.core.settings import AlterConfigOpType, ConfigResourceType
from ottla.wire.apis import API_INFO, ApiKey

CONFIG_SOURCES = {
    1: "topic",
    2: "broker (dynamic)",
    3: "all brokers (dynamic)",
    4: "broker (file)",
    5: "default",
    6: "logger",
    8: "group",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one item; `error` is None on success."""

    name: str
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 means the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlterConfigOp:
    """A change to one setting."""

    name: str
    operation: AlterConfigOpType
    value: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A place that gives a setting its value, if none before it does."""

    name: str
    value: str | None
    source: int

    @property
    def source_name(self) -> str:
        """The source of the value, in words."""
        return CONFIG_SOURCES.get(self.source, f"source {self.source}")


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting and its value on the broker; the value of a secret is None."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    documentation: str = ""
    synonyms: tuple[ConfigSynonym, ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether the value is the default."""
        return self.source == 5

    @property
    def source_name(self) -> str:
        """The source of the value, in words."""
        return CONFIG_SOURCES.get(self.source, f"source {self.source}")


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker; a size in bytes is -1 where the broker does not report it."""

    node_id: int
    path: str
    error_code: int
    partitions: int
    log_bytes: int
    total_bytes: int
    usable_bytes: int

    @property
    def is_offline(self) -> bool:
        """Whether it cannot be used until its broker is restarted."""
        return self.error_code != ErrorCode.NONE

    @property
    def is_full(self) -> bool:
        """Whether it takes no records."""
        return not self.is_offline and self.usable_bytes == 0


@dataclass(frozen=True, slots=True)
class LeaderLog:
    """The log of a partition on its leader."""

    size_bytes: int
    is_full: bool  # its log directory takes no records


@dataclass(frozen=True, slots=True)
class ApiVersionRange:
    """The versions of an API that a broker serves, and the newest of them that this client can use."""

    key: int
    name: str
    min_version: int
    max_version: int
    usable_version: int | None


async def list_topics(cluster: Cluster) -> list[TopicInfo]:
    """List all topics, sorted by name."""
    info = await cluster.refresh(None)
    return [info.topics[name] for name in sorted(info.topics)]


async def create_topics(
    cluster: Cluster, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> list[tuple[Outcome, TopicInfo | None]]:
    """Create topics; with `validate_only` only validate the request."""
    from ottla.wire.generated.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

    creatable_topics = [
        CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
        )
        for topic in topics
    ]
    ask = CreateTopicsRequest(topics=creatable_topics, timeout_ms=_timeout_ms(cluster), validate_only=validate_only)
    answer = await cluster.retrying(lambda: cluster.request_controller(ApiKey.CREATE_TOPICS, ask))
    outcomes = []
    for result in answer.topics:
        outcome = _outcome(result.name, result.error_code, result.error_message)
        info = TopicInfo(result.name, result.topic_id, False, ()) if outcome.error is None else None
        outcomes.append((outcome, info))
    return outcomes


async def delete_topics(cluster: Cluster, names: Sequence[str]) -> list[Outcome]:
    """Delete topics and their records."""
    from ottla.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState

    ask = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names], topic_names=list(names), timeout_ms=_timeout_ms(cluster)
    )
    answer = await cluster.retrying(lambda: cluster.request_controller(ApiKey.DELETE_TOPICS, ask))
    return [_outcome(result.name or "", result.error_code, result.error_message) for result in answer.responses]


async def create_partitions(cluster: Cluster, name: str, count: int, *, validate_only: bool = False) -> Outcome:
    """Increase the number of a topic's partitions to `count`; it can never decrease."""
    from ottla.wire.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic

    ask = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)],
        timeout_ms=_timeout_ms(cluster),
        validate_only=validate_only,
    )
    answer = await cluster.retrying(lambda: cluster.request_controller(ApiKey.CREATE_PARTITIONS, ask))
    result = answer.results[0]
    return _outcome(result.name, result.error_code, result.error_message)


async def describe_configs(
    cluster: Cluster,
    kind: ConfigResourceType,
    name: str,
    *,
    keys: Sequence[str] | None = None,
    documentation: bool = False,
    synonyms: bool = False,
) -> list[ConfigEntry]:
    """Describe the settings of a topic, broker or group, sorted by name. Raises the resource's `KafkaError`."""
    from ottla.wire.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
    )
    ask = DescribeConfigsRequest(resources=[resource], include_documentation=documentation, include_synonyms=synonyms)
    answer = await cluster.request(_node_for(kind, name), ApiKey.DESCRIBE_CONFIGS, ask)
    result = answer.results[0]
    raise_for(result.error_code, result.error_message, about=f"{kind.name.lower()} {name}")
    entries = [
        ConfigEntry(
            c.name,
            c.value,
            c.config_source,
            c.read_only,
            c.is_sensitive,
            c.documentation or "",
            tuple(ConfigSynonym(synonym.name, synonym.value, synonym.source) for synonym in c.synonyms),
        )
        for c in result.configs
    ]
    return sorted(entries, key=lambda entry: entry.name)


async def alter_configs(
    cluster: Cluster,
    kind: ConfigResourceType,
    name: str,
    changes: Sequence[AlterConfigOp],
    *,
    validate_only: bool = False,
) -> None:
    """Change settings, all of them or none. Raises the resource's `KafkaError`."""
    from ottla.wire.generated.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    configs = [AlterableConfig(name=c.name, config_operation=c.operation, value=c.value) for c in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    ask = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    answer = await cluster.request(_node_for(kind, name), ApiKey.INCREMENTAL_ALTER_CONFIGS, ask)
    result = answer.responses[0]
    raise_for(result.error_code, result.error_message, about=f"{kind.name.lower()} {name}")


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster's id, controller and brokers."""

    cluster_id: str
    controller_id: int
    nodes: tuple[BrokerNode, ...]


async def describe_cluster(cluster: Cluster) -> ClusterDescription:
    """Describe the cluster; uses Metadata where the broker does not serve DescribeCluster."""
    from ottla.wire.generated.describe_cluster import DescribeClusterRequest

    try:
        answer = await cluster.request(ANY_BROKER, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
    except UnsupportedVersion:
        info = await cluster.refresh([])
        return ClusterDescription(info.cluster_id or "", info.controller_id, tuple(info.nodes.values()))
    raise_for(answer.error_code, answer.error_message)
    nodes = sorted(
        (BrokerNode(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers), key=lambda node: node.node_id
    )
    return ClusterDescription(answer.cluster_id, answer.controller_id, tuple(nodes))


async def store_troubles(cluster: Cluster, *, within_s: float) -> list[str]:
    """Ask each broker whether it has a connection to the metadata store; returns a sentence for each that has none.

    A broker that does not answer in time is left out.
    """
    from ottla.wire.generated.describe_cluster import DescribeClusterRequest

    async def ask(node_id: int) -> str:
        try:
            async with asyncio.timeout(within_s):
                answer = await cluster.request(node_id, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
        except (TimeoutError, KafkaError, CannotConnect):
            return ""
        return answer.error_message or "" if answer.error_code == ErrorCode.NONE else ""

    nodes = sorted(cluster.info.nodes)
    found = await asyncio.gather(*map(ask, nodes))
    if len(nodes) > 1 and found[0] and len(set(found)) == 1:
        return [f"all brokers: {found[0]}"]
    return [f"broker {node_id}: {text}" for node_id, text in zip(nodes, found, strict=True) if text]


async def log_dirs(cluster: Cluster, node_ids: Sequence[int]) -> list[LogDir]:
    """Describe the log directories of these brokers. Raises `CannotConnect` if a broker cannot be reached."""
    from ottla.wire.generated.describe_log_dirs import DescribeLogDirsRequest

    ask = DescribeLogDirsRequest(topics=None)
    answers = await asyncio.gather(*(cluster.request(node, ApiKey.DESCRIBE_LOG_DIRS, ask) for node in node_ids))
    found = []
    for node_id, answer in zip(node_ids, answers, strict=True):
        raise_for(answer.error_code, about=f"log directories of broker {node_id}")
        for item in answer.results:
            found_here = [p for topic in item.topics for p in topic.partitions]
            found.append(
                LogDir(
                    node_id=node_id,
                    path=item.log_dir,
                    error_code=item.error_code,
                    partitions=sum(not p.is_future_key for p in found_here),
                    log_bytes=sum(p.partition_size for p in found_here),
                    total_bytes=item.total_bytes,
                    usable_bytes=item.usable_bytes,
                )
            )
    return found


async def leader_logs(cluster: Cluster, topic: str) -> dict[int, LeaderLog]:
    """Return the log of each partition whose leader answers; empty if brokers do not report log directories."""
    from ottla.wire.generated.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

    info = await cluster.topic(topic)
    logs: dict[int, LeaderLog] = {}
    for leader in sorted({p.leader_id for p in info.partitions if p.leader_id >= 0}):
        led = [p.partition for p in info.partitions if p.leader_id == leader]
        ask = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=topic, partitions=led)])
        try:
            answer = await cluster.request(leader, ApiKey.DESCRIBE_LOG_DIRS, ask)
        except UnsupportedVersion:
            return {}
        except (CannotConnect, NetworkException, RequestTimedOut):
            continue
        for item in answer.results:
            for found in item.topics:
                is_full = item.usable_bytes == 0
                logs |= {
                    p.partition_index: LeaderLog(p.partition_size, is_full)
                    for p in found.partitions
                    if not p.is_future_key
                }
    return logs


async def api_versions(cluster: Cluster, node_id: int = ANY_BROKER) -> list[ApiVersionRange]:
    """List the APIs that a broker serves, sorted by key."""
    connection = await cluster.connection(node_id)
    found = []
    known_keys = {int(key): key for key in API_INFO}
    for number, (lowest, highest) in sorted(connection.versions.items()):
        key = known_keys.get(number)
        try:
            usable = None if key is None else connection.version_for(key)
        except UnsupportedVersion:
            usable = None
        name = "" if key is None else "".join(part.title() for part in API_INFO[key].name.split("_"))
        found.append(ApiVersionRange(number, name, lowest, highest, usable))
    return found


def _node_for(kind: ConfigResourceType, name: str) -> int:
    """Return the broker to ask: a broker's settings are known to itself only, a topic's to every broker."""
    return int(name) if kind in {ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER} and name else ANY_BROKER


def _outcome(name: str, error_code: int, message: str | None) -> Outcome:
    if error_code == ErrorCode.NONE:
        return Outcome(name)
    return Outcome(name, error_for(error_code, message or error_for(error_code).message))


def _timeout_ms(cluster: Cluster) -> int:
    return int(cluster.options.request_timeout_s * 1000)
