"""Gathers the facts about a cluster once, by Kafka's APIs: any Kafka has them. A refusal is noted, not raised."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ottla.client import admin, groups, quota_admin, transaction_admin
from ottla.client.cluster import Cluster
from ottla.client.cluster_health import check_cluster
from ottla.client.errors import CannotConnect
from ottla.client.group_lag import GroupLag, describe_lags, lag_seconds
from ottla.client.metadata import BrokerNode, TopicInfo
from ottla.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, list_offsets
from ottla.client.replica_admin import replica_sizes
from ottla.core.clock import SystemClock
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.core.ids import TopicPartition
from ottla.core.settings import ConfigResourceType
from ottla.diagnosis.batches import sample_batches
from ottla.diagnosis.events import read_events
from ottla.diagnosis.facts import Facts, GroupFacts, TopicFacts

T = TypeVar("T")

TOPICS_MAX, GROUPS_MAX = 200, 200
"""Of more topics and groups `doctor` looks at these first."""

_AT_ONCE = 16
_ANSWER_S, _HANDSHAKE_S = 10.0, 3.0
_DAY_S = 86_400
EVENTS_S = 7 * _DAY_S


class Scope(NamedTuple):
    """The topics and groups to look at; None is all."""

    topics: Collection[str] | None = None
    groups: Collection[str] | None = None
    samples: bool = False  # whether to read the last batches of topics


async def gather(cluster: Cluster, scope: Scope, *, token: str = "", now_ms: int | None = None) -> Facts:
    """Gather the facts. Raises CannotConnect if no broker answers."""
    now_ms = SystemClock().wall_ms() if now_ms is None else now_ms
    facts = Facts(now_ms, await check_cluster(cluster))
    nodes = [node for node in facts.described.nodes if node.node_id not in facts.health.unreachable]
    await _read_brokers(cluster, facts, nodes)
    read = await read_events(
        cluster, nodes, facts.broker_configs, now_ms=now_ms, since_ms=now_ms - EVENTS_S * 1000, token=token
    )
    facts.events, facts.clock_skews_s = read.events, read.clock_skews_s
    facts.unread |= read.unread
    await _read_groups(cluster, facts, scope)
    await _read_topics(cluster, facts, scope)
    facts.quotas = await _noted(facts, "quotas", quota_admin.list_quotas(cluster, {})) or ()
    return facts


async def _noted(facts: Facts, what: str, work: Awaitable[T]) -> T | None:
    """Return the result of a request; None if it fails, which is noted."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await work
    except KafkaError as error:
        facts.unread[what] = f"{error.code.name}: {error.message}"
    except CannotConnect as error:
        facts.unread[what] = str(error)
    except TimeoutError:
        facts.unread[what] = f"no answer within {_ANSWER_S:g} s"
    return None


async def _read_brokers(cluster: Cluster, facts: Facts, nodes: Sequence[BrokerNode]) -> None:
    async def settings(node: BrokerNode) -> None:
        name = str(node.node_id)
        entries = await _noted(
            facts, f"settings of broker {name}", admin.describe_configs(cluster, ConfigResourceType.BROKER, name)
        )
        facts.broker_configs[node.node_id] = {entry.name: entry.value or "" for entry in entries or ()}

    async def versions(node: BrokerNode) -> tuple[int, Mapping[str, int]]:
        ranges = await _noted(facts, f"versions of broker {node.node_id}", admin.api_versions(cluster, node.node_id))
        return node.node_id, {api.name or str(api.key): api.max_version for api in ranges or ()}

    await asyncio.gather(*map(settings, nodes))
    facts.versions = dict(await asyncio.gather(*map(versions, nodes)))
    if cluster.options.security.tls is not None:
        days = await asyncio.gather(*(certificate_days(node, facts.now_ms) for node in nodes))
        facts.certificates = {node.node_id: left for node, left in zip(nodes, days, strict=True) if left is not None}


async def certificate_days(node: BrokerNode, now_ms: int) -> float | None:
    """Return the days until a broker's certificate expires; None if there is none to be seen."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is looked at, and nothing is sent
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            _, writer = await asyncio.open_connection(node.host, node.port, ssl=context)
    except (OSError, TimeoutError):
        return None
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
    return None if not der else _days_left(der, now_ms)


def _days_left(der: bytes, now_ms: int) -> float | None:
    try:
        from ottla.security.certificates import read_certificates, summarize
    except ModuleNotFoundError:  # the extra `keystores` is not installed
        return None
    return summarize(read_certificates(der)[0], now_ms=now_ms).days_left


# ---- Groups


async def _read_groups(cluster: Cluster, facts: Facts, scope: Scope) -> None:
    listed = await _noted(facts, "groups", groups.list_groups(cluster)) or []
    facts.all_groups = [group.group_id for group in listed]
    facts.group_states = {group.group_id: group.state for group in listed}
    chosen = [name for name in facts.all_groups if scope.groups is None or name in scope.groups][:GROUPS_MAX]
    lags = await _noted(facts, "lags of groups", describe_lags(cluster, chosen)) or {}
    for name, lag in lags.items():
        if isinstance(lag, GroupLag):
            ages = await _noted(
                facts, f"lag of group {name} in seconds", lag_seconds(cluster, lag, now_ms=facts.now_ms)
            )
            facts.groups[name] = GroupFacts(lag, ages or {})
        else:
            facts.unread[f"group {name}"] = f"{lag.code.name}: {lag.message}"


# ---- Topics


async def _read_topics(cluster: Cluster, facts: Facts, scope: Scope) -> None:
    names = None if scope.topics is None else {*scope.topics}
    if names is not None:
        names |= {tp.topic for group in facts.groups.values() for tp in group.lag.partitions}
    infos = [topic for topic in facts.health.topics if names is None or topic.name in names]
    infos.sort(key=lambda topic: (topic.internal, topic.name))
    for name in (names or set()) - {topic.name for topic in infos}:
        known = (await cluster.refresh([name])).topics.get(name)
        if known is not None and known.error_code != ErrorCode.NONE:
            facts.unread[f"topic {name}"] = ErrorCode(known.error_code).name
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one(info: TopicInfo) -> None:
        async with at_once:
            facts.topics[info.name] = await _topic(cluster, facts, info, has_sample=scope.samples)

    await asyncio.gather(*map(one, infos[:TOPICS_MAX]))
    alive = [node.node_id for node in facts.described.nodes if node.node_id not in facts.health.unreachable]
    sizes = await _noted(facts, "sizes of replicas", replica_sizes(cluster, alive)) or {}
    for topic in facts.topics.values():
        partitions = [TopicPartition(topic.info.name, p.partition) for p in topic.info.partitions]
        largest = {tp: max((by.get(tp, -1) for by in sizes.values()), default=-1) for tp in partitions}
        topic.sizes = {tp: size for tp, size in largest.items() if size >= 0}


async def _topic(cluster: Cluster, facts: Facts, info: TopicInfo, *, has_sample: bool) -> TopicFacts:
    topic = TopicFacts(info)
    if info.error_code != ErrorCode.NONE:
        topic.refusal = error_for(info.error_code).message
        return topic
    what = f"topic {info.name}"
    entries = await _noted(
        facts, f"settings of {what}", admin.describe_configs(cluster, ConfigResourceType.TOPIC, info.name)
    )
    topic.config = {entry.name: entry.value or "" for entry in entries or ()}
    partitions = [TopicPartition(info.name, p.partition) for p in info.partitions if p.leader_id >= 0]

    async def offsets(at: int, *, read_committed: bool = False) -> dict[TopicPartition, int]:
        work = list_offsets(cluster, dict.fromkeys(partitions, at), read_committed=read_committed)
        results = await _noted(facts, f"offsets of {what}", work) or {}
        value = "timestamp_ms" if at == MAX_TIMESTAMP else "offset"
        return {tp: getattr(result, value) for tp, result in results.items()}

    topic.starts = await offsets(EARLIEST)
    topic.ends = await offsets(LATEST)
    topic.refusal = facts.unread.get(f"offsets of {what}", "")
    if topic.refusal:
        return topic
    topic.stable_ends = await offsets(LATEST, read_committed=True)
    topic.newest_ms = await offsets(MAX_TIMESTAMP)
    held = [tp for tp, end in topic.stable_ends.items() if end < topic.ends.get(tp, end)]
    if held:
        topic.open_transactions = await _noted(facts, f"transactions of {what}", _open_on(cluster, held)) or ()
    if has_sample:
        topic.sample = await _noted(facts, f"batches of {what}", sample_batches(cluster, topic)) or topic.sample
    return topic


async def _open_on(cluster: Cluster, partitions: Sequence[TopicPartition]) -> list[transaction_admin.OpenTransaction]:
    """Return the open transactions with the ids of their producers, where a coordinator knows them."""
    transactions = await transaction_admin.open_transactions(cluster, partitions)
    producer_ids = sorted({opened.producer_id for opened in transactions})
    listed = await transaction_admin.list_transactions(cluster, producer_ids=producer_ids) if producer_ids else []
    names = {listing.producer_id: listing.transactional_id for listing in listed}
    return [replace(opened, transactional_id=names.get(opened.producer_id)) for opened in transactions]
